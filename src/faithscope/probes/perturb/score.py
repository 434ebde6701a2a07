"""Scoring: put a shard's answers in the order of its plans, and apply every metric to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faithscope.data import Batch, as_numbers
from faithscope.errors import FaithscopeError, said
from faithscope.metrics import Metric, Responses
from faithscope.probes.perturb.ask import Answers, Column, Setup
from faithscope.probes.perturb.failures import FAILED
from faithscope.probes.perturb.plan import MapPlan

REFILLED = "mean_fill"
"""The flag of a score that reads an input without units, where a model answered the mean fill."""


@dataclass(frozen=True, eq=False)
class PlanResponses:
    """The answers to one plan: P pairs of (sample, map), C cuts.

    Shapes: sample, map int64 [P]; log_p, salience float64 [P, C]; top1 int64 [P, C].
    """

    plan: MapPlan
    sample: Tensor
    map: Tensor
    log_p: Tensor
    top1: Tensor
    salience: Tensor


@dataclass(frozen=True, eq=False)
class ShardResult:
    """Scores of S samples × M columns of maps, and the responses they come from, on the CPU.

    Shapes: target, predicted int64 [S]; log_p0 float64 [S]; by metric label: scores float64
    [S, M], k int64 [S, M], flags [S][M].
    """

    batch: Batch
    target: Tensor
    predicted: Tensor
    log_p0: Tensor
    scores: Mapping[str, Tensor]
    k: Mapping[str, Tensor]
    flags: Mapping[str, list[list[str]]]
    responses: Sequence[PlanResponses]


def score_shard(setup: Setup, answers: Answers) -> ShardResult:
    """Fetch the answers from the device and score them; the model is not needed any more."""
    if answers.there is not None:
        answers.there.wait()
    batch = answers.batch
    log_p0, predicted = answers.log_p0.cpu().double(), answers.predicted.cpu()
    responses = _sort_out(answers, log_p0, predicted)
    truth = predicted if batch.labels is None else batch.labels
    imprecise = torch.tensor([_is_imprecise(column) for column in setup.columns])
    ranked = answers.ranked
    scored = score_responses(
        setup.metrics,
        responses,
        log_p0,
        truth,
        group=setup.request.group,
        finite=ranked.finite,
        constant=ranked.constant,
        failed=answers.failed,
        imprecise=imprecise,
        is_refilled=setup.is_refilled,
    )
    return ShardResult(batch, answers.target.cpu(), predicted, log_p0, *scored, responses)


def _sort_out(answers: Answers, log_p0: Tensor, predicted: Tensor) -> list[PlanResponses]:
    """Scatter the answers back to plans: shared inputs first, then each pair's own."""
    ranked = answers.ranked
    log_p, top1 = answers.log_p.cpu().double(), answers.top1.cpu()
    done = len(log_p0) if ranked.has_removed else 0
    shared_log_p = [log_p0, log_p[:done]]
    shared_top1 = [predicted, top1[:done]]
    responses = []
    for auto, plan in ranked.plans.items():
        sample, column = ranked.pairs(auto)
        own = slice(done, done + len(sample) * len(plan.own))
        done = own.stop
        shape = (len(sample), len(plan.own))
        log_p_shared = [part[sample, None] for part in shared_log_p[: plan.shared]]
        top1_shared = [part[sample, None] for part in shared_top1[: plan.shared]]
        responses.append(
            PlanResponses(
                plan,
                sample,
                column,
                torch.cat([*log_p_shared, log_p[own].reshape(shape)], 1),
                torch.cat([*top1_shared, top1[own].reshape(shape)], 1),
                ranked.sums[auto].cpu()[sample, column],
            )
        )
    return responses


