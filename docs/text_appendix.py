"""The paper's appendices on the page on text: procedures, one token, sparsity, time; commands.

A section that needs runs of its own includes its heading, and is left out without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from filling import Row, Summaries, listed, number, percent, table
from text_numbers import (
    above,
    below,
    bootstrap_alone,
    count,
    is_loose,
    shown,
    student,
    with_interval,
)
from text_runs import (
    BASES,
    CHANCE,
    EARLIER,
    LEAKAGE,
    MEASURES,
    METRICS,
    SEEDS,
    TOKENS,
    WORDS,
    Run,
    named,
    paper,
    published,
    runs,
)
from text_tables import every_run, sizes_words

from faithscope.probes.retrain.bilstm import SETTINGS

# ROAR against Recursive ROAR


def text_procedures(have: Summaries) -> str:
    """The effect of ranking again at each level."""
    own = [run for run in runs(have) if len(run.procedures) == 2]
    if not own:
        return "No run has both procedures."
    cases = [(run, name, procedure_gap(run, name)) for run in own for name in run.measures]
    rows = [
        [
            run.with_seeds,
            WORDS[name],
            *(shown(run.racu(name, procedure)) for procedure in ("roar", "recursive")),
            shown(gap, "+"),
        ]
        for run, name, gap in cases
    ]
    heads = ["RACU [%]", "", "ROAR", "Recursive ROAR", "difference"]
    judged = [case for case in cases if case[0].is_conclusive and case[0].is_comparable]
    said = procedure_words({f"{WORDS[name]} on {run.short}": gap for run, name, gap in judged})
    return "\n\n".join(filter(None, [said, table(heads, rows, names=2)]))


def procedure_words(gaps: Mapping[str, Row | None]) -> str:
    """How often ranking again significantly raises RACU."""
    if not gaps:
        return ""
    sure = sum(map(above, gaps.values()))
    with bootstrap_alone():
        loosely = sum(map(above, gaps.values()))
    said = f"RACU is significantly higher by Recursive ROAR in {sure} of {len(gaps)} cases"
    if loosely == sure:
        return f"{said}."
    each = [
        f"{name} {shown(student(gap['values']), '+')}"
        for name, gap in gaps.items()
        if gap is not None and is_loose(gap)
    ]
    return (
        f"{said}, and in {loosely} by the BCa interval alone; the Student intervals of these are "
        f"{listed(each)}."
    )


def procedure_gap(run: Run, measure: str) -> Row | None:
    """RACU of Recursive ROAR minus that of ROAR, paired by seed."""
    row = run.find("procedures", measure=measure)
    if row is None or row["difference"] is None:
        return None
    pairs = zip(*(by_seed(run, measure, p) for p in ("roar", "recursive")), strict=True)
    return {
        **row,
        "mean": row["difference"],
        "values": [b - a for a, b in pairs if None not in (a, b)],
    }


def by_seed(run: Run, measure: str, procedure: str) -> list[Any]:
    """RACU of every seed, None where there is none."""
    rows = run.rows("racu_by_seed")
    return [r["racu"] for r in rows if (r["measure"], r["procedure"]) == (measure, procedure)]


# One-token steps


def text_count(have: Summaries) -> str:
    """App. F: one token at a time, compared with steps in percent."""
    own = runs(have, relative=False)
    if not own:
        return ""
    parts = [
        "## One token at a time (App. F)",
        "Recursive ROAR in steps of one token, up to ten, as in Figure 8, whose values cannot be "
        "read from the text we have. RACU is not defined for such steps. The paper expects lower "
        "performance from the finer steps.",
        "![Performance against the number of tokens masked](images/reproduction-text-count.png)",
    ]
    for run in own:
        parts += [count_table(run), count_words(run)]
        twin = next((o for o in runs(have) if run.name.removesuffix("_count") == o.name), None)
        if twin is not None and "recursive" in twin.procedures:
            parts.append(finer_table(run, twin))
    return "\n\n".join(part for part in parts if part)


def count_table(run: Run) -> str:
    """The curves after some numbers of tokens."""
    marks = [k for k in (1, 3, 5, 10) if k in run.levels] or run.levels[1:]
    last = marks[-1]
    rows = [
        [
            WORDS[name],
            *(shown(run.point(name, k)) for k in marks),
            shown(gap_to_random(run, name, last), "+") if name != "random" else "",
        ]
        for name in run.all_measures
    ]
    heads = [
        f"{run.known.dataset}, {run.metric} [%] after",
        *(count(k, "token") for k in marks),
        f"below random after {count(last, 'token')}, points",
    ]
    return table(heads, rows)


def gap_to_random(run: Run, measure: str, k: int) -> Row:
    """How far performance is below random masking's, paired by seed."""
    place = run.levels.index(k)
    return with_interval(run.values("random")[:, place] - run.values(measure)[:, place])


