"""The paper's six findings: what our runs say to each, with numbers and a verdict.

A verdict follows the rule in the docstring of its function; the rules were fixed when only bAbI-1
had been run. "Surely" is an interval on one side of zero. Runs with fewer than three seeds, or
whose models learnt nothing, give no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from filling import Row, Summaries, listed, number, percent, table
from text_runs import (
    MEASURES,
    PROCEDURES,
    WORDS,
    Array,
    Run,
    above,
    ahead_of,
    below,
    count,
    fewest,
    named,
    ranked,
    runs,
    shown,
    told,
    welch,
    with_interval,
)

AGREES, PART, UNTOLD, NOT = "agrees", "agrees in part", "not told", "disagrees"
MARGIN = 0.05
"""RACU: what is surely within so much counts as the same."""
TOP = 20
"""The paper's "top 20 %"."""
CHEAP = ("gradient", "input_x_gradient")
DEAR = "integrated_gradients"


class Finding(NamedTuple):
    """A finding of the paper, our verdict on it, why, and the numbers as a table."""

    claim: str
    verdict: str
    said: str
    numbers: str = ""

    def section(self, place: int) -> str:
        """As the page has it."""
        parts = [f"### {place}. {self.claim}: {self.verdict}", self.said, self.numbers]
        return "\n\n".join(part for part in parts if part)


def findings(have: Summaries) -> list[Finding]:
    """All six."""
    return [judge(have) for judge in FINDINGS]


# 1


def model_dependent(have: Summaries) -> Finding:
    """Agrees if the RACU of a measure surely differs between models of the same data.

    Disagrees if every measure's is surely within five points; models are unpaired, so intervals
    are Welch's, 95 % for all comparisons together.
    """
    claim = "Faithfulness is model-dependent"
    pairs = [
        (one, two)
        for one, two in combinations(runs(have), 2)
        if one.known.dataset == two.known.dataset and one.is_learnt and two.is_learnt
    ]
    cases = [(one, two, name) for one, two in pairs for name in MEASURES if both(one, two, name)]
    if not cases:
        return Finding(claim, UNTOLD, "No data set here has two models that learnt.")
    gaps = [welch(*values(case), len(cases)) for case in cases]
    known = [gap for gap in gaps if gap["ci_low"] is not None]
    apart = [gap for gap in known if above(gap) or below(gap)]
    same = [gap for gap in known if above(gap, -MARGIN) and below(gap, MARGIN)]
    verdict = AGREES if apart else NOT if len(same) == len(cases) else UNTOLD
    said = [model_words(one, two) for one, two in pairs]
    if known:
        said.append(
            f"{len(apart)} of {len(known)} differences between models are beyond chance (unpaired, "
            "Welch's t, 95 % for all together)."
        )
    else:
        few = min((run for pair in pairs for run in pair), key=lambda run: len(run.seeds))
        said.append(
            f"{count(len(few.seeds), 'seed').capitalize()} of {few.known.ours} are too few for an "
            f"interval: {separated(cases)}."
        )
    rows = [
        [
            one.known.dataset,
            WORDS[name],
            shown(one.racu(name)),
            shown(two.racu(name)),
            shown(gap, "+"),
            " / ".join(number(run.theirs["racu"][name][0], 1) for run in (one, two)),
        ]
        for (one, two, name), gap in zip(cases, gaps, strict=True)
    ]
    ours = [" / ".join(dict.fromkeys(pair[i].known.ours for pair in pairs)) for i in (0, 1)]
    heads = ["RACU [%]", "", *ours, "difference", "paper, BiLSTM-attention / RoBERTa"]
    return Finding(claim, verdict, " ".join(said), table(heads, rows, names=2))


def both(one: Run, two: Run, measure: str) -> bool:
    """Whether both runs have RACU of a measure by Recursive ROAR."""
    return None not in (one.racu(measure), two.racu(measure))


def values(case: tuple[Run, Run, str]) -> tuple[list[float], list[float]]:
    """RACU of a measure, the seeds of one run and of the other."""
    one, two = ((run.racu(case[2]) or {"values": []})["values"] for run in case[:2])
    return list(one), list(two)


