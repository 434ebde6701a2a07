"""Plots of runs, drawn once for the page (as SVG) and for papers (as files).

A plot is None where a run holds nothing to draw: one metric has no correlations, one K no choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from faithscope.report.figures import save_figure
from faithscope.report.removal import removal_curves
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
from faithscope.result import Result
from faithscope.verdicts.sensitivity import ks_of

Array = NDArray[np.float64]

WIDTH = 10.0
PANELS_PER_LINE = 5
WIDEST_PANEL = 3.5
GAP = 0.12
"""Between panels, in widths of one."""
RESAMPLES = 500
WHEELS_PER_LINE = 4
WHEEL = 0.58
"""Radius of a radar's wheel in inches."""
MOST_SPACIOUS = 8
"""Up to so many names around a wheel may have several lines."""
INNERMOST = 0.2
"""Where a radar's worst value lies, so that a method that is worst in all is still a shape."""
AGREEMENT = LinearSegmentedColormap.from_list("agreement", ["#c4501a", "#f3ede6", "#0a6fb2"])
"""Nearly WORSE to BETTER, but no colours of the page, which change with its mode."""
DARK, PALE = "#101418", "#ffffff"
SENSITIVITIES = ("mean change of the score", "orders flipped", "rank agreement")

_MARKS: Mapping[str, Mapping[str, Any]] = {
    "better": {"marker": "^", "markersize": 5.5, "color": BETTER},
    "same": {"marker": "o", "markersize": 5.5, "color": MUTED, "markerfacecolor": "none"},
    "worse": {"marker": "v", "markersize": 5.5, "color": WORSE},
    "": {"marker": "D", "markersize": 3.5, "color": MUTED},
}
_RADAR_MARKS: Mapping[str, Mapping[str, Any]] = {
    **{verdict: {**mark, "markersize": 4.5} for verdict, mark in _MARKS.items()},
    "": {"marker": "o", "markersize": 3, "color": BETTER},  # not compared with random
}
_WORDS = {
    "better": "better than matched random",
    "same": "cannot be told from it",
    "worse": "worse than it",
    "": "random attribution",
}
LINE_MARKERS = "osD^vPX*<"  # one more than colours: a colour comes back with another marker
_LINE_STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure with its name, what it shows for those who cannot see it, and how to read it."""

    name: str
    figure: Figure
    description: str
    caption: str

    def svg(self) -> str:
        """Inline SVG for a page."""
        return to_svg(self.figure, self.description)

    def save(self, path: str | Path) -> Path:
        """Write the figure in the format of the suffix: .pdf, .png or .svg."""
        file = Path(path)
        with house_style():
            save_figure(self.figure, file, crop=True)
        return file


def plots_of(result: Result) -> list[Plot]:
    """Every plot that a run gives."""
    drawn = (draw(result) for draw in (intervals, curves, radar, correlations, k_choice))
    return [plot for plot in drawn if plot is not None]


def intervals(result: Result) -> Plot:
    """Mean and 95 % interval of every method in one panel per metric.

    In each row the interval of the matched random attribution is shaded; the mark of a method
    says, by shape and colour, how the paired test against it came out.
    """
    cells = _cells(result)
    lines = -(-len(result.metrics) // PANELS_PER_LINE)
    columns = -(-len(result.metrics) // lines)
    names = [shorten(method, 30) for method in result.methods]
    left = 0.15 + 0.075 * max(map(len, names))
    tall = 0.15 + 0.25 * len(names)
    height = lines * (tall + 0.95) + 0.35
    right = min(WIDTH - 0.18, left + columns * WIDEST_PANEL)
    panel = (right - left) / (columns + GAP * (columns - 1))
    letters = int((panel + 0.17) / 0.085)
    with house_style():
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(
            lines,
            columns,
            sharey=True,
            squeeze=False,
            gridspec_kw={
                "left": left / WIDTH,
                "right": right / WIDTH,
                "top": 1 - 0.6 / height,
                "bottom": 0.7 / height,
                "wspace": GAP,
                "hspace": 0.95 / tall,
            },
        ).flatten()
        for axes, metric in zip(panels, result.metrics, strict=False):
            _draw_panel(axes, cells, metric, result.methods)
            _head(axes, shorten(metric, letters), result.arrow(metric))
        for axes in panels[len(result.metrics) :]:
            axes.set_visible(False)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()
        _explain_marks(figure, {row["verdict"] for row in cells.values()})
    said = "Each mark is a mean over images, each line its 95 % interval."
    if result.verdicts():
        said += (
            " Shaded is the interval of random attribution of the same granularity; ▲ and ▼ differ "
            "from it by a paired test, which sees differences even where intervals overlap."
        )
    about = "Mean and 95 % interval of every method, one panel per metric."
    return Plot("intervals", figure, about, said)


def _cells(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the summary by metric and method."""
    return {(row["metric"], row["method"]): row for row in result.summary().to_pylist()}


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


