"""How logits become probabilities: by the softmax, or each by its own sigmoid."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import faithscope as fs
from commands import fails
from conftest import SoftmaxLinear, randn, tiny_vit, toy
from faithscope.models.model import log_probabilities
from faithscope.probes.perturb import precision
from families import hf, refused, seeded

IMAGES = randn(4, 3, 10, 10, seed=3)
RELEVANCE = ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp")
GRADIENTS = ("gradient", "input_x_gradient", "integrated_gradients(steps=3)", "captum:Saliency")


class Squeezed(nn.Module):
    """One logit an image in the shape [B], a number for a single image."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).squeeze()


def one_logit(shape: str = "[B, 1]") -> nn.Module:
    module = toy(classes=1, seed=5)
    return module if shape == "[B, 1]" else Squeezed(module)


def both_sides(module: SoftmaxLinear) -> SoftmaxLinear:
    """Two classes with the logits -z and z."""
    weight, bias = module.weight.detach(), module.bias.detach()
    return SoftmaxLinear(torch.cat([-weight, weight]), torch.cat([-bias, bias]))


# What a probability is


@pytest.mark.parametrize("value", [-800.0, -40.0, -1.0, 0.0, 2.0, 40.0])
def test_log_probabilities_are_stable_and_those_of_both_classes_belong_together(value):
    logits = torch.tensor([[-value, value]], dtype=torch.float64)
    low, high = log_probabilities(logits, "sigmoid")[0].tolist()
    assert high == pytest.approx(min(0.0, value) - math.log1p(math.exp(-abs(value))), rel=1e-14)
    assert math.exp(low) + math.exp(high) == pytest.approx(1, abs=1e-15)


def test_half_precision_is_read_in_float32():
    for output in ("softmax", "sigmoid"):
        made = log_probabilities(torch.tensor([[3.0, -9.0]], dtype=torch.float16), output)
        assert made.dtype == torch.float32


@pytest.mark.parametrize("shape", ["[B]", "[B, 1]"])
def test_one_logit_is_p_and_one_minus_p(shape):
    module = one_logit(shape)
    z = toy(classes=1, seed=5)(IMAGES)[:, 0]
    maps = {"mine": randn(4, 10, 10, seed=1)}
    expected = {0: torch.sigmoid(-z), 1: torch.sigmoid(z)}
    for target, p in expected.items():
        result = fs.evaluate(module, IMAGES, maps=maps, target=target, output="sigmoid")
        found = np.exp(result.samples["log_p0"].to_numpy())
        np.testing.assert_allclose(found, p.detach().numpy(), rtol=1e-12)
        assert result.samples["predicted"].to_pylist() == (z > 0).long().tolist()
    assert torch.allclose(expected[0] + expected[1], torch.ones(4, dtype=torch.float64))


def test_a_single_image_of_a_model_that_squeezes_is_read_too():
    model = fs.wrap(one_logit("[B]"), output="sigmoid")
    assert model.logits(IMAGES[:1]).shape == (1, 2)
    torch.testing.assert_close(model.logits(IMAGES[:1]), model.logits(IMAGES)[:1])


def test_every_score_of_one_logit_is_that_of_two_with_half_the_size():
    """sigmoid(z) is the softmax of (-z/2, z/2)."""
    module = toy(classes=1, seed=5)
    two = both_sides(module)
    two.weight.data, two.bias.data = two.weight.data / 2, two.bias.data / 2
    options = {"metrics": "registered", "k": 5, "maps": {"mine": randn(4, 10, 10, seed=1)}}
    options["labels"] = [1, 0, 1, 1]
    one = fs.evaluate(module, IMAGES, output="sigmoid", **options)
    other = fs.evaluate(two, IMAGES, **options)
    for metric in one.metrics:
        np.testing.assert_allclose(
            one.values("mine", metric), other.values("mine", metric), rtol=0, atol=1e-12
        )
    assert one.manifest.data.accuracy == other.manifest.data.accuracy