def count_words(run: Run) -> str:
    """What the ends of the curves show."""
    if run.cut_at is not None:
        return f"{run.short}: cut off after {run.cut_at} of {TOKENS} tokens, so no verdict."
    if not run.is_conclusive:
        return f"{run.short}: no verdict from {count(len(run.seeds), 'seed')}."
    last = run.levels[-1]
    gaps = {name: gap_to_random(run, name, last) for name in run.measures}
    sure = [name for name, gap in gaps.items() if above(gap)]
    most = max(gaps, key=lambda name: gaps[name]["mean"])
    return (
        f"{run.short}: with {count(last, 'token')} masked, the {run.metric} is significantly below "
        f"that of random masking for {len(sure)} of {len(gaps)} measures, most of all for "
        f"{WORDS[most]} ({shown(gaps[most])} points)."
    )


def finer_table(run: Run, twin: Run) -> str:
    """A number of tokens and the percentage that masks about as many, both against random."""
    tokens = twin.study["data"]["mean_length"] - 2
    fits = [k for k in twin.levels[1:-1] if tokens * k / 100 <= run.levels[-1] + 0.5]
    if not fits or run.seeds != twin.seeds:
        return ""
    k = fits[-1]
    masked = min(run.levels[1:], key=lambda number_: abs(number_ - tokens * k / 100))
    own = [name for name in run.measures if name in twin.measures]
    pairs = {n: (gap_to_random(run, n, masked), gap_to_random(twin, n, k)) for n in own}
    gaps = {n: paired(coarse, fine) for n, (fine, coarse) in pairs.items()}
    rows = [[WORDS[n], *map(shown, pairs[n]), shown(gaps[n], "+")] for n in own]
    heads = [
        f"{run.short}, {run.metric} below random's, points",
        f"{count(masked, 'token')}, one by one",
        f"{k} % (about {number(tokens * k / 100, 1)} tokens), in steps of {twin.levels[1]} %",
        "difference",
    ]
    random = paired(run.point("random", masked), twin.point("random", k))
    return f"{finer_words(masked, k, random, gaps)}\n\n{table(heads, rows)}"


def paired(one: Row, other: Row) -> Row:
    """The second minus the first, seed by seed."""
    pairs = zip(one["values"], other["values"], strict=True)
    return with_interval([after - before for before, after in pairs])


def finer_words(tokens: int, k: int, random: Row, gaps: Mapping[str, Row]) -> str:
    """The comparison of finer and coarser steps, each against random masking."""
    better, worse = ([n for n, gap in gaps.items() if sure(gap)] for sure in (above, below))
    more = "more" if random["mean"] >= 0 else "less"
    said = (
        f"{count(tokens, 'token').capitalize()} are not {k} % of every text: random masking alone "
        f"loses {number(100 * abs(random['mean']), 1)} points {more}. Both are therefore "
        "compared with random masking of the same kind. "
    )
    if better:
        return f"{said}The finer steps are then significantly better for {named(better)}."
    behind = f" (significantly worse for {named(worse)})" if worse else ""
    return (
        f"{said}The finer steps are then not significantly better for any measure{behind}: this "
        "run does not show the gain that the paper expects. Texts of equal length would be needed."
    )


# Sparsity


