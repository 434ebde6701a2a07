"""The paper's six findings: what our runs say about each, with numbers and a verdict.

A verdict follows the rule in the docstring of its function. "Significantly" is `above` or `below`
of text_numbers.py: both the BCa and the Student interval exclude the limit. Runs with fewer than
three seeds, with levels too far apart, or whose models learnt nothing, give no verdict. The rules
were revised once, after a referee had read the first results: the Student interval was added, and
the fifth uses the distance to random masking. Findings 1 to 4 are here, 5 is in text_curves.py, 6
in text_leakage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

from filling import Row, Summaries, listed, number, percent, table
from text_curves import top_twenty
from text_leakage import class_leakage, one_class_words
from text_numbers import (
    above,
    below,
    bootstrap_alone,
    count,
    fewest,
    is_loose,
    shown,
    welch,
)
from text_runs import (
    AGREES,
    INCONCLUSIVE,
    MEASURES,
    NOT,
    PART,
    WORDS,
    Finding,
    Run,
    ahead_of,
    conclusive,
    inconclusive,
    is_dense,
    level_span,
    named,
    racu_over,
    racu_row_over,
    ranked,
    runs,
)

MARGIN = 0.05
"""RACU: values significantly within this margin count as the same."""
CHEAP = ("gradient", "input_x_gradient")
DEAR = "integrated_gradients"


def findings(have: Summaries) -> list[Finding]:
    """All six."""
    return [judge(have) for judge in FINDINGS]


def in_tables(have: Summaries, *measures: str) -> list[Run]:
    """Runs that give verdicts, then comparable ones without a verdict."""
    others = [run for run in inconclusive(have) if run.is_comparable]
    return [run for run in [*conclusive(have), *others] if all(map(run.has, measures))]


def row_name(run: Run) -> str:
    """A run in a table of findings, marked if its levels are not the eleven."""
    return run.with_seeds + "†" * (not run.is_full)


# 1


def model_dependent(have: Summaries) -> Finding:
    """Agrees if the RACU of a measure differs significantly between models of the same data.

    Disagrees if all differences are significantly within five points. Models are unpaired, so
    intervals are Welch's, 95 % for all comparisons together. RACU is over the common levels.
    """
    claim = "Faithfulness is model-dependent"
    pairs = [
        (one, two)
        for one, two in combinations(runs(have), 2)
        if one.known.dataset == two.known.dataset and one.is_learnt and two.is_learnt
    ]
    cases = [
        (one, two, name)
        for one, two in pairs
        if common_levels(one, two)
        for name in MEASURES
        if one.has(name) and two.has(name)
    ]
    if not cases:
        return Finding(claim, INCONCLUSIVE, "No data set has two models that learnt.")
    gaps = [welch(*values(case), len(cases)) for case in cases]
    known = [gap for gap in gaps if gap["ci_low"] is not None]
    apart = [gap for gap in known if above(gap) or below(gap)]
    same = [gap for gap in known if above(gap, -MARGIN) and below(gap, MARGIN)]
    verdict = AGREES if apart else NOT if len(same) == len(cases) else INCONCLUSIVE
    said = [model_words(one, two, cases) for one, two in pairs if common_levels(one, two)]
    said.append(
        f"{len(apart)} of {len(known)} differences between models are significant by Welch's t "
        "(unpaired, 95 % for all intervals together)."
        if known
        else too_few(cases)
    )
    said += dict.fromkeys(one_class_words(run) for case in cases for run in case[:2])
    return Finding(claim, verdict, " ".join(filter(None, said)), model_table(cases, gaps))


def common_levels(one: Run, two: Run) -> list[int]:
    """The levels of both runs, if both reached them by the same steps; else none.

    The last is 100 %, which all measures share.
    """
    levels = [k for k in one.levels if k in two.levels]
    if len(levels) < 2 or not is_dense(levels):
        return []
    steps = [[k for k in run.levels if k <= levels[-2]] for run in (one, two)]
    return levels if steps[0] == steps[1] == levels[:-1] else []


def values(case: tuple[Run, Run, str]) -> tuple[list[float], list[float]]:
    """RACU of a measure by seed, for each of two runs."""
    one, two, name = case
    levels = common_levels(one, two)
    return racu_over(one, name, levels), racu_over(two, name, levels)


def model_words(one: Run, two: Run, cases: Sequence[tuple[Run, Run, str]]) -> str:
    """Which measure has the highest RACU with each model."""
    own = {case[2]: values(case) for case in cases if case[:2] == (one, two)}
    both_sums = [{name: sum(pair[i]) for name, pair in own.items()} for i in (0, 1)]
    firsts = [max(sums, key=lambda name: sums[name]) for sums in both_sums]
    start = f"Among the common measures, the highest RACU on {one.known.dataset} is that of "
    if firsts[0] == firsts[1]:
        return f"{start}{WORDS[firsts[0]]} with both models."
    return (
        f"{start}{WORDS[firsts[0]]} with {one.known.ours} and of {WORDS[firsts[1]]} with "
        f"{two.known.ours}."
    )


def too_few(cases: Sequence[tuple[Run, Run, str]]) -> str:
    """Without intervals: the measures for which the seeds of two models do not overlap."""
    apart = []
    for case in cases:
        first, second = values(case)
        if max(first) < min(second) or max(second) < min(first):
            apart.append(case[2])
    few = min((run for case in cases for run in case[:2]), key=lambda run: len(run.seeds))
    which = f"for {named(apart)}" if apart else "for no measure"
    return (
        f"{count(len(few.seeds), 'seed').capitalize()} of {few.known.ours} are too few for an "
        f"interval; {which} all seeds of one model lie above all of the other."
    )


def model_table(cases: Sequence[tuple[Run, Run, str]], gaps: Sequence[Row]) -> str:
    """RACU with both models, the difference, and the paper's."""
    rows = [
        [
            f"{one.known.dataset}, {level_span(common_levels(one, two))} %",
            WORDS[name],
            *(shown(racu_row_over(run, name, common_levels(one, two))) for run in (one, two)),
            shown(gap, "+"),
            " / ".join(number(run.theirs["racu"][name][0], 1) for run in (one, two)),
        ]
        for (one, two, name), gap in zip(cases, gaps, strict=True)
    ]
    pairs = ([one for one, _, _ in cases], [two for _, two, _ in cases])
    ours = [" / ".join(dict.fromkeys(run.known.ours for run in own)) for own in pairs]
    heads = ["RACU [%] over", "", *ours, "difference", "paper, BiLSTM-attention / RoBERTa"]
    return table(heads, rows, names=2)


