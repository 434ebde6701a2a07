"""Tables of runs that trained models: RACU as in the paper, curves, both ends, sparsity, time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from faithscope.report.table import PERCENT, Cell, Form, Number, Table, duration
from faithscope.runs.cards import plural
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import PROCEDURES, TEST_METRICS, in_words
from faithscope.verdicts.statistics import interval_or_nan

Row = dict[str, Any]
Results = Mapping[str, Findings]

NO_ENDS = "No interval is shown, because fewer than three seeds are too few for one"
LOSS, BARE = Form(by_distance=True), replace(PERCENT, unit="")
"""A cross-entropy, and a share in % that does not say so."""
DIFFERING = ("levels", "seeds", "procedures", "clipping")
"""What RACU depends on, and runs of one table may differ in."""
HOW = (
    "the area between the curve of a measure and that of random masking, relative to the most it "
    "could be: mean over seeds with the distances to the ends of its 95 % interval. 0 is random "
    "masking, more is better"
)


def trained(results: Results) -> dict[str, Findings]:
    """The runs that trained models."""
    return {run: found for run, found in results.items() if found.trainings.num_rows}


def relative(results: Results) -> dict[str, Findings]:
    """Those of them that have a RACU, which is relative to what masking everything loses."""
    return {run: found for run, found in trained(results).items() if found.trained.is_relative}


def training_tables(results: Results) -> list[Table]:
    """Every table of runs that were trained, all runs in each."""
    made = (racu_table, curves_table, majority_table, sparsity_table, time_table)
    return [table for make in made if (table := make(results)) is not None]


# RACU


def racu_table(results: Results) -> Table | None:
    """RACU as the paper's Table 2 has it: data sets × models, here by procedure, and measures."""
    rows = _records(relative(results), _racu_rows)
    if not rows:
        return None
    how = next(iter(relative(results).values())).replicate.how
    caption = f"RACU in %: {HOW}; * better, † worse than random masking ({how}){why_no_ends(rows)}"

    def cell(row: Row) -> Number:
        return Number.of(row, form=BARE, verdict=row["verdict"], against="random masking")

    lines = ("data set", "model", "procedure")
    return _pivot("racu", caption, rows, results, lines, lambda row: str(row["measure"]), cell)


