"""Tables and figures of runs as files, for papers and for other programs.

Markdown and LaTeX are for people: rounded, with marks. CSV is for programs: every column, every
digit. A name is written so that it stands there as it is and does nothing, whatever is in it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from faithscope.errors import choose
from faithscope.report.plots import Plot, plots_of, sensitivity
from faithscope.result import SIGNIFICANT, Result, escape_markdown, markdown_table
from faithscope.runs.files import write_output
from faithscope.verdicts.sensitivity import reads_k, sensitivity_rows

Row = Mapping[str, Any]
AnyResult = TypeVar("AnyResult")

FORMATS = ("pdf", "png", "svg")
RULE = r"\midrule"
LONGEST_NAME = 120
"""Longest beginning of a file's name, in characters."""

MARKS = (
    f"* better, † worse than random attribution of the same granularity (paired permutation test "
    f"over images, p ≤ {SIGNIFICANT} after Holm's correction for the whole table)"
)


@dataclass(frozen=True)
class Table:
    """A table for people: what it shows, headings, and cells as plain text.

    The first `names` columns are names, the others numbers.
    """

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


def write_tables(results: Mapping[str, Result], folder: str | Path) -> list[Path]:
    """Write all tables of runs: scores, comparisons, correlations, and the sensitivity of them all.

    With one run files are called `scores.md`, with several `LABEL-scores.md`.
    """
    texts: dict[str, str] = {}
    for stem, result in file_stems(results).items():
        texts |= _run_texts(result, stem)
    moved = sensitivity_rows(results)
    if moved:
        texts |= all_forms(sensitivity_table(moved), moved)
    return [write_table(Path(folder) / name, text) for name, text in texts.items()]


