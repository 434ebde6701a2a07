"""Metrics that read a perturbation curve: AOPC, log-odds, AUC, comprehensiveness and their kin.

Each is a few spans and one line of arithmetic. The pure functions stand first, then the metrics
that declare direction, range, paper and equation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from faithscope.data.tensors import as_numbers, check_shapes, common_type
from faithscope.errors import FaithscopeError, shown
from faithscope.metrics.metric import Metric, Responses, register_metric
from faithscope.perturb import (
    Span,
    keep_most_relevant,
    least_relevant_first,
    most_relevant_first,
)

_SACO = "Wu et al., On the Faithfulness of Vision Transformer Explanations, 2024"
_ERASER = "DeYoung et al., ERASER, 2020"
_RISE = "Petsiuk et al., RISE, 2018"


def mean_drop(p0: Tensor, p: Tensor) -> Tensor:
    r"""Mean fall of the probability over the levels of a curve.

    .. math:: \frac{1}{|L|} \sum_{k \in L} p_0 - p_k

    Shapes: p0 [...], p [..., S] -> [...].

    >>> mean_drop(torch.tensor(0.9), torch.tensor([0.9, 0.5, 0.1]))
    tensor(0.4000)
    """
    before, after = as_numbers(p0, "p0"), _levels(p, "p")
    check_shapes("p0 and p", before[..., None], after)
    return (before[..., None] - after).mean(-1).to(common_type(p0, p))


def mean_log_odds(log_p0: Tensor, log_p: Tensor) -> Tensor:
    r"""Mean log-ratio of the probabilities over the levels of a curve.

    .. math:: \frac{1}{|L|} \sum_{k \in L} \log \frac{p_k}{p_0}

    Shapes: log_p0 [...], log_p [..., S] -> [...].
    """
    before, after = as_numbers(log_p0, "log_p0"), _levels(log_p, "log_p")
    check_shapes("log_p0 and log_p", before[..., None], after)
    return (after - before[..., None]).mean(-1).to(common_type(log_p0, log_p))


def area(values: Tensor) -> Tensor:
    r"""Trapezoid area under equally spaced values on the axis [0, 1].

    .. math:: \frac{1}{S - 1} \sum_{k=1}^{S-1} \frac{v_{k-1} + v_k}{2}

    Shapes: values [..., S] -> [...].

    >>> area(torch.tensor([1.0, 1.0, 0.0]))
    tensor(0.7500)
    """
    curve = _levels(values, "values", least=2)
    return torch.trapezoid(curve, dx=1 / (curve.shape[-1] - 1), dim=-1).to(common_type(values))


def _levels(values: Tensor, what: str, least: int = 1) -> Tensor:
    """The levels of a curve on the last axis, as many as are needed."""
    curve = as_numbers(values, what)
    if curve.ndim == 0 or curve.shape[-1] < least:
        raise FaithscopeError(
            f"{what} must hold at least {least} level{'s' * (least > 1)} on its last axis, got "
            f"shape {list(curve.shape)}."
        )
    return curve


@dataclass(frozen=True)
class CurveMetric(Metric):
    """A metric of a curve with equally spaced levels: unless it says otherwise, the mean drop."""

    steps: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise FaithscopeError(
                f"steps of '{self.name}' must be a whole number of at least 1, got "
                f"{shown(self.steps)}."
            )

    def resolution(self, k: int | str) -> int:
        """The number of steps; SaCo's K has no say in it."""
        return self.steps

    def spans(self, k: int) -> tuple[Span, ...]:
        """Most relevant first, from intact to empty."""
        return most_relevant_first(k)

    def score(self, responses: Responses) -> Tensor:
        """Mean drop over the levels."""
        return mean_drop(responses.log_p0.exp(), responses.p)


@register_metric
@dataclass(frozen=True)
class Aopc(CurveMetric):
    """Area over the perturbation curve: mean drop, most relevant units removed first."""

    name: ClassVar[str] = "aopc"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = _SACO
    equation: ClassVar[str] = "mean over levels 0…100 % of p0 − p, most relevant first"