def _head(axes: Axes, name: str, arrow: str) -> None:
    direction = "↑ higher is better" if arrow == "↑" else "↓ lower is better"
    axes.set_title(name, loc="left", weight="bold", size=8.5, pad=19)
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


def curves(result: Result) -> Plot | None:
    """Mean probability of the target while the most relevant units go.

    One line per method with a 95 % bootstrap band over samples, random draws averaged; the legend
    runs from the curve that falls fastest to the one that falls slowest. None for a run that has
    no such curve, because no metric asked for one.
    """
    levels, lines = removal_curves(result.responses, result.methods)
    if len(levels) == 0:
        return None
    bands = _bands(lines)
    means = {method: np.nanmean(values, axis=0) for method, values in lines.items()}
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
    return Plot(
        "curves",
        figure,
        "Mean probability of the target class against the share removed.",
        "A faithful map makes the probability fall early. The legend runs from the fastest fall to "
        "the slowest; bands are 95 % bootstrap intervals over images, random attribution is grey.",
    )


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
        text.set_text(shorten(name, 26))


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
            "marker": LINE_MARKERS[place % len(LINE_MARKERS)],
            "linestyle": _LINE_STYLES[place // len(SERIES) % len(_LINE_STYLES)],
            "markersize": 4,
            "linewidth": 1.5,
        }
    for place, method in enumerate(baselines):
        looks[method] = {"color": MUTED, "linestyle": ("--", ":")[place % 2], "linewidth": 1.8}
    return looks


