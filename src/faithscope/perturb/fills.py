"""Fills: what stands in the place of a removed unit, if anything does.

A fill prepares one *field* per intact image (the replacement values), then lays it over masked
units. Only `inpaint` looks at the mask: it solves for the missing pixels from those that are left.
Everything is batched and stays on the device of the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

from faithscope.errors import FaithscopeError
from faithscope.models.device import float64_device, placed
from faithscope.perturb.units import unit_mask_to_pixels
from faithscope.registry import Registry
from faithscope.rng import keyed_normal, stream_keys

TEXT_FILLS: Registry[Fill] = Registry("fill for texts", group="faithscope.text_fills")
FILLS: Registry[Fill] = Registry("fill", group="faithscope.fills", variants={"text": TEXT_FILLS})
CACHED = 1 << 19
"""Numbers of images for which missing pixels are solved together on a CPU: they fit its caches."""
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


def interpolate_missing(
    images: Tensor, mask: Tensor, *, tolerance: float = 1e-4, max_iterations: int = 1000
) -> Tensor:
    """Fill masked pixels so that each is the weighted mean of its eight neighbours.

    Conjugate gradients run per image and channel, preconditioned by one cycle over halved
    resolutions: three to eight steps, however large the holes are. One that has converged (residual
    below `tolerance` of the right-hand side) is frozen, so results do not depend on the batch. On a
    CPU, where images need not wait for each other, scattered pixels go without the cycle, which
    costs more there than the steps it saves. Images are centred first, so that the tolerance is
    relative to how they vary, not to how bright they are.

    Shapes: images [B, C, H, W], mask bool [B, 1, H, W] -> [B, C, H, W].
    """
    hole = mask.to(images.dtype)
    known = 1 - hole
    centre = _dot(images, known) / known.sum(dim=(2, 3), keepdim=True).clamp_min(1)
    solved = known * (images - centre)
    for part, is_scattered in _parts(hole, images[0].numel()):
        found = _solved(solved[part], hole[part], is_scattered, tolerance, max_iterations)
        solved[part] = found
    return torch.where(mask, solved + centre, images)


def _parts(hole: Tensor, numbers: int) -> Iterator[tuple[Any, bool]]:
    """Which images are solved together, and whether their holes are scattered pixels.

    Those are holes of which less than half is left at half the resolution. On a CPU few images are
    solved at once, that fit its caches.
    """
    if hole.device.type != "cpu":
        yield slice(None), False
        return
    inside = 4 * (_summed(1 - hole) == 0).sum((1, 2, 3))
    is_scattered = 2 * inside < hole.sum((1, 2, 3))
    for kind in (False, True):
        places = (is_scattered == kind).nonzero()[:, 0]
        for part in torch.split(places, max(1, CACHED // numbers)):
            if len(part):
                yield part, kind


class _Grid:
    """A resolution at which missing pixels are solved for.

    Shapes: hole [B, 1, H, W], 1 where a pixel is missing; degree [1, 1, H, W], the sum of the
    weights of the neighbours that are inside the image; share [B, 1, H, W], hole by degree.
    """

    def __init__(self, hole: Tensor) -> None:
        self.hole, self.minus = hole, -hole
        self.degree = _neighbours(torch.ones_like(hole[:1]))
        self.share = hole / self.degree

    def system(self, values: Tensor) -> Tensor:
        """The left-hand side of the equations of the missing pixels, 0 elsewhere."""
        made = _neighbours(values).addcmul_(self.degree, values, value=-1)
        return made.mul_(self.minus)


def _grids(hole: Tensor) -> list[_Grid]:
    """The image's own resolution, half of it, and so on; where anything is known, it is known."""
    grids = []
    while True:
        grids.append(_Grid(hole))
        is_empty = hole.device.type == "cpu" and not bool(hole.any())
        if is_empty or min(hole.shape[-2:]) < 4:
            return grids
        hole = (_summed(1 - hole) == 0).to(hole.dtype)


