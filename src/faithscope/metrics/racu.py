"""Metrics of retraining: RACU (Madsen et al., Findings of EMNLP 2022), the mean curve, its end.

How much faster performance falls when the tokens that a measure points to are masked than when
random ones are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from faithscope.data.tensors import as_numbers, check_shapes, common_type
from faithscope.errors import FaithscopeError, shown
from faithscope.metrics.metric import BaseMetric, register_metric


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
    if not isinstance(clip, bool):
        raise FaithscopeError(f"clip must be true or false, got {shown(clip)}.")
    p, b, x = _checked(curve, baseline, ratios)
    value = (_area(b - p, x) / _room(b, x)).to(common_type(curve, baseline))
    return value.clamp(-1, 1) if clip else value


def absolute_area(curve: Tensor, baseline: Tensor, ratios: Tensor) -> Tensor:
    """The area between the random curve and a measure's: RACU's numerator.

    Shapes: curve [..., I], baseline [..., I], ratios [I] -> [...].

    >>> random, measure = torch.tensor([1.0, 0.8, 0.0]), torch.tensor([1.0, 0.2, 0.0])
    >>> absolute_area(measure, random, torch.tensor([0.0, 0.5, 1.0]))
    tensor(0.3000)
    """
    p, b, x = _checked(curve, baseline, ratios)
    return _area(b - p, x).to(common_type(curve, baseline))


def racu_doubts(baseline: Tensor, ratios: Tensor) -> RacuDoubts:
    """Say for which random curves the denominator of RACU is 0 (up to rounding) or negative.

    Shapes: baseline [..., I], ratios [I] -> bool [...] each.

    >>> flat_then_rising = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.9]])
    >>> racu_doubts(flat_then_rising, torch.tensor([0.0, 0.5, 1.0]))
    RacuDoubts(degenerate=tensor([ True, False]), negative=tensor([False,  True]))
    """
    b, _, x = _checked(baseline, baseline, ratios)
    room = _room(b, x)
    rounding = 1e-12 if common_type(baseline) == torch.float64 else 1e-6
    degenerate = room.abs() <= rounding * _area(b.abs(), x)
    return RacuDoubts(degenerate, ~degenerate & (room < 0))


def _area(values: Tensor, ratios: Tensor) -> Tensor:
    """The area under values [..., I], by trapezoids."""
    return ((values[..., 1:] + values[..., :-1]) / 2 * (ratios[1:] - ratios[:-1])).sum(-1)


def _room(baseline: Tensor, ratios: Tensor) -> Tensor:
    """The most that can be lost: what lies above the performance at the last ratio."""
    return _area(baseline - baseline[..., -1:], ratios)


def _checked(curve: Tensor, baseline: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    curve = as_numbers(curve, "curve")
    baseline, ratios = as_numbers(baseline, "baseline"), as_numbers(ratios, "ratios")
    points = ratios.shape[-1] if ratios.ndim == 1 else 0
    if points < 2 or not bool((ratios[1:] > ratios[:-1]).all()):
        raise FaithscopeError("racu needs at least two masked ratios [I], rising.")
    if curve.shape[-1:] != (points,) or baseline.shape[-1:] != (points,):
        raise FaithscopeError(
            f"racu needs a curve and a baseline [..., I] with one value for each of the {points} "
            f"ratios, got {list(curve.shape)} and {list(baseline.shape)}."
        )
    check_shapes("curve and baseline", curve, baseline)
    return curve, baseline, ratios


_PAPER = "Madsen et al., Recursively Masking Allegedly Important Tokens and Retraining, 2022"


@dataclass(frozen=True, eq=False)
class Curves:
    """The test performance of one measure and of random masking, seed by seed.

    `is_relative` says whether levels are percentages, so that the last one masks everything;
    `is_better_higher` whether more of the performance is better (not of a cross-entropy).

    Shapes: curve, baseline [S, I], ratios [I], rising from 0.
    """

    curve: Tensor
    baseline: Tensor
    ratios: Tensor
    is_relative: bool = True
    is_better_higher: bool = True


class CurveScores(NamedTuple):
    """One value and one flag per seed."""

    values: Tensor
    flags: list[str]


@dataclass(frozen=True)
class TrainingMetric(BaseMetric):
    """A metric of curves over levels of masking, one score per seed."""

    probe: ClassVar[str] = "retrain"
    against: ClassVar[str] = "random"
    """What scores are tested against: those of random masking, or zero."""
    bounds: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = _PAPER

    def score(self, curves: Curves) -> CurveScores:
        """One score per seed."""
        raise NotImplementedError


@register_metric
@dataclass(frozen=True)
class Racu(TrainingMetric):
    """Relative area between the curves of random masking and of the measure."""

    name: ClassVar[str] = "racu"
    higher_is_better: ClassVar[bool] = True
    against: ClassVar[str] = "zero"
    equation: ClassVar[str] = (
        "Σ ½Δx (Δp_i + Δp_i+1) / Σ ½Δx (Δb_i + Δb_i+1), Δp = b − p, Δb = b − b_I"
    )

    clip: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.clip, bool):
            raise FaithscopeError(
                f"The option 'clip' of racu is true or false, got {shown(self.clip)}."
            )

    def score(self, curves: Curves) -> CurveScores:
        """Equation 3; NaN with a flag where there is nothing to divide by."""
        found = racu(curves.curve, curves.baseline, curves.ratios, clip=self.clip)
        if not curves.is_relative:  # it is relative to what masking everything loses
            return CurveScores(torch.full_like(found, torch.nan), ["counted"] * len(found))
        doubts = racu_doubts(curves.baseline, curves.ratios)
        flags = [
            "no_loss" if nothing else "sign_turned" if negative else ""
            for nothing, negative in zip(*(d.tolist() for d in doubts), strict=True)
        ]
        return CurveScores(found.masked_fill(doubts.degenerate, torch.nan), flags)


@register_metric
@dataclass(frozen=True)
class MeanCurve(TrainingMetric):
    """Mean performance over the levels of masking: the area under the curve."""

    name: ClassVar[str] = "area"
    higher_is_better: ClassVar[bool] = False
    equation: ClassVar[str] = "Σ ½Δx (p_i + p_i+1), levels from 0 to 1"

    def score(self, curves: Curves) -> CurveScores:
        """By trapezoids; the lower, the more was lost."""
        return CurveScores(_area(curves.curve, curves.ratios), [""] * len(curves.curve))


@register_metric
@dataclass(frozen=True)
class CurveEnd(TrainingMetric):
    """Performance at the last level whose masks the measure decides."""

    name: ClassVar[str] = "end"
    higher_is_better: ClassVar[bool] = False
    equation: ClassVar[str] = "p at the highest level below 100 %, or at the highest count"

    def score(self, curves: Curves) -> CurveScores:
        """The lower, the more was lost."""
        place = -2 if curves.is_relative else -1
        return CurveScores(curves.curve[:, place], [""] * len(curves.curve))
