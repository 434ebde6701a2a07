"""Plots of a run, as SVG for a page: intervals by metric, and probability while units go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from faithscope.report.style import (
    BAND,
    BETTER,
    INK,
    LINE,
    MUTED,
    SERIES,
    WORSE,
    house_style,
    shorten,
    to_svg,
)
from faithscope.results import Result

Array = NDArray[np.float64]

WIDTH = 10.0
PANELS_PER_LINE = 5
WIDEST_PANEL = 3.5
RESAMPLES = 500

_MARKS: Mapping[str, Mapping[str, Any]] = {
    "better": {"marker": "^", "markersize": 5.5, "color": BETTER},
    "same": {"marker": "o", "markersize": 5.5, "color": MUTED, "markerfacecolor": "none"},
    "worse": {"marker": "v", "markersize": 5.5, "color": WORSE},
    "": {"marker": "D", "markersize": 3.5, "color": MUTED},
}
_WORDS = {
    "better": "better than matched random",
    "same": "cannot be told from it",
    "worse": "worse than it",
    "": "random attribution",
}
_LINE_MARKERS = "osD^vPX*<"  # one more than colours: a colour comes back with another marker
_LINE_STYLES = ("-", "--", "-.", ":")


def draw_intervals(result: Result) -> str:
    """Draw mean and 95 % interval of every method in one panel per metric, as inline SVG.

    In each row the interval of the matched random attribution is shaded; the mark of a method
    says, by shape and colour, how the paired test against it came out.
    """
    cells = {(row["metric"], row["method"]): row for row in result.summary().to_pylist()}
    lines = -(-len(result.metrics) // PANELS_PER_LINE)
    columns = -(-len(result.metrics) // lines)
    names = [shorten(method, 30) for method in result.methods]
    left = 0.15 + 0.075 * max(map(len, names))
    tall = 0.15 + 0.25 * len(names)
    height = lines * (tall + 0.95) + 0.35
    with house_style():
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(
            lines,
            columns,
            sharey=True,
            squeeze=False,
            gridspec_kw={
                "left": left / WIDTH,
                "right": min(WIDTH - 0.1, left + columns * WIDEST_PANEL) / WIDTH,
                "top": 1 - 0.6 / height,
                "bottom": 0.7 / height,
                "wspace": 0.12,
                "hspace": 0.95 / tall,
            },
        ).flatten()
        for axes, metric in zip(panels, result.metrics, strict=False):
            _draw_panel(axes, cells, metric, result.methods)
            _head(axes, metric, result.arrow(metric))
        for axes in panels[len(result.metrics) :]:
            axes.set_visible(False)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()
        _explain_marks(figure, {row["verdict"] for row in cells.values()})
        return to_svg(figure, "Mean and 95 % interval of every method, one panel per metric.")


def _draw_panel(
    axes: Axes,
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
    metric: str,
    methods: Sequence[str],
) -> None:
    beside = axes.get_yaxis_transform()
    for place, method in enumerate(methods):
        row = cells[metric, method]
        if not row["n"]:
            axes.text(0.02, place, "no score", transform=beside, va="center", color=MUTED, size=8)
            continue
        mark = _MARKS[row["verdict"]]
        matched = cells.get((metric, row["matched_random"]))
        if matched is not None:
            axes.fill_betweenx(
                [place - 0.5, place + 0.5],
                matched["ci_low"],
                matched["ci_high"],
                color=BAND,
                linewidth=0,
            )
        axes.plot([row["ci_low"], row["ci_high"]], [place, place], color=mark["color"], lw=1.6)
        axes.plot(row["mean"], place, **mark)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def _head(axes: Axes, metric: str, arrow: str) -> None:
    direction = "↑ higher is better" if arrow == "↑" else "↓ lower is better"
    axes.set_title(shorten(metric, 24), loc="left", weight="bold", size=9, pad=19)
    axes.annotate(
        direction,
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        size=8,
    )


def _explain_marks(figure: Figure, verdicts: set[str]) -> None:
    if verdicts == {""}:
        return
    handles: list[Any] = [
        Line2D([], [], linestyle="", label=words, **_MARKS[verdict])
        for verdict, words in _WORDS.items()
        if verdict in verdicts
    ]
    handles.append(Patch(color=BAND, label="interval of matched random"))
    figure.legend(handles=handles, loc="lower left", ncols=len(handles), labelcolor=INK)


def draw_curves(result: Result) -> str:
    """Draw the mean probability of the target while the most relevant units go, as inline SVG.

    One line per method with a 95 % bootstrap band over samples, random draws averaged; the legend
    runs from the curve that falls fastest to the one that falls slowest. Empty for a run that has
    no such curve, because no metric asked for one.
    """
    levels, curves = removal_curves(result.responses, result.methods)
    if len(levels) == 0:
        return ""
    bands = _bands(curves)
    means = {method: np.nanmean(values, axis=0) for method, values in curves.items()}
    looks = _looks(result)
    with house_style():
        figure = Figure(figsize=(WIDTH, max(4.0, 0.7 + 0.2 * len(means))))
        axes = figure.add_axes((0.065, 0.13, 0.665, 0.83))
        by_fall = sorted(means, key=lambda name: float(means[name].mean()))
        for method in by_fall:
            look = looks[method]
            axes.fill_between(levels, *bands[method], color=look["color"], alpha=0.08, linewidth=0)
            axes.plot(levels, means[method], **look)
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        units = result.manifest["protocol"]["units"]
        axes.set_xlabel(f"{units} removed, most relevant first")
        axes.set_ylabel("mean probability of the target class")
        axes.grid(color=LINE, linewidth=0.6)
        axes.tick_params(length=0, labelcolor=MUTED)
        _name_lines(axes, by_fall)
        return to_svg(figure, "Mean probability of the target class against the share removed.")


def _name_lines(axes: Axes, names: Sequence[str]) -> None:
    """Put a legend beside the axes."""
    numbers = [str(number) for number in range(len(names))]
    legend = axes.legend(
        axes.get_lines(),
        numbers,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        handlelength=3,
        labelcolor=INK,
    )
    # Written afterwards, because matplotlib leaves out labels that begin with an underscore.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(shorten(name, 32))


def removal_curves(responses: pa.Table, methods: Sequence[str]) -> tuple[Array, dict[str, Array]]:
    """Probability of the target by share removed, most relevant first, random draws averaged.

    The levels are those of the map with the fewest, so that all have them; others are read off
    between their own. NaN stands for a sample without a usable map.

    Shapes: levels [L] (none if the run holds no such curve), by method [samples, L].
    """
    stop, first = responses["stop"].to_numpy(), responses["start"].to_numpy() == 0
    if not first.any():
        return np.empty(0), {}
    method, method_names = _codes(responses["method"])
    sample, sample_names = _codes(responses["sample"])
    units = np.zeros(len(sample_names))
    np.maximum.at(units, sample, stop)
    keys = np.stack([method, sample, responses["draw"].to_numpy()])[:, first]
    share = (stop / units[sample])[first]
    p = np.exp(responses["log_p"].to_numpy()[first])
    order = np.lexsort((share, *keys[::-1]))
    keys, share, p = keys[:, order], share[order], p[order]
    starts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(0)])
    shares, answers = np.split(share, starts[1:]), np.split(p, starts[1:])
    levels = min(shares, key=len)
    if levels[-1] < 1 or np.diff(levels).max() > 0.5:
        return np.empty(0), {}
    totals = np.zeros((len(method_names), len(sample_names), len(levels)))
    draws = np.zeros((len(method_names), len(sample_names), 1))
    for (row, column, _), x, y in zip(keys[:, starts].T, shares, answers, strict=True):
        totals[row, column] += np.interp(levels, x, y)
        draws[row, column] += 1
    with np.errstate(invalid="ignore"):
        curves = dict(zip(method_names, totals / draws, strict=True))
    drawn = {method_names[row] for row in keys[0]}
    return levels, {name: curves[name] for name in methods if name in drawn}


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """A column of names as numbers, and the names."""
    unified = column.unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in unified.chunks])
    return codes.astype(np.int64), unified.chunk(0).dictionary.to_pylist()


def _bands(curves: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """95 % percentile bootstrap of every mean, all methods on the same resampled samples."""
    stacked = np.stack(list(curves.values()), axis=1)
    count = len(stacked)
    known = ~np.isnan(stacked)
    values = np.where(known, stacked, 0.0)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        weights = rng.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
        with np.errstate(invalid="ignore"):
            means.append(np.tensordot(weights, values, 1) / np.tensordot(weights, known, 1))
    low, high = np.nanpercentile(np.stack(means), [2.5, 97.5], axis=0)
    return {method: (low[place], high[place]) for place, method in enumerate(curves)}


def _looks(result: Result) -> dict[str, dict[str, Any]]:
    """A colour, a marker and a dash for every method; random attribution is grey."""
    cards = result.manifest["methods"]
    baselines = [method for method, card in cards.items() if card["random"]]
    looks: dict[str, dict[str, Any]] = {}
    for place, method in enumerate(name for name in cards if name not in baselines):
        looks[method] = {
            "color": SERIES[place % len(SERIES)],
            "marker": _LINE_MARKERS[place % len(_LINE_MARKERS)],
            "linestyle": _LINE_STYLES[place // len(SERIES) % len(_LINE_STYLES)],
            "markersize": 4,
            "linewidth": 1.5,
        }
    for place, method in enumerate(baselines):
        looks[method] = {"color": MUTED, "linestyle": ("--", ":")[place % 2], "linewidth": 1.8}
    return looks
