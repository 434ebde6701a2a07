"""RACU, the relative area between curves (Madsen et al., Findings of EMNLP 2022), equation 3.

How much faster performance falls when the tokens that a measure points to are masked than when
random ones are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from faithscope.errors import FaithscopeError


class RacuDoubts(NamedTuple):
    """Where a RACU is not what it seems, bool [...].

    degenerate: masking random tokens loses no performance, so there is nothing to divide by.
    negative: performance at the last ratio is above the average one, so the sign is turned around.
    """

    degenerate: Tensor
    negative: Tensor


def racu(curve: Tensor, baseline: Tensor, ratios: Tensor, clip: bool = True) -> Tensor:
    r"""The area between the random curve and a measure's, relative to the most there can be.

    .. math:: \mathrm{RACU} = \frac{\sum_i \tfrac12 \Delta x_i (\Delta p_i + \Delta p_{i+1})}
       {\sum_i \tfrac12 \Delta x_i (\Delta b_i + \Delta b_{i+1})}, \qquad
       \Delta p_i = b_i - p_i, \quad \Delta b_i = b_i - b_I

    with the performance p of the measure and b of random masking (of the same seed) at the
    masked ratios x, rising. 1 would be a measure that loses everything at once, 0 is as good as
    random. `clip` keeps each value in [-1, 1], as for the paper's Table 2; its equation does not.

    A denominator of 0 gives ±infinity (clipped: ±1), or NaN if the numerator is 0 too; a negative
    one turns the sign around: `racu_doubts` says where.

    Shapes: curve [..., I], baseline [..., I], ratios [I] -> [...].

    >>> random = torch.tensor([1.0, 0.9, 0.6, 0.0])
    >>> measure = torch.tensor([1.0, 0.4, 0.2, 0.0])
    >>> racu(measure, random, torch.tensor([0.0, 0.3, 0.7, 1.0]))
    tensor(0.4667)
    """
    curve, baseline, ratios = _checked(curve, baseline, ratios)
    value = _area(baseline - curve, ratios) / _room(baseline, ratios)
    return value.clamp(-1, 1) if clip else value


def absolute_area(curve: Tensor, baseline: Tensor, ratios: Tensor) -> Tensor:
    """The area between the random curve and a measure's: RACU's numerator.

    Shapes: curve [..., I], baseline [..., I], ratios [I] -> [...].

    >>> random, measure = torch.tensor([1.0, 0.8, 0.0]), torch.tensor([1.0, 0.2, 0.0])
    >>> absolute_area(measure, random, torch.tensor([0.0, 0.5, 1.0]))
    tensor(0.3000)
    """
    curve, baseline, ratios = _checked(curve, baseline, ratios)
    return _area(baseline - curve, ratios)


def racu_doubts(baseline: Tensor, ratios: Tensor) -> RacuDoubts:
    """Say for which random curves the denominator of RACU is 0 (up to rounding) or negative.

    Shapes: baseline [..., I], ratios [I] -> bool [...] each.

    >>> flat_then_rising = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.9]])
    >>> racu_doubts(flat_then_rising, torch.tensor([0.0, 0.5, 1.0]))
    RacuDoubts(degenerate=tensor([ True, False]), negative=tensor([False,  True]))
    """
    baseline, _, ratios = _checked(baseline, baseline, ratios)
    room = _room(baseline, ratios)
    rounding = 1e-12 if baseline.dtype == torch.float64 else 1e-6
    degenerate = room.abs() <= rounding * _area(baseline.abs(), ratios)
    return RacuDoubts(degenerate, ~degenerate & (room < 0))


def _area(values: Tensor, ratios: Tensor) -> Tensor:
    """The area under values [..., I], by trapezoids."""
    return ((values[..., 1:] + values[..., :-1]) / 2 * (ratios[1:] - ratios[:-1])).sum(-1)


def _room(baseline: Tensor, ratios: Tensor) -> Tensor:
    """The most that can be lost: what lies above the performance at the last ratio."""
    return _area(baseline - baseline[..., -1:], ratios)


def _checked(curve: Tensor, baseline: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    curve, baseline, ratios = (_floating(values) for values in (curve, baseline, ratios))
    points = ratios.shape[-1] if ratios.ndim == 1 else 0
    if points < 2 or bool((ratios[1:] <= ratios[:-1]).any()):
        raise FaithscopeError("racu needs at least two masked ratios [I], rising.")
    if curve.shape[-1:] != (points,) or baseline.shape[-1:] != (points,):
        raise FaithscopeError(
            f"racu needs a curve and a baseline [..., I] with one value for each of the {points} "
            f"ratios, got {list(curve.shape)} and {list(baseline.shape)}."
        )
    return curve, baseline, ratios


def _floating(values: ArrayLike | Tensor) -> Tensor:
    """A tensor as it is; numbers of any other kind in float64."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return values
    return torch.as_tensor(np.asarray(values, dtype=np.float64))
