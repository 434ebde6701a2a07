"""Memory: a batch that does not fit is halved, and nothing piles up."""

import gc
import os
import weakref
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import faithscope as fs
from conftest import assert_same_scores, eleven_maps, randn, score_maps, toy
from faithscope.methods import METHODS
from faithscope.models.tape import tensors_in
from faithscope.probes.perturb import probe
from families import FAMILIES, TIMM, images_of, seeded, timm_vit
from text_models import text_model

# --- Out of memory ---


class Cramped(nn.Module):
    """Runs out of memory above so many inputs."""

    def __init__(self, module, most, error=torch.OutOfMemoryError, message="CUDA out of memory"):
        super().__init__()
        self.module, self.most, self.error = module, most, error(message)
        self.failures = 0

    def forward(self, x):
        if len(x) > self.most:
            self.failures += 1
            raise self.error
        return self.module(x)


@pytest.mark.parametrize(
    "error",
    [
        (torch.OutOfMemoryError, "CUDA out of memory"),
        (MemoryError, ""),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate …"),
    ],
    ids=lambda error: error[0].__name__,
)
def test_a_batch_that_does_not_fit_is_halved_and_the_scores_stay(error):
    images, maps = randn(3, 3, 10, 10), eleven_maps(3, 10, 10)
    result = score_maps(Cramped(toy(), 20, *error), images, maps, batch_size=128)
    assert_same_scores(result, score_maps(toy(), images, maps, batch_size=128))
    cost = result.manifest.cost
    assert (result.manifest.plan.request.batch_size, cost.response_passes) == (128, 3 * 288)


def test_a_batch_is_halved_for_its_task_alone_and_every_halving_recorded(monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 1)
    module = Cramped(toy(), 20)
    result = score_maps(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=128)
    assert module.failures == result.manifest.cost.batch_halvings == 3 * 3
    assert result.get_table("tasks")["halvings"].to_pylist() == [3, 3, 3]


class CrampedWithGradients(Cramped):
    """Only a pass that keeps its activations for gradients runs out of memory."""

    def forward(self, x):
        return super().forward(x) if torch.is_grad_enabled() else self.module(x)


def test_explanations_that_do_not_fit_are_halved_too():
    images = randn(10, 3, 10, 10)
    results = [
        fs.evaluate(module, images, methods="gradient", random_draws=0)
        for module in (CrampedWithGradients(toy(), 3), toy())
    ]
    assert_same_scores(*results)
    assert [result.manifest.cost.batch_halvings for result in results] == [2, 0]


@pytest.mark.parametrize("kind", [Cramped, CrampedWithGradients])
def test_a_single_image_that_does_not_fit_is_an_error_that_says_so(kind):
    with pytest.raises(fs.FaithscopeError, match="single image"):
        fs.evaluate(kind(toy(), 0), randn(3, 3, 10, 10), methods="gradient")


class CrampedViT(VisionTransformer):
    """Runs out of memory above so many inputs: in the forward pass, or in the backward pass."""

    most, when, failures = 3, "forward", 0

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.most and self.when == "forward":
            self.fail()
        logits = super().forward(images)
        if len(images) > self.most and self.when == "backward" and logits.requires_grad:
            logits.register_hook(lambda _: self.fail())
        return logits

    def fail(self) -> None:
        self.failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory")


IN_PAPERS = [method.name for method in METHODS.values() if method.in_papers]


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("methods", [[name] for name in IN_PAPERS] + [IN_PAPERS], ids="+".join)
def test_every_method_halves_a_batch_that_does_not_fit_and_its_maps_stay(when, methods):
    images, target = images_of((32, 32), 7), torch.arange(7) % 5
    cramped, roomy = seeded(lambda: CrampedViT(**TIMM)), seeded(timm_vit)
    cramped.when = when
    maps = fs.explain(cramped, images, methods, target=target)
    expected = fs.explain(roomy, images, methods, target=target)
    for name in methods:
        error = (maps[name] - expected[name]).abs().amax((1, 2))
        assert (error <= 1e-10 * expected[name].abs().amax((1, 2))).all(), name
    assert (cramped.failures > 0) == (methods != ["random"])  # what a head reads needs gradients


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("method", ["integrated_gradients", "transformer_mm", "attcat"])
def test_a_single_image_that_cannot_be_explained_is_an_error_that_says_so(when, method):
    module = seeded(lambda: CrampedViT(**TIMM))
    module.most, module.when = 0, when
    with pytest.raises(fs.FaithscopeError, match="single image"):
        fs.explain(module, images_of((32, 32), 3), method, target=1)


