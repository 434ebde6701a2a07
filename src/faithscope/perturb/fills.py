"""Fills: what stands in the place of a removed unit, if anything does.

A fill prepares one *field* per intact image (the replacement values), then lays it over masked
units. Only `inpaint` looks at the mask: it solves for the missing pixels from those that are left.
Everything is batched and stays on the device of the images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.models.device import float64_device, placed
from faithscope.perturb.inpaint import interpolate_missing
from faithscope.perturb.units import unit_mask_to_pixels
from faithscope.registry import Registry
from faithscope.rng import keyed_normal, stream_keys

TEXT_FILLS: Registry[Fill] = Registry("fill for texts", group="faithscope.text_fills")
FILLS: Registry[Fill] = Registry("fill", group="faithscope.fills", variants={"text": TEXT_FILLS})
DEFAULTS = {"image": "mean", "text": "mask"}
"""What fill="auto" means."""


@dataclass(frozen=True)
class FillContext:
    """What a fill may know beside the images: sample keys, the seed, the model's normalisation."""

    keys: Sequence[str]
    seed: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    specials: Mapping[str, int | None] = field(default_factory=dict)
    """Of texts, the ids of the tokenizer's tokens for "mask", "unk" and "pad"."""


class Fill:
    """The base: lay the field over the mask.

    Shapes: images [B, C, H, W]; field [B, C, H, W] or [B, C, 1, 1]; mask bool [B, 1, H, W].
    """

    name: str
    summary: str
    drops: bool = False
    """Whether units leave the input; they are replaced only where a model needs some and has none.
    """

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        """Replacement values for each intact image."""
        raise NotImplementedError

    def apply(self, images: Tensor, mask: Tensor, field: Tensor) -> Tensor:
        """Replace the masked pixels, all channels at once."""
        return torch.where(mask, field, images)

    def replaced(
        self, inputs: Tensor, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> Tensor:
        """Replace the masked units, bool [B, n] with n = h·w of `shape`."""
        size = (inputs.shape[-2], inputs.shape[-1])
        return self.apply(inputs, unit_mask_to_pixels(mask, shape, size), field)


class MeanFill(Fill):
    """Per-sample, per-channel mean of the intact image; commutes with normalisation."""

    name = "mean"
    summary = "the image's own mean, per channel"

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        return images.mean(dim=(2, 3), keepdim=True)


class DropFill(MeanFill):
    """Nothing: the units leave the model's sequence, and the others keep their positions.

    A model that has nothing to read once all are gone is given the mean there.
    """

    name = "drop"
    summary = "they leave the sequence, the others keep their positions; needs units='patches'"
    drops = True


class BlackFill(Fill):
    """Zero before normalisation: (0 - mean) / std of the model's preprocessing."""

    name = "black"
    summary = "black before normalisation; needs the model's mean and std"

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        if context.mean is None or context.std is None:
            raise FaithscopeError(
                "The fill 'black' needs the model's mean and std: give them to "
                "fs.wrap(module, mean=…, std=…) or choose another fill."
            )
        kind = images.dtype
        mean, std = (torch.tensor(each, dtype=kind) for each in (context.mean, context.std))
        black = placed(-mean / std, images.device)
        return black[None, :, None, None].expand(len(images), -1, 1, 1)


class NoiseFill(Fill):
    """Gaussian noise around the image's mean with the image's own spread, one field a sample."""

    name = "noise"
    summary = "Gaussian noise with the image's own mean and spread, seeded"

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        mean = images.mean(dim=(2, 3), keepdim=True)
        return mean + _spread(images) * _noise(images, context, "noise")


class BlurFill(Fill):
    """The image itself, blurred by a Gaussian whose sigma is a tenth of its longer side."""

    name = "blur"
    summary = "the image blurred, sigma = a tenth of the longer side"

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        height, width = images.shape[-2:]
        sigma = max(height, width) / 10
        lines = (_gaussian(side, sigma).to(images.dtype) for side in (height, width))
        rows, columns = (placed(line, images.device) for line in lines)
        return rows @ images @ columns.T


class InpaintFill(Fill):
    r"""Noisy linear interpolation from the pixels that are left (ROAD, Rong et al. 2022).

    Each removed pixel is the weighted mean of its eight neighbours (1/6 direct, 1/12 diagonal):

    .. math:: u_i \sum_{j \in N(i)} w_{ij} = \sum_{j \in N(i)} w_{ij} u_j

    a sparse symmetric system, solved for all images and channels of a batch together by
    conjugate gradients with a multigrid cycle; then Gaussian noise of one per cent of
    the image's own spread. With nothing left to interpolate from it is the mean fill.
    """

    name = "inpaint"
    summary = "noisy linear interpolation from the neighbourhood (ROAD), solved in batches"
    noise = 0.01

    def field(self, images: Tensor, context: FillContext) -> Tensor:
        return self.noise * _spread(images) * _noise(images, context, "inpaint")

    def apply(self, images: Tensor, mask: Tensor, field: Tensor) -> Tensor:
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        mean = work.mean(dim=(2, 3), keepdim=True)
        everything = mask.all(dim=(2, 3), keepdim=True)
        filled = interpolate_missing(work, mask & ~everything) + field
        filled = torch.where(everything, mean, filled)
        return torch.where(mask, filled.to(images.dtype), images)


for _fill in (MeanFill(), BlackFill(), NoiseFill(), BlurFill(), InpaintFill(), DropFill()):
    FILLS.register(_fill.name, _fill)


def _gaussian(side: int, sigma: float) -> Tensor:
    """The weights of every pixel of a line in every blurred one, mirrored at the ends.

    torchvision's blur is a convolution with all of a square kernel: at 224 pixels 133 by 133.
    """
    radius = min(int(3 * sigma), side - 1)  # a mirror image cannot reach further than the image
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.to(torch.float64) / sigma) ** 2)
    places = (torch.arange(side)[:, None] + offsets).abs()
    places = side - 1 - (side - 1 - places).abs()
    line = torch.zeros(side, side, dtype=torch.float64)
    return line.scatter_add_(1, places, (weights / weights.sum()).expand(side, -1))


def _spread(images: Tensor) -> Tensor:
    return images.std(dim=(2, 3), keepdim=True, correction=0)


def _noise(images: Tensor, context: FillContext, purpose: str) -> Tensor:
    keys = stream_keys(context.keys, seed=context.seed, purpose=purpose)
    values = keyed_normal(placed(keys, float64_device(images.device)), images[0].numel())
    return values.reshape(images.shape).to(images.dtype).to(images.device)
