"""One shard of images, as far as the model is asked: targets, maps, ranks, plans, answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from faithscope.data import Batch
from faithscope.errors import FaithscopeError, said
from faithscope.methods import Method, explain_images
from faithscope.methods.layout import Inputs
from faithscope.metrics import AUTO_K, Metric, auto_k
from faithscope.models import Model, PassCounter, undisturbed
from faithscope.models.device import COPIES_ALONE, Moment, brought, float64_device, placed
from faithscope.models.dropping import Dropping
from faithscope.perturb import (
    Fill,
    FillContext,
    granularity_of,
    in_range,
    order_units,
    ranks_of,
    span_sums,
    to_units,
)
from faithscope.probes.perturb.failures import UNKNOWN, Failure, refuse_fatal, warn_of_moods
from faithscope.probes.perturb.maps import GivenMaps
from faithscope.probes.perturb.plan import MapPlan, plan_map
from faithscope.probes.perturb.precision import Forward
from faithscope.probes.perturb.respond import Advance, Responder, Rows, Subject, check_classes
from faithscope.request import Perturb

T = TypeVar("T")
MINIATURE = 56
"""Longest side of a map that is kept to be looked at."""


@dataclass(frozen=True)
class Column:
    """One column of maps: a method, or maps that were given, and the draw of a random one."""

    label: str
    draw: int = 0
    method: Method | None = None
    granularity: str = ""
    """What its maps are known to be: pixel, patch or the size of a grid, as 7×7."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that stays the same from shard to shard."""

    request: Perturb
    k: int | str
    model: Model
    forward: Forward
    fill: Fill
    batch_size: int
    explain_batch: int
    """Images that are explained together, and inputs of a step on a path of gradients."""
    columns: Sequence[Column]
    metrics: Sequence[Metric]
    maps: Mapping[str, GivenMaps]
    target: str | int | Tensor
    dropping: Dropping | None = None

    @property
    def is_refilled(self) -> bool:
        """Whether the fill that drops units must stand in where none is left."""
        return self.dropping is not None and not self.dropping.alone


@dataclass(frozen=True, eq=False)
class Ranked:
    """The maps of a shard in ranked units; plans and salience sums by what "auto" means for a map.

    Shapes: ranks int32 [S, M, n] and sums float64 [S, M, C] where float64 is; finite, constant bool
    and auto int64 [S, M] on the CPU.
    """

    ranks: Tensor
    shape: tuple[int, int]
    finite: Tensor
    constant: Tensor
    auto: Tensor
    is_automatic: bool
    plans: Mapping[int, MapPlan]
    sums: Mapping[int, Tensor]

    @property
    def has_removed(self) -> bool:
        """Whether any plan needs the fully removed images."""
        return any(plan.shared > 1 for plan in self.plans.values())

    def pairs(self, auto: int) -> tuple[Tensor, Tensor]:
        """Which (sample, map) pairs follow this plan: those that are finite, [P] each."""
        sample, column = (self.finite & (self.auto == auto)).nonzero(as_tuple=True)
        return sample, column


@dataclass(frozen=True)
class Spent:
    """What a shard took beside its answers; explaining lasted from its first moment to its last."""

    passes: int
    explanation_passes: int
    explaining: tuple[Moment, ...]
    halvings: int
    overflowed: Sequence[tuple[str, str]] = ()
    """Samples and methods whose gradients overflowed in half precision."""

    @property
    def explaining_seconds(self) -> float:
        """How long the methods took; waits for them."""
        return self.explaining[-1].since(self.explaining[0]) if self.explaining else 0.0


@dataclass(frozen=True, eq=False)
class Answers:
    """What the model answered about one shard, on its device, or on its way to the CPU (`there`).

    Shapes: target, predicted, log_p0 [S]; log_p, top1 [R] in the order of the rows: the removed
    images, then each pair's own cuts, plan by plan. `miniatures`, by method, are small maps of the
    first samples, [P, h, w]; `granularity` is that of each column's maps. `failed` [S, M] tells
    where there is no map, because the model or the method raised.
    """

    batch: Batch
    ranked: Ranked
    target: Tensor
    predicted: Tensor
    log_p0: Tensor
    log_p: Tensor
    top1: Tensor
    miniatures: Mapping[str, Tensor]
    granularity: Sequence[str]
    spent: Spent
    failures: Sequence[Failure]
    failed: Tensor
    there: Moment | None


