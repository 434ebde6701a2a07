"""Finding 6 of the paper: does class leakage, masks that give the class away, raise performance?

Three looks at it: curves that rise over all seeds, single seeds that rise from guessing, and models
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
    LEAKAGE,
    PART,
    PROCEDURES,
    UNTOLD,
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
"""Fewer cannot show a rise among all pairs of levels."""
HANGS = 0.02
"""RACU: a larger change is said."""
SEEN = (
    "The paper sees it by Recursive ROAR on bAbI with BiLSTM-attention, and most on bAbI-3 with "
    "RoBERTa."
)

Case = tuple[Run, str, str]


def class_leakage(have: Summaries) -> Finding:
    """Agrees if more curves rise beyond chance than one in twenty would by chance.

    In part if some rise, but no more than that, or if none does but masks alone surely tell the
    class; else not told. Rises are judged of runs of five seeds only.
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

    from faithscope.probes.retrain.leakage import leaks

    rising = [case for case in cases if leaks(curve_of(case))]
    by_chance = float(binom.sf(len(rising) - 1, len(cases), 0.05))
    in_part = PART if rising or telling(have) else UNTOLD
    verdict = AGREES if rising and by_chance <= 0.05 else in_part
    said = [
        f"{len(rising)} of {len(cases)} curves of {count(SEEDS_FOR_RISES, 'seed')} or more "
        f"({case_words(cases)}) rise with masking beyond chance (Student's t, paired by seed, 5 % "
        "for all pairs of levels of a curve: by chance at most one curve in 20). "
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


def eye_words(have: Summaries) -> str:
    """The largest rise of a mean curve by Recursive ROAR, as an eye would judge."""
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
        "The paper judged mean curves by eye. So judged, the largest rise by Recursive ROAR is "
        f"that of {WORDS[measure]} on {run.short}: {run.metric} {low} % at {run.levels[start]} "
        f"{unit} masked, {high} % at {run.levels[stop]} {unit}, where it is {shown(gap, '+')} "
        f"points from random masking's (Student's t). {SEEN}"
    )


def rise(curve: Array, ends: Sequence[int] = ()) -> tuple[int, int, float]:
    """From which level to which (of `ends`, if given) the mean rises most, and by how much."""
    mean = curve.mean(0)
    stop = max(ends or range(1, len(mean)), key=lambda i: float(mean[i] - mean[:i].min()))
    start = int(mean[:stop].argmin())
    return start, stop, float(mean[stop] - mean[start])


def rise_words(case: Case) -> str:
    """A rise beyond chance in words, with its interval over seeds."""
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


# Single seeds that fall to guessing and rise by more than the test texts explain


def recovered(case: Case) -> tuple[Recovery, ...]:
    """Seeds of a curve that do so."""
    from faithscope.probes.retrain.leakage import recoveries

    return recoveries(curve_of(case), case[0].study["data"]["sizes"]["test"])


def recovery_words(have: Summaries) -> str:
    """How many curves of one seed do so, and which furthest."""
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
        f"Single seeds show more: of {curves} curves of one seed {len(found)} (on {where}) fall to "
        "guessing and rise again by more than four standard errors of the test texts (of random "
        f"masking's {random or 'none'}), furthest {WORDS[name]} on {run.short}, from {low} % at "
        f"{run.levels[one.low]} % masked to {high} % at {run.levels[one.high]} %. There a training "
        "failed or the masks give the class away; the curves cannot say which."
    )


# Models that answer one class


def one_class_points(run: Run, measure: str) -> dict[int, list[int]]:
    """By seed the levels at which a model's only answer is one class, by Recursive ROAR."""
    found: dict[int, list[int]] = {}
    for row in run.rows("one_class"):
        if row["measure"] == measure and row["procedure"] == "recursive":
            found.setdefault(row["seed"], []).append(row["k"])
    return found


