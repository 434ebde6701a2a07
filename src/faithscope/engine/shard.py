"""One shard of images, from intact images to scores: targets, maps, ranks, plans, responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from faithscope.data import Batch
from faithscope.engine.plan import Plan, plan_map
from faithscope.engine.respond import Responder, Rows, Subject, is_out_of_memory
from faithscope.errors import FaithscopeError
from faithscope.methods import Method, explain_batch
from faithscope.metrics import AUTO_K, Metric, Responses, auto_k
from faithscope.models import Model, PassCounter, undisturbed
from faithscope.perturb import (
    FillContext,
    order_units,
    ranks_of,
    span_sums,
    to_patches,
    to_pixels,
)


@dataclass(frozen=True)
class Protocol:
    """Every choice that changes a score; recorded with every result."""

    target: str
    k: int | str
    fill: str
    units: str
    upsample: str
    ties: str
    group: str
    seed: int
    precision: str


@dataclass(frozen=True)
class Column:
    """One column of maps: a method, or maps that were given, and the draw of a random one."""

    label: str
    draw: int = 0
    method: Method | None = None


@dataclass(eq=False)
class Job:
    """Everything that stays the same from shard to shard, and what it has cost so far."""

    model: Model
    responder: Responder
    columns: Sequence[Column]
    metrics: Sequence[Metric]
    protocol: Protocol
    given: Mapping[str, Tensor]
    target: str | int | Tensor
    explain_batch_size: int
    explanation_passes: int = 0
    explain_seconds: float = 0.0
    respond_seconds: float = 0.0
    granularity: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PlanResponses:
    """The answers to one plan: P pairs of (sample, map), C cuts.

    Shapes: sample, map int64 [P]; log_p, salience float64 [P, C]; top1 int64 [P, C].
    """

    plan: Plan
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


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The maps of a shard in ranked units; by what "auto" means for a map, plans and group sums.

    Shapes: ranks int32 [S, M, n]; finite, constant bool and auto int64 [S, M], on the CPU; sums
    float64 [S, M, C].
    """

    ranks: Tensor
    shape: tuple[int, int]
    finite: Tensor
    constant: Tensor
    auto: Tensor
    plans: Mapping[int, Plan]
    sums: Mapping[int, Tensor]


def evaluate_shard(job: Job, batch: Batch) -> ShardResult:
    """Evaluate one shard, packed by itself: the same shard gives the same bits."""
    clock = time.perf_counter()
    images = batch.images.to(job.model.device)
    inputs = images.to(job.responder.forward.dtype)
    with undisturbed(job.model.module):
        log_p0, predicted, target = _intact(job, batch, inputs)
        clock = _charge(job, "respond_seconds", clock)
        maps = _maps(job, batch, images, target)
        clock = _charge(job, "explain_seconds", clock)
        ranked = _rank(job, maps, images)
        responses = _perturb(job, batch, inputs, ranked, log_p0, predicted, target)
    truth = (predicted if batch.labels is None else batch.labels).cpu()
    scores, ks, flags = _score(job, ranked, responses, log_p0.cpu().double(), truth)
    _charge(job, "respond_seconds", clock)
    return ShardResult(
        batch,
        target.cpu(),
        predicted.cpu(),
        log_p0.cpu().double(),
        scores,
        ks,
        flags,
        responses,
    )


def _charge(job: Job, account: str, since: float) -> float:
    if job.model.device.type == "cuda":
        torch.cuda.synchronize(job.model.device)
    now = time.perf_counter()
    setattr(job, account, getattr(job, account) + now - since)
    return now


