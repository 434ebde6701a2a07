"""What a ROAR run says in a sentence or two, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from faithscope.probes.retrain.jobs import BASELINE
from faithscope.verdicts.statistics import FEWEST_SEEDS, is_surely_above

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "auroc": "AUROC",
    "cross_entropy": "cross-entropy",
}
"""How the metrics of a test split are written."""
PROCEDURES = {"recursive": "Recursive ROAR", "roar": "ROAR"}
"""Procedures, the one that counts first."""
TOO_FEW = "Fewer than three seeds are too few for a verdict"


def headline(result: RoarResult) -> str:
    """The run in one or two sentences: no verdict from too few seeds or models that know nothing.

    Percents are told by RACU; a run that masks a few tokens by where its curves end.
    """
    procedure = next(name for name in PROCEDURES if name in result.procedures)
    model, data = (result.manifest[key]["name"] for key in ("model", "data"))
    about = f"{PROCEDURES[procedure]} of {model} on {data}"
    if result.is_unlearned:
        base, majority = (score(result.metric, value) for value in result.base_and_majority)
        what = "RACU" if result.is_relative else "what masking costs"
        return (
            f"The model did not learn: {model} reaches {base} ({METRICS[result.metric]}) on the "
            f"intact texts of {data}, not surely better than always guessing the most common class "
            f"({majority}): {what} says nothing."
        )
    if result.measures == [BASELINE]:
        return f"{about} has no measure to compare with random masking."
    return (_by_racu if result.is_relative else _by_ends)(result, procedure, about)


def _by_racu(result: RoarResult, procedure: str, about: str) -> str:
    rows = [row for row in result.racu().to_pylist() if row["procedure"] == procedure]
    rows = [row for row in rows if row["n"] and math.isfinite(row["mean"])]
    if not rows:
        return f"By {about}, RACU is not defined for any measure: the warnings say why."
    best = max(rows, key=lambda row: row["mean"])
    if len(result.seeds) < FEWEST_SEEDS:
        said = (
            f"has a mean RACU of {in_percent(best)} %"
            if len(rows) == 1
            else f"has the highest mean RACU of {len(rows)} measures ({in_percent(best)} %)"
        )
        return f"{TOO_FEW}: by {about}, {best['measure']} {said}."
    if best["mean"] <= 0:
        return (
            f"By {about}, no measure is more faithful than random masking "
            f"(best: {best['measure']}, RACU {in_percent(best)} %)."
        )
    return f"By {about}, {_first(best, rows)}. {_beside_random(rows)}"


def _first(best: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Which measure has the highest RACU, and whether that is sure."""
    if len(rows) == 1:
        return f"{best['measure']} has a RACU of {in_percent(best)} %"
    if equals := _not_below(best, rows):
        return (
            f"{best['measure']} has the highest RACU of {len(rows)} measures "
            f"({in_percent(best)} %), not surely above {in_words(equals)}"
        )
    return (
        f"{best['measure']} is the most faithful of {len(rows)} measures (RACU "
        f"{in_percent(best)} %)"
    )


def _beside_random(rows: Sequence[Mapping[str, Any]]) -> str:
    others = [row["measure"] for row in rows if not is_surely_above(row["values"])]
    if len(others) == len(rows):
        return "None is surely better than random masking."
    if not others:
        every = {1: "It is", 2: "Both are"}.get(len(rows), "Every one is")
        return f"{every} better than random masking."
    return f"Not surely better than random masking: {', '.join(others)}."


def _not_below(best: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Measures whose RACU, seed by seed, is not surely lower than that of the best."""
    return [
        row["measure"]
        for row in rows
        if row is not best
        and not is_surely_above(np.array(best["values"]) - np.array(row["values"]))
    ]


def _by_ends(result: RoarResult, procedure: str, about: str) -> str:
    """Where the curves end, each against random masking of the same seeds."""
    ends = {name: result.values(name, procedure)[:, -1] for name in result.measures}
    random = ends.pop(BASELINE)
    falls = result.metric != "cross_entropy"
    gaps = {name: (random - end) if falls else (end - random) for name, end in ends.items()}
    gaps = {name: gap for name, gap in gaps.items() if np.isfinite(gap).all()}
    if not gaps:
        return f"By {about}, no measure can be told from random masking: models diverged."
    best = max(gaps, key=lambda name: float(gaps[name].mean()))
    metric, way = METRICS[result.metric], "fall" if falls else "rise"
    own, others = (score(result.metric, float(end.mean())) for end in (ends[best], random))
    where = f"by {about} with {result.levels[-1]} tokens masked"
    if len(result.seeds) < FEWEST_SEEDS:
        return (
            f"{TOO_FEW}: {where}, the {metric} on average {way}s furthest under {best}, to "
            f"{own}; random masking ends at {others}."
        )
    where = f"By{where[2:]}"
    if float(gaps[best].mean()) <= 0:
        return (
            f"{where}, under no measure does the {metric} {way} further than under random masking "
            f"(to {others}; best: {best}, to {own})."
        )
    sure = "further than" if is_surely_above(gaps[best]) else "not surely further than"
    return (
        f"{where}, the {metric} {way}s furthest under {best}, to {own}, {sure} under random "
        f"masking, which ends at {others}."
    )


def in_percent(row: Mapping[str, Any]) -> str:
    """A mean and its interval, if it has one, in percent."""
    if not row["n"]:
        return "—"
    mean = f"{100 * row['mean']:z.1f}"
    if math.isnan(row["ci_low"]):
        return mean
    return f"{mean} [{100 * row['ci_low']:z.1f}, {100 * row['ci_high']:z.1f}]"


def percent(value: float) -> str:
    """A share as people write it.

    >>> percent(0.0785), percent(-0.0123)
    ('7.8 %', '−1.2 %')
    """
    return "—" if math.isnan(value) else f"{100 * value:z.1f} %".replace("-", "−")


def score(metric: str, value: float) -> str:
    """A test metric: in percent, but for the cross-entropy."""
    if metric == "cross_entropy":
        return "—" if math.isnan(value) else f"{value:.3f}"
    return percent(value)


def rise(metric: str, value: float) -> str:
    """A difference of a test metric: in points, but for the cross-entropy.

    >>> rise("accuracy", 0.246)
    '24.6 points'
    """
    return f"{value:.3f}" if metric == "cross_entropy" else f"{100 * value:.1f} points"


def in_words(names: Iterable[str]) -> str:
    """Names as they are said.

    >>> in_words(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