def test_several_labels_are_watched_one_at_a_time():
    """The probability of a label does not depend on the other logits; the highest is the target."""
    module, shifted = toy(seed=2), toy(seed=2)
    logits = module(IMAGES)
    best = logits.argmax(-1)
    shifted.bias.data[:] = torch.tensor([-50.0, 0, 0, 0])
    maps = {"mine": randn(4, 10, 10, seed=1)}
    result = fs.evaluate(module, IMAGES, maps=maps, output="sigmoid", metrics="registered")
    assert result.samples["target"].to_pylist() == best.tolist()
    expected = logsigmoid(logits.gather(1, best[:, None])[:, 0]).detach()
    np.testing.assert_allclose(result.samples["log_p0"].to_numpy(), expected.numpy(), rtol=1e-12)
    given = {"target": 2, "maps": maps, "output": "sigmoid", "metrics": ("saco", "log_odds")}
    same = [fs.evaluate(held, IMAGES, **given) for held in (module, shifted)]
    for metric in given["metrics"]:
        assert (same[0].values("mine", metric) == same[1].values("mine", metric)).all()


def test_the_predicted_label_is_that_of_the_highest_logit_even_where_both_are_certain():
    weight = torch.zeros(3, 300, dtype=torch.float64)
    module = SoftmaxLinear(weight, torch.tensor([900.0, 990.0, 0.0], dtype=torch.float64))
    maps = {"mine": randn(4, 10, 10, seed=1)}
    result = fs.evaluate(module, IMAGES, maps=maps, output="sigmoid", metrics=("auc", "aopc"))
    assert set(result.samples["predicted"].to_pylist()) == {1}
    assert set(result.values("mine", "auc")) == {1.0} and set(result.values("mine", "aopc")) == {0}


def test_saco_log_odds_and_auc_are_the_definitions_on_p(monkeypatch):
    """By hand, from the probabilities of every perturbed image of one map."""
    module, salience = toy(seed=2), randn(1, 10, 10, seed=9)
    image = IMAGES[:1]
    order = salience.flatten().argsort(descending=True, stable=True)
    target = int(module(image).argmax())
    curve, hits = [], []
    for level in range(6):
        removed = torch.zeros(100, dtype=torch.bool)
        removed[order[: level * 20]] = True
        mean = image.mean((2, 3), keepdim=True)
        left = torch.where(removed.reshape(1, 1, 10, 10), mean, image)
        logits = module(left)[0].detach()
        curve.append(float(torch.sigmoid(logits[target])))
        hits.append(float(logits.argmax() == target))
    p = np.array(curve)
    result = fs.evaluate(
        module,
        image,
        maps={"mine": salience},
        output="sigmoid",
        metrics=("aopc(steps=5)", "log_odds(steps=5)", "deletion(steps=5)", "auc(step=20)"),
    )
    expected = {
        "aopc(steps=5)": (p[0] - p).mean(),
        "log_odds(steps=5)": np.log(p / p[0]).mean(),
        "deletion(steps=5)": np.trapezoid(p, dx=0.2),
        "auc(step=20)": np.trapezoid(hits, dx=0.2),
    }
    for metric, value in expected.items():
        assert result.values("mine", metric)[0] == pytest.approx(value, abs=1e-12)


def test_fp16_is_tried_with_the_same_probabilities(monkeypatch):
    """Near z = 0 a sigmoid moves a quarter as much as a logit; a softmax would be certain."""
    module = fs.wrap(one_logit(), output="sigmoid")
    exact, fast = (precision._forward(module, name) for name in ("fp64", "fp32"))
    found = precision._deviation(exact, fast, IMAGES)
    with torch.no_grad():
        logits = module.logits(IMAGES)
        rough = copy.deepcopy(module.module).float()(IMAGES.float())
    rough = torch.cat([-rough, rough], 1).double()
    best = logits.argmax(-1, keepdim=True)
    expected = (logsigmoid(rough) - logsigmoid(logits)).gather(1, best).abs().max()
    assert found == pytest.approx(float(expected), abs=1e-7)


# Explanations


@pytest.mark.parametrize("method", GRADIENTS)
def test_a_gradient_of_target_0_is_that_of_minus_z(method):
    module = one_logit()
    maps = [
        fs.explain(module, IMAGES, method, target=target, output="sigmoid") for target in (0, 1)
    ]
    two = both_sides(module)
    for target in (0, 1):
        expected = fs.explain(two, IMAGES, method, target=target)
        torch.testing.assert_close(maps[target], expected, rtol=1e-12, atol=1e-15)
    assert float(maps[1].abs().max()) > 0
    if method not in ("gradient", "captum:Saliency"):
        torch.testing.assert_close(maps[0], -maps[1])