def _intact(job: Job, batch: Batch, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the intact images; gives log p of the target, the predicted class, the target."""
    target = _given_target(job, batch)
    if target is not None:
        target = target.to(inputs.device)
    try:
        log_p0, predicted = job.responder.intact(inputs, target)
    except FaithscopeError:
        raise
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise FaithscopeError(
            f"{job.model.name} cannot run images of shape {list(inputs.shape[1:])} with this "
            f"target: {reason}"
        ) from error
    return log_p0, predicted, predicted if target is None else target


def _given_target(job: Job, batch: Batch) -> Tensor | None:
    if isinstance(job.target, Tensor):
        return job.target[list(batch.positions)]
    if isinstance(job.target, int):
        return torch.full((len(batch.images),), job.target)
    if job.target == "predicted":
        return None
    if batch.labels is None:
        raise FaithscopeError("target='label' needs labels: give labels=… or target='predicted'.")
    return batch.labels


def _maps(job: Job, batch: Batch, images: Tensor, target: Tensor) -> list[Tensor]:
    """Make or fetch one tensor of maps per column, in the columns' order."""
    wanted = [(column.method, column.draw) for column in job.columns if column.method]
    made = iter(_explain(job, batch, images, target, wanted) if wanted else [])
    maps = []
    for column in job.columns:
        if column.method:
            maps.append(next(made))
        else:
            maps.append(job.given[column.label][list(batch.positions)].to(images.device))
        grid = job.model.grid(*images.shape[-2:])
        coarse = grid is not None and tuple(maps[-1].shape[-2:]) == grid
        job.granularity[column.label] = "patch" if coarse else "pixel"
    return maps


def _explain(
    job: Job, batch: Batch, images: Tensor, target: Tensor, wanted: list[tuple[Method, int]]
) -> list[Tensor]:
    """Run the methods in batches that fit in memory."""
    parts: list[list[Tensor]] = []
    counter, done = PassCounter(), 0
    with counter.watch(job.model.module):
        while done < len(images):
            size = min(job.explain_batch_size, len(images) - done)
            part = slice(done, done + size)
            try:
                maps = explain_batch(
                    job.model,
                    images[part],
                    target[part],
                    wanted,
                    keys=batch.keys[part],
                    seed=job.protocol.seed,
                    batch_size=job.explain_batch_size,
                )
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or size == 1:
                    raise
                job.explain_batch_size = size // 2
                continue
            parts.append(maps)
            done += size
    job.explanation_passes += counter.count
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _rank(job: Job, maps: Sequence[Tensor], images: Tensor) -> _Ranked:
    """Bring every map to units, rank them, and sum the salience of every cut that is planned."""
    protocol = job.protocol
    shape = (images.shape[-2], images.shape[-1])
    if protocol.units == "patches":
        shape = job.model.require_grid(images, "units='patches'")
    n = shape[0] * shape[1]
    automatic = any(metric.resolution(protocol.k) == "auto" for metric in job.metrics)
    plans = {
        auto: plan_map(job.metrics, n, k=protocol.k, auto=auto)
        for auto in (AUTO_K if automatic else AUTO_K[:1])
    }
    ranks, finite, constant, autos = [], [], [], []
    sums: dict[int, list[Tensor]] = {auto: [] for auto in plans}
    for values in maps:
        if protocol.units == "patches":
            values = to_patches(values, shape)
        else:
            values = to_pixels(values, shape, protocol.upsample)
        values = values.flatten(1)
        order = order_units(values, protocol.ties)
        ordered = values.gather(1, order)
        ranks.append(ranks_of(order))
        finite.append(torch.isfinite(values).all(1))
        constant.append(values.amax(1) == values.amin(1))
        autos.append(auto_k(ordered) if automatic else torch.full_like(order[:, 0], AUTO_K[0]))
        for auto, plan in plans.items():
            sums[auto].append(span_sums(ordered, list(plan.cuts)))
    return _Ranked(
        torch.stack(ranks, 1),
        shape,
        torch.stack(finite, 1).cpu(),
        torch.stack(constant, 1).cpu(),
        torch.stack(autos, 1).cpu(),
        plans,
        {auto: torch.stack(columns, 1).cpu() for auto, columns in sums.items()},
    )


def _perturb(
    job: Job,
    batch: Batch,
    inputs: Tensor,
    ranked: _Ranked,
    log_p0: Tensor,
    predicted: Tensor,
    target: Tensor,
) -> list[PlanResponses]:
    """Pack every planned input of every usable map into one stream of rows, run it, sort it out."""
    samples, columns, n = ranked.ranks.shape
    everything = torch.arange(samples)
    parts = []
    if any(plan.shared > 1 for plan in ranked.plans.values()):
        nothing = torch.zeros_like(everything)
        parts.append(Rows(everything, everything * columns, nothing, nothing + n))
    pairs = {
        auto: (ranked.finite & (ranked.auto == auto)).nonzero(as_tuple=True)
        for auto in ranked.plans
    }
    for auto, plan in ranked.plans.items():
        sample, column = pairs[auto]
        own = torch.tensor(plan.own, dtype=torch.int64).reshape(-1, 2)
        repeats = len(own)
        parts.append(
            Rows(
                sample.repeat_interleave(repeats),
                (sample * columns + column).repeat_interleave(repeats),
                own[:, 0].repeat(len(sample)),
                own[:, 1].repeat(len(sample)),
            )
        )
    context = FillContext(batch.keys, job.protocol.seed, job.model.mean, job.model.std)
    intact = batch.images.to(inputs.device)
    field = job.responder.fill.field(intact, context).to(inputs.dtype)
    subject = Subject(inputs, field, ranked.ranks.flatten(0, 1), ranked.shape)
    rows = Rows.join(parts)
    log_p, top1 = (
        (log_p0[:0], predicted[:0])
        if len(rows) == 0
        else job.responder.perturbed(subject, rows, target)
    )
    return _sort_out(ranked, pairs, len(parts) > len(pairs), log_p0, predicted, log_p, top1)


def _sort_out(
    ranked: _Ranked,
    pairs: Mapping[int, tuple[Tensor, ...]],
    has_removed: bool,
    log_p0: Tensor,
    predicted: Tensor,
    log_p: Tensor,
    top1: Tensor,
) -> list[PlanResponses]:
    """Scatter the answers back to plans: shared inputs first, then each pair's own."""
    log_p, log_p0 = log_p.cpu().double(), log_p0.cpu().double()
    top1, predicted = top1.cpu(), predicted.cpu()
    done = len(log_p0) if has_removed else 0
    shared_log_p = [log_p0, log_p[:done]]
    shared_top1 = [predicted, top1[:done]]
    responses = []
    for auto, plan in ranked.plans.items():
        sample, column = pairs[auto]
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
                ranked.sums[auto][sample, column],
            )
        )
    return responses