# 2


def task_dependent(have: Summaries) -> Finding:
    """Agrees if two measures significantly swap order between two data sets with the same model.

    In part if only the highest mean changes; disagrees if the order of means never changes.
    """
    claim = "Faithfulness is task-dependent"
    models = ("bilstm", "roberta")
    groups = [[run for run in conclusive(have) if run.known.model == name] for name in models]
    own = max(groups, key=len)
    if len(own) < 2:
        enough = f"{count(fewest(), 'seed')} or more"
        return Finding(claim, INCONCLUSIVE, f"No model has two data sets with {enough}.")
    orders = {run.short: ranked(run) for run in own}
    swaps = swapped(own)
    firsts = {order[0] for order in orders.values()}
    alike = len({tuple(order) for order in orders.values()}) == 1
    verdict = AGREES if swaps else NOT if alike else PART if len(firsts) > 1 else INCONCLUSIVE
    rows = [
        [run.short, *(f"{WORDS[m]} {shown(run.racu(m))}" for m in orders[run.short])] for run in own
    ]
    heads = ["RACU [%]", "highest", *[""] * (max(map(len, rows)) - 3), "lowest"]
    rows = [row + [""] * (len(heads) - len(row)) for row in rows]
    said = f"{swap_words(own, swaps)} {first_words(own, swaps)}"
    return Finding(claim, verdict, said, table(heads, rows, names=len(heads)))


Swap = tuple[str, str, Run, Run, Row, Row]


def swapped(own: Sequence[Run]) -> list[Swap]:
    """Pairs of measures with significant, opposite order in two runs; the widest gap first."""
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


def swap_words(own: Sequence[Run], swaps: Sequence[Swap]) -> str:
    """How often two measures swap order, and the widest case."""
    said = f"With {own[0].known.ours}, the order of two measures is significantly reversed between "
    said += f"two data sets in {count(len(swaps), 'case')}"
    if not swaps:
        return f"{said}."
    one, two, here, there, gap, other = swaps[0]
    both = welch(other["values"], gap["values"])
    return (
        f"{said}. Largest difference: {WORDS[two]} minus {WORDS[one]} is "
        f"{number(100 * gap['mean'], 1, '+')} points on {here.short} and "
        f"{number(100 * other['mean'], 1, '+')} on {there.short}, {shown(both)} points apart "
        "(Welch's t)."
    )


