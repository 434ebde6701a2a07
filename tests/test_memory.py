"""Memory: a batch that does not fit is halved, and nothing piles up."""

import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import faithscope as fs
from conftest import assert_same_scores, eleven_maps, randn, score_maps, toy
from faithscope import evaluation

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
    cost = result.manifest["cost"]
    assert (cost["batch_size"], cost["response_passes"]) == (128, 3 * 288)


def test_a_smaller_batch_is_remembered_and_every_halving_recorded(monkeypatch):
    monkeypatch.setattr(evaluation, "SHARD", 1)
    module = Cramped(toy(), 20)
    result = score_maps(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=128)
    assert module.failures == result.manifest["cost"]["batch_halvings"] == 3


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
    assert [result.manifest["cost"]["batch_halvings"] for result in results] == [2, 0]


@pytest.mark.parametrize("kind", [Cramped, CrampedWithGradients])
def test_a_single_image_that_does_not_fit_is_an_error_that_says_so(kind):
    with pytest.raises(fs.FaithscopeError, match="single image"):
        fs.evaluate(kind(toy(), 0), randn(3, 3, 10, 10), methods="gradient")


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
