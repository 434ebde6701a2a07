"""What several test modules share: two tiny kinds of model, seeded tensors, scores side by side.

Nothing here leaves a trace in global random state.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import faithscope as fs
import fuzzing

FIXTURES = Path(__file__).parent / "fixtures"

torch.set_num_threads(1)  # tensors here are tiny: on a busy machine threads cost ten times more
settings.register_profile("faithscope", deadline=None, derandomize=True, database=None)
settings.load_profile("faithscope")


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normals from their own generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class SoftmaxLinear(nn.Module):
    """Logits that are linear in the pixels, so that every answer can be worked out by hand."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def toy(height: int = 10, width: int = 10, *, classes: int = 4, seed: int = 0) -> SoftmaxLinear:
    """A softmax-linear model of 3×height×width inputs in float64."""
    weight = randn(classes, 3 * height * width, seed=seed) / (height * width) ** 0.5
    return SoftmaxLinear(weight, torch.zeros(classes, dtype=torch.float64))


def tiny_vit(*, seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> nn.Module:
    """A timm ViT of two blocks on 16×16 images in 4×4 patches, in evaluation mode."""
    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    with torch.random.fork_rng(devices=[]):
        module = VisionTransformer(**{**settings, **options})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.6, generator=generator)
    return module.to(dtype).eval()


NORMALISED = {"mean": (0.5, 0.4, 0.45), "std": (0.25, 0.2, 0.3)}


@pytest.fixture(scope="session")
def vit() -> fs.Model:
    """A tiny ViT, wrapped; with the normalisation that `fill="black"` needs."""
    return fs.wrap(tiny_vit(), name="tiny", **NORMALISED)


def single_vit(**options: Any) -> fs.Model:
    """The same in float32."""
    return fs.wrap(tiny_vit(dtype=torch.float32), **NORMALISED, **options)


@pytest.fixture(scope="session")
def machines() -> Iterator[Any]:
    """A Ray cluster on this machine, started when the first test needs it."""
    from clusters import Machines

    held = Machines()
    yield held
    held.shutdown()


@pytest.fixture(scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """What a killed process wrote is not lost with it; only a dead machine needs fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def eleven_maps(count: int, height: int, width: int) -> dict[str, Tensor]:
    """Eleven random maps of every image, by name."""
    return {f"map {i}": randn(count, height, width, seed=100 + i) for i in range(11)}


def score_maps(
    model: fs.Model | nn.Module, images: Tensor, maps: dict[str, Tensor], **options: object
) -> fs.Result:
    """Evaluate maps that are given, and nothing else."""
    return fs.evaluate(model, images, methods=(), maps=maps, random_draws=0, **options)


def score_cube(result: fs.Result) -> np.ndarray:
    """All scores: [methods, metrics, samples]."""
    return np.array([[result.values(m, k) for k in result.metrics] for m in result.methods])


def assert_same_scores(left: fs.Result, right: fs.Result, tolerance: float = 1e-9) -> None:
    """Every score of one result equals that of the other, absolutely."""
    np.testing.assert_allclose(score_cube(left), score_cube(right), rtol=0, atol=tolerance)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many odd inputs were tried."""
    if fuzzing.tried:
        terminalreporter.write_line(f"{fuzzing.tried:,} odd inputs were tried")


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """An S3-compatible server with the bucket "runs", for all tests of a session."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    from s3 import s3_server

    with s3_server() as server:
        yield server
