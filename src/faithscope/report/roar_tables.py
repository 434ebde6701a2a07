"""Tables and figures of ROAR runs as files: RACU in the paper's layout, curves, ends, time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from faithscope.probes.retrain.verdict import METRICS, PROCEDURES, score
from faithscope.report.page import duration
from faithscope.report.plots import Plot
from faithscope.report.roar_figures import roar_plots
from faithscope.report.roar_rows import (
    NO_ENDS,
    Row,
    curve_rows,
    majority_rows,
    racu_rows,
    run_labels,
    sparsity_rows,
    time_rows,
)
from faithscope.report.tables import (
    Table,
    all_forms,
    escape_latex,
    file_stems,
    latex_table,
    save_plots,
    write_table,
)

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

Labels = Mapping[str, str]
"""What a run is called in the column of data sets, by the run's name."""

RACU_CAPTION = (
    "RACU in %: the area between the curve of a measure and that of random masking, relative to "
    "the most it could be; mean over seeds with the distances to the ends of its 95 % interval, 0 "
    "is random masking, more is better"
)


def write_roar_tables(results: Mapping[str, RoarResult], folder: str | Path) -> list[Path]:
    """Write the tables of runs, all runs in each: RACU, curves, ends, sparsity and time."""
    texts: dict[str, str] = {}
    labels = run_labels(results)
    if racu := racu_rows(results):
        texts |= all_forms(racu_table(racu, labels), racu)
        texts["racu.tex"] = racu_latex(racu, labels)
    for make, rows in (
        (curves_table, curve_rows(results)),
        (majority_table, majority_rows(results)),
        (sparsity_table, sparsity_rows(results)),
        (time_table, time_rows(results)),
    ):
        if rows:
            texts |= all_forms(make(rows, labels), rows)
    return [write_table(Path(folder) / name, text) for name, text in texts.items()]


def write_roar_figures(
    results: Mapping[str, RoarResult],
    folder: str | Path,
    *,
    formats: Sequence[str] = ("pdf", "png"),
) -> list[Path]:
    """Write all plots of runs in each format: `curves.pdf`, or `LABEL-curves.pdf` of several."""
    return save_plots(_figures(results), folder, formats)


def _figures(results: Mapping[str, RoarResult]) -> Iterator[tuple[str, Plot]]:
    for stem, result in file_stems(results).items():
        for plot in roar_plots(result):
            yield stem, plot


def racu_table(
    rows: Sequence[Row], labels: Labels, cell: Callable[[Row], str] | None = None
) -> Table:
    """RACU as the paper's Table 2 has it: data sets × models, here by procedure, and measures."""
    lines = ("data set", "model", "procedure")
    caption = RACU_CAPTION + _why_no_ends(row["ci_low"] for row in rows)
    return _pivot("racu", caption, rows, labels, lines, _measure, cell or racu)


def racu_latex(rows: Sequence[Row], labels: Labels) -> str:
    """The same in LaTeX, the ends of intervals as raised and lowered numbers."""
    table = racu_table(rows, labels, _tex)
    cells = [
        [
            *map(escape_latex, row[: table.names]),
            *(c.replace("—", "---") for c in row[table.names :]),
        ]
        for row in table.rows
    ]
    columns = "l" * table.names + "r" * (len(table.heads) - table.names)
    heads = [escape_latex(head) for head in table.heads]
    return latex_table("racu", escape_latex(table.caption), columns, heads, cells)


def curves_table(rows: Sequence[Row], labels: Labels) -> Table:
    """Performance at every level, one line per measure."""
    return _pivot(
        "curves",
        "Performance on the test split when so many tokens are masked, the most important first, "
        "and the model is trained again: mean over seeds, in % but for the cross-entropy",
        sorted(rows, key=lambda row: (row["strategy"], row["k"])),
        labels,
        ("data set", "model", "procedure", "measure"),
        lambda row: _level(row["strategy"], row["k"]),
        lambda row: _bare(row["metric"], row["mean"]),
    )


def majority_table(rows: Sequence[Row], labels: Labels) -> Table:
    """The paper's Table 4: the largest class alone, and models that see only masks."""
    return Table(
        "majority",
        "Performance on the test split: of the largest class alone, of models whose every token is "
        "masked and of models of the unmasked texts; mean over seeds with the distances to the "
        "ends of its 95 % interval" + _why_no_ends(row["unmasked_ci_low"] for row in rows),
        ("data set", "model", "metric", "largest class", "its score", "all masked", "unmasked"),
        tuple(
            (
                labels[row["run"]],
                row["model"],
                METRICS[row["metric"]],
                row["majority_class"],
                score(row["metric"], row["majority"]),
                with_ends(row, row["metric"], "masked_"),
                with_ends(row, row["metric"], "unmasked_"),
            )
            for row in rows
        ),
        names=4,
    )