def score_responses(
    metrics: Sequence[Metric],
    responses: Sequence[PlanResponses],
    log_p0: Tensor,
    truth: Tensor,
    *,
    group: str,
    finite: Tensor,
    constant: Tensor,
    failed: Tensor,
    imprecise: Tensor,
    is_refilled: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, list[list[str]]]]:
    """Apply every metric's pure function; put a defined value and a flag on degenerate maps.

    With `is_refilled`, the fully removed input was filled where units are dropped otherwise.

    Shapes: log_p0, truth [S]; finite, constant, failed bool [S, M]; imprecise bool [M] -> scores,
    the k that was used and the flags by metric label, each [S, M].
    """
    scores, ks, flags = {}, {}, {}
    constant = finite & constant
    for metric in metrics:
        values = torch.full(finite.shape, torch.nan, dtype=torch.float64)
        used = torch.zeros(finite.shape, dtype=torch.int64)
        few = torch.zeros(finite.shape, dtype=torch.bool)
        broken = torch.zeros(finite.shape, dtype=torch.bool)
        refilled = torch.zeros(finite.shape, dtype=torch.bool)
        raised = failed.clone()
        for part in responses:
            k = part.plan.k[metric.label]
            values[part.sample, part.map] = _scored(metric, part, log_p0, truth, group)
            used[part.sample, part.map] = k
            few[part.sample, part.map] = metric.label in part.plan.few
            read = [0, *part.plan.index[metric.label]]  # 0 is the intact input
            refilled[part.sample, part.map] = is_refilled and part.plan.reads_removed(metric.label)
            broken[part.sample, part.map] = part.log_p[:, read].isnan().any(1)
            raised[part.sample, part.map] |= (part.top1[:, read] == FAILED).any(1)
        if metric.constant_score is not None:
            values[constant] = metric.constant_score
        replacement, reason = metric.undefined
        undefined = finite & values.isnan() & ~broken
        values[undefined] = replacement
        values[broken] = torch.nan
        marks = (
            (raised, "failed"),
            (~finite & ~failed, "nan_map"),
            (constant, "degenerate"),
            (undefined & ~constant, reason),
            (broken & ~raised, "nan_response"),
            (few, "few_units"),
            (refilled, REFILLED),
            (imprecise.expand_as(few), "low_precision"),
        )
        scores[metric.label], ks[metric.label] = values, used
        flags[metric.label] = _flags(marks)
    return scores, ks, flags


def _is_imprecise(column: Column) -> bool:
    return column.method is not None and column.method.is_imprecise


def _scored(
    metric: Metric, part: PlanResponses, log_p0: Tensor, truth: Tensor, group: str
) -> Tensor:
    index = list(part.plan.index[metric.label])
    if metric.groups_units and len(index) < 2:
        return torch.full((len(part.sample),), torch.nan, dtype=torch.float64)
    salience = part.salience[:, index]
    if group == "mean":
        sizes = torch.tensor([part.plan.cuts[place] for place in index]).diff(dim=1)[:, 0]
        salience = salience / sizes.clamp_min(1)
    hit = part.top1[:, index] == truth[part.sample, None]
    responses = Responses(log_p0[part.sample], part.log_p[:, index], hit.double(), salience)
    try:
        made: Any = metric.score(responses)
    except FaithscopeError:
        raise
    except Exception as error:
        raise FaithscopeError(
            f"The metric '{metric.label}' failed ({said(error)}): fix it, or leave it out."
        ) from error
    scores = as_numbers(made, f"What the metric '{metric.label}' gives").detach().cpu()
    if scores.shape != part.sample.shape:
        raise FaithscopeError(
            f"The metric '{metric.label}' returned a score of shape {list(scores.shape)} for "
            f"{len(part.sample)} curves: it must give one number each, reduce the last axis only."
        )
    return scores


def _flags(marks: Sequence[tuple[Tensor, str]]) -> list[list[str]]:
    rows, columns = marks[0][0].shape
    flags = [[""] * columns for _ in range(rows)]
    for where, name in marks:
        for row, column in where.nonzero().tolist():
            flags[row][column] = f"{flags[row][column]},{name}".strip(",")
    return flags