def repaired_racu(run: Run, measure: str) -> Row:
    """RACU with such points on the line between their neighbours."""
    curve, out = run.values(measure), one_class_points(run, measure)
    for own, seed in zip(curve, run.seeds, strict=True):
        keep = [i for i, k in enumerate(run.levels) if k not in out.get(seed, [])]
        own[:] = np.interp(run.levels, np.array(run.levels)[keep], own[keep])
    return with_interval(racu_of(run, curve, run.levels))


def hangs_on_one_class(run: Run, measure: str) -> bool:
    """Whether RACU is another without such points, though some seed recovers with more masked."""
    own = run.racu(measure)
    if own is None or not one_class_points(run, measure):
        return False
    moves = abs(repaired_racu(run, measure)["mean"] - own["mean"]) > HANGS
    return moves and bool(recovered((run, "recursive", measure)))


def one_class_words(run: Run) -> str:
    """What RACU is without models that answer one class only, where it hangs on them."""
    trainings = len(run.seeds) * (len(run.levels) - 2)
    said = [
        f"On {run.short} {sum(map(len, one_class_points(run, name).values()))} of {trainings} "
        f"models of texts masked by {WORDS[name]} answer one class only, and with more masked some "
        "recover: trainings failed, or masks tell the class. With these points on the line between "
        f"their neighbours its RACU is {shown(repaired_racu(run, name))}, not "
        f"{shown(run.racu(name))}."
        for name in run.measures
        if hangs_on_one_class(run, name)
    ]
    return " ".join(said)


# Masks alone


def mask_gaps(have: Summaries, name: str = LEAKAGE) -> dict[str, Row]:
    """Score of models that see only masks: a measure's minus random's, paired by seed.

    Student's interval, 95 % for all measures and both looks together.
    """
    looks = sum(one in have.studies for one in (LEAKAGE, EARLIER))
    scores = dict(have.studies.get(name, {}).get("scores", {}))
    control = np.array(scores.pop("random", []))
    gaps = {measure: np.array(own) - control for measure, own in scores.items()}
    return {measure: student(gap, looks * len(gaps)) for measure, gap in gaps.items()}


def telling(have: Summaries) -> list[str]:
    """Measures whose masks alone surely tell more of the class than random ones do."""
    gaps = mask_gaps(have).items()
    return [name for name, row in gaps if row["ci_low"] is not None and row["ci_low"] > 0]


def mask_words(have: Summaries) -> str:
    """Whether masks alone give the class away."""
    gaps = mask_gaps(have)
    if not gaps:
        return ""
    probe = have.studies[LEAKAGE]
    own = telling(have)
    means = {name: number(100 * float(np.mean(held)), 1) for name, held in probe["scores"].items()}
    each = listed(
        [f"{WORDS[name]} {means[name]} %, {gap_words(row)}" for name, row in gaps.items()]
    )
    surely = f"masks of {named(own)} surely give it away" if own else "no masks surely give it away"
    return (
        "Whether masks give the class away is asked directly of models that see nothing but where "
        "they are, and the question: any other token is one unknown word (bAbI-1, "
        f"{PROCEDURES[probe['procedure']]}, {probe['level']} % masked, "
        f"{count(len(probe['seeds']), 'seed')}, {probe['epochs']} epochs). With random "
        f"masks such models reach {means['random']} %, with those of {each}: {surely}."
        f"{earlier_words(have)} Masks can also tell the class by where its words stand, without "
        "having looked at the label."
    )


def gap_words(row: Row) -> str:
    """A difference to random masks, in words."""
    return f"{shown(row, '+')} points from random ones (Student's t)"


def earlier_words(have: Summaries) -> str:
    """The same after fewer epochs, which was tried first."""
    gaps = mask_gaps(have, EARLIER)
    if not gaps:
        return ""
    epochs = have.studies[EARLIER]["epochs"]
    each = listed([f"{WORDS[name]} {gap_words(row)}" for name, row in gaps.items()])
    return (
        f" (First tried for {epochs} epochs, then as long as the run: {each}. The 5 % are shared "
        "by both.)"
    )