@register_metric
@dataclass(frozen=True)
class LogOdds(CurveMetric):
    """Mean log-odds of the prediction, most relevant units removed first."""

    name: ClassVar[str] = "log_odds"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = _SACO
    equation: ClassVar[str] = "mean over levels 0…100 % of log(p / p0), most relevant first"

    def score(self, responses: Responses) -> Tensor:
        """Mean log-ratio."""
        return mean_log_odds(responses.log_p0, responses.log_p)


@register_metric
@dataclass(frozen=True)
class Auc(Metric):
    """Area under the accuracy curve, most relevant units removed first.

    A sample's score is the area under its own 0/1 curve, so that the mean over samples is the
    area under the accuracy of the data set.
    """

    name: ClassVar[str] = "auc"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = _SACO
    equation: ClassVar[str] = "trapezoid of accuracy against the share removed, most relevant first"

    step: int = 10

    def __post_init__(self) -> None:
        whole = isinstance(self.step, int) and not isinstance(self.step, bool)
        if not whole or not 1 <= self.step <= 100 or 100 % self.step:
            raise FaithscopeError(
                f"step of 'auc' is a whole number of per cent that divides 100 (10 or 5 as in the "
                f"papers), got {shown(self.step)}."
            )

    def resolution(self, k: int | str) -> int:
        """The number of steps that `step` per cent make."""
        return 100 // self.step

    def spans(self, k: int) -> tuple[Span, ...]:
        """Most relevant first, from intact to empty."""
        return most_relevant_first(k)

    def score(self, responses: Responses) -> Tensor:
        """Area under the 0/1 curve."""
        return area(responses.hit)


@register_metric
@dataclass(frozen=True)
class Comprehensiveness(CurveMetric):
    """Mean drop, least relevant units removed first, as the SaCo papers define it (not ERASER)."""

    name: ClassVar[str] = "comprehensiveness"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = _SACO
    equation: ClassVar[str] = "mean over levels 0…100 % of p0 − p, least relevant first"

    def spans(self, k: int) -> tuple[Span, ...]:
        return least_relevant_first(k)


@register_metric
@dataclass(frozen=True)
class ComprehensivenessEraser(CurveMetric):
    """ERASER's comprehensiveness: mean drop when the most relevant units are removed."""

    name: ClassVar[str] = "comprehensiveness_eraser"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    paper: ClassVar[str] = _ERASER
    equation: ClassVar[str] = "mean over j ≥ 1 of p0 − p with the top j/steps removed"

    def spans(self, k: int) -> tuple[Span, ...]:
        return most_relevant_first(k)[1:]


@register_metric
@dataclass(frozen=True)
class Sufficiency(CurveMetric):
    """ERASER's sufficiency: mean drop when only the most relevant units are kept."""

    name: ClassVar[str] = "sufficiency"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    paper: ClassVar[str] = _ERASER
    equation: ClassVar[str] = "mean over j of p0 − p with all but the top j/steps removed"

    def spans(self, k: int) -> tuple[Span, ...]:
        return keep_most_relevant(k)


@register_metric
@dataclass(frozen=True)
class Deletion(CurveMetric):
    """Area under the probability curve while the most relevant units are removed."""

    name: ClassVar[str] = "deletion"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    paper: ClassVar[str] = _RISE
    equation: ClassVar[str] = "trapezoid of p against the share removed, most relevant first"

    def score(self, responses: Responses) -> Tensor:
        """Area under p."""
        return area(responses.p)


@register_metric
@dataclass(frozen=True)
class Insertion(CurveMetric):
    """Area under the probability curve while the most relevant units are put in."""

    name: ClassVar[str] = "insertion"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    paper: ClassVar[str] = _RISE
    equation: ClassVar[str] = "trapezoid of p against the share inserted, most relevant first"

    def spans(self, k: int) -> tuple[Span, ...]:
        return keep_most_relevant(k)

    def score(self, responses: Responses) -> Tensor:
        """Area under p."""
        return area(responses.p)