def two_sided_vit(module: nn.Module) -> nn.Module:
    """The same ViT with the rows -w and w in its head."""
    other = copy.deepcopy(module)
    head = nn.Linear(module.head.in_features, 2).to(module.head.weight.dtype)
    head.weight.data = torch.cat([-module.head.weight.data, module.head.weight.data])
    head.bias.data = torch.cat([-module.head.bias.data, module.head.bias.data])
    other.head, other.num_classes = head, 2
    return other


@pytest.mark.parametrize("method", ["all", "lrp(rules=conserving)"])
@pytest.mark.parametrize("target", [0, 1, None])
def test_every_method_explains_one_logit_as_two(method, target):
    module, images = tiny_vit(num_classes=1), randn(3, 3, 16, 16, seed=1)
    one = fs.explain(fs.wrap(module, output="sigmoid"), images, [method], target=target)
    two = fs.explain(two_sided_vit(module), images, [method], target=target)
    for label, maps in two.items():
        torch.testing.assert_close(one[label], maps, rtol=1e-12, atol=0, msg=label)


@pytest.mark.parametrize("target", [0, 1])
def test_relevance_of_one_logit_finds_its_layer_behind_other_shapes(target):
    module, images = tiny_vit(num_classes=1), randn(3, 3, 16, 16, seed=1)
    plain = fs.wrap(module, output="sigmoid")
    squeezed = fs.wrap(Squeezed(copy.deepcopy(module)), output="sigmoid")
    for method in RELEVANCE:
        expected = fs.explain(plain, images, method, target=target)
        torch.testing.assert_close(fs.explain(squeezed, images, method, target=target), expected)


def test_relevance_of_a_logit_that_no_layer_gives_is_refused():
    class Turned(Squeezed):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tanh(self.inner(images)).square()

    model = fs.wrap(Turned(tiny_vit(num_classes=1)), output="sigmoid")
    with refused("for which relevance has no rule"):
        fs.explain(model, randn(3, 3, 16, 16, seed=1), "lrp")


def test_relevance_of_probabilities_is_refused_with_the_cause():
    module = nn.Sequential(tiny_vit(), nn.Softmax(-1))
    for method, words in {
        "lrp": "'softmax', for which relevance has no rule",
        "conservative_lrp": "Its output is a softmax, which conservative_lrp holds constant",
    }.items():
        with warnings.catch_warnings(), refused(words):
            warnings.simplefilter("ignore")
            fs.explain(module, randn(3, 3, 16, 16, seed=1), method)


def test_relevance_of_both_targets_differs():
    model = fs.wrap(tiny_vit(num_classes=1), output="sigmoid")
    images = randn(3, 3, 16, 16, seed=1)
    for method in RELEVANCE:
        zero, one = (fs.explain(model, images, method, target=target) for target in (0, 1))
        assert not torch.allclose(zero, one), method


# CNNs


def hf_cnn(kind: str, **options: object) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        hidden_sizes=[8, 16], depths=[1, 1], num_labels=3, **options
    )
    return getattr(transformers, f"{kind}ForImageClassification")(config)


CNNS = {
    "timm resnet": lambda: timm.create_model("test_resnet", num_classes=3),
    "timm convnext": lambda: timm.create_model("test_convnext", num_classes=3),
    "timm efficientnet": lambda: timm.create_model("test_efficientnet", num_classes=3),
    "torchvision resnet": lambda: torchvision.models.ResNet(
        torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3
    ),
    "torchvision convnext": lambda: torchvision.models.ConvNeXt(
        [torchvision.models.convnext.CNBlockConfig(8, None, 2)], num_classes=3
    ),
    "hf resnet": lambda: hf_cnn("ResNet", embedding_size=8, layer_type="basic"),
    "hf convnext": lambda: hf_cnn("ConvNext", num_stages=2),
}


@pytest.mark.parametrize("name", CNNS)
@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_cnns_are_explained_and_measured(name, output):
    module = seeded(CNNS[name], torch.float32)
    images = randn(2, 3, 64, 64, seed=4, dtype=torch.float32)
    methods = ["gradient", "input_x_gradient", "integrated_gradients(steps=2)", "captum:Saliency"]
    result = fs.evaluate(module, images, methods, ["saco", "aopc"], output=output, random_draws=1)
    assert result.manifest.protocol["output"] == output
    assert {*methods, "random"} <= {*result.methods}
    for method in methods:
        assert np.isfinite(result.values(method, "saco")).all()
    with refused("choose methods that need no attention"):
        fs.explain(module, images, "rollout")


# Who says so