def test_no_other_error_is_taken_for_lack_of_memory():
    module = seeded(lambda: CrampedViT(**TIMM))
    module.fail = lambda: torch.ones(2) @ torch.ones(3)
    with pytest.raises(fs.FaithscopeError, match=r"RuntimeError.*size"):
        fs.explain(module, images_of((32, 32), 7), "gradient", target=1)


# --- What a batch keeps ---


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every tensor that is made inside, until it is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.known = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, Sequence) else [result]:
            if isinstance(item, Tensor):
                self.count(item.untyped_storage())
        return result

    def count(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


MANY_TOKENS = {"img_size": 48, "patch_size": 4, "embed_dim": 16, "num_heads": 8, "mlp_ratio": 1}
TOKENS, BATCH = 145, 2
STREAM, ATTENTION = BATCH * TOKENS * 16 * 8, BATCH * 8 * TOKENS * TOKENS * 8


def peak_of(run, depth: int) -> int:
    """The most bytes that were alive at once, beside the model and its images."""
    module = seeded(lambda: timm_vit(**MANY_TOKENS, depth=depth))
    for block in module.blocks:
        block.attn.fused_attn = False  # attention exists in the forward pass, too
    images = images_of((48, 48), BATCH)
    with LiveBytes() as counter:
        run(module, images)
    return counter.peak


def test_live_bytes_are_counted_while_they_live():
    with LiveBytes() as counter:
        kept = torch.zeros(1000, dtype=torch.float64)
        assert counter.live == 8000
        view, more = kept[3:], kept + 1
        assert counter.live == 16000
        del kept, more
        assert counter.live == 8000
        del view
        assert (counter.live, counter.peak) == (0, 16000)


def test_the_plain_backward_pass_keeps_the_attention_of_every_block():
    """What the next test would see if blocks were not checkpointed."""

    def plain(module: nn.Module, images: Tensor) -> None:
        module(images.requires_grad_(True)).sum().backward()

    assert peak_of(plain, 6) - peak_of(plain, 2) >= 4 * ATTENTION


@pytest.mark.parametrize(
    "methods",
    [[name] for name in IN_PAPERS if name not in ("integrated_gradients", "random")]
    + [[name for name in IN_PAPERS if name != "integrated_gradients"]],
    ids="+".join,
)
def test_depth_adds_token_streams_to_memory_but_no_attention(methods):
    def explain(module: nn.Module, images: Tensor) -> None:
        fs.explain(module, images, methods, target=1)

    growth = (peak_of(explain, 6) - peak_of(explain, 2)) / 4
    assert growth <= 12 * STREAM < 0.2 * ATTENTION


@contextmanager
def no_collector():
    """Nothing that points to itself is found and forgotten inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


OTHERS = ["lrp(rules='conserving')", "gradient", "input_x_gradient", "gradient_rollout"]
ALONE = [[name] for name in (*IN_PAPERS, *OTHERS)]


@pytest.mark.parametrize("methods", [*ALONE, IN_PAPERS], ids="+".join)
@pytest.mark.parametrize("family", ["timm_vit", "torchvision_vit", "texts"])
def test_nothing_of_an_explanation_outlives_its_maps(family, methods):
    """Nor waits for the collector of cycles, which knows nothing of a GPU that fills up."""
    if family == "texts":
        model, given = text_model(), ["a good film", "not a bad one at all"]
    else:
        model, given = FAMILIES[family].module(), FAMILIES[family].images()
    with LiveBytes() as counter, no_collector():
        fs.explain(model, given, methods, target=1)  # what is made once is made here
        before = counter.live
        maps = fs.explain(model, given, methods, target=1)
        assert counter.live - before <= sum(held.nbytes for held in tensors_in(maps))
        del maps
        assert counter.live == before


# --- Streaming ---


def resident():
    """Bytes of memory this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_images():
    """Batches of 3 MB pass through: if one tensor of each were kept, 20 of them would be 63 MB."""
    alive, held, yielded = [], [], []

    def stream():
        for seed in range(40):
            images = randn(32, 3, 64, 64, seed=seed)
            yielded.append(weakref.ref(images))
            alive.append(sum(ref() is not None for ref in yielded))
            held.append(resident())
            yield images

    result = fs.evaluate(toy(64, 64), stream(), "random", "saco", k=2, random_draws=1)
    assert result.samples.num_rows == 40 * 32
    assert max(alive) <= 5
    assert np.median(held[30:]) - np.median(held[10:20]) < 40e6
