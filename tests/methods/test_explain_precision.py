"""In which number format maps are made: what is asked for, what "auto" means, what overflows."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from commands import fails, run
from conftest import randn, tiny_vit, toy
from faithscope.methods import evidence, method
from faithscope.methods.method import Method
from faithscope.models import Model
from faithscope.runs.scheduler import Progress
from families import FAMILIES, refused
from text_models import text_model

FORMATS = {"fp64": 1e-9, "fp32": 1e-5, "fp16": 0.02, "bf16": 0.1}
IG = "integrated_gradients(steps=6)"
TEXTS = ["the film was very good", "a plot"]


def apart(one: Tensor, other: Tensor) -> float:
    """The distance of two maps, as a share of the second."""
    one, other = one.double(), other.double()
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("family", ["timm_vit", "hf_vit", "torchvision_vit"])
def test_images_are_explained_in_the_format_that_is_asked_for(family: str, precision: str):
    held = FAMILIES[family]
    module, images = held.module(torch.float32), held.images().float()
    exact = fs.explain(held.module(torch.float32).double(), images.double(), IG, target=1)
    maps = fs.explain(module, images, IG, target=1, explain_precision=precision)
    assert maps.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    error = apart(maps, exact)
    assert error < FORMATS[precision]
    if precision != "fp64":
        assert error > FORMATS[precision] / 1e5  # the format was used


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "GPT2"])
def test_texts_are_explained_in_the_format_that_is_asked_for(kind: str, precision: str):
    exact = fs.explain(text_model(kind), TEXTS, IG, target=1)
    model = text_model(kind, torch.float32)
    maps = fs.explain(model, TEXTS, IG, target=1, explain_precision=precision)
    for one, other in zip(maps, exact, strict=True):
        assert apart(one, other) < FORMATS[precision]


def test_a_half_precision_model_can_be_explained_in_its_own_type():
    held = FAMILIES["timm_vit"]
    module, images = held.module(torch.float32).to(torch.bfloat16), held.images().float()
    exact = fs.explain(module.float(), images, IG, target=1)
    module = module.to(torch.bfloat16)
    usual = fs.explain(module, images, IG, target=1)
    half = fs.explain(module, images, IG, target=1, explain_precision="bf16")
    assert apart(usual, exact) < 1e-5 < apart(half, exact) < FORMATS["bf16"]
    predicted = fs.explain(module, images, [IG, "rollout"], explain_precision="bf16")
    assert all(held.isfinite().all() for held in predicted.values())
    assert {held.dtype for held in module.parameters()} == {torch.bfloat16}


def test_what_reads_inside_of_the_model_is_made_in_its_own_type(vit: Model):
    images = randn(2, 3, 16, 16)
    names = ["rollout", "gradient", "lrp", "attcat"]
    exact = fs.explain(vit, images, names)
    rough = fs.explain(vit, images, names, explain_precision="bf16")
    assert all(torch.equal(rough[name], exact[name]) for name in names)
    single = fs.explain(vit, images, names, explain_precision="fp32")
    assert torch.equal(single["lrp"], exact["lrp"])  # it has an option of its own
    assert 1e-12 < apart(single["rollout"], exact["rollout"]) < 1e-4


class Faint(nn.Module):
    """Linear logits whose gradients fp16 cannot hold without a scale."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = toy(4, 4).float(), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


def test_gradients_do_not_vanish_in_half_precision(monkeypatch: pytest.MonkeyPatch):
    module, images = Faint(1e-7), randn(2, 3, 4, 4).float()
    exact = fs.explain(module, images, IG, target=1)
    assert apart(fs.explain(module, images, IG, target=1, explain_precision="fp16"), exact) < 0.1
    monkeypatch.setattr(evidence, "LOSS_SCALE", 1.0)
    assert apart(fs.explain(module, images, IG, target=1, explain_precision="fp16"), exact) > 0.3


class Steep(nn.Module):
    """Gradients beyond what fp16 can hold, for bright images alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 48))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return (flat**3) @ self.weight.T * torch.tensor([1.0, -0.5], dtype=flat.dtype)


def test_what_overflows_is_explained_again_and_named():
    images = torch.cat([randn(2, 3, 4, 4), 15 + randn(1, 3, 4, 4, seed=1)]).float()
    exact = fs.explain(Steep(), images, IG, target=0)
    with pytest.warns(UserWarning, match="overflowed in integrated_gradients.* on 1 image, which"):
        maps = fs.explain(Steep(), images, IG, target=0, explain_precision="fp16")
    assert maps.isfinite().all()
    torch.testing.assert_close(maps[2], exact[2])
    assert 1e-6 < apart(maps[:2], exact[:2]) < FORMATS["fp16"]
    result = fs.evaluate(Steep(), images, IG, "saco", target=0, explain_precision="fp16")
    assert any("Half precision overflowed" in warning for warning in result.warnings())
    assert not any(row["flag"] for row in result.scores.to_pylist())
    calm = fs.evaluate(Steep(), images[:2], IG, "saco", target=0, explain_precision="fp16")
    assert not any("overflowed" in warning for warning in calm.warnings())


def test_an_image_that_is_nan_did_not_overflow():
    images = randn(2, 3, 4, 4).float()
    images[1, 0, 0, 0] = torch.nan
    result = fs.evaluate(Steep(), images, IG, "saco", target=0, explain_precision="fp16")
    assert not any("overflowed" in warning for warning in result.warnings())


# What "auto" means


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model says that it is on a CUDA GPU."""
    monkeypatch.setattr(Model, "device", property(lambda model: torch.device("cuda")))
    yield