def ask_shard(
    setup: Setup, batch: Batch, *, pictures: int = 0, advance: Advance = lambda _: None
) -> Answers:
    """Run everything the model must be asked about one shard; keep small maps of some samples.

    A shard is packed by itself, so the same shard gives the same bits. Whoever reads the answers
    waits for them, and the next shard can be asked meanwhile.
    """
    model, request = setup.model, setup.request
    responder = Responder(setup.forward, setup.fill, setup.batch_size, advance, setup.dropping)
    images: Any = placed(batch.images, model.device)
    inputs = images.to(setup.forward.dtype)
    with undisturbed(model.module):
        log_p0, predicted, target = _intact(setup, responder, batch, inputs)
        failed = torch.zeros(len(images), len(setup.columns), dtype=torch.bool)
        failures = _lost(batch, responder, failed)
        aim = target.clamp_min(0)  # an unknown class is explained as if it were the first
        maps, explained = _maps(setup, batch, images, aim, failed, failures)
        granularity = [
            column.granularity
            if column.granularity and failed[:, place].all()
            else _granularity(setup, column, maps[place], images)
            for place, column in enumerate(setup.columns)
        ]
        miniatures = _miniatures(setup, maps, pictures)
        ranked = _rank(setup, maps, images)
        del maps
        exact = images.to(torch.promote_types(images.dtype, inputs.dtype))
        field = field_of(setup.fill, model, request, exact, batch.keys).to(inputs.dtype)
        ranks = placed(ranked.ranks.flatten(0, 1), inputs.device)
        subject = Subject(inputs, field, ranks, ranked.shape)
        rows = _rows(ranked)
        log_p, top1 = log_p0[:0], predicted[:0]
        if len(rows):
            log_p, top1 = responder.perturbed(subject, rows, aim)
            failures += _raised(setup, batch, responder, ranked, rows)
    spent = Spent(
        responder.passes,
        explained.explanation_passes,
        explained.explaining,
        explained.halvings + responder.halvings,
        explained.overflowed,
    )
    return Answers(
        batch,
        replace(ranked, sums={auto: brought(sums) for auto, sums in ranked.sums.items()}),
        brought(target),
        brought(predicted),
        brought(log_p0),
        brought(log_p),
        brought(top1),
        {method: brought(maps) for method, maps in miniatures.items()},
        granularity,
        spent,
        failures,
        failed,
        Moment(inputs.device) if inputs.device.type in COPIES_ALONE else None,
    )


