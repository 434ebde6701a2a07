"""The paper's appendices on the page on text: procedures, one token, sparsity, time; commands.

A section that needs runs of its own stands with its heading, and is left out without them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from filling import Row, Summaries, listed, number, percent, table
from text_runs import (
    BASES,
    MEASURES,
    METRICS,
    SEEDS,
    WORDS,
    Run,
    above,
    count,
    paper,
    published,
    runs,
    shown,
    with_interval,
)
from text_tables import sizes_words

# ROAR against Recursive ROAR


def text_procedures(have: Summaries) -> str:
    """What ranking again at each level does."""
    own = [run for run in runs(have) if len(run.procedures) == 2]
    if not own:
        return "No run here has both procedures."
    rows, sure, cases = [], 0, 0
    for run in own:
        for name in run.measures:
            gap = procedure_gap(run, name)
            cases += run.is_told
            sure += run.is_told and above(gap)
            after, before = (run.racu(name, procedure) for procedure in ("recursive", "roar"))
            rows.append([run.short, WORDS[name], shown(before), shown(after), shown(gap, "+")])
    said = (
        f"By Recursive ROAR RACU is surely higher in {sure} of {cases} cases, seed by seed."
        if cases
        else ""
    )
    heads = ["RACU [%]", "", "ROAR", "Recursive ROAR", "difference"]
    return f"{said}{table_after(said)}{table(heads, rows, names=2)}"


def table_after(said: str) -> str:
    """An empty line between a sentence and its table."""
    return "\n\n" if said else ""


def procedure_gap(run: Run, measure: str) -> Row | None:
    """RACU of Recursive ROAR less that of ROAR, paired by seed."""
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
    """App. F: one token at a time, beside the same in percents."""
    own = runs(have, relative=False)
    if not own:
        return ""
    parts = [
        "## One token at a time (App. F)",
        "Recursive ROAR in steps of one token, up to ten, as in Figure 8, whose numbers cannot be "
        "read from the text at hand. There is no RACU then. The second table sets such a step "
        "beside the percents that mask about as many tokens of a mean text; the paper expects "
        "lower performance from the finer steps.",
        "![Performance against the number of tokens masked](images/reproduction-text-count.png)",
    ]
    for run in own:
        parts += [count_table(run), count_words(run)]
        twin = next((o for o in runs(have) if run.name.removesuffix("_count") == o.name), None)
        if twin is not None and "recursive" in twin.procedures:
            parts.append(finer_table(run, twin))
    return "\n\n".join(part for part in parts if part)


def count_table(run: Run) -> str:
    """Where the curves are after some tokens."""
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
        "below random",
    ]
    return table(heads, rows)


def gap_to_random(run: Run, measure: str, k: int) -> Row:
    """By how much performance is below random masking's, paired by seed."""
    place = run.levels.index(k)
    return with_interval(run.values("random")[:, place] - run.values(measure)[:, place])


def count_words(run: Run) -> str:
    """What the curves say at their end."""
    if not run.is_told:
        return f"{run.short}: no verdict from these seeds."
    last = run.levels[-1]
    gaps = {name: gap_to_random(run, name, last) for name in run.measures}
    sure = [name for name, gap in gaps.items() if above(gap)]
    most = max(gaps, key=lambda name: gaps[name]["mean"])
    return (
        f"{run.short}: with {count(last, 'token')} masked the {run.metric} is surely below random "
        f"masking's for {len(sure)} of {len(gaps)} measures, furthest for {WORDS[most]} "
        f"({shown(gaps[most])} points)."
    )


def finer_table(run: Run, twin: Run) -> str:
    """A count of tokens beside the percents that mask about as many."""
    tokens = twin.study["data"]["mean_length"] - 2
    fits = [k for k in twin.levels[1:-1] if tokens * k / 100 <= run.levels[-1] + 0.5]
    if not fits or run.seeds != twin.seeds:
        return ""
    k = fits[-1]
    tokens_masked = min(run.levels[1:], key=lambda number: abs(number - tokens * k / 100))
    rows = []
    for name in run.measures:
        if name not in twin.measures:
            continue
        fine = run.values(name)[:, run.levels.index(tokens_masked)]
        coarse = twin.values(name)[:, twin.levels.index(k)]
        cells = [run.point(name, tokens_masked), twin.point(name, k)]
        rows.append([WORDS[name], *map(shown, cells), shown(with_interval(fine - coarse), "+")])
    heads = [
        f"{run.known.dataset}, {run.metric} [%]",
        f"{count(tokens_masked, 'token')}, one by one",
        f"{k} % (about {number(tokens * k / 100, 1)} tokens), in steps of {twin.levels[1]} %",
        "difference",
    ]
    return table(heads, rows)


# Sparsity