def _score(
    job: Job,
    ranked: _Ranked,
    responses: Sequence[PlanResponses],
    log_p0: Tensor,
    truth: Tensor,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, list[list[str]]]]:
    """Apply every metric's pure function; put a defined value and a flag on degenerate maps."""
    scores, ks, flags = {}, {}, {}
    for metric in job.metrics:
        values = torch.full(ranked.finite.shape, torch.nan, dtype=torch.float64)
        used = torch.zeros(ranked.finite.shape, dtype=torch.int64)
        few = torch.zeros(ranked.finite.shape, dtype=torch.bool)
        for part in responses:
            k = part.plan.k[metric.label]
            wanted = metric.resolution(job.protocol.k)
            values[part.sample, part.map] = _scored(job, metric, part, log_p0, truth)
            used[part.sample, part.map] = k
            few[part.sample, part.map] = isinstance(wanted, int) and k < wanted
        constant = ranked.finite & ranked.constant
        if metric.constant_score is not None:
            values[constant] = metric.constant_score
        replacement, reason = metric.undefined
        undefined = ranked.finite & values.isnan()
        values[undefined] = replacement
        marks = (
            (~ranked.finite, "nan_map"),
            (constant, "degenerate"),
            (undefined & ~constant, reason),
            (few, "few_units"),
        )
        scores[metric.label], ks[metric.label] = values, used
        flags[metric.label] = _flags(marks)
    return scores, ks, flags


def _scored(job: Job, metric: Metric, part: PlanResponses, log_p0: Tensor, truth: Tensor) -> Tensor:
    index = list(part.plan.index[metric.label])
    if metric.groups_units and len(index) < 2:
        return torch.full((len(part.sample),), torch.nan, dtype=torch.float64)
    salience = part.salience[:, index]
    if job.protocol.group == "mean":
        sizes = torch.tensor([part.plan.cuts[place] for place in index]).diff(dim=1)[:, 0]
        salience = salience / sizes.clamp_min(1)
    hit = part.top1[:, index] == truth[part.sample, None]
    return metric.score(
        Responses(log_p0[part.sample], part.log_p[:, index], hit.double(), salience)
    )


def _flags(marks: Sequence[tuple[Tensor, str]]) -> list[list[str]]:
    rows, columns = marks[0][0].shape
    flags = [[""] * columns for _ in range(rows)]
    for where, name in marks:
        for row, column in where.nonzero().tolist():
            flags[row][column] = f"{flags[row][column]},{name}".strip(",")
    return flags
