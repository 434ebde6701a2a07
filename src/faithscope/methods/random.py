"""Random attribution, the baseline every method must beat.

`random` is drawn per pixel, as in the papers, or on a coarser grid, `random(grid=7x7)`;
`random_patch` per patch. Those that are coarse are upsampled as other coarse maps are, and so are
the matched baseline for them.
"""

from __future__ import annotations

import re

from torch import Tensor

from faithscope.errors import FaithscopeError, shown
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.models.device import float64_device
from faithscope.rng import keyed_uniform, stream_keys


def _rows_and_columns(grid: str) -> tuple[int, int] | None:
    """A grid as it is written; None of nothing, which is every pixel.

    >>> _rows_and_columns("7x14"), _rows_and_columns("")
    ((7, 14), None)
    """
    if not grid:
        return None
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", grid)
    if found is None:
        raise FaithscopeError(f"The grid of random is rows x columns, as 7x7, got {shown(grid)}.")
    return int(found[1]), int(found[2])


def _granularity(*, grid: str) -> str:
    return "any" if _rows_and_columns(grid) else "pixel"


@register_method("random", granularity=_granularity, is_random=True, in_papers=True)
def random(evidence: Evidence, *, grid: str = "") -> Tensor:
    """Uniform noise per pixel, or per cell of a grid."""
    size = (evidence.images.shape[-2], evidence.images.shape[-1])
    shape = _rows_and_columns(grid)
    return _uniform(evidence, shape or size, f"random {grid}" if shape else "random")


@register_method("random_patch", granularity="patch", is_random=True)
def random_patch(evidence: Evidence) -> Tensor:
    """Uniform noise per patch."""
    grid = evidence.model.require_grid(evidence.images, "random_patch")
    return _uniform(evidence, grid, "random_patch")


def _uniform(evidence: Evidence, shape: tuple[int, int], purpose: str) -> Tensor:
    keys = stream_keys(evidence.keys, seed=evidence.seed, purpose=purpose, draw=evidence.draw)
    place = float64_device(evidence.images.device)
    values = keyed_uniform(keys.to(place), shape[0] * shape[1])
    return values.reshape(-1, *shape)
