"""One refusal does not end a run: the rest is run, and what is left out is named with a reason."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import faithscope as fs
from commands import fails, run
from conftest import randn, tiny_vit, toy
from faithscope.errors import FaithscopeError
from faithscope.methods import METHODS, resolve_methods, try_methods
from faithscope.models import PassCounter
from families import refused

IMAGES = randn(3, 3, 16, 16)
OF_A_VIT = {
    held.label
    for held in METHODS.values()
    if held.in_papers and held.label not in ("integrated_gradients", "random")
}


@pytest.fixture(scope="module")
def cnn() -> fs.Model:
    """A model without attention and patches."""
    return fs.wrap(toy(16, 16), name="plain")


def moody(evidence: object) -> Tensor:
    raise FaithscopeError("Its attention is not what it gave: choose another.", reason="it is odd")


def refusing(**traits: object) -> fs.Method:
    """A method that is refused only when it looks at the model."""
    return fs.Method("moody", moody, **{"granularity": "patch", **traits})


def scored(model: object, methods: object, **options: object) -> fs.Result:
    return fs.evaluate(model, IMAGES, methods, "saco", random_draws=1, **options)


@pytest.mark.parametrize("named", ["all", ["all"], ["rollout", "integrated_gradients(steps=2)"]])
def test_the_rest_is_run_and_what_is_left_out_is_named_with_its_reason(cnn, named):
    result = scored(cnn, named)
    own = [name for name in result.methods if not name.startswith("random")]
    assert [name.partition("(")[0] for name in own] == ["integrated_gradients"]
    wanted = {"rollout"} if len(named) == 2 else OF_A_VIT
    assert {held.name for held in result.left_out} == wanted
    assert all("no attention" in held.why for held in result.left_out)
    assert result.manifest.plan.left_out == result.left_out
    (said,) = [line for line in result.warnings() if "left out" in line]
    assert "the model has no attention" in said and all(name in said for name in wanted)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("rollout", ["'rollout' needs a stack of attention blocks, which plain lacks: it has no"]),
        (["rollout"], ["'rollout' needs a stack of attention blocks"]),
        (["rollout", "attcat"], ["'rollout' needs a stack of attention blocks"]),
        (["random", "attcat", "rollout"], ["'attcat' needs a stack of attention blocks"]),
        (["rolout", "gradient"], ["did you mean 'rollout'"]),
        (["gradient", "gradient", "rollout"], ["'gradient' is named twice"]),
        (["gradient", "rollout(layers=3)"], ["layers"]),
    ],
)
def test_nothing_left_to_run_and_wrong_names_stay_errors(cnn, named, words):
    with refused(*words):
        scored(cnn, named)


def test_strict_raises_the_refusal(cnn):
    with refused("'rollout' needs a stack of attention blocks", "fs.wrap"):
        scored(cnn, ["gradient", "rollout"], strict=True)
    with refused("needs a stack of attention blocks"):
        scored(cnn, "all", strict=True)
    assert not scored(cnn, ["gradient"], strict=True).left_out


def test_given_maps_are_something_left_to_run(cnn):
    maps = {"mine": randn(3, 16, 16)}
    result = scored(cnn, ["rollout", "attcat"], maps=maps)
    assert result.methods == ["mine", "random"]
    assert [held.name for held in result.left_out] == ["rollout", "attcat"]
    with refused("'rollout' needs a stack of attention blocks"):
        scored(cnn, "rollout", maps=maps)
    with refused("'rollout' needs a stack of attention blocks"):
        scored(cnn, ["rollout", "attcat"], maps=maps, strict=True)


def test_a_model_without_gradients_keeps_what_needs_none():
    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = tiny_vit()

        def forward(self, images: Tensor) -> Tensor:
            with torch.no_grad():
                return self.vit(images)

    model = fs.wrap(Cut().eval(), name="cut")
    result = scored(model, ["gradient", "integrated_gradients(steps=2)", "raw_attention"])
    assert "raw_attention" in result.methods
    assert {(held.name, held.why) for held in result.left_out} == {
        ("gradient", "it gives no gradients"),
        ("integrated_gradients(steps=2)", "it gives no gradients"),
    }
    with refused("cut gives no gradients"):
        scored(model, "integrated_gradients(steps=2)")


def test_random_patches_are_refused_where_there_are_none(cnn):
    result = scored(cnn, ["gradient", "random_patch"])
    assert result.methods == ["gradient", "random"]
    assert [held.name for held in result.left_out] == ["random_patch"]


def test_maps_by_patch_are_refused_where_there_are_none(cnn):
    fine = fs.Method("fine", lambda evidence: evidence.images.sum(1), granularity="patch")
    result = scored(cnn, [fine, "gradient"])
    assert result.methods == ["gradient", "random"]
    assert result.warnings() == [
        "fine is left out: it needs whole patches, but plain has none known."
    ]


@pytest.mark.parametrize("needs", [{"attention"}, {"relevance"}, set()])
def test_a_refusal_while_explaining_is_found_by_the_trial(vit, needs):
    """Views check themselves only when they are read; the others' trial is not spoilt."""
    mine = refusing(needs=frozenset(needs))
    result = scored(vit, ["rollout", mine, "lrp", "gradient"])
    assert [held.model_dump() for held in result.left_out] == [
        {"name": "moody", "why": "it is odd"}
    ]
    plain = scored(vit, ["rollout", "lrp", "gradient"])
    assert result.methods == plain.methods
    for method in plain.methods:
        assert (result.values(method, "saco") == plain.values(method, "saco")).all()
    with refused("not what it gave", "choose another"):
        scored(vit, ["rollout", mine], strict=True)
    with refused("not what it gave"):
        scored(vit, mine)


