"""Reasons to read a retraining run with care, found in its curves; some forbid verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from faithscope.metrics import TrainingMetric
from faithscope.probes.retrain.leakage import leaks, recoveries
from faithscope.runs.cards import Doubt
from faithscope.verdicts.curves import BASELINE, Trainings
from faithscope.verdicts.statistics import FEWEST_SEEDS

NAMED = 5
"""Trainings that are named before the rest is only counted."""


def doubts_of(curves: Trainings, metrics: Sequence[TrainingMetric]) -> tuple[Doubt, ...]:
    """All of them."""
    return tuple(
        [
            *_few_seeds(curves),
            *_diverged(curves),
            *_unlearned(curves),
            *_racu(curves, metrics),
            *_rising(curves),
            *_recoveries(curves),
            *_truncated(curves),
        ]
    )


def _few_seeds(curves: Trainings) -> Iterator[Doubt]:
    if len(curves.seeds) < FEWEST_SEEDS:
        yield Doubt(kind="few_seeds", count=len(curves.seeds))


def _diverged(curves: Trainings) -> Iterator[Doubt]:
    columns = [curves.table[name].to_pylist() for name in ("job", "metric", "value")]
    rows = zip(*columns, strict=True)
    wild = (job for job, name, loss in rows if name == "cross_entropy" and not isfinite(loss))
    jobs = list(dict.fromkeys(wild))
    if jobs:
        yield Doubt(kind="diverged", names=tuple(jobs[:NAMED]), count=len(jobs))


def _unlearned(curves: Trainings) -> Iterator[Doubt]:
    if curves.is_unlearned:
        yield Doubt(kind="unlearned", forbids_verdict=True, numbers=curves.base_and_majority)


def _racu(curves: Trainings, metrics: Sequence[TrainingMetric]) -> Iterator[Doubt]:
    """Where RACU is not defined, has its sign turned, divides by little, or was clipped."""
    own = [metric for metric in metrics if metric.name == "racu"]
    if not own:
        return
    if not curves.is_relative:
        yield Doubt(kind="counted")
        return
    rows = list(curves.racu_rows(clip=False))
    kinds = {(*row["degenerate"], -1, *row["negative"]): row for row in rows}  # all alike
    for row in kinds.values():
        if row["degenerate"]:
            yield Doubt(kind="no_loss", seeds=tuple(row["degenerate"]))
        if row["negative"]:
            yield Doubt(kind="sign_turned", seeds=tuple(row["negative"]))
    if curves.is_unlearned or curves.measures == [BASELINE]:
        return
    without = {seed for row in rows for seed in row["degenerate"]}  # nothing is lost, not all
    if floored := [seed for seed in _floored(curves) if seed not in without]:
        yield Doubt(kind="floored", seeds=tuple(floored), levels=(curves.levels[1],))
    for row in rows if any(getattr(metric, "clip", False) for metric in own) else []:
        values = zip(curves.seeds, row["values"], strict=True)
        if seeds := tuple(seed for seed, value in values if abs(value) > 1):
            place = {"method": row["measure"], "procedure": row["procedure"]}
            yield Doubt(kind="clipped", seeds=seeds, **place)


def _floored(curves: Trainings) -> list[int]:
    """Seeds whose random curve falls, and up to chance all of it at the first masked level."""
    if not curves.is_better_higher:
        return []
    found = []
    for seed, curve in zip(
        curves.seeds, curves.values(BASELINE, curves.procedures[0]), strict=True
    ):
        floor = curve[-1] + curves.noise(curve[-1])
        if len(curve) > 2 and curve[1] <= floor < curve[0]:
            found.append(seed)
    return found


def _rising(curves: Trainings) -> Iterator[Doubt]:
    """Curves that rise beyond chance: more masking, better performance."""
    for measure, procedure in curves.kinds:
        values = curves.values(measure, procedure)
        rising = leaks(values)
        if measure == BASELINE or not rising:
            continue
        mean = values.mean(0)
        stop = max(rising, key=lambda place: mean[place] - mean[:place].min())
        start = int(mean[:stop].argmin())
        yield Doubt(
            kind="rising",
            method=measure,
            procedure=procedure,
            levels=(curves.levels[start], curves.levels[stop]),
            numbers=(float(mean[stop] - mean[start]),),
        )


def _recoveries(curves: Trainings) -> Iterator[Doubt]:
    """Single seeds that fall to guessing and know more again when more is masked."""
    if not curves.is_relative or curves.is_unlearned or not curves.is_better_higher:
        return
    for measure, procedure in curves.kinds:
        values = curves.values(measure, procedure)
        for seed, *ends in recoveries(values, curves.tested):
            yield Doubt(
                kind="recovery",
                method=measure,
                procedure=procedure,
                seeds=(curves.seeds[seed],),
                levels=tuple(curves.levels[place] for place in ends),
                numbers=tuple(float(values[seed, place]) for place in ends),
            )


def _truncated(curves: Trainings) -> Iterator[Doubt]:
    if curves.card.cut:
        total = sum(curves.card.sizes.values())
        yield Doubt(kind="truncated", count=curves.card.cut, total=total)