def test_the_model_says_it_and_a_run_may_say_otherwise(tmp_path):
    model = fs.wrap(toy(), output="sigmoid")
    maps = {"mine": randn(4, 10, 10, seed=1)}
    said = fs.evaluate(model, IMAGES, maps=maps, metrics="aopc")
    assert said.manifest.protocol["output"] == "sigmoid"
    other = fs.evaluate(model, IMAGES, maps=maps, metrics="aopc", output="softmax")
    assert other.manifest.protocol["output"] == "softmax"
    assert (said.values("mine", "aopc") != other.values("mine", "aopc")).all()
    assert model.output == "sigmoid"
    page = said.report(tmp_path / "page.html").read_text("utf-8")
    assert "<dt>output</dt>" in page and "sigmoid of the class" in page
    assert said.rescore("deletion").manifest.protocol["output"] == "sigmoid"
    with refused("output"):
        fs.compare(said, fs.evaluate(model, IMAGES, maps=maps, output="softmax", fill="blur"))


def test_hugging_face_says_it():
    assert fs.wrap(hf("ViT")).output == "softmax"
    assert fs.wrap(hf("ViT", problem_type="multi_label_classification")).output == "sigmoid"
    single = fs.wrap(hf("ViT", num_labels=1), classes=["cat"])
    assert single.output == "sigmoid" and single.class_name(0) == "not cat"
    assert single.class_name(1) == "cat"
    assert fs.wrap(hf("ViT", num_labels=1, problem_type="regression")).output == "softmax"
    assert fs.wrap(hf("ViT", num_labels=1), output="softmax").output == "softmax"


def test_a_saved_model_with_one_label_runs_by_its_name(tmp_path):
    hf("ViT", num_labels=1, id2label={0: "tumour"}).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    model = fs.load_model(f"hf:{tmp_path}")
    assert model.output == "sigmoid" and model.classes == ("not tumour", "tumour")
    result = fs.evaluate(model, randn(2, 3, 32, 32), "rollout", "aopc", random_draws=0)
    assert result.manifest.protocol["output"] == "sigmoid"
    assert fs.load_model(f"hf:{tmp_path}", output="softmax").output == "softmax"


def test_old_runs_are_of_the_softmax(tmp_path):
    from faithscope.runs.plan import Plan

    maps = {"mine": randn(4, 10, 10, seed=1)}
    content = fs.prepare(toy(), IMAGES, maps=maps, metrics="aopc").plan.content()
    content["request"].pop("output")
    assert Plan.read(content).protocol["output"] == "softmax"


# What is refused


def test_one_output_and_nothing_said_is_refused_with_what_to_say():
    sentence = ("one output, whose softmax is always 1", "say output='sigmoid'", "--output sigmoid")
    for shape in ("[B]", "[B, 1]"):
        with refused(*sentence):
            fs.evaluate(one_logit(shape), IMAGES, "gradient", "saco")
        with refused(*sentence):
            fs.explain(one_logit(shape), IMAGES, "gradient")


def test_odd_words_and_targets_are_refused():
    with refused("Unknown output 'sigmoidal': did you mean 'sigmoid'? Valid: sigmoid, softmax"):
        fs.wrap(toy(), output="sigmoidal")
    with refused("output"):
        fs.load_model("bundled:cifar10_vit", output=3)
    with refused("output"):
        fs.evaluate(toy(), IMAGES, "gradient", output="logit")
    with refused("The class 2 is not a class of the model: its classes are 0 to 1"):
        fs.evaluate(one_logit(), IMAGES, "gradient", "aopc", target=2, output="sigmoid")
    with refused("got shape [4, 4]: where several are true, give the one to judge by"):
        fs.evaluate(toy(), IMAGES, "gradient", labels=torch.eye(4), output="sigmoid")
    assert "output" in fails("evaluate", "--model", "a:b", "--data", "c", "--output", "run/")


@pytest.mark.parametrize(
    ("output", "last"), [("softmax", nn.Softmax(1)), ("sigmoid", nn.Sigmoid())]
)
def test_a_model_that_returns_probabilities_is_warned_of(output, last):
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    images = torch.randn(3, 3, 8, 8)
    asked = {"methods": "gradient", "metrics": "saco", "k": 2, "output": output}
    line = f"Sequential seems to return probabilities, not logits: remove its last {output}"
    with pytest.warns(UserWarning, match=line):
        result = fs.evaluate(nn.Sequential(*net, last), images, **asked)
    assert result.warnings()[0].startswith(line)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fs.evaluate(net, images, **asked).warnings()