def text_sparsity(have: Summaries) -> str:
    """App. E: how few tokens hold most of the scores."""
    own = [run for run in runs(have) if run.rows("sparsity")]
    columns = [("count", 1), ("count", 10), ("relative", 10), ("relative", 20)]
    rows, said = [], []
    for run in own:
        names = [n for n in (*run.measures, "random") if sparse(run, n, "relative", 10)]
        rows += [
            [run.with_seeds, WORDS[name], *(shown(sparse(run, name, *c)) for c in columns)]
            for name in names
        ]
        ranked = sorted(
            (name for name in names if name in MEASURES),
            key=lambda name: -sparse_mean(run, name),
        )
        if ranked:
            said.append(
                f"{WORDS[ranked[0]]} on {run.with_seeds}, "
                f"{shown(sparse(run, ranked[0], 'relative', 10))} %"
            )
    heads = [
        "share of the scores [%] in the first …",
        "",
        *(f"{x} %" if kind == "relative" else count(x, "token") for kind, x in columns),
    ]
    claim = f"Sparsest by the share of the first 10 %: {'; '.join(said)}."
    return f"{claim}\n\n{table(heads, rows, names=2)}"


def sparse(run: Run, measure: str, kind: str, x: int) -> Row | None:
    """The share that the first tokens hold."""
    return run.find("sparsity", measure=measure, kind=kind, x=x)


def sparse_mean(run: Run, measure: str) -> float:
    """The share that the first 10 % hold."""
    row = sparse(run, measure, "relative", 10)
    return 0.0 if row is None else float(row["mean"])


# Time and cost

DEAR = "integrated_gradients"


def text_time(have: Summaries) -> str:
    """Time of a step compared with Table 8."""
    rows = []
    for run in runs(have):
        printed, job = run.theirs["minutes"], run.theirs["job_minutes"]
        for name in [*run.measures, "random"]:
            row = run.time(name)
            if row is None:
                continue
            minutes = printed.get(name, job.get(name))
            mark = "" if name in printed else "*"
            seconds = [
                seconds_words(row[f"{p}_seconds"]) for p in ("explaining", "training", "step")
            ]
            if name == "random":  # scores are drawn once for all levels
                seconds = ["", seconds[1], ""]
            rows.append(
                [
                    run.short,
                    WORDS[name],
                    "—" if minutes is None else f"{minutes} min{mark}",
                    *seconds,
                ]
            )
    heads = ["one step, one seed", "", "paper", "ours: explain", "train", "together"]
    return f"{table(heads, rows, names=2)}\n\n{dear_words(have)}"


def seconds_words(seconds: float) -> str:
    """Seconds with a useful number of digits.

    >>> seconds_words(0.0123), seconds_words(1.5), seconds_words(123.4)
    ('0.012 s', '1.50 s', '123 s')
    """
    return f"{seconds:,.{3 if seconds < 0.1 else 2 if seconds < 10 else 0}f} s"


def dear_words(have: Summaries) -> str:
    """The share of time that integrated gradients take, here and in the paper."""
    ours, theirs = [], []
    for run in runs(have):
        names = [name for name in [*run.measures, "random"] if run.time(name) is not None]
        if DEAR not in names:
            continue
        steps = {name: (run.time(name) or {})["step_seconds"] for name in names}
        ours.append(f"{percent(steps[DEAR] / sum(steps.values()))} on {run.short}")
        minutes = run.theirs["minutes"]
        if set(names) <= set(minutes):
            share = minutes[DEAR] / sum(minutes[name] for name in names)
            theirs.append(f"{percent(share)} on {run.short}")
    if not ours:
        return ""
    rows = f", and its table gives {listed(theirs)}" if theirs else ""
    return (
        f"With one step of every measure, integrated gradients take {listed(ours)} of the time; "
        f"the paper says about two thirds of its total{rows}."
    )