def first_words(own: Sequence[Run], swaps: Sequence[Swap]) -> str:
    """Whether the highest RACU changes, and significantly."""
    firsts = {run.short: ranked(run)[0] for run in own}
    if len(set(firsts.values())) == 1:
        return f"The highest RACU does not change: {WORDS[ranked(own[0])[0]]}."
    is_significant = any({one, two} <= set(firsts.values()) for one, two, *_ in swaps)
    each = listed([f"{WORDS[name]} on {where}" for where, name in firsts.items()])
    how = "significantly" if is_significant else "by mean, but not significantly"
    return f"The measure with the highest RACU changes {how}: {each}."


# 3


def attention_faithful(have: Summaries) -> Finding:
    """Agrees if attention is significantly above random everywhere, and only on SST below another.

    In part if it is significantly above random in some runs; disagrees if in none.
    """
    claim = "Attention can be faithful"
    own = [run for run in conclusive(have) if run.racu("attention") is not None]
    if not own:
        return Finding(claim, INCONCLUSIVE, "No run has attention with enough seeds.")
    faithful = [run for run in own if above(run.racu("attention"))]
    ahead = {run.short: ahead_of(run, "attention") for run in own}
    behind = [run for run in own if ahead[run.short]]
    expected = [run for run in own if run.known.dataset != "SST"]
    all_hold = len(faithful) == len(own) and not any(run in behind for run in expected)
    verdict = NOT if not faithful else AGREES if all_hold else PART
    rows = [
        [
            row_name(run),
            shown(run.racu("attention")),
            number(run.theirs["racu"]["attention"][0], 1),
            leaders(ahead.get(run.short)),
        ]
        for run in in_tables(have, "attention")
    ]
    heads = ["RACU [%] of attention", "ours", "paper", "significantly above it, in points"]
    said = (
        f"Attention is significantly above random masking in {len(faithful)} of {len(own)} runs. "
        f"In {len(behind)}, another measure is significantly above attention. In the paper "
        "attention is among the best except on SST."
    )
    if any(run not in expected for run in behind):
        said += " So our result on SST agrees with the paper."
    return Finding(claim, verdict, said, table(heads, rows))


def leaders(ahead: Mapping[str, Row] | None) -> str:
    """Which measures are above, and by how much; None means a run without verdict."""
    if ahead is None:
        return "no verdict"
    return ", ".join(f"{WORDS[name]} by {shown(gap)}" for name, gap in ahead.items()) or "none"


# 4


def worth_its_cost(have: Summaries) -> Finding:
    """Agrees if in some run gradient or input × gradient is significantly above it.

    In part if in some run it is not significantly above both; disagrees if it is in all runs. The
    5 % are shared by all comparisons.
    """
    claim = "Integrated gradient is not necessarily more faithful than gradient or input × gradient"
    own = [run for run in conclusive(have) if all(run.has(name) for name in (*CHEAP, DEAR))]
    if not own:
        lack = "No run has all three gradient measures with enough seeds."
        return Finding(claim, INCONCLUSIVE, lack)
    gaps = {(run.short, name): run.between(name, DEAR) for run in own for name in CHEAP}
    total = len(gaps)
    behind = [case for case, gap in gaps.items() if below(gap, comparisons=total)]
    ahead = [
        run for run in own if all(above(gaps[run.short, name], comparisons=total) for name in CHEAP)
    ]
    many = len({where for where, _ in behind})
    which = ", ".join(f"{WORDS[name]} on {where}" for where, name in behind)
    verdict = AGREES if behind else NOT if len(ahead) == len(own) else PART
    said = [
        f"Gradient or input × gradient is significantly above integrated gradient in {many} of "
        f"{len(own)} runs{f' ({which})' if which else ''}; integrated gradient is significantly "
        f"above both in {len(ahead)} (5 % shared by all {total} comparisons).",
        loose_words(own, total),
        *(one_class_words(run) for run in own),
        "The paper's own evidence comes from bAbI-2, bAbI-3 and SNLI with BiLSTM-attention and "
        "from bAbI-2 and bAbI-3 with RoBERTa, not from bAbI-1 or SST. Its conclusion is about "
        "cost: integrated gradient takes 50 gradients.",
    ]
    rows = [
        [
            row_name(run) + ("" if run.is_conclusive else ", no verdict"),
            *(shown(run.between(name, DEAR), "+") for name in CHEAP),
            *(number(theirs_between(run, name), 1, "+") for name in CHEAP),
            *cost(run),
        ]
        for run in in_tables(have, *CHEAP, DEAR)
    ]
    heads = [
        "RACU of integrated gradient, points",
        *(f"minus {WORDS[name]}" for name in CHEAP),
        *(f"paper: minus {WORDS[name]}" for name in CHEAP),
        "explaining time ÷ gradient's",
        "share of a step's time",
    ]
    return Finding(claim, verdict, " ".join(filter(None, said)), table(heads, rows))


