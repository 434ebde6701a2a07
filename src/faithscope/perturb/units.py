"""Units: bring a map to the units that are ranked (pixels or whole patches), and back to pixels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from faithscope.errors import FaithscopeError, choose
from faithscope.models.device import as_float64, float64_device
from faithscope.models.model import CHANNELS

UNITS = ("pixels", "patches")
UPSAMPLES = ("bilinear", "nearest")
FAR = 2
"""By how much the proportions of a coarse map may differ from those of the image."""

Size = tuple[int, int]
"""Rows and columns."""


def granularity_of(shape: Size, size: Size, grid: Size | None) -> str:
    """How fine a map is: by patch, by pixel, or the rows and columns of its own grid.

    >>> granularity_of((14, 14), (224, 224), (14, 14)), granularity_of((7, 7), (224, 224), None)
    ('patch', '7×7')
    """
    if shape == grid:
        return "patch"
    return "pixel" if shape == size else f"{shape[0]}×{shape[1]}"


def to_grids(
    maps: Tensor,
    count: int,
    size: Size,
    grid: Size | None,
    what: str,
    *,
    photo: Size | None = None,
    whole: Sequence[int] = (),
    tokens: Collection[int] = (),
    is_asked: bool = False,
) -> Tensor:
    """Maps of `count` images, in any usual shape, as one grid each.

    Channels are summed, and patch vectors laid out in rows. A grid may be coarser than the image,
    in rows and columns, or of the size of the photo that the image was made of. One that is much
    wider or higher than the image, or with as many rows or columns as the model has `tokens`, is no
    map, unless it is what the user asked for. What is refused is said to be of the shape `whole`,
    of which these maps are a part.

    Shapes: [B, h, w], [B, C, h, w], [B, h, w, C], [B, P], [B, P, 1] or [B, 1, P] -> [B, h, w].
    """
    shape = tuple(maps.shape)
    rank = partial(_rank, size=size, grid=grid, photo=photo, tokens=tokens, is_asked=is_asked)
    given, found = f"{what} have shape {list(whole or shape)}", maps
    if maps.ndim == 4:
        found = _channels_summed(_channels_first(maps, rank, given))
    elif count == 1 and shape in (size, grid, photo):  # an image alone, without the batch's axis
        found = maps[None]
    elif maps.ndim == 2 and grid is not None and _is_vector((1, shape[1]), grid):
        found = maps[:, None]
    if found.ndim == 3 and len(found) == count:
        of_one = (found.shape[1], found.shape[2])
        if rank(of_one):
            in_rows = grid is not None and not is_asked and _is_vector(of_one, grid)
            return found.reshape(-1, *grid) if grid and in_rows else found
    shape = tuple(whole) or shape
    count = shape[0] if whole else count
    by_patch = f", by patch [{count}, {grid[0] * grid[1]}]" if grid else ""
    of_photo = f", of the photo [{count}, {photo[0]}, {photo[1]}]" if photo else ""
    advice = ""
    if count == 1 and maps.ndim == 3 and shape[1:] in (size, grid):
        advice = "; if its first axis are channels, give the image one of its own, maps[None]"
    elif any(length in tokens for length in shape[-2:]) and maps.ndim > 2:
        advice = "; this looks like attention or features of tokens, of which no map was made yet"
    raise FaithscopeError(
        f"{given}: expected {count} map{'s' * (count != 1)}, "
        f"[{count}, {size[0]}, {size[1]}], coarser [{count}, h, w] of about the image's "
        f"proportions{of_photo}{by_patch}, or any with channels, [{count}, channels, h, w], which "
        f"are summed{advice}."
    )


def _rank(
    shape: Size,
    *,
    size: Size,
    grid: Size | None,
    photo: Size | None,
    tokens: Collection[int],
    is_asked: bool,
) -> int:
    """How well these rows and columns fit a map: 3 known, 2 of its proportions, 0 not at all.

    >>> others = {"grid": (4, 4), "photo": None, "tokens": (16, 17), "is_asked": False}
    >>> [_rank((7, wide), size=(32, 32), **others) for wide in (7, 5, 3)]
    [2, 1, 0]
    """
    high, wide = shape
    if shape in (size, grid, photo) or (grid is not None and _is_vector(shape, grid)):
        return 3
    if not (0 < high < size[0] and 0 < wide < size[1]):
        return 0
    if is_asked:
        return 2
    if high in tokens or wide in tokens:
        return 0
    down, across = high * size[1], wide * size[0]
    return 2 if down == across else int(max(down, across) <= FAR * min(down, across))


def _is_vector(shape: Size, grid: Size) -> bool:
    """Whether there is one value for each patch, in a row or a column."""
    return shape[0] * shape[1] == max(shape) == grid[0] * grid[1]


def _channels_first(maps: Tensor, rank: Callable[[Size], int], given: str) -> Tensor:
    """Maps with channels, [B, C, h, w] or [B, h, w, C], as [B, C, h, w]."""
    _, one, two, three = maps.shape
    first, last = rank((two, three)), rank((one, two)) if three in CHANNELS else 0
    if first != last or not first or one == three == 1:
        return maps.movedim(3, 1) if last > first else maps
    if one in CHANNELS:
        raise FaithscopeError(
            f"{given}, of which the second or the last axis may be channels: sum those first, and "
            "give [images, rows, columns]."
        )
    return maps.movedim(3, 1)


def _channels_summed(maps: Tensor) -> Tensor:
    """Sum over channels, within the range of numbers: [B, C, h, w] -> [B, h, w]."""
    if maps.shape[1] == 1:
        return maps[:, 0]
    return in_range(maps.flatten(1, 2)).reshape(maps.shape).sum(1)


def to_units(
    maps: Tensor, units: str, size: Size, grid: Size | None, upsample: str = "bilinear"
) -> Tensor:
    """Bring maps to what is ranked: pixels, or whole patches.

    A map that is coarser than the image becomes one of pixels first; a patch is the sum of its
    pixels.

    Shapes: maps [B, h, w] -> [B, H, W] or, by patch, [B, rows, columns].
    """
    if units == "pixels" or grid is None:
        return to_pixels(maps, size, upsample)
    if tuple(maps.shape[-2:]) == grid:
        return maps
    return to_patches(to_pixels(maps, size, upsample), grid)


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
    """Upsample coarser maps to pixels; a map that has that size already is returned as it is.

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


def resample(maps: Tensor, box: tuple[float, float, float, float], size: Size) -> Tensor:
    r"""A part of maps in another size: linear between pixels, averaged where it shrinks.

    Output i sees the inputs j around its centre :math:`c_i = b + (i + 1/2) s`, where the box begins
    at b and :math:`s` is its length by the number of outputs, with weights that sum to one:

    .. math:: w_{ij} \propto \max(0, 1 - |j + 1/2 - c_i| / \max(s, 1))

    Shapes: maps [B, h, w], box (top, left, bottom, right) in their pixels -> [B, H, W] of `size`.
    """
    values = as_float64(maps)
    top, left, bottom, right = box
    down = _weights(values.shape[1], top, bottom, size[0]).to(values)
    across = _weights(values.shape[2], left, right, size[1]).to(values)
    return down @ values @ across.T


def _weights(length: int, start: float, stop: float, count: int) -> Tensor:
    """The weights of `length` inputs in `count` outputs, [count, length]."""
    step = (stop - start) / count
    centres = start + (torch.arange(count, dtype=torch.float64) + 0.5) * step
    inputs = torch.arange(length, dtype=torch.float64) + 0.5
    weights = (1 - (inputs - centres[:, None]).abs() / max(step, 1.0)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


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
