"""Units: bring a map to the units that are ranked (pixels or whole patches), and back to pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from faithscope.errors import FaithscopeError, choose
from faithscope.models.device import float64_device

UNITS = ("pixels", "patches")
UPSAMPLES = ("bilinear", "nearest")


def in_range(maps: Tensor) -> Tensor:
    """Maps of which every sum is finite: those near the end of the range are scaled down.

    By a power of two, which changes no rank and no ratio; in float32 at least.

    Shapes: maps [B, h, w] -> [B, h, w].
    """
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
    largest = torch.maximum(maps.amax((1, 2)), -maps.amin((1, 2)))
    huge = largest > torch.finfo(maps.dtype).max * 2.0**-64
    return maps * torch.where(huge, 2.0**-64, 1.0).to(maps.dtype)[:, None, None]


def to_pixels(maps: Tensor, size: tuple[int, int], upsample: str = "bilinear") -> Tensor:
    """Upsample patch maps to pixels; a map that has that size already is returned as it is.

    Shapes: maps [B, h, w] -> [B, H, W].
    """
    choose("upsampling", upsample, UPSAMPLES)
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    if upsample == "bilinear":  # halved, or differences at the end of the range would overflow
        return 2 * _bilinear(_bilinear(maps / 2, 1, size[0]), 2, size[1])
    return interpolate(maps[:, None], size=size, mode="nearest")[:, 0]


def _bilinear(maps: Tensor, dim: int, length: int) -> Tensor:
    """Interpolate along one axis as torch's `interpolate` does (corners not aligned), with ties.

    A bilinear map is flat between equal patches and beyond the outermost patch centres. There
    `interpolate` leaves pixels that differ in the last bit, and ranks that hang on rounding;
    `lerp` leaves them equal.
    """
    count = maps.shape[dim]
    places = torch.arange(length, device=float64_device(maps.device), dtype=torch.float64)
    places = ((places + 0.5) * (count / length) - 0.5).clamp(0, count - 1)
    low = places.floor().to(torch.int64)
    weight = (places - low).to(maps.dtype).reshape((-1, 1) if dim == 1 else (1, -1))
    low, weight = low.to(maps.device), weight.to(maps.device)
    high = (low + 1).clamp(max=count - 1)
    return torch.lerp(maps.index_select(dim, low), maps.index_select(dim, high), weight)


def to_patches(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sum a pixel map inside each patch; a map of the grid's shape is returned as it is.

    Shapes: maps [B, H, W] -> [B, h, w].

    >>> to_patches(torch.ones(1, 4, 6), (2, 3))
    tensor([[[4., 4., 4.],
             [4., 4., 4.]]])
    """
    height, width = maps.shape[-2:]
    rows, columns = grid
    if (height, width) == (rows, columns):
        return maps
    if height % rows or width % columns:
        raise FaithscopeError(
            f"A map of {height}×{width} pixels cannot be cut into {rows}×{columns} patches: "
            "use units='pixels'."
        )
    tiles = maps.reshape(-1, rows, height // rows, columns, width // columns)
    return tiles.sum(dim=(2, 4))


def unit_mask_to_pixels(mask: Tensor, shape: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Spread a mask over units to the pixels they cover.

    Shapes: mask bool [B, n] with n = h·w of `shape` -> bool [B, 1, H, W] of `size`.
    """
    mask = mask.reshape(-1, 1, *shape)
    if shape == size:
        return mask
    down, right = size[0] // shape[0], size[1] // shape[1]
    return torch.repeat_interleave(torch.repeat_interleave(mask, down, dim=2), right, dim=3)
