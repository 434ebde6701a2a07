"""What several test modules share: two tiny kinds of model, seeded tensors, the fixtures' folder.

Nothing here leaves a trace in global random state.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import faithscope as fs

FIXTURES = Path(__file__).parent / "fixtures"

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


@pytest.fixture(scope="session")
def vit() -> fs.Model:
    """A tiny ViT, wrapped; with the normalisation that `fill="black"` needs."""
    return fs.wrap(tiny_vit(), name="tiny", mean=(0.5, 0.4, 0.45), std=(0.25, 0.2, 0.3))