def radar(result: Result) -> Plot | None:
    """The profile of every method over the metrics, one wheel each, outward is better.

    Behind it, in grey, is the profile of its matched random attribution. None for fewer than
    three metrics, or fewer than three methods to span the scales.
    """
    cards = result.manifest["methods"]
    shown = [method for method in result.methods if not cards[method]["random"]]
    if len(result.metrics) < 3 or len(result.methods) < 3 or not shown:
        return None
    cells = _cells(result)
    reach = _reach(result, cells)
    below, above = WHEEL + 0.3, WHEEL + 0.55
    wide, tall = WIDTH / WHEELS_PER_LINE, below + above
    height = -(-len(shown) // WHEELS_PER_LINE) * tall + 0.4
    with house_style():
        figure = Figure(figsize=(WIDTH, height))
        for place, method in enumerate(shown):
            line, column = divmod(place, WHEELS_PER_LINE)
            corner = (column / WHEELS_PER_LINE, 1 - (line + 1) * tall / height)
            axes = figure.add_axes((*corner, 1 / WHEELS_PER_LINE, tall / height))
            axes.set(xlim=(-wide / 2, wide / 2), ylim=(-below, above))  # inches
            axes.set_axis_off()
            axes.text(0, above - 0.1, shorten(method, 28), ha="center", va="top", weight="bold")
            _draw_wheel(axes, result.metrics)
            if matched := cards[method]["matched_random"]:
                _draw_profile(axes, reach[matched], MUTED, BAND, 0.8)
            _draw_profile(axes, reach[method], BETTER, BETTER, 0.14)
            for point, metric in zip(_points(reach[method]), result.metrics, strict=True):
                axes.plot(*point, **_RADAR_MARKS[cells[metric, method]["verdict"]])
            if np.isnan(reach[method]).all():
                axes.text(0, 0, "no score", ha="center", va="center", color=MUTED, size=8)
        verdicts = {row["verdict"] for row in cells.values() if row["method"] in shown}
        _explain_wheels(figure, result, verdicts)
    said = (
        "A radar shows the profile of a method, not sizes: every axis runs from the worst (inside) "
        "to the best (outside) mean of all methods and random attributions on that metric."
    )
    if any(cards[method]["matched_random"] for method in shown):
        said += " Grey is random attribution of the same granularity."
    return Plot("radar", figure, "Profile of every method over the metrics, one wheel each.", said)


def _reach(result: Result, cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Array]:
    """How far out each method lies on every metric: from INNERMOST (worst) to 1 (best)."""
    means = np.array([[cells[k, m]["mean"] for k in result.metrics] for m in result.methods])
    ways = np.array([1 if result.arrow(metric) == "↑" else -1 for metric in result.metrics])
    signed = means * ways
    known = np.where(np.isnan(signed), np.inf, signed)
    worst = known.min(0)
    best = np.where(np.isnan(signed), -np.inf, signed).max(0)
    span = np.where(best > worst, best - worst, np.nan)
    with np.errstate(invalid="ignore"):
        shares = np.where(np.isnan(span) & ~np.isnan(signed), 0.5, (signed - worst) / span)
    return dict(zip(result.methods, INNERMOST + (1 - INNERMOST) * shares, strict=True))


def _points(reach: Array) -> list[tuple[float, float]]:
    """Where the ends of a profile lie, in inches: the first axis upward, the others clockwise."""
    turns = np.arange(len(reach)) / len(reach) * 2 * np.pi
    return list(zip(WHEEL * reach * np.sin(turns), WHEEL * reach * np.cos(turns), strict=True))


def _draw_wheel(axes: Axes, metrics: Sequence[str]) -> None:
    rim = np.ones(len(metrics))
    for ring in (INNERMOST, (1 + INNERMOST) / 2, 1):
        axes.add_patch(Polygon(_points(ring * rim), fill=False, edgecolor=LINE, linewidth=0.7))
    for (x, y), metric in zip(_points(rim), metrics, strict=True):
        axes.plot([0, x], [0, y], color=LINE, linewidth=0.7)
        away = 1 + 0.09 / WHEEL
        side = "center" if abs(x) < 0.1 * WHEEL else "left" if x > 0 else "right"
        height = "center" if abs(y) < 0.5 * WHEEL else "bottom" if y > 0 else "top"
        few = len(metrics) <= MOST_SPACIOUS
        label = _narrow(shorten(metric, 22)) if few else shorten(metric, 10)
        axes.text(away * x, away * y, label, ha=side, va=height, size=6.5, color=MUTED)


def _narrow(label: str, width: int = 11) -> str:
    r"""Break a label into short lines, a long word in its middle.

    >>> _narrow("saco(k=10)"), _narrow("comprehensiveness")
    ('saco(k=10)', 'comprehen-\nsiveness')
    """
    lines = [""]
    for part in re.split(r"(?<=_)|(?=\()", label):
        if len(lines[-1]) + len(part) <= width:
            lines[-1] += part
        elif len(part) <= width:
            lines.append(part)
        else:
            half = -(-len(part) // 2)
            lines += [f"{part[:half]}-", part[half:]]
    return "\n".join(line for line in lines if line)


def _draw_profile(axes: Axes, reach: Array, edge: str, face: str, opacity: float) -> None:
    """A closed line through the known points; its area is filled if none is missing."""
    points = _points(reach)
    if not np.isnan(reach).any():
        axes.add_patch(Polygon(points, facecolor=face, alpha=opacity, linewidth=0))
    axes.plot(*zip(*points, points[0], strict=True), color=edge, linewidth=1.3)


def _explain_wheels(figure: Figure, result: Result, verdicts: set[str]) -> None:
    handles: list[Any] = [
        Line2D([], [], linestyle="", label=words, **_RADAR_MARKS[verdict])
        for verdict, words in _WORDS.items()
        if verdict in verdicts and verdict
    ]
    if any(card["matched_random"] for card in result.manifest["methods"].values()):
        handles.append(Patch(facecolor=BAND, edgecolor=MUTED, label="matched random"))
        figure.legend(handles=handles, loc="lower left", ncols=len(handles), labelcolor=INK)


def correlations(result: Result) -> Plot | None:
    """Do metrics agree on which method is better? A triangle of mean rank correlations.

    None for fewer than two metrics, or fewer than three methods to rank.
    """
    if len(result.metrics) < 2 or len(result.methods) < 3:
        return None
    places = {metric: place for place, metric in enumerate(result.metrics)}
    names = [shorten(metric, 26) for metric in result.metrics]
    tall, count = 0.55, len(names)
    left = 0.2 + 0.078 * max(map(len, names[1:]))
    right = 0.1 + 0.04 * len(names[-2])
    wide = np.clip((WIDTH - left - right) / (count - 1), 0.85, 1.5)
    width = max(WIDTH, left + (count - 1) * wide + right)
    height = 0.4 + (count - 1) * tall + 0.75
    with house_style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(
            (left / width, 0.75 / height, (count - 1) * wide / width, (count - 1) * tall / height)
        )
        axes.set(xlim=(0, count - 1), ylim=(count, 1))
        axes.set_axis_off()
        for row in result.correlations().to_pylist():
            _draw_correlation(axes, places[row["metric"]], places[row["other"]], row)
        for place, name in enumerate(names):
            if place:
                axes.text(-0.08, place + 0.5, name, ha="right", va="center")
            if place < count - 1:
                axes.text(place + 0.04, place + 0.92, name, ha="left", va="bottom")
        _draw_scale(figure, left / width)
    return Plot(
        "correlations",
        figure,
        "Rank correlation of every two metrics over methods, as a triangle of numbers.",
        "Do metrics agree on which method is better? Rank correlation over methods, image by "
        "image: its mean over images and 95 % interval. 1 is the same order, 0 no relation, −1 the "
        "opposite order; random attributions are among the methods.",
    )


def _draw_correlation(axes: Axes, column: int, row: int, cell: Mapping[str, Any]) -> None:
    value = cell["correlation"]
    known = not np.isnan(value)
    face = to_hex(AGREEMENT((value + 1) / 2)) if known else BAND
    box = Rectangle((column + 0.02, row + 0.03), 0.96, 0.94, facecolor=face, linewidth=0)
    axes.add_patch(box)
    # The colours of a cell stay what they are on a dark page, so must those of its text.
    ink = _readable(face) if known else INK
    middle = column + 0.5
    number = f"{value:.2f}".replace("-", "−") if known else "—"
    low, high = cell["ci_low"], cell["ci_high"]
    alone = np.isnan(low)
    axes.text(
        middle,
        row + (0.5 if alone else 0.38),
        number,
        ha="center",
        va="center",
        color=ink,
        weight="bold",
        size=9.5,
    )
    if not alone:
        interval = f"[{low:.2f}, {high:.2f}]".replace("-", "−")
        axes.text(middle, row + 0.73, interval, ha="center", va="center", color=ink, size=7)


def _readable(paper: str) -> str:
    """The ink with more contrast on a colour, by its relative luminance (WCAG 2)."""
    red, green, blue = (((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(paper))
    return PALE if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.195 else DARK


def _draw_scale(figure: Figure, left: float) -> None:
    """What the colours mean, below the triangle."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left, 0.38 / height, 1.8 / width, 0.12 / height))
    axes.set_axis_off()
    axes.set(xlim=(-1, 1), ylim=(0, 1))
    steps = 40
    for step in range(steps):
        face = to_hex(AGREEMENT((step + 0.5) / steps))
        axes.add_patch(
            Rectangle((2 * step / steps - 1, 0), 2 / steps, 1, color=face, linewidth=0.2)
        )
    for value, words in ((-1, "−1 opposite"), (0, "0"), (1, "1 agree")):
        side = {-1: "left", 0: "center", 1: "right"}[value]
        axes.text(value, -0.4, words, ha=side, va="top", color=MUTED, size=7.5)


def k_choice(result: Result) -> Plot | None:
    """Mean SaCo of every method at each K, with its 95 % interval. None for a run with one K."""
    families = {name: labels for name, labels in ks_of(result).items() if len(labels) > 1}
    if not families:
        return None
    cells, looks = _cells(result), _looks(result)
    height = max(3.6, 0.7 + 0.2 * len(result.methods))
    with house_style():
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(
            1,
            len(families),
            sharey=True,
            squeeze=False,
            gridspec_kw={"left": 0.065, "right": 0.73, "top": 0.94, "bottom": 0.14, "wspace": 0.08},
        )[0]
        for axes, (name, labels) in zip(panels, families.items(), strict=True):
            _draw_ks(axes, labels, cells, looks)
            if len(families) > 1:
                axes.set_title(shorten(name, 40), loc="left", weight="bold", size=9)
        panels[0].set_ylabel("mean SaCo")
        _name_lines(panels[-1], list(looks))
    return Plot(
        "k_choice",
        figure,
        "Mean SaCo of every method at each K.",
        "Mean SaCo over images with its 95 % interval, by the number of groups K. Lines that cross "
        "are methods whose order depends on K; random attribution is grey.",
    )


def _draw_ks(
    axes: Axes,
    labels: Mapping[str, str],
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """One line per method over the K's in rising order; a K chosen per map stands apart."""
    ks = sorted(labels, key=lambda k: (not k.isdigit(), int(k) if k.isdigit() else 0))
    ordered = sum(k.isdigit() for k in ks)
    for place, (method, look) in enumerate(looks.items()):
        rows = [cells[labels[k], method] for k in ks]
        # Side by side, or the intervals of many methods hide each other.
        x = np.arange(len(ks)) + (place - (len(looks) - 1) / 2) * min(0.03, 0.4 / len(looks))
        low, high = (np.array([row[end] for row in rows]) for end in ("ci_low", "ci_high"))
        means = np.array([row["mean"] for row in rows])
        axes.plot(*(np.insert(values, ordered, np.nan) for values in (x, means)), **look)
        axes.vlines(x, low, high, color=look["color"], linewidth=0.9, alpha=0.6)
    axes.set_xticks(range(len(ks)), ks)
    axes.set_xlim(-0.5, len(ks) - 0.5)
    axes.set_xlabel("K, number of groups")
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED)


def sensitivity(rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """What each choice of the protocol moves: scores, the order of methods, that of every image.

    One line per metric below each choice, with a dot for every place where it was measured, that
    is for every setting of the other choices. None without rows (`sensitivity_rows` makes them).
    """
    if not rows:
        return None
    lines = list(_sensitivity_lines(rows))
    labels = [shorten(metric, 40) if cells else "" for _, metric, cells in lines]
    most = max(len(cells) for _, _, cells in lines)
    left = 0.3 + 0.075 * max(map(len, labels))
    heights = [0.11 + 0.065 * max(2, len(cells)) for _, _, cells in lines]
    ends = np.cumsum(heights)
    tall, top, bottom = float(ends[-1]), 0.45, 0.4
    width, height = max(WIDTH, left + 7.5), top + tall + bottom
    with house_style():
        figure = Figure(figsize=(width, height))
        panels = figure.subplots(
            1,
            3,
            sharey=True,
            gridspec_kw={
                "left": left / width,
                "right": 1 - 0.15 / width,
                "top": 1 - top / height,
                "bottom": bottom / height,
                "wspace": 0.12,
                "width_ratios": (2.8, 1.3, 1.4),
            },
        )
        whole = (0, bottom / height, 1, tall / height)
        behind = figure.add_axes(whole, zorder=-1, sharey=panels[0])
        behind.set_axis_off()
        for axes, heading in zip(panels, SENSITIVITIES, strict=True):
            _prepare_lines(axes, heading)
        scales = _scales(rows)
        middles = ends - np.array(heights) / 2
        for y, (choice, metric, cells) in zip(middles, lines, strict=True):
            if cells:
                _draw_changes(panels[0], y, cells, scales[metric])
                _draw_flips(panels[1], y, cells)
                _draw_agreements(panels[2], y, cells)
            else:
                behind.axhspan(y - 0.1, y + 0.1, color=BAND, linewidth=0)
                behind.text(0.1 / width, y, shorten(choice, 90), va="center", weight="bold")
        panels[0].set_yticks(middles, labels)
        panels[0].set_ylim(tall, 0)  # inches from the top
    dots = "" if most == 1 else " Each dot is one setting of all other choices."
    return Plot(
        "sensitivity",
        figure,
        "What each choice of the protocol does to scores and to the order of methods.",
        "From the first value of a choice to the other: the mean change of a score with its 95 % "
        "interval (each metric on its own scale, the numbers say how much; orange if the interval "
        "does not cover 0), the share of pairs of methods whose order of means flips, and the rank "
        "correlation over methods, image by image (1: every image keeps its order). Random "
        f"attribution is among the methods.{dots}",
    )


Cells = Sequence[Mapping[str, Any]]


def _sensitivity_lines(rows: Cells) -> Iterator[tuple[str, str, Cells]]:
    """A line for every choice without cells, then one for each metric with them."""
    choices: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        choice = f"{row['axis']}: {row['first']} → {row['second']}"
        choices.setdefault(choice, {}).setdefault(row["metric"], []).append(row)
    for choice, metrics in choices.items():
        yield choice, "", ()
        for metric, cells in metrics.items():
            yield choice, metric, cells


def _scales(rows: Cells) -> dict[str, float]:
    """The largest change of each metric, with its interval."""
    scales: dict[str, float] = {}
    for row in rows:
        ends = np.abs([row["signed"], row["signed_low"], row["signed_high"]])
        largest = float(np.nanmax(np.append(ends, 0.0)))
        scales[row["metric"]] = max(scales.get(row["metric"], 0.0), largest)
    return {metric: scale or 1.0 for metric, scale in scales.items()}


def _prepare_lines(axes: Axes, heading: str) -> None:
    axes.set_title(heading, loc="left", weight="bold", size=9, pad=8)
    axes.patch.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    if heading == SENSITIVITIES[0]:
        axes.set_xlim(-1.1, 2.9)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    elif heading == SENSITIVITIES[1]:
        axes.set_xlim(0, 1.6)
        axes.spines["bottom"].set_bounds(0, 1)
        axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    else:
        axes.set_xlim(-1.05, 1.05)
        axes.set_xticks([-1, 0, 1], ["−1", "0", "1"])
        axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def _spread(y: float, cells: Cells) -> Array:
    """Heights of the dots of a line, so that none hides another."""
    steps = np.arange(len(cells), dtype=np.float64) - (len(cells) - 1) / 2
    return y + 0.065 * steps


def _draw_changes(axes: Axes, y: float, cells: Cells, scale: float) -> None:
    half = 0.055 + 0.0325 * max(2, len(cells))
    axes.vlines(0, y - half, y + half, color=LINE, linewidth=1)
    for height, row in zip(_spread(y, cells), cells, strict=True):
        ends = np.array([row["signed_low"], row["signed_high"]])
        colour = WORSE if ends[0] > 0 or ends[1] < 0 else MUTED
        _draw_dot(axes, row["signed"] / scale, ends / scale, height, colour)
    changes = np.array([row["signed"] for row in cells])
    if np.isnan(changes).all():
        words = "no score"
    elif len(cells) > 1:
        words = f"{np.nanmin(changes):+.3f} to {np.nanmax(changes):+.3f}"
    elif np.isnan(ends).any():
        words = f"{changes[0]:+.3f}"
    else:
        words = f"{changes[0]:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]"
    axes.text(1.15, y, words.replace("-", "−"), va="center", size=7.5, color=INK)


def _draw_flips(axes: Axes, y: float, cells: Cells) -> None:
    shares = np.array([row["flipped"] for row in cells])
    if np.isnan(shares).all():
        axes.text(0.03, y, "—", va="center", size=7.5, color=MUTED)
        return
    low, mean, high = np.nanmin(shares), np.nanmean(shares), np.nanmax(shares)
    axes.barh(y, mean, height=0.12, color=WORSE, linewidth=0)
    words = f"{100 * low:.0f} to {100 * high:.0f} %" if high > low else f"{100 * high:.0f} %"
    axes.text(mean + 0.04, y, words, va="center", size=7.5, color=INK)


def _draw_agreements(axes: Axes, y: float, cells: Cells) -> None:
    if all(np.isnan(row["agreement"]) for row in cells):
        axes.text(0, y, "—", va="center", ha="center", size=7.5, color=MUTED)
        return
    for height, row in zip(_spread(y, cells), cells, strict=True):
        ends = np.array([row["agreement_low"], row["agreement_high"]])
        _draw_dot(axes, row["agreement"], ends, height, BETTER)


def _draw_dot(axes: Axes, middle: float, ends: Array, y: float, colour: str) -> None:
    axes.plot(ends, [y, y], color=colour, linewidth=1.3)
    axes.plot(middle, y, marker="o", markersize=3.8, color=colour)
