"""Missing pixels from those that are left: each the weighted mean of its eight neighbours.

A sparse system, solved by conjugate gradients with a multigrid cycle. On a CUDA GPU the steps are
kernels of their own (inpaint_kernel.py), elsewhere operations of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

from faithscope.errors import said, warn
from faithscope.models.device import placed
from faithscope.models.memory import is_out_of_memory

CACHED = 1 << 19
"""Numbers of images for which missing pixels are solved together on a CPU: they fit its caches."""


def interpolate_missing(
    images: Tensor, mask: Tensor, *, tolerance: float = 1e-4, max_iterations: int = 1000
) -> Tensor:
    """Fill masked pixels so that each is the weighted mean of its eight neighbours.

    Conjugate gradients run per image and channel, preconditioned by one cycle over halved
    resolutions: three to eight steps, however large the holes are. One that has converged (residual
    below `tolerance` of the right-hand side) is frozen, so results do not depend on the batch, but
    for the last bits on a GPU without the kernels, whose sums torch adds up in an order of its own.
    On a CPU, where images need not wait for each other, scattered pixels go without the cycle,
    which costs more there than the steps it saves. Images are centred first, so that the tolerance
    is relative to how they vary, not to how bright they are.

    Shapes: images [B, C, H, W], mask bool [B, 1, H, W] -> [B, C, H, W].
    """
    hole = mask.to(images.dtype)
    known = 1 - hole
    count = known.sum(dim=(2, 3), keepdim=True).clamp_min(1)
    kind = _kind_of_grid(hole)
    centre = kind.total(images * known) / count
    solved = (known * (images - centre)).contiguous()
    for part, is_scattered in _parts(hole, images[0].numel()):
        grids = _grids(hole[part], kind)
        solved[part] = _solved(solved[part], grids, is_scattered, tolerance, max_iterations)
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


class Grid:
    """A resolution at which missing pixels are solved for, and the steps taken there.

    Shapes: hole [B, 1, H, W], 1 where a pixel is missing; degree [1, 1, H, W], the sum of the
    weights of the neighbours that are inside the image; share [B, 1, H, W], hole by degree.
    """

    def __init__(self, hole: Tensor) -> None:
        self.hole, self.minus = hole, -hole
        self.degree = _neighbours(torch.ones_like(hole[:1]))
        self.share = hole / self.degree

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """The sum of each plane."""
        return values.sum(dim=(2, 3), keepdim=True)

    @staticmethod
    def square(values: Tensor) -> Tensor:
        """The sum of each plane's squares."""
        norm: Tensor = torch.linalg.vector_norm(values, dim=(2, 3), keepdim=True)
        return norm.square()

    def system(self, values: Tensor) -> Tensor:
        """The left-hand side of the equations of the missing pixels, 0 elsewhere."""
        made = _neighbours(values).addcmul_(self.degree, values, value=-1)
        return made.mul_(self.minus)

    def target(self, known: Tensor) -> Tensor:
        """The right-hand side, of values that are known; 0 where they are."""
        return self.hole * _neighbours(known)

    def lack(self, target: Tensor, guess: Tensor) -> Tensor:
        """What a guess leaves of the right-hand side."""
        return target - self.system(guess)

    def doubled(self, coarse: Tensor) -> Tensor:
        """Values of half the resolution, interpolated, for the missing pixels; 0 elsewhere."""
        return self.hole * _doubled(coarse, self.hole)

    def cycle(self, target: Tensor, below: Sequence[Grid]) -> Tensor:
        """Nearly the solution of `system(values) = target`: relaxed, corrected, relaxed.

        The correction comes from the resolutions `below`. To relax is to give each missing pixel
        the value that its own equation has, given the others.
        """
        first = values = self.share * target
        if below:
            rest = _neighbours(values)  # what is left of the target, after that first relaxation
            coarse = below[0].cycle(_summed(rest).mul_(below[0].hole), below[1:])
            values = torch.addcmul(values, self.hole, _doubled(coarse, values))
        return torch.addcmul(first, self.share, _neighbours(values))

    def corrected(
        self, residual: Tensor, applied: Tensor, below: Sequence[Grid], *, is_scattered: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The residual after a cycle, and its products with `applied` and the residual."""
        made = residual if is_scattered else self.cycle(residual, below)
        return made, self.total(applied * made), self.total(residual * made)

    def turned(
        self, corrected: Tensor, ratio: Tensor, direction: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next direction, the system applied to it, and the product of both."""
        direction = torch.addcmul(corrected, ratio, direction)
        applied = self.system(direction)
        return direction, applied, self.total(direction * applied)

    def step(
        self, solution: Tensor, residual: Tensor, direction: Tensor, applied: Tensor, size: Tensor
    ) -> Tensor:
        """Go that far in a direction, in place; the residual's square."""
        solution.addcmul_(size, direction)
        residual.addcmul_(size, applied, value=-1)
        return self.square(residual)


def _grids(hole: Tensor, kind: type[Grid]) -> list[Grid]:
    """The image's own resolution, half of it, and so on; where anything is known, it is known."""
    grids = []
    while True:
        grids.append(kind(hole))
        is_empty = hole.device.type == "cpu" and not bool(hole.any())
        if is_empty or min(hole.shape[-2:]) < 4:
            return grids
        hole = (_summed(1 - hole) == 0).to(hole.dtype)


def _kind_of_grid(hole: Tensor) -> type[Grid]:
    """Kernels where there are any: on a CUDA GPU, of float32."""
    if hole.device.type != "cuda" or hole.dtype != torch.float32:
        return Grid
    return _kernels(hole.device)


@cache
def _kernels(device: torch.device) -> type[Grid]:
    """The kernels if they can be made for a device, which is tried once."""
    if find_spec("triton") is None:
        return Grid
    from faithscope.perturb.inpaint_kernel import KernelGrid

    try:
        hole = torch.zeros(1, 1, 16, 16, device=device)
        hole[..., 3:9, 3:9] = 1
        _solved(1 - hole, _grids(hole, KernelGrid), False, 1e-4, 2)
    except Exception as error:  # no compiler, or a GPU that Triton does not know
        if is_out_of_memory(error):
            raise
        warn(f"Missing pixels are filled without kernels of Triton, slower: {said(error)}.")
        return Grid
    return KernelGrid


def _solved(
    images: Tensor,
    grids: Sequence[Grid],
    is_scattered: bool,
    tolerance: float,
    max_iterations: int,
) -> Tensor:
    """Solve for the pixels that the grids miss; those of the images are 0 there. 0 elsewhere.

    A cycle is not quite symmetric, so directions are made conjugate by what the residual changed
    (Polak and Ribière), not by its size alone.
    """
    grid, *below = grids
    target, solution = grid.target(images), _first_guess(images, grid, below)
    residual = grid.lack(target, solution)
    direction, applied = torch.zeros_like(images), torch.zeros_like(images)
    energy, enough = grid.square(residual), tolerance**2 * grid.square(target)
    size = slope = torch.zeros_like(energy)
    every = 1 if images.device.type == "cpu" else 2  # elsewhere a look at the energy waits for it
    for iteration in range(max_iterations):
        active = energy > enough
        if iteration % every == 0 and not bool(active.any()):
            break
        corrected, change, own = grid.corrected(residual, applied, below, is_scattered=is_scattered)
        ratio = torch.where(slope > 0, -size * change / slope.clamp_min(1e-30), 0.0)
        direction, applied, curvature = grid.turned(corrected, ratio, direction)
        slope = own
        size = torch.where(active, slope / curvature.clamp_min(1e-30), 0.0)
        energy = grid.step(solution, residual, direction, applied, size)
    return solution


def _first_guess(images: Tensor, grid: Grid, below: Sequence[Grid]) -> Tensor:
    """Nearly solve at half the resolution, from averages of what is known, and interpolate."""
    if not below:
        return torch.zeros_like(images)
    coarser = below[0]
    coarse = _summed(images) / _summed(1 - grid.hole).clamp_min(1)
    guess = _first_guess(coarse, coarser, below[1:])
    target = coarser.lack(coarser.target(coarse), guess)
    return grid.doubled(coarse + guess + coarser.cycle(target, below[1:]))


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