def write_figures(
    results: Mapping[str, Result], folder: str | Path, *, formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write all plots of runs in each format: `intervals.pdf`, or `LABEL-intervals.pdf` of several.

    Formats are pdf, png and svg.
    """
    return save_plots(_figures(results), folder, formats)


def save_plots(
    plots: Iterable[tuple[str, Plot]], folder: str | Path, formats: Sequence[str]
) -> list[Path]:
    """Write plots, each with the beginning of its file's name, in each format."""
    for form in formats:
        choose("format of a figure", form, FORMATS)
    return [
        plot.save(Path(folder) / f"{stem}{plot.name}.{form}")
        for stem, plot in plots
        for form in formats
    ]


def _figures(results: Mapping[str, Result]) -> Iterator[tuple[str, Plot]]:
    for stem, result in file_stems(results).items():
        for plot in plots_of(result):
            yield stem, plot
    moved = sensitivity(sensitivity_rows(results))
    if moved is not None:
        yield "", moved


def file_stems(results: Mapping[str, AnyResult]) -> dict[str, AnyResult]:
    """Results by how the names of their files begin: "" for a single one."""
    if len(results) == 1:
        return {"": next(iter(results.values()))}
    stems: dict[str, AnyResult] = {}
    taken: set[str] = set()
    for label, result in results.items():
        stem = safe = re.sub(r"[^\w.-]+", "-", label).strip("-.")[:LONGEST_NAME] or "run"
        number = 2
        while stem.lower() in taken:  # some file systems do not tell A from a
            stem, number = f"{safe}-{number}", number + 1
        taken.add(stem.lower())
        stems[f"{stem}-"] = result
    return stems


def _run_texts(result: Result, stem: str) -> dict[str, str]:
    """The files of one run by name."""
    texts = {
        f"{stem}scores.md": f"{result.table()}\n\n{_scores_caption(result, escape_markdown)}.\n",
        f"{stem}scores.tex": scores_latex(result, name=f"{stem}scores"),
        f"{stem}scores.csv": as_csv(result.summary().to_pylist()),
    }
    if rows := result.comparisons().to_pylist():
        texts[f"{stem}comparisons.csv"] = as_csv(rows)
    if rows := result.correlations().to_pylist():
        texts |= all_forms(correlations_table(rows, name=f"{stem}correlations"), rows)
    return texts


def all_forms(table: Table, rows: Sequence[Row]) -> dict[str, str]:
    """A table as files by name: Markdown, LaTeX and CSV."""
    return {
        f"{table.name}.md": f"{markdown(table)}\n\n{table.caption}.\n",
        f"{table.name}.tex": latex(table),
        f"{table.name}.csv": as_csv(rows),
    }


def correlations_table(rows: Sequence[Row], *, name: str = "correlations") -> Table:
    """Rank correlations of metrics, from the rows of `Result.correlations`, as a triangle."""
    names = list(dict.fromkeys([row["metric"] for row in rows] + [row["other"] for row in rows]))
    cells = {
        (row["other"], row["metric"]): _interval(row["correlation"], row["ci_low"], row["ci_high"])
        for row in rows
    }
    across = names[:-1]
    return Table(
        name,
        "Do metrics agree on which method is better? Rank correlation over methods, image by "
        "image: mean over images [95 % interval]; 1 is the same order, −1 the opposite",
        ("metric", *across),
        tuple((one, *(cells.get((one, other), "") for other in across)) for one in names[1:]),
    )


def sensitivity_table(rows: Sequence[Row]) -> Table:
    """What the choices of the protocol move, from the rows of `sensitivity_rows`."""
    nested = any(row["where"] for row in rows)
    places = ("where",) if nested else ()
    heads = ("choice", *places, "metric", "change", "|change|", "orders flipped", "agreement")
    return Table(
        "sensitivity",
        "What the protocol's choices move: mean change of a score from the first value to the "
        "other [95 % interval], its mean size, the share of pairs of methods whose order of means "
        "flips, and the rank correlation over methods, image by image; random attribution is among "
        "the methods",
        heads,
        tuple(
            (
                f"{row['axis']}: {row['first']} → {row['second']}",
                *(row[place] for place in places),
                row["metric"],
                _interval(row["signed"], row["signed_low"], row["signed_high"], sign="+"),
                _number(row["absolute"], ".3f"),
                "—" if math.isnan(row["flipped"]) else f"{100 * row['flipped']:.0f} %",
                _interval(row["agreement"], row["agreement_low"], row["agreement_high"]),
            )
            for row in rows
        ),
        names=2 + nested,
    )


def _number(value: float, form: str) -> str:
    return "—" if math.isnan(value) else format(value, form)


def _interval(value: float, low: float, high: float, sign: str = "") -> str:
    form = f"{sign}.3f"
    if math.isnan(value) or math.isnan(low):
        return _number(value, form)
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def markdown(table: Table) -> str:
    """A table in Markdown, as GitHub writes it."""
    return markdown_table(table.heads, table.rows, names=table.names)


def latex(table: Table) -> str:
    """A table in LaTeX; it needs the packages booktabs and graphicx."""
    columns = "l" * table.names + "r" * (len(table.heads) - table.names)
    rows = [[escape_latex(cell) for cell in row] for row in table.rows]
    heads = [escape_latex(head) for head in table.heads]
    return latex_table(table.name, escape_latex(table.caption), columns, heads, rows)


def scores_latex(result: Result, *, name: str = "scores") -> str:
    """The scores of a run in LaTeX, intervals below means, the best of each column in bold."""
    cells = {(row["method"], row["metric"]): row for row in result.summary().to_pylist()}
    best = {metric: _best(result, metric, cells) for metric in result.metrics}
    arrows = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
    heads = ["method"]
    heads += [f"{escape_latex(m)} {arrows[result.arrow(m)]}" for m in result.metrics]
    rows: list[list[str]] = []
    cards = result.manifest["methods"]
    first_random = next((method for method in result.methods if cards[method]["random"]), None)
    for method in result.methods:
        row = [cells[method, metric] for metric in result.metrics]
        if rows and method == first_random:
            rows.append([RULE])
        shown = {} if cards[method]["random"] else best
        rows.append([escape_latex(method), *(_latex_mean(c, shown.get(c["metric"])) for c in row)])
        if not all(math.isnan(cell["ci_low"]) for cell in row):
            rows.append(["", *map(_latex_interval, row)])
    caption = f"{escape_latex(_scores_caption(result))}; in bold the best method of each column"
    return latex_table(name, caption, "l" + "r" * len(result.metrics), heads, rows)


def _scores_caption(result: Result, escape: Callable[[str], str] = str) -> str:
    """What the scores are, names escaped."""
    protocol = result.manifest["protocol"]
    model, data = (escape(result.manifest[key]["name"]) for key in ("model", "data"))
    images = result.samples.num_rows
    said = (
        f"Faithfulness of explanations of {model} on {images:,} image{'s' * (images != 1)} of "
        f"{data} ({protocol['units']}, fill {protocol['fill']}, upsampling "
        f"{protocol['upsample']}{_ks(result)}, seed {protocol['seed']}): mean"
    )
    if images > 1:
        said += " [95 % interval]"
    said += "; ↑ more is better, ↓ less is better"
    return f"{said}; {MARKS}" if result.verdicts() else said


def _ks(result: Result) -> str:
    """The K of a SaCo that does not name it."""
    named = any(map(reads_k, result.metrics))
    return f", K = {result.manifest['protocol']['k']}" if named else ""


def _best(result: Result, metric: str, cells: Mapping[tuple[str, str], Row]) -> str:
    """The best mean of the explanation methods, as it is written; several may share it."""
    own = [m for m in result.methods if not result.manifest["methods"][m]["random"]]
    means = [cells[method, metric]["mean"] for method in own]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return ""
    return f"{max(known) if result.arrow(metric) == '↑' else min(known):.3f}"


def _latex_mean(cell: Row, best: str | None) -> str:
    if not cell["n"]:
        return "---"
    number = f"{cell['mean']:.3f}"
    shown = rf"\mathbf{{{number}}}" if number == best else number
    mark = {"better": "^{*}", "worse": r"^{\dagger}"}.get(cell["verdict"], "")
    return f"${shown}{mark}$"


def _latex_interval(cell: Row) -> str:
    if math.isnan(cell["ci_low"]):
        return ""
    return rf"{{\scriptsize $[{cell['ci_low']:.3f}, {cell['ci_high']:.3f}]$}}"


def latex_table(
    name: str, caption: str, columns: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Cells, already LaTeX, in a table; a row without a name belongs to the one above."""
    body = []
    for place, row in enumerate(rows):
        if row == [RULE]:
            body.append(RULE)
            continue
        parted = place and row[0] and not rows[place - 1][0]
        body += [r"\addlinespace[2pt]"] * bool(parted) + [" & ".join(row) + r" \\"]
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{caption}.}}",
        rf"\label{{tab:{name}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ it would begin an option
    "]": "{]}",
    "*": "{*}",
    '"': "''",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
    "≤": r"$\le$",
    "†": r"$\dagger$",
    "—": "---",
    "…": r"\ldots{}",
    "×": r"$\times$",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}


def escape_latex(text: str) -> str:
    r"""Write text so that LaTeX shows it as it is.

    >>> print(escape_latex("50 % of a_b, [-1, 1]"))
    50 \% of a\_b, {[}$-1$, 1{]}
    """
    flat = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())
    escaped = "".join(_LATEX.get(letter, letter) for letter in flat)
    return re.sub(r"(?<![\w-])[-+]\d+(?:\.\d+)?", r"$\g<0>$", escaped)


def as_csv(rows: Sequence[Row]) -> str:
    """Rows with a line of headings; what is not known is empty.

    A text that a spreadsheet would run as a formula is quoted.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _field(value) for key, value in row.items()})
    return text.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value != value else value


def write_table(file: Path, text: str) -> Path:
    """Write one table."""
    return write_output(file, text.encode("utf-8", "backslashreplace"), "table")