def model_words(one: Run, two: Run) -> str:
    """Which measure is first with each model."""
    firsts = [next(name for name in ranked(run) if both(one, two, name)) for run in (one, two)]
    levels = ", masked at other levels" * (one.levels != two.levels)
    return (
        f"Of the measures that both have, the highest RACU on {one.known.dataset} is that of "
        f"{WORDS[firsts[0]]} with {one.known.ours}, of {WORDS[firsts[1]]} with "
        f"{two.known.ours}{levels}."
    )


def separated(cases: Sequence[tuple[Run, Run, str]]) -> str:
    """For which measures all seeds of one model lie beyond all of the other."""
    apart = []
    for case in cases:
        first, second = values(case)
        if max(first) < min(second) or max(second) < min(first):
            apart.append(case[2])
    which = f"for {named(apart)}" if apart else "for no measure"
    return f"{which} all seeds of one model lie beyond all of the other"


# 2


def task_dependent(have: Summaries) -> Finding:
    """Agrees if two measures surely change places between two data sets with the same model.

    In part if only the first by mean changes; disagrees if the order of means is the same in all.
    """
    claim = "Faithfulness is task-dependent"
    models = ("bilstm", "roberta")
    groups = [[run for run in told(have) if run.known.model == name] for name in models]
    own = max(groups, key=len)
    if len(own) < 2:
        enough = f"{count(fewest(), 'seed')} or more"
        return Finding(claim, UNTOLD, f"No model here has two data sets with {enough}.")
    orders = {run.short: ranked(run) for run in own}
    swaps = swapped(own)
    firsts = {order[0] for order in orders.values()}
    alike = len({tuple(order) for order in orders.values()}) == 1
    verdict = AGREES if swaps else NOT if alike else PART if len(firsts) > 1 else UNTOLD
    times = {0: "never", 1: "once", 2: "twice"}.get(len(swaps), f"{len(swaps)} times")
    said = f"With {own[0].known.ours} two measures {times} surely change places between two data "
    said += "sets, seed by seed"
    if swaps:
        one, two, here, there, gap, other = swaps[0]
        said += (
            f"; furthest {WORDS[one]} and {WORDS[two]}: on {here.short} the second is "
            f"{shown(gap, '+')} points ahead, on {there.short} {shown(other, '+')}"
        )
    rows = [
        [run.short, *(f"{WORDS[m]} {shown(run.racu(m))}" for m in orders[run.short])] for run in own
    ]
    heads = ["RACU [%]", "highest", *[""] * (max(map(len, rows)) - 3), "lowest"]
    rows = [row + [""] * (len(heads) - len(row)) for row in rows]
    return Finding(claim, verdict, f"{said}.", table(heads, rows, names=len(heads)))


def swapped(own: Sequence[Run]) -> list[tuple[str, str, Run, Run, Row, Row]]:
    """Pairs of measures whose order is sure in two runs, and opposite; the widest apart first."""
    found = []
    for one, two in combinations(MEASURES, 2):
        for here, there in combinations(own, 2):
            first, second = here.between(one, two), there.between(one, two)
            if first is None or second is None:
                continue
            if above(first) and below(second):
                found.append((one, two, here, there, first, second))
            elif below(first) and above(second):
                found.append((one, two, there, here, second, first))
    return sorted(found, key=lambda case: case[5]["mean"] - case[4]["mean"])


# 3


