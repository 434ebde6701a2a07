"""Finding 6 of the paper: does class leakage (masks that reveal the class) raise performance?

Three tests: curves that rise over all seeds, single seeds that rise from chance, and models
that see nothing but masks (roar_babi1_leakage.json, studies/roar_leakage.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from filling import Row, Summaries, listed, number
from text_numbers import Array, count, fewest, shown, student, with_interval
from text_runs import (
    AGREES,
    EARLIER,
    INCONCLUSIVE,
    LEAKAGE,
    PART,
    PROCEDURES,
    WORDS,
    Finding,
    Run,
    named,
    racu_of,
    runs,
)

if TYPE_CHECKING:
    from faithscope.probes.retrain.leakage import Recovery

SEEDS_FOR_RISES = 5
"""Fewer seeds cannot show a rise among all pairs of levels."""
NOTABLE = 0.02
"""RACU: larger changes are reported."""
SEEN = (
    "The paper sees rises by Recursive ROAR on bAbI with BiLSTM-attention, and most on bAbI-3 with "
    "RoBERTa."
)

Case = tuple[Run, str, str]


def class_leakage(have: Summaries) -> Finding:
    """Agrees if significantly more curves rise than the one in twenty expected by chance.

    In part if some rise, but no more than that, or if none does but masks alone significantly
    reveal the class; else inconclusive. Only runs with five seeds or more are tested for rises.
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
        return Finding(claim, INCONCLUSIVE, "No run has enough seeds.")
    from scipy.stats import binom

    from faithscope.probes.retrain.leakage import leaks

    rising = [case for case in cases if leaks(curve_of(case))]
    by_chance = float(binom.sf(len(rising) - 1, len(cases), 0.05))
    in_part = PART if rising or revealing(have) else INCONCLUSIVE
    verdict = AGREES if rising and by_chance <= 0.05 else in_part
    said = [
        f"{len(rising)} of {len(cases)} curves with {count(SEEDS_FOR_RISES, 'seed')} or more "
        f"({case_words(cases)}) rise significantly with masking (Student's t, paired by seed, 5 % "
        "shared by all pairs of levels of a curve: at most one curve in 20 by chance). "
        f"{power_words(cases)}",
        eye_words(have),
        recovery_words(have),
        mask_words(have),
    ]
    lines = "\n".join(f"- {rise_words(case)}" for case in rising)
    return Finding(claim, verdict, "\n\n".join(filter(None, said)), lines)


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
    return listed([f"{number_} on {name}" for name, number_ in found.items()])


def power_words(cases: Sequence[Case]) -> str:
    """How large a rise must be to be found, in the hardest case."""
    from scipy import stats

    needed = {}
    for case in cases:
        seeds, levels = curve_of(case).shape
        pairs = levels * (levels - 1) // 2
        limit = stats.t.ppf(1 - 0.05 / pairs, seeds - 1) / np.sqrt(seeds)
        needed[float(limit)] = (seeds, pairs)
    seeds, pairs = needed[max(needed)]
    return (
        f"This test finds large rises only: with {count(seeds, 'seed')} and {pairs} pairs a mean "
        f"rise must exceed {number(max(needed), 1)} standard deviations between seeds."
    )


def eye_words(have: Summaries) -> str:
    """The largest rise of a mean curve by Recursive ROAR, as judged by eye."""
    cases = [
        (run, "recursive", name)
        for run in runs(have)
        if run.is_learnt and len(run.seeds) >= fewest()
        for name in run.measures
    ]
    own = [case for case in cases if rise(curve_of(case))[2] > 0]
    if not own:
        return SEEN
    case = max(own, key=lambda one: rise(curve_of(one))[2])
    run, procedure, measure = case
    curve = curve_of(case)
    start, stop, _ = rise(curve)
    unit = "%" if run.is_relative else "tokens"
    low, high = (number(100 * float(curve[:, i].mean()), 1) for i in (start, stop))
    gap = student(curve[:, stop] - run.values("random", procedure)[:, stop])
    return (
        "The paper judged mean curves by eye. By eye, the largest rise with Recursive ROAR is "
        f"that of {WORDS[measure]} on {run.short}: {run.metric} {low} % at {run.levels[start]} "
        f"{unit} masked, {high} % at {run.levels[stop]} {unit}, where it differs by "
        f"{shown(gap, '+')} points from random masking (Student's t). {SEEN}"
    )


def rise(curve: Array, ends: Sequence[int] = ()) -> tuple[int, int, float]:
    """Between which levels (to one of `ends`, if given) the mean rises most, and by how much."""
    mean = curve.mean(0)
    stop = max(ends or range(1, len(mean)), key=lambda i: float(mean[i] - mean[:i].min()))
    start = int(mean[:stop].argmin())
    return start, stop, float(mean[stop] - mean[start])


def rise_words(case: Case) -> str:
    """A significant rise in words, with its interval over seeds."""
    from faithscope.probes.retrain.leakage import leaks

    run, procedure, measure = case
    curve = curve_of(case)
    start, stop, _ = rise(curve, leaks(curve))
    gap = with_interval(curve[:, stop] - curve[:, start])
    unit = "%" if run.is_relative else "tokens"
    return (
        f"{WORDS[measure]} on {run.short} by {PROCEDURES[procedure]} {shown(gap, '+')} points from "
        f"{run.levels[start]} to {run.levels[stop]} {unit}"
    )


# Single seeds that fall to chance and rise again by more than sampling error


def recovered(case: Case) -> tuple[Recovery, ...]:
    """Seeds of a curve that do so."""
    from faithscope.probes.retrain.leakage import recoveries

    return recoveries(curve_of(case), case[0].study["data"]["sizes"]["test"])