def _intact(
    setup: Setup, responder: Responder, batch: Batch, inputs: Inputs
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the intact images; gives log p of the target, the predicted class, the target."""
    target = _given_target(setup, batch)
    log_p0, predicted = responder.intact(inputs, target)
    if batch.labels is not None and responder.classes:
        check_classes(batch.labels, responder.classes)
    if target is None:
        return log_p0, predicted, predicted.clamp_min(UNKNOWN)
    return log_p0, predicted, placed(target, inputs.device)


def _lost(batch: Batch, responder: Responder, failed: Tensor) -> list[Failure]:
    """The samples on which the model raised already when they were intact."""
    failed[list(responder.failures)] = True
    return [Failure(batch.samples[row], "", error) for row, error in responder.failures.items()]


def _raised(
    setup: Setup, batch: Batch, responder: Responder, ranked: Ranked, rows: Rows
) -> list[Failure]:
    """The maps of which the model raised on a perturbed input, each once."""
    found: dict[tuple[int, str], Failure] = {}
    samples, columns, _ = ranked.ranks.shape
    for row, error in responder.failures.items():
        sample = int(rows.sample[row])
        is_removed = ranked.has_removed and row < samples
        label = "" if is_removed else setup.columns[int(rows.map[row]) % columns].label
        if ranked.finite[sample].any():  # else it is lost already
            found.setdefault((sample, label), Failure(batch.samples[sample], label, error))
    return list(found.values())


def field_of(
    fill: Fill, model: Model, request: Perturb, images: Any, keys: Sequence[str]
) -> Tensor:
    """What a fill has for each image or text; one that cannot be used is refused."""
    context = FillContext(keys, request.seed, model.mean, model.std, model.specials)
    try:
        return fill.field(images, context)
    except FaithscopeError:
        raise
    except Exception as error:
        refuse_fatal(error)
        raise FaithscopeError(
            f"The fill '{request.fill}' failed ({said(error)}): fix it, or choose another."
        ) from error


def _given_target(setup: Setup, batch: Batch) -> Tensor | None:
    if isinstance(setup.target, Tensor):
        return setup.target[list(batch.positions)]
    if isinstance(setup.target, int):
        return torch.full((len(batch.images),), setup.target)
    if setup.target == "predicted":
        return None
    if batch.labels is None:
        raise FaithscopeError("target='label' needs labels: give labels=… or target='predicted'.")
    return batch.labels


def _maps(
    setup: Setup,
    batch: Batch,
    images: Any,
    target: Tensor,
    failed: Tensor,
    failures: list[Failure],
) -> tuple[list[Tensor], Spent]:
    """Make or fetch one tensor of maps per column, in the columns' order; a failed one is NaN."""
    wanted = [(column.method, column.draw) for column in setup.columns if column.method]
    made, spent = iter(list[Tensor]()), Spent(0, 0, (), 0)
    if wanted:
        explained, spent = _explain(setup, batch, images, target, wanted, failed, failures)
        made = iter(explained)
    maps = []
    for column in setup.columns:
        if column.method:
            maps.append(next(made))
        else:
            given = setup.maps[column.label].take(batch, setup.model)
            lost = failed[:, len(maps), None, None]
            if lost.any():
                given = given.masked_fill(lost.to(given.device), torch.nan)
            maps.append(placed(given, float64_device(images.device)))
    return maps, spent


def _miniatures(setup: Setup, maps: Sequence[Tensor], count: int) -> dict[str, Tensor]:
    """The first maps of every method, of a random one its first draw, averaged down to a size."""
    small = {}
    for column, values in zip(setup.columns, maps, strict=True):
        if count and column.draw == 0:
            longest = max(values.shape[-2:])
            high, wide = (max(1, side * MINIATURE // longest) for side in values.shape[-2:])
            shown = values[:count, None].to(torch.promote_types(values.dtype, torch.float32))
            if longest > MINIATURE and setup.model.modality == "image":
                shown = F.adaptive_avg_pool2d(shown, (high, wide))
            small[column.label] = shown[:, 0]
    return small


def _granularity(setup: Setup, column: Column, maps: Tensor, images: Inputs) -> str:
    """What a method declares, else by the shape of its maps; it is the same for every image."""
    if column.method and column.method.granularity != "any":
        return column.method.granularity
    if setup.model.modality == "text":
        return "token"
    size = (images.shape[-2], images.shape[-1])
    shape = (maps.shape[-2], maps.shape[-1])
    found = granularity_of(shape, size, setup.model.grid(*size))
    if column.granularity not in ("", found):
        raise FaithscopeError(
            f"The maps '{column.label}' are {shape[0]}×{shape[1]} for an image of "
            f"{size[0]}×{size[1]}, but those of the first are by {column.granularity}: random "
            "attribution can match only one resolution, so evaluate these images apart."
        )
    return found


def _explain(
    setup: Setup,
    batch: Batch,
    images: Any,
    target: Tensor,
    wanted: list[tuple[Method, int]],
    failed: Tensor,
    failures: list[Failure],
) -> tuple[list[Tensor], Spent]:
    """Run the methods in batches that fit in memory, and note what that took."""
    counter, started = PassCounter(), Moment(images.device)
    overflowed: list[tuple[str, str]] = []

    def explained(places: slice, pairs: list[tuple[Method, int]]) -> tuple[list[Tensor], int]:
        made = explain_images(
            setup.model,
            images[places],
            target[places],
            pairs,
            keys=batch.keys[places],
            seed=setup.request.seed,
            batch_size=setup.explain_batch,
        )
        samples = batch.samples[places]
        overflowed.extend((samples[place], label) for place, label in made.overflowed)
        return made.maps, made.halvings

    halvings = 0
    with counter.watch(setup.model.module):
        whole: tuple[list[Tensor], int] | Exception
        if failures:  # some samples are lost already
            whole = failures[0].error
        else:
            whole = _tried(lambda: explained(slice(None), wanted))
        if not isinstance(whole, Exception):
            maps, halvings = whole
        else:
            columns = [place for place, held in enumerate(setup.columns) if held.method]
            singly = []
            for place, sample in enumerate(batch.samples):
                once = partial(explained, slice(place, place + 1))
                singly.append(_explain_one(sample, failed[place], columns, wanted, failures, once))
            maps = [_stacked(column, images) for column in zip(*singly, strict=True)]
            if not failures:
                warn_of_moods("methods", whole)
    took = started, Moment(images.device)
    return maps, Spent(0, counter.count, took, halvings, overflowed)


def _tried(call: Callable[[], T]) -> T | Exception:
    """What a call gives, or the error of somebody's code in it."""
    try:
        return call()
    except Exception as error:
        refuse_fatal(error)
        return error


def _explain_one(
    sample: str,
    failed: Tensor,
    columns: Sequence[int],
    wanted: Sequence[tuple[Method, int]],
    failures: list[Failure],
    explained: Callable[[list[tuple[Method, int]]], tuple[list[Tensor], int]],
) -> list[Tensor | None]:
    """The maps of one sample; None where a method raises, found method by method."""
    if failed[columns[0]]:
        return [None] * len(wanted)
    together = _tried(lambda: explained(list(wanted)))
    if not isinstance(together, Exception):
        return list(together[0])
    maps: list[Tensor | None] = []
    for column, pair in zip(columns, wanted, strict=True):
        alone = _tried(partial(explained, [pair]))
        if isinstance(alone, Exception):
            failed[column] = True
            failures.append(Failure(sample, pair[0].label, alone, by_method=True))
        maps.append(None if isinstance(alone, Exception) else alone[0][0])
    return maps


def _stacked(maps: Sequence[Tensor | None], images: Inputs) -> Tensor:
    """Maps of single images as one tensor, those that are missing as NaN."""
    known = next((held for held in maps if held is not None), None)
    place = float64_device(images.device)
    empty = torch.full((1, *images.shape[-2:]), torch.nan, dtype=torch.float64, device=place)
    empty = empty if known is None else torch.full_like(known, torch.nan)
    return torch.cat([empty if held is None else held for held in maps])


def _rank(setup: Setup, maps: Sequence[Tensor], images: Inputs) -> Ranked:
    """Bring every map to units, rank them, and sum the salience of every cut that is planned."""
    request = setup.request
    shape = size = (images.shape[-2], images.shape[-1])
    if request.units == "patches":
        shape = setup.model.require_grid(images, "units='patches'")
    n = shape[0] * shape[1]
    automatic = any(metric.resolution(setup.k) == "auto" for metric in setup.metrics)
    plans = {
        auto: plan_map(setup.metrics, n, k=setup.k, auto=auto)
        for auto in (AUTO_K if automatic else AUTO_K[:1])
    }
    ranks, finite, constant, autos = [], [], [], []
    sums: dict[int, list[Tensor]] = {auto: [] for auto in plans}
    for values in map(in_range, maps):
        values = to_units(values, request.units, size, shape, request.upsample).flatten(1)
        order = order_units(values, request.ties)
        ordered = values.gather(1, order)
        ranks.append(ranks_of(order))
        finite.append(torch.isfinite(values).all(1))
        constant.append(values.amax(1) == values.amin(1))
        autos.append(auto_k(ordered) if automatic else torch.full_like(order[:, 0], AUTO_K[0]))
        for auto, plan in plans.items():
            sums[auto].append(span_sums(ordered, list(plan.cuts)))
    told = [torch.stack(column, 1) for column in (finite, constant, autos)]
    is_finite, is_constant, auto_ks = torch.stack([part.long() for part in told]).cpu()
    return Ranked(
        torch.stack(ranks, 1),
        shape,
        is_finite.bool(),
        is_constant.bool(),
        auto_ks,
        automatic,
        plans,
        {auto: torch.stack(columns, 1) for auto, columns in sums.items()},
    )


def _rows(ranked: Ranked) -> Rows:
    """Every planned input of every usable map as one stream: the removed images, then the maps."""
    samples, columns, n = ranked.ranks.shape
    everything = torch.arange(samples if ranked.has_removed else 0)
    nothing = torch.zeros_like(everything)
    parts = [Rows(everything, everything * columns, nothing, nothing + n)]
    for auto, plan in ranked.plans.items():
        sample, column = ranked.pairs(auto)
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
    return Rows.join(parts)