def attention_faithful(have: Summaries) -> Finding:
    """Agrees if attention is surely above random in all runs and none but on SST surely ahead.

    In part if it is surely above random in some; disagrees if in none.
    """
    claim = "Attention can be faithful"
    own = [run for run in told(have) if run.racu("attention") is not None]
    if not own:
        return Finding(claim, UNTOLD, "No run here has attention with enough seeds.")
    faithful = [run for run in own if above(run.racu("attention"))]
    ahead = {run.short: ahead_of(run, "attention") for run in own}
    first = [run for run in own if not ahead[run.short]]
    expected = [run for run in own if run.known.dataset != "SST"]
    all_hold = len(faithful) == len(own) and all(run in first for run in expected)
    verdict = NOT if not faithful else AGREES if all_hold else PART
    rows = [
        [
            run.short,
            shown(run.racu("attention")),
            number(run.theirs["racu"]["attention"][0], 1),
            ", ".join(f"{WORDS[n]} by {shown(gap)}" for n, gap in ahead[run.short].items())
            or "none",
        ]
        for run in own
    ]
    heads = ["RACU [%] of attention", "ours", "paper", "surely ahead of it, in points"]
    return Finding(
        claim,
        verdict,
        f"Its RACU is surely above random masking's in {len(faithful)} of {len(own)} runs, and no "
        f"measure is surely ahead of it, seed by seed, in {len(first)}; in the paper it is among "
        "the first but on SST.",
        table(heads, rows),
    )


# 4


def worth_its_cost(have: Summaries) -> Finding:
    """Agrees (not worth it) if in some run gradient or input × gradient is surely ahead.

    In part if in some run it is not surely ahead of both; disagrees if it is in all.
    """
    claim = "Integrated gradients are not necessarily worth their cost"
    own = [run for run in told(have) if all(run.has(name) for name in (*CHEAP, DEAR))]
    if not own:
        lack = "No run here has all three gradient measures with enough seeds."
        return Finding(claim, UNTOLD, lack)
    gaps = {run.short: [run.between(name, DEAR) for name in CHEAP] for run in own}
    behind = [name for name, found in gaps.items() if any(map(below, found))]
    ahead = [name for name, found in gaps.items() if all(map(above, found))]
    verdict = AGREES if behind else NOT if len(ahead) == len(own) else PART
    rows = [[run.short, *(shown(gap, "+") for gap in gaps[run.short]), *cost(run)] for run in own]
    heads = [
        "integrated gradients, RACU",
        *(f"less {WORDS[name]}" for name in CHEAP),
        "explaining takes, in gradient's",
        "of a step",
    ]
    return Finding(
        claim,
        verdict,
        f"Gradient or input × gradient is surely ahead of them in {len(behind)} of {len(own)} "
        f"runs, they are surely ahead of both in {len(ahead)} (points, paired by seed). The paper "
        "puts their cost at about 50 gradients.",
        table(heads, rows),
    )


def cost(run: Run) -> list[str]:
    """How much more explaining takes than a gradient, and what that is of a step."""
    dear, cheap = run.time(DEAR), run.time("gradient")
    if dear is None or cheap is None or not cheap["explaining_seconds"]:
        return ["—", "—"]
    times = dear["explaining_seconds"] / cheap["explaining_seconds"]
    share = dear["explaining_seconds"] / dear["step_seconds"]
    return [f"{number(times, 0 if times >= 10 else 1)} ×", percent(share)]


# 5