def recovery_words(have: Summaries) -> str:
    """How many curves of one seed do so, and which rises most."""
    learnt = [run for run in runs(have) if run.is_learnt]
    cases = [(run, how, name) for run in learnt for how in run.procedures for name in run.measures]
    found = [(case, one) for case in cases for one in recovered(case)]
    if not found:
        return ""
    curves = sum(len(run.seeds) for run, *_ in cases)
    random = sum(len(recovered((run, "recursive", "random"))) for run in learnt)
    where = listed(list(dict.fromkeys(case[0].short for case, _ in found)))

    def ends(case: Case, one: Recovery) -> Array:
        return curve_of(case)[one.seed, [one.low, one.high]]

    case, one = max(found, key=lambda pair: float(np.diff(ends(*pair))[0]))
    low, high = (number(100 * float(end), 1) for end in ends(case, one))
    run, _, name = case
    return (
        f"Single seeds show more: of {curves} curves of one seed, {len(found)} (on {where}) fall "
        "to chance and rise again by more than four standard errors of the test score (with random "
        f"masking {random or 'none'}). The largest such rise is that of {WORDS[name]} on "
        f"{run.short}, from {low} % at {run.levels[one.low]} % masked to {high} % at "
        f"{run.levels[one.high]} %. Either a training failed there or the masks reveal the class; "
        "the curves cannot show which."
    )


# Models that predict one class only


def one_class_points(run: Run, measure: str) -> dict[int, list[int]]:
    """By seed, the levels at which a model predicts one class only, by Recursive ROAR."""
    found: dict[int, list[int]] = {}
    for row in run.rows("one_class"):
        if row["measure"] == measure and row["procedure"] == "recursive":
            found.setdefault(row["seed"], []).append(row["k"])
    return found


def repaired_racu(run: Run, measure: str) -> Row:
    """RACU with such points interpolated linearly."""
    curve, out = run.values(measure), one_class_points(run, measure)
    for own, seed in zip(curve, run.seeds, strict=True):
        keep = [i for i, k in enumerate(run.levels) if k not in out.get(seed, [])]
        own[:] = np.interp(run.levels, np.array(run.levels)[keep], own[keep])
    return with_interval(racu_of(run, curve, run.levels))


def depends_on_one_class(run: Run, measure: str) -> bool:
    """Whether such points change RACU notably, and some seed recovers with more masked."""
    own = run.racu(measure)
    if own is None or not one_class_points(run, measure):
        return False
    moves = abs(repaired_racu(run, measure)["mean"] - own["mean"]) > NOTABLE
    return moves and bool(recovered((run, "recursive", measure)))


def one_class_words(run: Run) -> str:
    """RACU without models that predict one class only, if they change it."""
    trainings = len(run.seeds) * (len(run.levels) - 2)
    said = [
        f"On {run.short}, {sum(map(len, one_class_points(run, name).values()))} of {trainings} "
        f"models trained on texts masked by {WORDS[name]} predict one class only, and some recover "
        "with more masked: either trainings failed or the masks reveal the class. With these "
        f"points interpolated linearly its RACU is {shown(repaired_racu(run, name))}, not "
        f"{shown(run.racu(name))}."
        for name in run.measures
        if depends_on_one_class(run, name)
    ]
    return " ".join(said)


# Masks alone


def mask_gaps(have: Summaries, name: str = LEAKAGE) -> dict[str, Row]:
    """Score of models that see only masks: a measure's minus random's, paired by seed.

    Student intervals, 95 % for all measures and both tests together.
    """
    tests = sum(one in have.studies for one in (LEAKAGE, EARLIER))
    scores = dict(have.studies.get(name, {}).get("scores", {}))
    control = np.array(scores.pop("random", []))
    gaps = {measure: np.array(own) - control for measure, own in scores.items()}
    return {measure: student(gap, tests * len(gaps)) for measure, gap in gaps.items()}


def revealing(have: Summaries) -> list[str]:
    """Measures whose masks alone reveal significantly more of the class than random ones."""
    gaps = mask_gaps(have).items()
    return [name for name, row in gaps if row["ci_low"] is not None and row["ci_low"] > 0]


def mask_words(have: Summaries) -> str:
    """Whether masks alone reveal the class."""
    gaps = mask_gaps(have)
    if not gaps:
        return ""
    probe = have.studies[LEAKAGE]
    own = revealing(have)
    means = {name: number(100 * float(np.mean(held)), 1) for name, held in probe["scores"].items()}
    each = listed(
        [f"{WORDS[name]} {means[name]} %, {gap_words(row)}" for name, row in gaps.items()]
    )
    which = f"the masks of {named(own)}" if own else "no masks"
    return (
        "Whether masks reveal the class is tested directly with models that see only where the "
        "masks are, and the question: every other token is one unknown word (bAbI-1, "
        f"{PROCEDURES[probe['procedure']]}, {probe['level']} % masked, "
        f"{count(len(probe['seeds']), 'seed')}, {probe['epochs']} epochs). With random "
        f"masks such models reach {means['random']} %, with those of {each}: {which} reveal "
        f"significantly more of the class than random ones.{earlier_words(have)} Masks can also "
        "reveal the class by the positions of its words, without using the label."
    )


def gap_words(row: Row) -> str:
    """A difference to random masks, in words."""
    return f"{shown(row, '+')} points compared with random masks (Student's t)"


def earlier_words(have: Summaries) -> str:
    """The same with fewer epochs, which was tested first."""
    gaps = mask_gaps(have, EARLIER)
    if not gaps:
        return ""
    epochs = have.studies[EARLIER]["epochs"]
    each = listed([f"{WORDS[name]} {gap_words(row)}" for name, row in gaps.items()])
    return (
        f" (A first test with {epochs} epochs, fewer than in the run, gave: {each}. The 5 % are "
        "shared by both tests.)"
    )