def text_cost(have: Summaries) -> str:
    """What each run cost."""
    rows = []
    for run in every_run(have):
        cost, recipe = run.study["cost"], run.study["model"]["recipe"]
        rows.append(
            [
                f"{run.short}{'' if run.is_relative else ', one token at a time'}",
                f"{cost['trainings']:,}",
                f"{recipe['epochs']} × {recipe['batch_size']}",
                f"{cost.get('packs', '—')} / {cost.get('pack_size', '—')}",
                seconds_words(cost["training_seconds"]),
                seconds_words(sum(cost["explaining_seconds"].values())),
                str(run.study["device"] or "—"),
                str(run.study["versions"]["torch"] or "—"),
            ]
        )
    heads = [
        *("run", "trainings", "epochs × batch", "packs / models in one"),
        *("training", "explaining", "machine", "torch"),
    ]
    return table(heads, rows)


# Loaders


SUBSTITUTES = {
    "bAbI-3": "The training questions replace the official ones, which were not available: a "
    "re-implementation of the task's rules generated them, with the same words and lengths."
}
"""Notes on data whose origin the summary does not know."""


def text_bases(have: Summaries) -> str:
    """Data sets that were read, with one model trained on each."""
    bases: dict[str, Any] = have.studies.get(BASES, {})
    if not bases:
        return ""
    rows, notes = [], []
    for name, base in bases.items():
        theirs, data = paper()[name], base["data"]
        metric, usual = data["metric"], SETTINGS[name.partition("-")[0].lower()]
        rows += [
            [
                name,
                "train / validation / test",
                sizes_words(theirs["sizes"]),
                sizes_words(data["sizes"]),
            ],
            [name, "mean length", str(theirs["length"]), number(data["mean_length"], 1)],
            [name, "parameters", f"{theirs['bilstm']['parameters']:,}", f"{base['parameters']:,}"],
            [
                name,
                "largest class alone [%]",
                number(theirs["majority"], 0),
                number(100 * data["majority"]["score"], 1),
            ],
            [
                name,
                f"test {METRICS[metric]}, intact [%]",
                shown(published(theirs["bilstm"]["performance"])),
                number(100 * base["scores"][metric], 1),
            ],
        ]
        notes.append(
            f"- {name}: {SUBSTITUTES.get(name, base['note'])} Best epoch {base['epoch']} of "
            f"{base['recipe']['epochs']} (the paper's: {usual.recipe.epochs}), "
            f"validation {number(100 * max(base['validation']), 1)} %, "
            f"{seconds_words(base['seconds'])} on {base['device']}."
        )
    return "\n\n".join(
        [
            "## Loaders checked: one model each",
            "These data sets were read and one model each was trained on the intact texts with one "
            "seed, without explanations. One seed has no interval; where other texts replace the "
            "training part, the score cannot be compared.",
            table(["", "", "paper", "ours"], rows, names=2),
            "\n".join(notes),
        ]
    )


# Commands


def text_commands(have: Summaries) -> str:
    """The commands of every run and of the page."""
    lines: list[str] = []
    for run in every_run(have):
        lines += [*run.study["command"], summary_command(run)]
    others = (name for name in (SEEDS, EARLIER, LEAKAGE, CHANCE) if name in have.studies)
    lines += [have.studies[name]["command"] for name in others]
    bases = have.studies.get(BASES, {})
    lines += dict.fromkeys(base["command"] for base in bases.values() if "command" in base)
    lines.append("python docs/reproduction.py --figures")
    return "\n".join(["```sh", *lines, "```"])


def summary_command(run: Run) -> str:
    """The command that made the run's summary; the data must be the same."""
    spec = data_spec(run.study["command"])
    data = f" --data '{spec}'" if spec else ""
    return f"python studies/summarise_roar.py runs/{run.name}{data}"


def data_spec(command: Sequence[str]) -> str:
    """The data of a command, if it names one.

    >>> data_spec(["faithscope run x.yaml --set 'datasets=babi:data/babi(task=1)' --yes"])
    'babi:data/babi(task=1)'
    """
    for line in command:
        if found := re.search(r"(?:datasets=|--dataset )['\"]*([^'\"\s]+(?:\([^)]*\))?)", line):
            return found[1]
    return ""