def chosen(module: nn.Module, name: str, asked: str = "auto") -> str:
    model = fs.wrap(module)
    return method(name).made_in(asked, model).format(model)


def test_auto_is_half_precision_for_integrated_gradients_on_a_cuda_gpu(on_gpu: None):
    module = tiny_vit(dtype=torch.float32)
    assert chosen(module, "integrated_gradients") == "fp16"
    assert chosen(module.double(), "integrated_gradients") == "fp64"
    module = module.float()
    for name in ("gradient", "rollout", "grad_cam", "attcat", "captum:Saliency"):
        assert chosen(module, name) == "fp32"
    assert chosen(module, "transformer_attribution") == "fp64"
    assert chosen(module, "lrp(precision=fp32)") == "fp32"
    assert chosen(module, "integrated_gradients", "tf32") == "tf32"
    assert chosen(module, "rollout", "tf32") == "fp32"
    text = text_model("Bert", torch.float32)
    for name, expected in (("integrated_gradients", "fp16"), ("gradient", "fp32")):
        made = method(name, modality="text").made_in("auto", text)
        assert made.format(text) == expected
    inside = method("integrated_gradients(at=tokens)", modality="text")
    assert inside.made_in("auto", text).format(text) == "fp32"


def test_auto_is_the_models_own_type_on_a_cpu():
    module = tiny_vit(dtype=torch.float32)
    assert chosen(module, "integrated_gradients") == "fp32"
    assert chosen(module, "integrated_gradients", "bf16") == "bf16"
    assert chosen(module.to(torch.float16), "integrated_gradients") == "fp32"


def test_the_plan_names_the_formats_and_a_resume_keeps_them(
    vit: Model, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    images = randn(70, 3, 16, 16)

    def halved(self: Method, precision: str, model: Model) -> Method:
        return replace(self, precision="bf16") if self.in_half else self

    def stop(progress: Progress) -> None:
        if progress.task == "shard-00001":
            raise KeyboardInterrupt

    asked = (vit, images, ["integrated_gradients(steps=2)", "rollout"], "saco")
    options = {"random_draws": 1}
    with monkeypatch.context() as there:
        there.setattr(Method, "made_in", halved)  # as another device would choose
        whole = fs.evaluate(*asked, **options)
        with pytest.raises(KeyboardInterrupt):
            fs.evaluate(*asked, **options, out=tmp_path / "run", progress=stop)
    resumed = fs.evaluate(*asked, **options, out=tmp_path / "run")
    cards = resumed.manifest.methods
    assert cards["integrated_gradients(steps=2)"].precision == "bf16"
    assert not cards["rollout"].precision and not cards["random"].precision
    assert resumed.scores.equals(whole.scores)
    with refused('explain_precision is "bf16" there'):
        fs.evaluate(*asked, **options, out=tmp_path / "run", explain_precision="fp64")
    page = resumed.report(tmp_path / "page.html").read_text("utf-8")
    assert "integrated_gradients(steps=2) were made in bf16" in page


def test_compare_names_the_format(vit: Model):
    images = randn(10, 3, 16, 16)
    runs = [
        fs.evaluate(vit, images, "integrated_gradients(steps=2)", "saco", explain_precision=name)
        for name in ("auto", "bf16")
    ]
    assert any("explain_precision" in words for words in fs.compare(*runs).differs)


# Bad input


def test_formats_that_are_not_there_are_refused(vit: Model):
    images = randn(1, 3, 16, 16)
    for call in (fs.explain, fs.evaluate):
        with refused("explain_precision='tf32' needs a CUDA GPU", "fp32"):
            call(vit, images, "gradient", explain_precision="tf32")
        with refused("fp8", "Valid: auto, bf16, fp16, fp32, fp64, tf32"):
            call(vit, images, "gradient", explain_precision="fp8")
    assert "explain_precision='tf32' needs a CUDA GPU" in fails(
        *("explain", "bundled:cifar10:1", "--methods", "gradient", "--explain-precision", "tf32")
    )


def test_the_command_line_takes_a_format(tmp_path):
    said = run(
        *("explain", "bundled:sst:1", "--model", "bundled:sst_text", "--methods", IG),
        *("--explain-precision", "bf16"),
    )
    assert "integrated_gradients" in said.stdout


class InFloat32(nn.Module):
    """Gives its layer float32, whatever type it has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float()).mean((2, 3))


@pytest.mark.parametrize("precision", ["fp64", "fp16", "bf16"])
def test_a_model_that_runs_in_one_type_alone_is_told_the_option(precision: str):
    with refused("cannot run in", "explain_precision='fp32'"):
        fs.explain(InFloat32(), randn(1, 3, 8, 8).float(), IG, explain_precision=precision)
