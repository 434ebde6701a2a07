"""What a type checker knows of `fs.explain`; mypy reads this file with the package."""

from typing import assert_type

import torch
from torch import Tensor, nn

import faithscope as fs


def mine(module: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    return images.sum(1)


def test_one_method_gives_maps_and_several_give_them_by_name() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 3)).eval()
    images = torch.zeros(2, 3, 4, 4)
    by_name = assert_type(fs.explain(module, images, "gradient"), Tensor)
    by_object = assert_type(fs.explain(module, images, fs.method("gradient")), Tensor)
    own = assert_type(fs.explain(module, images, mine), Tensor)
    assert by_name.shape == by_object.shape == own.shape == (2, 4, 4)
    several = assert_type(fs.explain(module, images, ["gradient", mine]), dict[str, Tensor])
    named = assert_type(fs.explain(module, images, ("gradient",)), dict[str, Tensor])
    assert list(several) == ["gradient", "mine"] and list(named) == ["gradient"]


def every_method(model: fs.Model, images: Tensor) -> dict[str, Tensor]:
    """Not run: a ViT has them all."""
    assert_type(fs.explain(model, images, "registered"), dict[str, Tensor])
    return assert_type(fs.explain(model, images, "all", units="patches"), dict[str, Tensor])
