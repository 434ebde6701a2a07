"""How much work explaining a batch is: what is known is not computed again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import faithscope as fs
from faithscope.methods import explain, explain_batch, resolve_methods
from faithscope.methods.evidence import NEEDS
from faithscope.methods.explain import choose_explain_batch
from faithscope.methods.trace import gather
from faithscope.models.attention import Checks
from faithscope.models.memory import inputs_that_fit, power_of_two
from faithscope.probes.perturb import ask, probe
from families import FAMILIES, images_of, refused, seeded, timm_vit

RELEVANT = ["lrp", "partial_lrp", "transformer_attribution"]


def explained(module: nn.Module, images: Tensor, names: list[str]) -> list[Tensor]:
    pairs = [(method, 0) for method in resolve_methods(names)]
    target = torch.zeros(len(images), dtype=torch.int64)
    keys = [str(place) for place in range(len(images))]
    return explain_batch(fs.wrap(module), images, target, pairs, keys=keys)


@pytest.mark.parametrize(
    ("names", "most"),
    [
        # a pass and a rerun of each block; 2 for what rules share, 2 for each set; 1 for a gradient
        (RELEVANT, 9.1),
        (["lrp"], 5.9),
        (["transformer_attribution"], 6.8),
        (["partial_lrp"], 1.4),
        (["lrp", "lrp(rules=conserving)"], 9.9),
    ],
    ids=str,
)
def test_relevance_costs_so_many_forward_passes_in_matrix_products(names: list[str], most: float):
    with torch.random.fork_rng(devices=[]):
        module = timm.create_model("vit_tiny_patch16_224").eval()
    images = torch.zeros(1, 3, 224, 224).normal_(generator=torch.Generator().manual_seed(0))
    explained(module, images, names)  # places of tokens are asked once
    with sdpa_kernel(SDPBackend.MATH):  # whose matrix products are counted
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            module(images)
        with FlopCounterMode(display=False) as whole:
            explained(module, images, names)
    forwards = whole.get_total_flops() / forward.get_total_flops()
    assert 0.8 * most < forwards <= most


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_at_attention_are_the_same_from_blocks_run_once_more(name: str):
    module, images = FAMILIES[name].module(), FAMILIES[name].images(2)
    module.requires_grad_(False)
    target = torch.ones(2, dtype=torch.int64)
    evidence = gather(fs.wrap(module), images, target, frozenset(NEEDS), keys=["a", "b"])
    for layer in evidence.layers():
        traced = layer.attention_gradient
        scale = traced.abs().max()
        assert (layer.rerun_gradient - traced).abs().max() <= 1e-10 * scale


def test_gradients_of_blocks_that_were_passed_can_still_be_read():
    module, images = seeded(timm_vit).requires_grad_(False), images_of((32, 32))
    needs = frozenset({"attention", "rerun_gradient"})
    aim = torch.ones(2, dtype=torch.int64)
    first, last = list(gather(fs.wrap(module), images, aim, needs, keys=["a", "b"]).layers())[::-2]
    below = first.rerun_gradient
    above = last.rerun_gradient
    again = gather(fs.wrap(module), images, aim, needs, keys=["a", "b"])
    for layer in again.layers():
        if layer.index in (first.index, last.index):
            expected = below if layer.index == first.index else above
            torch.testing.assert_close(layer.rerun_gradient, expected, rtol=1e-12, atol=1e-15)


def test_what_is_off_is_said_at_the_end_and_before_anything_is_returned():
    checks, off = Checks(), torch.tensor([0.5, torch.nan, 0.0])
    refuse = fs.FaithscopeError
    with refused("off by 0.5"):
        checks.require(off[0], 0.1, lambda found: refuse(f"The first is off by {found}."))
    seen = []
    with refused("off by nan"), checks.gathered():
        checks.require(off[2], 0.1, lambda found: refuse(f"The one before is off by {found}."))
        checks.require(off[1], 0.1, lambda found: refuse(f"The second is off by {found}."))
        checks.require(off[0], 0.1, lambda found: refuse(f"The third is off by {found}."))
        seen.append("the end")
        raise ValueError("what came of it")
    assert seen == ["the end"]
    with refused("at once"):
        checks.require(off[0], 0.1, lambda _: refuse("It is read at once again."))


class Fickle(nn.Module):
    """A block that gives something else when it is run once more."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = (
            block.norm1,
            block.attn,
            block.norm2,
            block.mlp,
        )
        self.calls = 0

    def forward(self, x: Tensor, **_: object) -> Tensor:
        self.calls += 1
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x)) * (1 if self.calls == 1 else 1.001)


