"""RACU beside the paper's Table 2, and what that gives reason to doubt."""

from __future__ import annotations

import numpy as np
from filling import Row, Summaries, listed, number, table
from text_leakage import hangs_on_one_class, one_class_words
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

HAIR = 0.005
"""RACU: intervals that share less than this overlap by a hair."""


def text_racu(have: Summaries) -> str:
    """RACU beside Table 2, all runs whose levels can be compared."""
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
        parts.append(f"Not here, because its levels are too far apart: {listed(others)}.")
    return "\n\n".join(parts)


def racu_row(run: Run, measure: str) -> list[str]:
    """A measure of a run beside the paper's."""
    theirs, ours = published_racu(run, measure), run.racu(measure)
    gap = None if None in (theirs, ours) else 100 * (mean_of(ours) - mean_of(theirs))
    return [
        model_words(run),
        level_span(run.levels),
        WORDS[measure],
        shown(theirs),
        shown(ours)
        + "†" * (ours is not None and not run.is_full)
        + "‡" * hangs_on_one_class(run, measure),
        number(gap, 1, "+"),
        str(ours["n"]) if ours else "0",
        agrees(theirs, ours),
    ]


def mean_of(row: Row | None) -> float:
    """A row's mean."""
    return np.nan if row is None else float(row["mean"])


def racu_words(have: Summaries) -> str:
    """How many intervals overlap, and which by a hair."""
    agreeing, compared = overlaps(have)
    said = f"Of {compared} intervals that can be compared {agreeing} overlap the paper's"
    if near := hairs(have):
        said += f", {listed(near)}"
    said += "."
    if any(run.known.instead for run in runs(have)):
        said += " Where a model or its word vectors stand in, the same number is not expected."
    if any(len(run.seeds) < fewest() for run in runs(have)):
        said += " Fewer than three seeds stand one by one in round brackets."
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


def hairs(have: Summaries) -> list[str]:
    """Intervals that hardly overlap."""
    said = []
    for run, name, theirs, ours in compared_cases(have):
        common = min(theirs["ci_high"], ours["ci_high"]) - max(theirs["ci_low"], ours["ci_low"])
        if 0 <= common < HAIR:
            said.append(f"{WORDS[name]} on {run.short} only by {number(100 * common, 2)} points")
    return said


def dagger(have: Summaries) -> list[str]:
    """What other levels do to RACU, as far as the full runs tell."""
    own = [run for run in runs(have) if run.is_comparable and not run.is_full]
    if not own:
        return []
    effects = {level_span(run.levels): moved(have, run.levels) for run in own}
    known = [
        f"{number(100 * effect, 1)} points ({levels} %)"
        for levels, effect in effects.items()
        if effect is not None
    ]
    said = "† RACU over other levels than Table 2's: close to its RACU, not the same."
    if known:
        said += (
            f" Leaving out the same levels in our full runs moves it by at most {listed(known)}."
        )
    return [said]


def text_doubts(have: Summaries) -> str:
    """What the numbers themselves give reason to doubt."""
    passing = [case for case in compared_cases(have) if overlap(*case[2:])]
    weak = "An overlap of two intervals over a handful of seeds each is a weak test"
    if passing:
        run, name, theirs, ours = max(passing, key=lambda c: abs(c[3]["mean"] - c[2]["mean"]))
        off = number(100 * abs(ours["mean"] - theirs["mean"]), 0)
        weak += f": {WORDS[name]} on {run.short} is {off} points off and passes"
    said = [f"- {weak}."]
    first = [
        run.short
        for run in runs(have)
        if run.is_told and (best := ranked(run)) and above(run.between(best[0], MUTUAL))
    ]
    if first:
        said.append(
            f"- Mutual information of word and class asks no model, yet on {listed(first)} its "
            "RACU is surely the highest. RACU rewards what removes the class's signal, whether or "
            "not a model uses it."
        )
    return "\n".join(said)


def model_words(run: Run) -> str:
    """A run by data, and by model if that is not the paper's."""
    theirs = MODELS[run.known.model]
    return run.short if run.known.ours == theirs else f"{run.short} for {theirs}"