def _racu_rows(found: Findings) -> list[Row]:
    """RACU of every measure but random, and how it compares with random."""
    means = ("mean", "ci_low", "ci_high", "n", "area", "area_low", "area_high")
    names = ("measure", "procedure", *means)
    rows = _ordered(found, found.trained.racu_rows(clips(found)))
    values = [np.array(row["values"], dtype=np.float64) for row in rows]
    verdicts = found.replicate.test(values, [True] * len(rows)).verdicts
    return [
        {**{key: row[key] for key in names}, "verdict": "" if found.forbids_verdicts else verdict}
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


def clips(found: Findings) -> bool:
    """Whether the RACU of a seed is kept within ±1."""
    options = [card.options for card in found.manifest.metrics.values() if card.name == "racu"]
    return bool(options[0].get("clip", True)) if options else True


def mixed(results: Results) -> list[str]:
    """Say so if the RACU of different runs do not mean quite the same."""
    runs = relative(results)
    settings = [{**found.manifest.protocol, "clipping": clips(found)} for found in runs.values()]
    differing = [
        key for key in DIFFERING if any(each[key] != settings[0][key] for each in settings)
    ]
    if not differing:
        return []
    which = "These runs" if len(runs) == len(results) else f"Of these runs {in_words(runs)}"
    return [f"{which} differ in {in_words(differing)}: compare their RACU with care."]


def without_racu(results: Results) -> str:
    """Which runs the table of RACU leaves out, and why."""
    few = [run for run in trained(results) if run not in relative(results)]
    if not few:
        return ""
    units = _units({run: results[run] for run in few})
    have = f"masks a few {units} and has" if len(few) == 1 else f"mask a few {units} and have"
    return f"{in_words(few)} {have} no RACU, which is relative to masking everything."


def why_no_ends(rows: Sequence[Mapping[str, Any]], low: str = "ci_low") -> str:
    """More of a caption, where some or all means have no interval."""
    missing = [math.isnan(row[low]) for row in rows]
    if not any(missing):
        return ""
    return f". {NO_ENDS}" if all(missing) else f". {NO_ENDS}, where there is none"


# Performance


def curves_table(results: Results) -> Table | None:
    """Performance at every level, one line per measure."""

    def rows_of(found: Findings) -> list[Row]:
        curves = found.trained
        names = {"metric": curves.metric, "strategy": curves.request.strategy}
        names["unit"] = curves.card.unit
        return [{**names, **row} for row in _ordered(found, curves.curve_rows())]

    caption = (
        f"Performance on the test split when so many {_units(results)} are masked, the most "
        "important first, and the model is trained again: mean over seeds, in % but for the "
        "cross-entropy"
    )
    return _pivot(
        "curves",
        caption,
        _records(trained(results), rows_of),
        results,
        ("data set", "model", "procedure", "measure"),
        lambda row: _level(row["strategy"], row["k"], row["unit"]),
        lambda row: Number(row["mean"], form=_form(row["metric"], BARE)),
        order=lambda row: (row["strategy"], row["k"]),
    )


def majority_table(results: Results) -> Table | None:
    """The paper's Table 4: the most common class alone, and models that see only masks."""

    def rows_of(found: Findings) -> list[Row]:
        curves, majority = found.trained, found.trained.card.majority
        row: Row = {"metric": curves.metric, "majority_class": majority.label}
        row["majority"] = majority.score
        for name, level in (("masked", 100), ("unmasked", 0)):
            row |= {f"{name}_{key}": value for key, value in curves.at_level(level).items()}
        return [row]

    rows, labels = _records(trained(results), rows_of), run_labels(results)
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        form = _form(row["metric"], PERCENT)
        metric = TEST_METRICS[row["metric"]]
        about = (labels[row["run"]], row["model"], metric, row["majority_class"])
        ends = (Number.of(row, prefix=prefix, form=form) for prefix in ("masked_", "unmasked_"))
        cells.append((*about, Number(row["majority"], form=form), *ends))
    caption = (
        "Performance on the test split: of the most common class alone, of models whose every "
        f"{_word(results, 'unit')} is masked and of models of the unmasked "
        f"{_word(results, 'sample')}s; mean over seeds with the distances to the ends "
        "of its 95 % interval" + why_no_ends(rows, "unmasked_ci_low")
    )
    names = ("data set", "model", "metric", "most common class")
    heads = (*names, "its score", "all masked", "unmasked")
    return Table("majority", caption, heads, tuple(cells), names=4, records=rows) if rows else None


# Sparsity and time


def sparsity_table(results: Results) -> Table | None:
    """Importance held by the first tokens, one line per measure."""
    return _pivot(
        "sparsity",
        "Share of the summed importance, in %, that the most important tokens of a text hold: mean "
        "over the validation split and seeds",
        _records(results, sparsity_rows),
        results,
        ("data set", "model", "measure"),
        lambda row: _level(row["kind"], row["x"]),
        lambda row: Number(row["mean"], form=BARE),
        order=lambda row: (row["kind"], row["x"]),
    )


def sparsity_rows(found: Findings) -> list[Row]:
    """Share of the importance that the first tokens hold: mean and interval over seeds."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in found.sparsity.to_pylist():
        groups.setdefault((row["measure"], row["kind"], row["x"]), []).append(row["value"])
    rows = []
    for key in sorted(groups, key=lambda key: found.methods.index(key[0])):
        mean, low, high = interval_or_nan(groups[key])
        names = dict(zip(("measure", "kind", "x"), key, strict=True))
        rows.append({**names, "mean": mean, "ci_low": low, "ci_high": high, "n": len(groups[key])})
    return rows


def time_table(results: Results) -> Table | None:
    """The paper's Table 8: what one step with each measure takes."""
    rows, labels = _records(trained(results), time_rows), run_labels(results)
    steps = [f"{what}_seconds" for what in ("explaining", "training", "step")]
    cells = tuple(
        (labels[row["run"]], row["model"], row["measure"], *(_seconds(row[step]) for step in steps))
        for row in rows
    )
    caption = (
        f"What one step takes: explaining every {_word(results, 'sample')} by one model, and "
        "training the next model; of models that are trained together, the share of one"
    )
    heads = ("data set", "model", "measure", "explaining", "training", "together")
    return Table("time", caption, heads, cells, names=3, records=rows) if rows else None


def time_rows(found: Findings) -> list[Row]:
    """What one step with each measure takes, in seconds: explain a model, train the next.

    A model that was trained in a pack counts its share of the pack's time.
    """
    cost, last = found.manifest.cost, found.trained.last
    names = ("job", "measure", "k", "seconds")
    columns = list(zip(*(found.trainings[name].to_pylist() for name in names), strict=True))
    rows = []
    for measure in found.methods:
        mine = {job: seconds for job, own, k, seconds in columns if own == measure and 0 < k < last}
        training = float(np.mean(list(mine.values())))
        explained = (cost.explained or {}).get(measure, len(mine))  # model-free: once each
        explaining = (cost.explaining_seconds or {}).get(measure, 0.0) / explained
        took = {"explaining_seconds": explaining, "training_seconds": training}
        rows.append({"measure": measure, **took, "step_seconds": explaining + training})
    return rows


def _seconds(seconds: float) -> str:
    """A time with as many digits as its neighbours in a column.

    >>> _seconds(0.7), _seconds(12.345), _seconds(0.0019), _seconds(137)
    ('0.70 s', '12.35 s', '< 0.01 s', '2 min 17 s')
    """
    if seconds >= 99.5:
        return duration(seconds)
    return f"{seconds:.2f} s" if seconds >= 0.005 else "< 0.01 s"


# What all share


def run_labels(results: Results) -> dict[str, str]:
    """What a table calls each run: its data set, with the run's name where data and model repeat.

    Taken of all runs once, so that a run is called the same in every row of every table.
    """
    pairs = {
        run: (found.manifest.data.name, found.manifest.model.name) for run, found in results.items()
    }
    counts = Counter(pairs.values())
    return {
        run: f"{pair[0]} ({run})" if counts[pair] > 1 else pair[0] for run, pair in pairs.items()
    }


def _records(results: Results, rows_of: Callable[[Findings], Iterable[Row]]) -> list[Row]:
    """Rows of every run, with its names."""
    return [
        {
            "run": run,
            "data": found.manifest.data.name,
            "model": found.manifest.model.name,
            **row,
        }
        for run, found in results.items()
        for row in rows_of(found)
    ]


def _ordered(found: Findings, rows: Iterable[Row]) -> list[Row]:
    """Rows of a run by procedure and measure, as asked for; the recursive one first."""
    procedures, measures = list(PROCEDURES), found.methods
    return sorted(
        rows, key=lambda row: (procedures.index(row["procedure"]), measures.index(row["measure"]))
    )


def _form(metric: str, share: Form) -> Form:
    """A test metric is a share, but for the cross-entropy."""
    return LOSS if metric == "cross_entropy" else share


def _level(strategy: str, k: int, unit: str = "token") -> str:
    if strategy == "relative":
        return f"{k} %"
    return f"{k} {unit if k == 1 else plural(unit)}"


def _word(results: Results, name: str) -> str:
    """What all runs call a sample, or a unit; those of several kinds are listed."""
    words = [getattr(found.trained.card, name) for found in trained(results).values()]
    return " or ".join(dict.fromkeys(words))


def _units(results: Results) -> str:
    return _word(results, "units")


def _pivot(
    name: str,
    caption: str,
    rows: Sequence[Row],
    results: Results,
    lines: Sequence[str],
    column: Callable[[Row], str],
    cell: Callable[[Row], Cell],
    *,
    order: Callable[[Row], Any] | None = None,
) -> Table | None:
    """Rows as a line for every data set, model … and a column for every value of `column`."""
    if not rows:
        return None
    labels = run_labels(results)
    heads = list(dict.fromkeys(map(column, sorted(rows, key=order) if order else rows)))
    found: dict[tuple[str, ...], dict[str, Cell]] = {}
    for row in rows:
        names = {**row, "data set": labels[row["run"]]}
        names["procedure"] = PROCEDURES.get(row.get("procedure", ""), "")
        found.setdefault(tuple(names[line] for line in lines), {})[column(row)] = cell(row)
    cells = tuple((*key, *(own.get(head, "—") for head in heads)) for key, own in found.items())
    return Table(name, caption, (*lines, *heads), cells, names=len(lines), records=rows)