def theirs_between(run: Run, cheap: str) -> float:
    """The same difference of means in the paper, in points."""
    return float(run.theirs["racu"][DEAR][0] - run.theirs["racu"][cheap][0])


def loose_words(own: Sequence[Run], comparisons: int) -> str:
    """Differences that are significant only alone, or only by the BCa interval."""
    said = []
    for run, name in product(own, CHEAP):
        gap = run.between(name, DEAR)
        is_significant = above(gap) or below(gap)
        if (
            gap is None
            or above(gap, comparisons=comparisons)
            or below(gap, comparisons=comparisons)
        ):
            continue
        if is_significant or is_loose(gap):
            by = "at 95 % for this comparison alone" if is_significant else "BCa interval alone"
            sign = "below" if gap["mean"] < 0 else "above"
            said.append(f"{sign} {WORDS[name]} on {run.short} ({by})")
    return f"By weaker criteria it is {listed(said)}." if said else ""


def cost(run: Run) -> list[str]:
    """How much longer explaining takes than a gradient, and its share of a step."""
    dear, cheap = run.time(DEAR), run.time("gradient")
    if dear is None or cheap is None or not cheap["explaining_seconds"]:
        return ["—", "—"]
    more = dear["explaining_seconds"] / cheap["explaining_seconds"]
    share = dear["explaining_seconds"] / dear["step_seconds"]
    return [f"{number(more, 0 if more >= 10 else 1)} ×", percent(share)]


# All six


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
    own = findings(have)
    sections = [finding.section(i) for i, finding in enumerate(own, 1)]
    before = " ".join([*left_aside(have), looser(have, own)])
    verdicts = [[str(i), finding.claim, finding.verdict] for i, finding in enumerate(own, 1)]
    summary = table(["", "the paper's finding", "here"], verdicts, names=3)
    return "\n\n".join([summary, before, *sections])


def looser(have: Summaries, own: Sequence[Finding]) -> str:
    """Where the BCa interval alone would give another verdict."""
    with bootstrap_alone():
        others = [finding.verdict for finding in findings(have)]
    changed = [
        f"finding {place} *{other}* instead of *{finding.verdict}*"
        for place, (finding, other) in enumerate(zip(own, others, strict=True), 1)
        if finding.verdict != other
    ]
    return f"By the BCa interval alone: {listed(changed) if changed else 'the same six verdicts'}."


def left_aside(have: Summaries) -> list[str]:
    """Runs that give no verdict, and why."""
    few = [run for run in inconclusive(have) if len(run.seeds) < fewest()]
    wide = [run for run in inconclusive(have) if run not in few and not run.is_comparable]
    lost = [run for run in runs(have) if not run.is_learnt]
    said = []
    if few:
        said.append(f"Too few seeds for a verdict: {listed([run.with_seeds for run in few])}.")
    if wide:
        each = listed([f"{run.short} (up to {run.levels[-2]} %)" for run in wide])
        said.append(f"Levels too far apart for a verdict: {each}.")
    if lost:
        said.append(f"Left out, the models learnt nothing: {listed([r.short for r in lost])}.")
    if any(run.is_comparable and not run.is_full for run in runs(have)):
        said.append("† RACU over levels other than the paper's.")
    return said


def verdict_lines(have: Summaries) -> str:
    """The verdicts alone."""
    return "\n".join(f"- {finding.claim}: **{finding.verdict}**" for finding in findings(have))