def test_a_trial_of_what_is_allowed_is_one_pass(vit):
    counter = PassCounter()
    methods = resolve_methods(["rollout", "attcat", "raw_attention", "transformer_attribution"])
    with counter.watch(vit.module):
        trial = try_methods(vit, IMAGES, methods, keys=["a", "b", "c"])
    assert (counter.count, trial.refused) == (1, {})
    assert trial.shapes == {method.label: (4, 4) for method in methods}
    pixelwise = resolve_methods(["gradient", "integrated_gradients", "captum:Saliency", "random"])
    with counter.watch(vit.module):
        assert list(try_methods(vit, IMAGES, pixelwise, keys=["a", "b", "c"]).shapes) == [
            "captum:Saliency"
        ]
    assert counter.count == 3  # captum's own; the gradient stands for all that read gradients


def test_what_somebodys_code_raises_is_no_refusal(vit):
    """It is tried on the next image; only the image it fails on is lost."""
    seen = []

    def picky(module: object, images: Tensor, target: Tensor) -> Tensor:
        seen.append(len(images))
        if (images[:, 0, 0, 0] == IMAGES[0, 0, 0, 0]).any():
            raise KeyError("a face")
        return images.sum(1)[:, ::4, ::4]

    result = scored(vit, [picky, "rollout"])
    assert seen[:2] == [1, 1] and not result.left_out
    assert [(item.sample, item.method) for item in result.manifest.data.failed] == [("0", "picky")]
    assert result.manifest.methods["picky"].granularity == "patch"


def crash(module: object, images: Tensor, target: Tensor) -> Tensor:
    raise ZeroDivisionError("of mine")


def test_a_method_that_fails_on_every_image_is_left_out(vit):
    result = scored(vit, [crash, "rollout"])
    line = "crash is left out: it fails on every image (ZeroDivisionError: of mine)."
    assert result.warnings() == [line]
    assert "crash" not in result.methods and not result.manifest.data.failed
    for methods, options in (([crash, "rollout"], {"strict": True}), (crash, {}), ([crash], {})):
        with refused("'crash' fails on every image", "of mine"):
            scored(vit, methods, **options)
    with pytest.warns(UserWarning, match="crash is left out: it fails on every image"):
        assert list(fs.explain(vit, IMAGES, [crash, "rollout"])) == ["rollout"]
    with refused("'crash' fails on every image", "of mine"):
        fs.explain(vit, IMAGES, crash)


def test_what_captum_cannot_explain_is_left_out_in_its_words(vit):
    result = scored(vit, ["rollout", "captum:LRP"])
    (line,) = result.warnings()
    start, reason = line.split(" (", 1)
    assert start == f"captum:LRP is left out: captum cannot explain {vit.name}"
    assert reason.endswith("layer).") and " … " in reason  # cut between words
    with refused("'captum:LRP' cannot explain", "choose another method"):
        scored(vit, "captum:LRP")


