"""RACU, the relative area between curves (Madsen et al., Findings of EMNLP 2022), equation 3.

How much faster performance falls when the tokens that a measure points to are masked than when
random ones are, and the interval of such a number over seeds.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from faithscope.errors import FaithscopeError

FEWEST_SEEDS = 3
"""Of which an interval over seeds is shown, and a verdict given."""


class RacuDoubts(NamedTuple):
    """Where a RACU is not what it seems, bool [...].

    degenerate: masking random tokens loses no performance, so there is nothing to divide by.
    negative: performance at the last ratio is above the average one, so the sign is turned around.
    """

    degenerate: Tensor
    negative: Tensor


class SeedInterval(NamedTuple):
    """A mean over seeds and its interval."""

    mean: float
    low: float
    high: float


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


def seed_interval(values: ArrayLike) -> SeedInterval:
    """Mean over seeds with its 95 % bootstrap interval (BCa, 9999 resamples), as in the paper.

    The ends are scipy's own to the last bit. They hang on the last bit of the values, too: of
    five seeds, resamples that hold each once tie with the mean, or not. Equal values have an
    interval of no width; one value has none, nor have values that are not finite (NaN).

    >>> seed_interval([0.5, 0.5, 0.5])
    SeedInterval(mean=0.5, low=0.5, high=0.5)
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise FaithscopeError("An interval over seeds needs a list of one value per seed.")
    with np.errstate(invalid="ignore"):  # the mean of ±infinity is NaN
        mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(mean):
        return SeedInterval(mean, float("nan"), float("nan"))
    if np.ptp(array) <= 1e-12 * np.abs(array).max():
        return SeedInterval(mean, mean, mean)
    from scipy import stats  # slow to import, and RACU itself does without

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap((array,), np.mean, rng=np.random.default_rng(0))
    low, high = found.confidence_interval
    return SeedInterval(mean, float(low), float(high))


def told_interval(values: ArrayLike) -> SeedInterval:
    """The same, but the ends are NaN for fewer than three seeds, of which an interval says nothing.

    >>> told_interval([0.25, 0.75])
    SeedInterval(mean=0.5, low=nan, high=nan)
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 1 and 0 < len(array) < FEWEST_SEEDS:
        return SeedInterval(float(array.mean()), float("nan"), float("nan"))
    return seed_interval(array)


def student_interval(values: ArrayLike, comparisons: int = 1) -> SeedInterval:
    r"""Mean over seeds with Student's interval, :math:`\bar x \pm t_{S-1,\,0.975}\, s/\sqrt S`.

    Its ends are NaN for fewer than three seeds. Of several comparisons it covers all together with
    95 % (Bonferroni).

    >>> [round(end, 3) for end in student_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < FEWEST_SEEDS:
        return SeedInterval(mean, float("nan"), float("nan"))
    error = array.std(ddof=1) / np.sqrt(len(array))
    width = float(stats.t.ppf(1 - 0.025 / comparisons, len(array) - 1) * error)
    return SeedInterval(mean, mean - width, mean + width)


def is_surely_above(values: ArrayLike) -> bool:
    """Whether a mean over seeds is above zero by both intervals: the bootstrap's and Student's t.

    The bootstrap's alone is too narrow for so few numbers: of normal ones around zero it leaves out
    zero in about one case of six with five seeds, in more than one of four with three.

    >>> is_surely_above([0.1, 0.2, 0.3]), is_surely_above([0.1, 0.15, 0.2])
    (False, True)
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    if len(array) < FEWEST_SEEDS:
        return False
    return told_interval(array).low > 0 and student_interval(array).low > 0


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
