"""Tables of runs: scores, comparisons, correlations, what the protocol moves, and the trainings'.

Markdown and LaTeX are for people: rounded, with marks. CSV is for programs: every column, every
digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from faithscope.report.table import (
    DIFFERENCE,
    SIGNS,
    Cell,
    Form,
    Head,
    Name,
    Number,
    Table,
)
from faithscope.report.trainings import training_tables
from faithscope.request.code import short_name
from faithscope.runs.files import write_output
from faithscope.verdicts.compare import Differences
from faithscope.verdicts.findings import Findings, Series
from faithscope.verdicts.sensitivity import across_models, sensitivity_rows
from faithscope.verdicts.sentences import counted

Row = Mapping[str, Any]

WAYS = "↑ more is better, ↓ less is better"


def write_tables(results: Mapping[str, Findings], folder: str | Path) -> list[Path]:
    """Write all tables of runs as Markdown, LaTeX and CSV.

    With one run files are called `scores.md`, with several `LABEL-scores.md`; what compares runs
    has one file for all. Runs that differ in their model alone share a table, `models-scores.md`,
    one for each fill or other choice, `fill-mean-models-scores.md`.
    """
    tables = [
        table for stem, found in file_stems(results).items() for table in run_tables(found, stem)
    ]
    tables += [
        models_table(runs, name="-".join(filter(None, (_plain(where), "models", "scores"))))
        for where, runs in across_models(
            {run: held for run, held in results.items() if held.samples.num_rows}
        ).items()
    ]
    if moved := sensitivity_of(results):
        tables.append(sensitivity_table(moved, sample_word(results)))
    tables += training_tables(results)
    texts = {name: text for table in tables for name, text in table.files().items()}
    return [write_table(Path(folder) / name, text) for name, text in texts.items()]


def write_table(file: Path, text: str) -> Path:
    """Write one form of a table."""
    return write_output(file, text.encode("utf-8", "backslashreplace"), "table")


def run_tables(found: Findings, stem: str = "") -> list[Table]:
    """The tables of one run; the beginning of their names is given."""
    tables = [scores_table(found, name=f"{stem}scores")]
    if rows := found.comparisons().to_pylist():
        tables.append(Table(f"{stem}comparisons", "", (), (), records=rows))
    if found.samples.num_rows and (rows := found.correlations().to_pylist()):
        tables.append(correlations_table(rows, found.manifest.sample, name=f"{stem}correlations"))
    return tables


def file_stems(results: Mapping[str, Findings]) -> dict[str, Findings]:
    """Results by how the names of their files begin: "" for a single one."""
    if len(results) == 1:
        return {"": next(iter(results.values()))}
    stems: dict[str, Findings] = {}
    taken: set[str] = set()
    for label, found in results.items():
        stem = safe = _plain(label) or "run"
        number = 2
        while stem.lower() in taken:  # some file systems do not tell A from a
            stem, number = f"{safe}-{number}", number + 1
        taken.add(stem.lower())
        stems[f"{stem}-"] = found
    return stems


def _plain(label: str) -> str:
    """What distinguishes runs, "fill=mean", in the name of a file that LaTeX can include."""
    return short_name(label.replace("=", "-"))


def scores_markdown(found: Findings) -> str:
    """The summary as a Markdown table: mean [interval], * better, † worse than random."""
    return scores_table(found).markdown()


def scores_table(found: Findings, *, name: str = "scores") -> Table:
    """Every mean with its interval: a row for each method, a column for each metric."""
    return Table(
        name,
        _scores_caption([found]),
        ("method", *heads(found, found.metrics)),
        tuple(_score_rows(found, found.metrics)),
        records=found.rows,
        rules=_before_random(found, found.series),
        is_sortable=True,
        is_stacked=True,
    )


def models_table(runs: Mapping[str, Findings], *, name: str) -> Table:
    """The scores of several models under one protocol: a block of methods for each model."""
    known = {
        metric: head
        for found in runs.values()
        for metric, head in zip(found.metrics, heads(found, found.metrics), strict=True)
    }
    rows, records, blocks = list[tuple[Cell, ...]](), list[Row](), list[int]()
    for model, found in runs.items():
        blocks.append(len(rows))
        names = chain([model], repeat(""))
        rows += [(next(names), *row) for row in _score_rows(found, list(known))]
        records += [{"model": model, **row} for row in found.rows]
    return Table(
        name,
        _scores_caption(list(runs.values())),
        ("model", "method", *known.values()),
        tuple(rows),
        names=2,
        records=records,
        rules=frozenset(blocks[1:]),
        is_stacked=True,
    )


def _score_rows(found: Findings, metrics: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    """A row for each method; a metric that the run does not have leaves its place empty."""
    cells = {(Series(row["method"], row["procedure"]), row["metric"]): row for row in found.rows}
    best = {metric: _best(found, metric) for metric in found.metrics}
    for series in found.series:
        card = found.manifest.methods[series.method]
        against = f", against {card.matched_random}" if card.matched_random else ""
        grid = " grid" if "×" in card.granularity else ""
        numbers = [
            _score(cells[series, metric], None if card.is_random else best[metric])
            if metric in best
            else "—"
            for metric in metrics
        ]
        yield (Name(series.label, f"by {card.granularity}{grid}{against}"), *numbers)


def heads(found: Findings, metrics: Iterable[str]) -> list[Head]:
    """Metrics as the heads of columns."""
    cards = (found.manifest.metrics[metric] for metric in metrics)
    return [Head(card.label, card.higher_is_better, card.equation) for card in cards]


def _score(row: Row, best: str | None) -> Number:
    test = f"mean difference {row['difference']:+.3f}"
    if not math.isnan(row["p_vs_random"]):
        test += f", adjusted p = {row['p_vs_random']:.2g}"
    return Number.of(
        row,
        verdict=row["verdict"],
        against=row["matched_random"],
        test=test,
        flagged=row["flagged"],
        is_best=f"{row['mean']:.3f}" == best,
    )


def _best(found: Findings, metric: str) -> str:
    """The best mean of the explanation methods, as it is written; several may share it."""
    card, methods = found.manifest.metrics[metric], found.manifest.methods
    known = [
        row["mean"]
        for row in found.rows
        if row["metric"] == metric and row["n"] and not methods[row["method"]].is_random
    ]
    return f"{(max if card.higher_is_better else min)(known):.3f}" if known else ""


def _before_random(found: Findings, series: Sequence[Series]) -> frozenset[int]:
    """Where random attribution begins, if anything comes before it."""
    cards = found.manifest.methods
    places = [place for place, one in enumerate(series) if cards[one.method].is_random]
    return frozenset(places[:1]) - {0}


def _scores_caption(runs: Sequence[Findings]) -> str:
    """What the scores of a run, or of several that differ in their model alone, are."""
    found, *others = runs
    most = max(len(run.replicates) for run in runs)
    count = f"{'up to ' * (len({len(run.replicates) for run in runs}) > 1)}"
    count += counted(most, found.replicate.word)
    choices = ", ".join(choices_of(found))
    models = f"{len(runs)} models" if others else found.manifest.model.name
    said = (
        f"Faithfulness of explanations of {models} on {found.manifest.data.name}, {count} "
        f"({choices}): mean"
    )
    if most > 1:
        said += " [95 % interval]"
    said += f"; {WAYS}"
    judged = any(row["verdict"] for run in runs for row in run.rows)
    return f"{said}; {marks(found)}" if judged else said


def choices_of(found: Findings) -> list[str]:
    """The options that decide what the numbers mean, in a word or two each; those of K if read."""
    reads_k = any(card.reads_k for card in found.manifest.metrics.values())
    return [
        f"{name.replace('_', ' ')} {written(value)}"
        for name, value in found.manifest.protocol.items()
        if value is not None and (name != "k" or reads_k)
    ]


def written(value: Any) -> str:
    """The value of an option as people write it.

    >>> written(True), written((5, 10)), written(None), written(1.0)
    ('yes', '5, 10', 'none', '1')
    """
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def marks(found: Findings, signs: Mapping[str, str] = SIGNS) -> str:
    """What the marks of a table of scores mean."""
    return f"{_signs(signs)} than the matched random method ({found.replicate.how})"


def marks_of_two(compared: Differences, signs: Mapping[str, str] = SIGNS) -> str:
    """What the marks of a table of differences mean."""
    return f"{_signs(signs)} in the second run ({compared.replicate.how})"


def _signs(signs: Mapping[str, str]) -> str:
    return f"{signs['better'][0]} better, {signs['worse'][0]} worse"


def comparison_table(comparison: Differences) -> Table:
    """What changed from the first run to the second: a row for each method."""
    cells = {
        (Series(row["method"], row["procedure"]), row["metric"]): row for row in comparison.rows
    }
    found = comparison.first
    return Table(
        "comparison",
        f"{difference_words(comparison)}; {marks_of_two(comparison)}",
        ("method", *heads(found, comparison.metrics)),
        tuple(
            (one.label, *(_difference(cells.get((one, m))) for m in comparison.metrics))
            for one in comparison.series
        ),
        records=comparison.rows,
        rules=_before_random(found, comparison.series),
    )


def difference_words(compared: Differences) -> str:
    """What the numbers of a table of differences are."""
    word = compared.replicate.word
    return f"Mean difference, second - first, with its 95 % interval over shared {word}s; {WAYS}"


def _difference(row: Row | None) -> Cell:
    if row is None:
        return "—"
    return Number.of(row, "difference", form=DIFFERENCE, verdict=row["verdict"])


def correlations_table(
    rows: Sequence[Row], word: str = "image", *, name: str = "correlations"
) -> Table:
    """Rank correlations of metrics, from the rows of `Findings.correlations`, as a triangle."""
    names = list(dict.fromkeys([row["metric"] for row in rows] + [row["other"] for row in rows]))
    cells = {(row["other"], row["metric"]): Number.of(row, "correlation") for row in rows}
    across = names[:-1]
    return Table(
        name,
        f"Do metrics agree on which method is better? Rank correlation over methods, {word} by "
        f"{word}: mean over {word}s [95 % interval]; 1 is the same order, −1 the opposite",
        ("metric", *across),
        tuple((one, *(cells.get((one, other), "") for other in across)) for one in names[1:]),
        records=rows,
    )


def sample_word(results: Mapping[str, Findings]) -> str:
    """What a sample of several runs is called."""
    words = {held.manifest.sample for held in results.values() if held.samples.num_rows}
    return words.pop() if len(words) == 1 else "sample"


def sensitivity_of(results: Mapping[str, Findings]) -> list[dict[str, Any]]:
    """How the choices of the protocol change the scores, among runs whose model was given."""
    return sensitivity_rows({run: held for run, held in results.items() if held.samples.num_rows})


def sensitivity_table(rows: Sequence[Row], word: str = "image") -> Table:
    """How the choices of the protocol change the scores, from the rows of `sensitivity_rows`."""
    nested = any(row["where"] for row in rows)
    places = ("where",) if nested else ()
    share = Form(digits=0, scale=100, unit=" %")
    return Table(
        "sensitivity",
        "Mean change of a score from the first value of a choice to the other [95 % interval], its "
        "mean size, the share of pairs of methods whose order of means "
        f"flips, and the rank correlation over methods, {word} by {word}; random attribution is "
        "among the methods",
        ("choice", *places, "metric", "change", "|change|", "orders flipped", "agreement"),
        tuple(
            (
                f"{row['axis']}: {row['first']} → {row['second']}",
                *(row[place] for place in places),
                row["metric"],
                Number(row["signed"], row["signed_low"], row["signed_high"], DIFFERENCE),
                Number(row["absolute"]),
                Number(row["flipped"], form=share),
                Number(row["agreement"], row["agreement_low"], row["agreement_high"]),
            )
            for row in rows
        ),
        names=2 + nested,
        records=rows,
    )
