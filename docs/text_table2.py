"""RACU compared with the paper's Table 2, and reasons for doubt."""

from __future__ import annotations

import numpy as np
from filling import Row, Summaries, listed, number, table
from text_leakage import depends_on_one_class, one_class_words
from text_numbers import above, agrees, fewest, overlap, shown
from text_runs import (
    MODELS,
    MUTUAL,
    WORDS,
    Run,
    level_span,
    moved,
    published_racu,
    ranked,
    runs,
)

NARROW = 0.005
"""RACU: intervals that share less than this barely overlap."""


def text_racu(have: Summaries) -> str:
    """RACU and Table 2, for all runs with comparable levels."""
    own = [run for run in runs(have) if run.is_comparable]
    rows = [
        racu_row(run, name)
        for run in own
        for name in [*run.measures, *([MUTUAL] * run.has(MUTUAL))]
    ]
    heads = ["run", "levels", "RACU [%]", "paper", "ours", "ours − paper", "seeds", "overlap"]
    parts = [racu_words(have), table(heads, rows, names=3), *dagger(have)]
    parts += [f"‡ {said}" for run in own if (said := one_class_words(run))]
    if others := [run.short for run in runs(have) if not run.is_comparable]:
        parts.append(f"Not shown, because the levels are too far apart: {listed(others)}.")
    return "\n\n".join(parts)


def racu_row(run: Run, measure: str) -> list[str]:
    """A measure of a run compared with the paper's."""
    theirs, ours = published_racu(run, measure), run.racu(measure)
    gap = None if None in (theirs, ours) else 100 * (mean_of(ours) - mean_of(theirs))
    return [
        model_words(run),
        level_span(run.levels),
        WORDS[measure],
        shown(theirs),
        shown(ours)
        + "†" * (ours is not None and not run.is_full)
        + "‡" * depends_on_one_class(run, measure),
        number(gap, 1, "+"),
        str(ours["n"]) if ours else "0",
        agrees(theirs, ours),
    ]


def mean_of(row: Row | None) -> float:
    """A row's mean."""
    return np.nan if row is None else float(row["mean"])


def racu_words(have: Summaries) -> str:
    """How many intervals overlap, and which barely."""
    agreeing, compared = overlaps(have)
    said = f"{agreeing} of {compared} comparable intervals overlap the paper's"
    if near := narrow_overlaps(have):
        said += f", {listed(near)}"
    said += "."
    if any(run.known.instead for run in runs(have)):
        said += (
            " With a substitute model or substitute word vectors, the same number is not expected."
        )
    if any(len(run.seeds) < fewest() for run in runs(have)):
        said += " With fewer than three seeds, round brackets hold the value of each seed."
    return said


def compared_cases(have: Summaries) -> list[tuple[Run, str, Row, Row]]:
    """Runs and measures with an interval of the paper's and one of ours."""
    cases = [
        (run, name, published_racu(run, name), run.racu(name))
        for run in runs(have)
        for name in run.measures
    ]
    return [
        (run, name, theirs, ours)
        for run, name, theirs, ours in cases
        if theirs is not None and ours is not None and ours["ci_low"] is not None
    ]


def overlaps(have: Summaries) -> tuple[int, int]:
    """How many of our intervals of RACU overlap the paper's, and how many could."""
    found = [overlap(theirs, ours) for _, _, theirs, ours in compared_cases(have)]
    return sum(found), len(found)


def narrow_overlaps(have: Summaries) -> list[str]:
    """Intervals that barely overlap."""
    said = []
    for run, name, theirs, ours in compared_cases(have):
        common = min(theirs["ci_high"], ours["ci_high"]) - max(theirs["ci_low"], ours["ci_low"])
        if 0 <= common < NARROW:
            said.append(f"{WORDS[name]} on {run.short} only by {number(100 * common, 2)} points")
    return said


def dagger(have: Summaries) -> list[str]:
    """The effect of other levels on RACU, estimated from the full runs."""
    own = [run for run in runs(have) if run.is_comparable and not run.is_full]
    if not own:
        return []
    effects = {level_span(run.levels): moved(have, run.levels) for run in own}
    known = [
        f"{number(100 * effect, 1)} points ({levels} %)"
        for levels, effect in effects.items()
        if effect is not None
    ]
    said = "† RACU over levels other than Table 2's: similar to its RACU, but not the same."
    if known:
        said += (
            f" Leaving out the same levels in our full runs changes it by at most {listed(known)}."
        )
    return [said]


def text_doubts(have: Summaries) -> str:
    """Doubts that the numbers themselves raise."""
    passing = [case for case in compared_cases(have) if overlap(*case[2:])]
    weak = "The overlap of two intervals over a handful of seeds each is a weak test"
    if passing:
        run, name, theirs, ours = max(passing, key=lambda c: abs(c[3]["mean"] - c[2]["mean"]))
        off = number(100 * abs(ours["mean"] - theirs["mean"]), 0)
        weak += f": {WORDS[name]} on {run.short} is {off} points off and passes"
    said = [f"- {weak}."]
    first = [
        run.short
        for run in runs(have)
        if run.is_conclusive and (best := ranked(run)) and above(run.between(best[0], MUTUAL))
    ]
    if first:
        said.append(
            f"- Mutual information between word and class uses no model, yet on {listed(first)} "
            "its RACU is significantly the highest. RACU rewards removing the class's signal, "
            "whether or not a model uses it."
        )
    return "\n".join(said)


def model_words(run: Run) -> str:
    """A run by its data, and by its model if that is not the paper's."""
    theirs = MODELS[run.known.model]
    return run.short if run.known.ours == theirs else f"{run.short} for {theirs}"