def top_twenty(have: Summaries) -> Finding:
    """Agrees if for most curves the steepest step lies within 20 % and the drop beats random's.

    In part if only one of both holds for most; disagrees if neither does.
    """
    claim = f"Measures work best for the top {TOP} %"
    own = told(have)
    cases = [(run, name) for run in own for name in run.measures]
    if not cases:
        return Finding(claim, UNTOLD, "No run here has enough seeds.")
    early = [case for case in cases if steepest(*case) <= TOP]
    better = [case for case in cases if above(top_gain(*case))]
    most = [2 * len(found) > len(cases) for found in (early, better)]
    verdict = AGREES if all(most) else PART if any(most) else NOT
    names = [name for name in WORDS if any(name in run.all_measures for run in own)]
    rows = [
        [
            f"{run.short}, at {top_level(run)} %",
            *(shown(top_share(run, m)) if run.has(m) else "—" for m in names),
        ]
        for run in own
    ]
    return Finding(
        claim,
        verdict,
        f"The steepest step of the mean curve lies within the first {TOP} % for {len(early)} of "
        f"{len(cases)} curves. By then surely more has been lost than under random masking, seed "
        f"by seed, for {len(better)} of {len(cases)}.",
        table(["share of the whole loss [%]", *(WORDS[name] for name in names)], rows),
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


def steepest(run: Run, measure: str) -> int:
    """Where the step ends in which the mean curve falls fastest."""
    mean = run.values(measure).mean(0)
    ends = zip(run.levels, run.levels[1:], mean, mean[1:], strict=False)
    slopes = [(after - before) / (k - j) for j, k, before, after in ends]
    return run.levels[slopes.index(min(slopes)) + 1]


# 6


def class_leakage(have: Summaries) -> Finding:
    """Agrees if more curves rise beyond chance than one in twenty would by chance.

    In part if some rise, but no more than that; not told if none does.
    """
    claim = "Class leakage can raise performance"
    cases = [
        (run, procedure, name)
        for relative in (True, False)
        for run in runs(have, relative=relative)
        for procedure in run.procedures
        for name in run.measures
        if run.is_told
    ]
    if not cases:
        return Finding(claim, UNTOLD, "No run here has enough seeds.")
    from scipy.stats import binom

    from faithscope.retrain.leakage import leaks

    rising = [case for case in cases if leaks(case[0].values(case[2], case[1])).rising]
    by_chance = float(binom.sf(len(rising) - 1, len(cases), 0.05))
    verdict = UNTOLD if not rising else AGREES if by_chance <= 0.05 else PART
    largest = max(cases, key=lambda case: rise(case[0].values(case[2], case[1]))[2])
    said = (
        f"{len(rising)} of {len(cases)} curves, both procedures counted, rise with masking beyond "
        "chance (Student's t, paired by seed, 5 % for all pairs of levels of a curve, so that one "
        "curve in 20 would by chance)"
    )
    if not rising:
        said += f"; the largest rise of a mean, {rise_words(*largest)}, cannot be told from chance"
    return Finding(
        claim,
        verdict,
        f"{said}. The paper sees it by Recursive ROAR on bAbI with BiLSTM-attention, and most on "
        "bAbI-3 with RoBERTa.",
        "\n".join(f"- {rise_words(*case)}" for case in rising),
    )


def rise(curve: Array, ends: Sequence[int] = ()) -> tuple[int, int, float]:
    """From which level to which (of `ends`, if given) the mean rises most, and by how much."""
    mean = curve.mean(0)
    stop = max(ends or range(1, len(mean)), key=lambda i: float(mean[i] - mean[:i].min()))
    start = int(mean[:stop].argmin())
    return start, stop, float(mean[stop] - mean[start])


def rise_words(run: Run, procedure: str, measure: str) -> str:
    """A rise in words, with its interval over seeds."""
    from faithscope.retrain.leakage import leaks

    curve = run.values(measure, procedure)
    start, stop, _ = rise(curve, leaks(curve).rising)
    gap = with_interval(curve[:, stop] - curve[:, start])
    unit = "%" if run.is_relative else "tokens"
    return (
        f"{WORDS[measure]} on {run.short} by {PROCEDURES[procedure]} {shown(gap, '+')} points from "
        f"{run.levels[start]} to {run.levels[stop]} {unit}"
    )


FINDINGS: Sequence[Callable[[Summaries], Finding]] = (
    model_dependent,
    task_dependent,
    attention_faithful,
    worth_its_cost,
    top_twenty,
    class_leakage,
)


def text_findings(have: Summaries) -> str:
    """The six findings, a section each."""
    sections = [finding.section(i) for i, finding in enumerate(findings(have), 1)]
    return "\n\n".join([*sections, *left_aside(have)])


def left_aside(have: Summaries) -> list[str]:
    """Runs that give no verdict, and why."""
    few = [run for run in runs(have) if len(run.seeds) < fewest()]
    lost = [run for run in runs(have) if not run.is_learnt]
    said = []
    if few:
        each = listed([f"{run.short} ({count(len(run.seeds), 'seed')})" for run in few])
        said.append(f"Too few seeds for a verdict: {each}.")
    if lost:
        each = listed([run.short for run in lost])
        said.append(f"Left aside because the models learnt nothing: {each}.")
    return [" ".join(said)] if said else []


def verdict_lines(have: Summaries) -> str:
    """The verdicts alone."""
    return "\n".join(f"- {finding.claim}: **{finding.verdict}**" for finding in findings(have))
