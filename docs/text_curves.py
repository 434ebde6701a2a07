"""Findings 5 and 6 of the paper, which are about curves: the first 20 %, and class leakage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from filling import Row, Summaries, listed, number, table
from text_numbers import Array, above, count, shown, spread, student, with_interval
from text_runs import (
    AGREES,
    MEASURES,
    NOT,
    PART,
    PROCEDURES,
    UNTOLD,
    WORDS,
    Finding,
    Run,
    runs,
    told,
)

TOP = 20
"""The paper's "top 20 %"."""
SEEDS_FOR_RISES = 5
"""Fewer cannot show a rise among all pairs of levels."""


# 5


def top_twenty(have: Summaries) -> Finding:
    """Agrees if for most curves the distance to random grows fastest within 20 %, surely by then.

    In part if only one of both holds for most; disagrees if neither does.
    """
    claim = f"Measures work best for the top {TOP} %"
    own = told(have)
    cases = [(run, name) for run in own for name in run.measures]
    if not cases:
        return Finding(claim, UNTOLD, "No run here has enough seeds.")
    early = [case for case in cases if fastest(*case) <= TOP]
    better = [case for case in cases if above(top_gain(*case))]
    by_fall = [case for case in cases if steepest(*case) <= TOP]
    most = [2 * len(found) > len(cases) for found in (early, better)]
    verdict = AGREES if all(most) else PART if any(most) else NOT
    names = [*(name for name in MEASURES if any(map(has(name), own))), "random"]
    rows = [
        [
            f"{run.short}, at {top_level(run)} %",
            *(shown(top_share(run, m)) if run.has(m) else "—" for m in names),
        ]
        for run in own
    ]
    said = (
        f"The distance to random masking grows fastest within the first {TOP} % for {len(early)} "
        f"of {len(cases)} curves (means over seeds), and by then surely more has been lost than "
        f"under random masking for {len(better)}. {' '.join(map(share_words, own))} The distance "
        "is taken because nothing is ranked in the step to 100 %; by the fall of the curve itself, "
        f"that step counted, it is {len(by_fall)} of {len(cases)}."
    )
    heads = ["share of the whole loss [%]", *(WORDS[name] for name in names)]
    return Finding(claim, verdict, said, table(heads, rows))


def has(measure: str) -> Callable[[Run], bool]:
    """Whether a run has a measure."""
    return lambda run: run.has(measure)


def share_words(run: Run) -> str:
    """What share of the loss has come by then."""
    shares = [float(top_share(run, name)["mean"]) for name in run.measures]
    later = ": most comes later" if max(shares) < 0.5 else ""
    random = number(100 * top_share(run, "random")["mean"], 1)
    return (
        f"On {run.short} {spread(shares)} % of the whole loss has come by then (random {random} %)"
        f"{later}."
    )


def top_level(run: Run) -> int:
    """20 %, or the level before it where it was not run."""
    return max(k for k in run.levels if k <= TOP)


def loss_shares(run: Run, measure: str) -> Array:
    """By seed, what is lost at the top level, as a share of all seeds' mean loss at 100 %."""
    curve = run.values(measure)
    lost = curve[:, :1] - curve
    whole = float(lost[:, -1].mean())
    shares: Array = lost[:, run.levels.index(top_level(run))] / (whole if whole > 0 else np.nan)
    return shares


def top_share(run: Run, measure: str) -> Row:
    """The same with its interval."""
    return with_interval(loss_shares(run, measure))


def top_gain(run: Run, measure: str) -> Row:
    """The same less random's, paired by seed."""
    return with_interval(loss_shares(run, measure) - loss_shares(run, "random"))


def fastest(run: Run, measure: str) -> int:
    """Where the step ends in which random minus measure grows fastest; 100 if it never grows."""
    gap = run.values("random").mean(0) - run.values(measure).mean(0)
    slopes = np.diff(gap) / np.diff(run.levels)
    return run.levels[int(slopes.argmax()) + 1] if slopes.max() > 0 else run.levels[-1]


def steepest(run: Run, measure: str) -> int:
    """Where the step ends in which the mean curve falls fastest."""
    slopes = np.diff(run.values(measure).mean(0)) / np.diff(run.levels)
    return run.levels[int(slopes.argmin()) + 1]


# 6


Case = tuple[Run, str, str]