def test_pages_and_sentences_name_what_is_left_out(cnn, tmp_path):
    result = scored(cnn, ["gradient", "rollout", "attcat"], out=tmp_path / "run")
    line = "rollout and attcat are left out: the model has no attention"
    assert result.warnings()[0].startswith(line)
    assert line in result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    again = fs.load_result(tmp_path / "run")
    assert again.left_out == result.left_out
    assert line in again.rescore("saco").warnings()[0]
    with refused("'rollout' needs a stack of attention blocks"):  # also of a run that is finished
        scored(cnn, ["gradient", "rollout", "attcat"], out=tmp_path / "run", strict=True)


def test_explain_gives_what_the_model_allows_and_warns_of_the_rest(cnn):
    with pytest.warns(UserWarning, match="rollout is left out: the model has no attention"):
        maps = fs.explain(cnn, IMAGES, ["gradient", "rollout"])
    assert isinstance(maps, dict) and list(maps) == ["gradient"]
    with pytest.warns(UserWarning, match="left out"):
        assert set(fs.explain(cnn, IMAGES, "all")) == {"integrated_gradients", "random"}
    for named in ("rollout", ["rollout"], ["rollout", "random"]):
        with refused("needs a stack of attention blocks"):
            fs.explain(cnn, IMAGES, named)
    with refused("needs a stack of attention blocks"):
        fs.explain(cnn, IMAGES, ["gradient", "rollout"], strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.explain(fs.wrap(tiny_vit()), IMAGES, ["gradient", "rollout"], strict=True)


# The command line

MODEL = "timm:test_resnet(num_classes=4)"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "mine.yaml"
    file.write_text(
        f"model: '{MODEL}'\npretrained: false\ndata: bundled:cifar10\nlimit: 1\nmetrics: [saco]\n"
        "methods: [rollout, gradient]\nrandom_draws: 1\nbatch_size: 8\n"
    )
    return file


def test_the_command_line_names_them_before_and_after(tmp_path):
    command = ("evaluate", "--model", MODEL, "--no-pretrained", "--data", "bundled:cifar10")
    quick = ("--limit", 1, "--metrics", "saco", "--random-draws", 1, "--batch-size", 8)
    told = run(*command, *quick, "--methods", "gradient,rollout,attcat", "--json")
    data = json.loads(told.stdout)
    assert [held["name"] for held in data["left_out"]] == ["rollout", "attcat"]
    line = "rollout and attcat are left out: the model has no attention"
    assert line in told.stderr and any(line in said for said in data["warnings"])
    assert line in run(*command, *quick, "--methods", "gradient,rollout,attcat").stdout
    assert "needs a stack of attention blocks" in fails(
        *command, *quick, "--methods", "gradient,rollout", "--strict"
    )
    assert "needs a stack of attention blocks" in fails(*command, *quick, "--methods", "rollout")


def test_a_dry_run_of_a_study_names_them_and_strict_refuses(study, tmp_path):
    out = ("--out", tmp_path / "runs")
    told = run("run", study, "--dry-run", "--json", *out)
    (cost,) = json.loads(told.stdout).values()
    assert [held["name"] for held in cost["left_out"]] == ["rollout"]
    assert "rollout is left out: the model has no attention" in told.stderr
    assert "needs a stack of attention blocks" in fails("run", study, "--dry-run", "--strict", *out)
    assert "rollout is left out" in run("run", study, *out, "--yes").stdout


def test_explain_draws_the_rest(tmp_path):
    torch.save(fs.load_model(MODEL, pretrained=False).module.state_dict(), tmp_path / "w.pt")
    command = ("explain", "bundled:cifar10:7", "--model", MODEL, "--checkpoint", tmp_path / "w.pt")
    told = run(*command, "--methods", "gradient,rollout", "--out", tmp_path / "a.png", "--json")
    data = json.loads(told.stdout)
    assert list(data["saco"]) == ["gradient"]
    assert [held["name"] for held in data["left_out"]] == ["rollout"]
    assert told.stderr.count("rollout is left out") == 1