def sparsity_table(rows: Sequence[Row], labels: Labels) -> Table:
    """Importance held by the first tokens, one line per measure."""
    return _pivot(
        "sparsity",
        "Share of the summed importance, in %, that the most important tokens of a text hold: mean "
        "over the validation split and seeds",
        sorted(rows, key=lambda row: (row["kind"], row["x"])),
        labels,
        ("data set", "model", "measure"),
        lambda row: _level(row["kind"], row["x"]),
        lambda row: _bare("share", row["mean"]),
    )


def time_table(rows: Sequence[Row], labels: Labels) -> Table:
    """The paper's Table 8: what one step with each measure takes."""
    return Table(
        "time",
        "What one step takes: explaining every text by one model, and training the next model; of "
        "models that are trained together, the share of one",
        ("data set", "model", "measure", "explaining", "training", "together"),
        tuple(
            (
                labels[row["run"]],
                row["model"],
                row["measure"],
                *(_seconds(row[f"{what}_seconds"]) for what in ("explaining", "training", "step")),
            )
            for row in rows
        ),
        names=3,
    )


def _why_no_ends(lows: Iterable[float]) -> str:
    """More of a caption, where some or all means have no interval."""
    missing = [math.isnan(low) for low in lows]
    if not any(missing):
        return ""
    return f". {NO_ENDS}" if all(missing) else f". {NO_ENDS}, where there is none"


def racu(row: Row) -> str:
    """A mean with the distances to the ends of its interval, in %, as the paper writes it.

    >>> racu({"mean": 0.0763, "ci_low": 0.0081, "ci_high": 0.155})
    '7.6 +7.9 −6.8'
    """
    return with_ends(row, "racu").replace(" %", "")


def with_ends(row: Row, metric: str, prefix: str = "") -> str:
    """A mean with the distances to the ends of its interval."""
    mean, low, high = (row[f"{prefix}{key}"] for key in ("mean", "ci_low", "ci_high"))
    if math.isnan(mean) or math.isnan(low):
        return score(metric, mean)
    scale, form = (1, "z.3f") if metric == "cross_entropy" else (100, "z.1f")
    above, below = (f"{scale * abs(end - mean):{form}}" for end in (high, low))
    return f"{score(metric, mean)} +{above} −{below}"


def _tex(row: Row) -> str:
    """RACU as LaTeX."""
    if math.isnan(row["mean"]):
        return "—"
    number = f"{100 * row['mean']:z.1f}"
    if math.isnan(row["ci_low"]):
        return f"${number}$"
    above, below = (f"{100 * abs(row[end] - row['mean']):z.1f}" for end in ("ci_high", "ci_low"))
    return f"${number}^{{+{above}}}_{{-{below}}}$"


def _bare(metric: str, value: float) -> str:
    return score(metric, value).replace(" %", "")


def _level(strategy: str, k: int) -> str:
    return f"{k} %" if strategy == "relative" else f"{k} token{'s' * (k != 1)}"


def _seconds(seconds: float) -> str:
    """A time with as many digits as its neighbours in a column.

    >>> _seconds(0.7), _seconds(12.345), _seconds(0.0019), _seconds(137)
    ('0.70 s', '12.35 s', '< 0.01 s', '2 min 17 s')
    """
    if seconds >= 99.5:
        return duration(seconds)
    return f"{seconds:.2f} s" if seconds >= 0.005 else "< 0.01 s"


def _measure(row: Row) -> str:
    return str(row["measure"])


def _pivot(
    name: str,
    caption: str,
    rows: Sequence[Row],
    labels: Labels,
    lines: Sequence[str],
    column: Callable[[Row], str],
    cell: Callable[[Row], str],
) -> Table:
    """Rows as a line for every data set, model … and a column for every value of `column`."""
    columns = dict.fromkeys(map(column, rows))
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        named = {
            **row,
            "data set": labels[row["run"]],
            "procedure": PROCEDURES.get(row.get("procedure", "")),
        }
        key = tuple(named[line] for line in lines)
        found.setdefault(key, {})[column(row)] = cell(row)
    return Table(
        name,
        caption,
        (*lines, *columns),
        tuple(
            (*names, *(cells.get(head, "—") for head in columns)) for names, cells in found.items()
        ),
        names=len(lines),
    )