@pytest.mark.parametrize("method", [*RELEVANT, "attcat", "transformer_mm", "gradient_rollout"])
def test_a_block_that_gives_something_else_is_named_though_it_is_checked_at_the_end(method: str):
    module, images = seeded(timm_vit), images_of((32, 32))
    module.blocks[2] = Fickle(module.blocks[2])
    with refused("block 'blocks.2' gives something else", "once more"):
        explained(module, images, [method])


# How many are explained together


def test_a_gpu_is_asked_how_many_inputs_half_of_its_free_memory_holds(monkeypatch):
    gpu = SimpleNamespace(held=100, peak=0)
    for name, call in {
        "reset_peak_memory_stats": lambda _: None,
        "memory_allocated": lambda _: gpu.held,
        "max_memory_allocated": lambda _: gpu.peak,
        "mem_get_info": lambda _: (48_000, 80_000),
    }.items():
        monkeypatch.setattr(torch.cuda, name, call)

    def run() -> None:
        gpu.peak = 100 + 8 * 60

    assert inputs_that_fit(torch.device("cuda"), run, 8) == 400
    assert [power_of_two(wanted, 8, 512) for wanted in (400, 3, 5000, 64)] == [256, 8, 512, 64]


class SaysCuda(str):
    """The CPU, which says that it is a GPU."""

    type = "cuda"


class OnGPU(Tensor):
    """Images that say that they are on a GPU."""

    device = SaysCuda("cpu")


def test_a_cpu_explains_32_together_and_a_gpu_what_its_memory_holds(monkeypatch):
    module, images = seeded(timm_vit), images_of((32, 32))
    model, pairs = fs.wrap(module), [(fs.method("lrp"), 0)]
    assert choose_explain_batch(model, images, pairs) == 32
    there, maps = images.as_subclass(OnGPU), []

    def measured(_: object, run: Callable[[], list[Tensor]], count: int) -> int:
        maps.append(run()[0])
        return 300

    def on_cpu(model: fs.Model, images: Tensor, *rest: object, **options: object) -> list[Tensor]:
        return explain_batch(model, images.as_subclass(Tensor), *rest, **options)

    monkeypatch.setattr(explain, "explain_batch", on_cpu)
    monkeypatch.setattr(explain, "inputs_that_fit", measured)
    assert choose_explain_batch(model, there, pairs) == 256
    assert [list(held.shape) for held in maps] == [[8, 32, 32]]
    assert choose_explain_batch(model, there, []) == 32

    def fails(*_: object) -> int:
        raise RuntimeError("it does not run")

    monkeypatch.setattr(explain, "inputs_that_fit", fails)
    assert choose_explain_batch(model, there, pairs) == 32


@pytest.mark.parametrize(("chosen", "kept"), [(64, 64), (32, 0)])
def test_how_many_are_explained_together_is_chosen_once_and_planned(
    monkeypatch, tmp_path, chosen: int, kept: int
):
    monkeypatch.setattr(probe, "choose_explain_batch", lambda *_: chosen)
    sizes: list[int] = []
    real = ask.explain_images

    def seen(*given: object, batch_size: int, **options: object) -> object:
        sizes.append(batch_size)
        return real(*given, batch_size=batch_size, **options)

    monkeypatch.setattr(ask, "explain_images", seen)
    asked = (seeded(timm_vit), images_of((32, 32), 3), ["rollout"], "saco")
    options = {"random_draws": 1, "out": tmp_path, "k": 4}
    plan = fs.evaluate(*asked, batch_size=128, **options).manifest.plan
    assert (plan.explain_batch, set(sizes)) == (kept, {chosen})
    assert ("explain_batch" in plan.content()) is bool(kept)
    monkeypatch.setattr(probe, "choose_explain_batch", lambda *_: 16)
    again = fs.evaluate(*asked, batch_size=128, **options).manifest.plan
    assert again.content() == plan.content()
    small = fs.evaluate(*asked, batch_size=4, **{**options, "out": None}).manifest.plan
    assert (small.explain_batch, sizes[-1]) == (0, 4)