def text_sparsity(have: Summaries) -> str:
    """App. E: how few tokens hold the scores."""
    own = [run for run in runs(have) if run.rows("sparsity")]
    columns = [("count", 1), ("count", 3), ("count", 10), ("relative", 10), ("relative", 20)]
    rows, said = [], []
    for run in own:
        names = [name for name in run.all_measures if sparse(run, name, "relative", 10)]
        rows += [
            [run.short, WORDS[name], *(shown(sparse(run, name, *column)) for column in columns)]
            for name in names
        ]
        ranked = sorted(
            (name for name in names if name in MEASURES),
            key=lambda name: -sparse_mean(run, name),
        )
        if ranked:
            said.append(
                f"{WORDS[ranked[0]]} on {run.short}, "
                f"{shown(sparse(run, ranked[0], 'relative', 10))} %"
            )
    heads = [
        "share of the scores [%] in the first …",
        "",
        *(f"{x} %" if kind == "relative" else count(x, "token") for kind, x in columns),
    ]
    claim = (
        f"The sparsest by the first 10 %: {'; '.join(said)}. In the paper attention is the "
        "sparsest on bAbI, integrated gradients nearly everywhere else."
    )
    return f"{claim}\n\n{table(heads, rows, names=2)}"


def sparse(run: Run, measure: str, kind: str, x: int) -> Row | None:
    """The share that the first tokens hold."""
    return run.find("sparsity", measure=measure, kind=kind, x=x)


def sparse_mean(run: Run, measure: str) -> float:
    """The share that the first 10 % hold."""
    row = sparse(run, measure, "relative", 10)
    return 0.0 if row is None else float(row["mean"])


# Time and cost


def text_time(have: Summaries) -> str:
    """Time of a step beside Table 8, and what each run cost."""
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
    """Seconds with as many digits as help.

    >>> seconds_words(0.0123), seconds_words(1.5), seconds_words(123.4)
    ('0.012 s', '1.50 s', '123 s')
    """
    return f"{seconds:,.{3 if seconds < 0.1 else 2 if seconds < 10 else 0}f} s"


def dear_words(have: Summaries) -> str:
    """What share of a run integrated gradients are."""
    each = []
    for run in runs(have):
        cost = run.study["cost"]
        spent = {name.partition("(")[0]: s for name, s in cost["explaining_seconds"].items()}
        if "integrated_gradients" in spent and cost["seconds"]:
            share = spent["integrated_gradients"] / cost["seconds"]
            each.append(f"{percent(share)} on {run.short}")
    if not each:
        return ""
    return (
        "Explaining by integrated gradients took "
        f"{listed(each)} of the run's whole time; in the paper their steps are about two thirds "
        "of the total."
    )


def text_cost(have: Summaries) -> str:
    """What each run cost."""
    rows = []
    for relative in (True, False):
        for run in runs(have, relative=relative):
            cost, recipe = run.study["cost"], run.study["model"]["recipe"]
            explaining = sum(cost["explaining_seconds"].values())
            rows.append(
                [
                    f"{run.short}{'' if relative else ', one token at a time'}",
                    f"{cost['trainings']:,}",
                    f"{recipe['epochs']} × {recipe['batch_size']}",
                    f"{cost.get('packs', '—')} / {cost.get('pack_size', '—')}",
                    seconds_words(cost["training_seconds"]),
                    seconds_words(explaining),
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


def text_bases(have: Summaries) -> str:
    """Data sets that were read and trained once."""
    bases: dict[str, Any] = have.studies.get(BASES, {})
    if not bases:
        return ""
    rows, notes = [], []
    for name, base in bases.items():
        theirs, data = paper()[name], base["data"]
        metric = data["metric"]
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
            f"- {name}: {base['note']} Best epoch {base['epoch']} of {base['recipe']['epochs']}, "
            f"validation {number(100 * max(base['validation']), 1)} %, "
            f"{seconds_words(base['seconds'])} on {base['device']}."
        )
    return "\n\n".join(
        [
            "## Loaders checked: one model each",
            "Read, trained once with one seed on the intact texts, not explained. One seed has no "
            "interval, and where the training part stands in the score is not the paper's.",
            table(["", "", "paper", "ours"], rows, names=2),
            "\n".join(notes),
        ]
    )


# Commands


SPECS = {
    "bAbI-1": "babi:data/babi(task=1)",
    "bAbI-2": "babi:data/babi(task=2)",
    "SST": "sst:data/sst",
    "IMDB": "imdb:data/aclImdb",
}


def text_commands(have: Summaries) -> str:
    """The commands of every run and of the page."""
    lines: list[str] = []
    for relative in (True, False):
        for run in runs(have, relative=relative):
            lines += [*run.study["command"], summary_command(run)]
    if SEEDS in have.studies:
        lines.append(have.studies[SEEDS]["command"])
    bases = have.studies.get(BASES, {})
    lines += dict.fromkeys(base["command"] for base in bases.values() if "command" in base)
    lines.append("python docs/reproduction.py --figures")
    return "\n".join(["```sh", *lines, "```"])


def summary_command(run: Run) -> str:
    """The command that made the run's summary; the data must be the very same."""
    spec = data_spec(run.study["command"]) or SPECS[run.known.dataset]
    return f"python studies/summarise_roar.py runs/{run.name} --data '{spec}'"


def data_spec(command: Sequence[str]) -> str:
    """The data of a command, if it names one.

    >>> data_spec(["faithscope run x.yaml --set 'datasets=babi:data/babi(task=1)' --yes"])
    'babi:data/babi(task=1)'
    """
    for line in command:
        if found := re.search(r"(?:datasets=|--dataset )['\"]*([^'\"\s]+(?:\([^)]*\))?)", line):
            return found[1]
    return ""