def _solved(
    images: Tensor, hole: Tensor, is_scattered: bool, tolerance: float, max_iterations: int
) -> Tensor:
    """Solve for the pixels where `hole` is 1; those of the images are 0 there. 0 elsewhere.

    A cycle is not quite symmetric, so directions are made conjugate by what the residual changed
    (Polak and Ribière), not by its size alone.
    """
    grids = _grids(hole)
    grid = grids[0]
    target = hole * _neighbours(images)
    solution = hole * _first_guess(images, grids)
    residual = target - grid.system(solution)
    direction, applied = torch.zeros_like(images), torch.zeros_like(images)
    energy, enough = _square(residual), tolerance**2 * _square(target)
    step = slope = torch.zeros_like(energy)
    every = 1 if images.device.type == "cpu" else 2  # elsewhere a look at the energy waits for it
    for iteration in range(max_iterations):
        active = energy > enough
        if iteration % every == 0 and not bool(active.any()):
            break
        corrected = residual if is_scattered else _cycle(residual, grids)
        change = -step * _dot(applied, corrected)
        ratio = torch.where(slope > 0, change / slope.clamp_min(1e-30), 0.0)
        direction = torch.addcmul(corrected, ratio, direction)
        slope, applied = _dot(residual, corrected), grid.system(direction)
        step = torch.where(active, slope / _dot(direction, applied).clamp_min(1e-30), 0.0)
        solution.addcmul_(step, direction)
        residual.addcmul_(step, applied, value=-1)
        energy = _square(residual)
    return solution


def _cycle(target: Tensor, grids: Sequence[_Grid]) -> Tensor:
    """Nearly the solution of `system(values) = target`: relaxed, corrected from coarse, relaxed.

    To relax is to give each missing pixel the value that its own equation has, given the others.
    """
    grid = grids[0]
    first = values = grid.share * target
    if len(grids) > 1:
        rest = _neighbours(values)  # what is left of the target, after that first relaxation
        coarse = _cycle(_summed(rest).mul_(grids[1].hole), grids[1:])
        values = torch.addcmul(values, grid.hole, _doubled(coarse, values))
    return torch.addcmul(first, grid.share, _neighbours(values))


def _first_guess(images: Tensor, grids: Sequence[_Grid]) -> Tensor:
    """Nearly solve at half the resolution, from averages of what is known, and interpolate."""
    if len(grids) < 2:
        return torch.zeros_like(images)
    grid = grids[1]
    coarse = _summed(images) / _summed(1 - grids[0].hole).clamp_min(1)
    guess = grid.hole * _first_guess(coarse, grids[1:])
    target = grid.hole * _neighbours(coarse) - grid.system(guess)
    return _doubled(coarse + guess + _cycle(target, grids[1:]), images)


def _summed(images: Tensor) -> Tensor:
    """Sums of four pixels; beyond the edges of an odd image all is 0."""
    odd = (0, images.shape[-1] % 2, 0, images.shape[-2] % 2)
    return avg_pool2d(pad(images, odd) if any(odd) else images, 2, divisor_override=1)


def _doubled(images: Tensor, like: Tensor) -> Tensor:
    """Twice as many rows and columns, as many as `like` has."""
    fine = interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)
    return fine[..., : like.shape[-2], : like.shape[-1]]


def _neighbours(values: Tensor) -> Tensor:
    """Weighted sum of the eight neighbours, 1/6 direct and 1/12 diagonal, of what is inside.

    On a CPU a convolution of each channel is ten times slower than sums of shifted images.
    """
    if values.device.type == "cpu":
        padded = pad(values, (1, 1, 1, 1))
        rows = (padded[..., :-2] + padded[..., 2:]).add_(padded[..., 1:-1], alpha=2)
        both = (rows[..., :-2, :] + rows[..., 2:, :]).add_(rows[..., 1:-1, :], alpha=2)
        return both.sub_(values, alpha=4).div_(12)
    planes = values.reshape(1, -1, *values.shape[-2:])
    kernel = _weights(values.dtype, values.device).expand(planes.shape[1], 1, 3, 3)
    return conv2d(planes, kernel, padding=1, groups=planes.shape[1]).reshape(values.shape)


@cache
def _weights(kind: torch.dtype, device: torch.device) -> Tensor:
    """Of the eight neighbours: kept on the device, which would be waited for at each copy."""
    weights = torch.tensor([[1, 2, 1], [2, 0, 2], [1, 2, 1]], dtype=torch.float64) / 12
    with torch.inference_mode(False):
        return placed(weights.to(kind), device)


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


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(dim=(2, 3), keepdim=True)


def _square(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dim=(2, 3), keepdim=True)
    return norm.square()


def _spread(images: Tensor) -> Tensor:
    return images.std(dim=(2, 3), keepdim=True, correction=0)


def _noise(images: Tensor, context: FillContext, purpose: str) -> Tensor:
    keys = stream_keys(context.keys, seed=context.seed, purpose=purpose)
    values = keyed_normal(placed(keys, float64_device(images.device)), images[0].numel())
    return values.reshape(images.shape).to(images.dtype).to(images.device)