def class_leakage(have: Summaries) -> Finding:
    """Agrees if more curves rise beyond chance than one in twenty would by chance.

    In part if some rise, but no more than that; not told if none does. Runs of five seeds only.
    """
    claim = "Class leakage can raise performance"
    cases = [
        (run, procedure, name)
        for relative in (True, False)
        for run in runs(have, relative=relative)
        for procedure in run.procedures
        for name in run.measures
        if run.is_learnt and len(run.seeds) >= SEEDS_FOR_RISES
    ]
    if not cases:
        return Finding(claim, UNTOLD, "No run here has enough seeds.")
    from scipy.stats import binom

    from faithscope.retrain.leakage import leaks

    rising = [case for case in cases if leaks(curve_of(case)).rising]
    by_chance = float(binom.sf(len(rising) - 1, len(cases), 0.05))
    verdict = UNTOLD if not rising else AGREES if by_chance <= 0.05 else PART
    said = [
        f"{len(rising)} of {len(cases)} curves of {count(SEEDS_FOR_RISES, 'seed')} or more "
        f"({case_words(cases)}) rise with masking beyond chance (Student's t, paired by seed, 5 % "
        "for all pairs of levels of a curve: by chance at most one curve in 20). "
        f"{power_words(cases)}",
        eye_words(cases),
        "The paper sees it by Recursive ROAR on bAbI with BiLSTM-attention, and most on bAbI-3 "
        "with RoBERTa.",
    ]
    lines = "\n".join(f"- {rise_words(case)}" for case in rising)
    return Finding(claim, verdict, " ".join(filter(None, said)), lines)


def curve_of(case: Case) -> Array:
    """The task metric of a curve [seeds, levels]."""
    run, procedure, measure = case
    return run.values(measure, procedure)


def case_words(cases: Sequence[Case]) -> str:
    """How many curves of which runs."""
    found: dict[str, int] = {}
    for run, *_ in cases:
        name = run.short if run.is_relative else f"{run.short} one token at a time"
        found[name] = found.get(name, 0) + 1
    return listed([f"{number_} of {name}" for name, number_ in found.items()])


def power_words(cases: Sequence[Case]) -> str:
    """How large a rise must be to be found, where that is hardest."""
    from scipy import stats

    needed = {}
    for case in cases:
        seeds, levels = curve_of(case).shape
        pairs = levels * (levels - 1) // 2
        limit = stats.t.ppf(1 - 0.05 / pairs, seeds - 1) / np.sqrt(seeds)
        needed[float(limit)] = (seeds, pairs)
    seeds, pairs = needed[max(needed)]
    return (
        f"That finds large rises only: with {count(seeds, 'seed')} and {pairs} pairs a mean rise "
        f"must exceed {number(max(needed), 1)} standard deviations between seeds."
    )


def eye_words(cases: Sequence[Case]) -> str:
    """The largest rise of a mean curve by Recursive ROAR, as an eye would judge."""
    own = [case for case in cases if case[1] == "recursive" and rise(curve_of(case))[2] > 0]
    if not own:
        return ""
    case = max(own, key=lambda one: rise(curve_of(one))[2])
    run, procedure, measure = case
    curve = curve_of(case)
    start, stop, _ = rise(curve)
    unit = "%" if run.is_relative else "tokens"
    low, high = (number(100 * float(curve[:, i].mean()), 1) for i in (start, stop))
    gap = student(curve[:, stop] - run.values("random", procedure)[:, stop])
    return (
        "The paper judged mean curves by eye. So judged, the largest rise by Recursive ROAR is "
        f"that of {WORDS[measure]} on {run.short}: {run.metric} {low} % at {run.levels[start]} "
        f"{unit} masked, {high} % at {run.levels[stop]} {unit}, where it is {shown(gap, '+')} "
        "points from random masking's (Student's t)."
    )


def rise(curve: Array, ends: Sequence[int] = ()) -> tuple[int, int, float]:
    """From which level to which (of `ends`, if given) the mean rises most, and by how much."""
    mean = curve.mean(0)
    stop = max(ends or range(1, len(mean)), key=lambda i: float(mean[i] - mean[:i].min()))
    start = int(mean[:stop].argmin())
    return start, stop, float(mean[stop] - mean[start])


def rise_words(case: Case) -> str:
    """A rise beyond chance in words, with its interval over seeds."""
    from faithscope.retrain.leakage import leaks

    run, procedure, measure = case
    curve = curve_of(case)
    start, stop, _ = rise(curve, leaks(curve).rising)
    gap = with_interval(curve[:, stop] - curve[:, start])
    unit = "%" if run.is_relative else "tokens"
    return (
        f"{WORDS[measure]} on {run.short} by {PROCEDURES[procedure]} {shown(gap, '+')} points from "
        f"{run.levels[start]} to {run.levels[stop]} {unit}"
    )
