"""Plots of scores, drawn once for the page (as SVG) and for papers (as files).

A plot is None where a run holds nothing to draw: one metric has no correlations, one K no choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from faithscope.errors import choose
from faithscope.report import lines
from faithscope.report.masked_image import masked_image
from faithscope.report.style import (
    BAND,
    BETTER,
    INK,
    LINE,
    MUTED,
    SUFFIXES,
    WIDTH,
    WORSE,
    Drawing,
    Look,
    Plot,
    given_axes,
    heading,
    house_style,
    shorten,
)
from faithscope.report.table import broken, minus
from faithscope.report.tables import file_stems, sample_word, sensitivity_of
from faithscope.verdicts.findings import Findings

Array = NDArray[np.float64]
Row = Mapping[str, Any]

PANELS_PER_LINE = 5
WIDEST_PANEL = 3.5
GAP = 0.12
"""Between panels, in widths of one."""
WHEELS_PER_LINE = 4
WHEEL = 0.58
WHEEL_WIDE, WHEEL_BELOW, WHEEL_ABOVE = WIDTH / WHEELS_PER_LINE, WHEEL + 0.3, WHEEL + 0.55
"""Radius of a radar's wheel in inches, and the room around it."""
MOST_SPACIOUS = 8
"""Up to so many names around a wheel may have several lines."""
INNERMOST = 0.2
"""Where a radar's worst value lies, so that a method that is worst in all is still a shape."""
AGREEMENT = LinearSegmentedColormap.from_list("agreement", ["#c4501a", "#f3ede6", "#0a6fb2"])
"""Nearly WORSE to BETTER, but no colours of the page, which change with its mode."""
DARK, PALE = "#101418", "#ffffff"
SENSITIVITIES = ("mean change of the score", "orders flipped", "rank agreement")

_MARKS: Mapping[str, Row] = {
    "better": {"marker": "^", "markersize": 5.5, "color": BETTER},
    "same": {"marker": "o", "markersize": 5.5, "color": MUTED, "markerfacecolor": "none"},
    "worse": {"marker": "v", "markersize": 5.5, "color": WORSE},
    "": {"marker": "D", "markersize": 3.5, "color": MUTED},
}
_RADAR_MARKS: Mapping[str, Row] = {
    **{verdict: {**mark, "markersize": 4.5} for verdict, mark in _MARKS.items()},
    "": {"marker": "o", "markersize": 3, "color": BETTER},  # not compared with random
}
_WORDS = {
    "better": "better than matched random",
    "same": "no significant difference",
    "worse": "worse",
    "": "random attribution",
}


def write_figures(
    results: Mapping[str, Findings], folder: str | Path, *, formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write all plots of runs in each format: `intervals.pdf`, or `LABEL-intervals.pdf` of several.

    Formats are pdf, png and svg.
    """
    for form in formats:
        choose("format of a figure", form, [suffix[1:] for suffix in SUFFIXES])
    plots = [
        (stem, plot) for stem, found in file_stems(results).items() for plot in plots_of(found)
    ]
    if (moved := sensitivity(sensitivity_of(results), sample_word(results))) is not None:
        plots.append(("", moved))
    return [
        plot.save(Path(folder) / f"{stem}{plot.name}.{form}")
        for stem, plot in plots
        for form in formats
    ]


def plots_of(found: Findings) -> list[Plot]:
    """Every plot that a run gives."""
    draws = [*OF_TRAININGS, *(OF_SAMPLES if found.samples.num_rows else ())]
    return [plot for draw in draws if (plot := draw(found)) is not None]


def intervals(
    found: Findings, metrics: Sequence[str] | None = None, axes: Sequence[Axes] | None = None
) -> Plot:
    """Mean and 95 % interval of every method in one panel per metric.

    In each row the interval of the matched random attribution is shaded; the mark of a method
    says, by shape and colour, how the paired test against it came out. Of all metrics, or of
    some; in a new figure, or in axes that are given.
    """
    cells = _cells(found)
    shown = found.metrics if metrics is None else metrics
    names = [shorten(method, 30) for method in found.methods]
    with house_style():
        figure, panels, letters = _interval_panels(names, len(shown), axes)
        for panel, metric in zip(panels, shown, strict=False):
            _draw_panel(panel, cells, metric, found.methods)
            _head(panel, shorten(metric, letters), found.arrow(metric))
        for panel in panels[:1] if axes is None else panels:  # ours share their rows
            panel.set_yticks(range(len(names)), names)
            panel.invert_yaxis()
        verdicts = {
            cells[metric, method]["verdict"] for metric in shown for method in found.methods
        }
        if axes is None:
            _explain_marks(figure, verdicts, loc="lower left", ncols=5)
        else:
            _explain_marks(panels[-1], verdicts, loc="upper right", bbox_to_anchor=(1, -0.12))
    said = f"Each mark is a mean over {found.replicate.word}s, each line its 95 % interval."
    if any(verdicts):
        said += (
            " Shaded is the interval of random attribution of the same granularity; ▲ and ▼ differ "
            "from it by a paired test, which sees differences even where intervals overlap."
        )
    about = "Mean and 95 % interval of every method, one panel per metric."
    return Plot("intervals", "How certain the scores are", figure, about, said)


def _interval_panels(
    names: Sequence[str], count: int, axes: Sequence[Axes] | None
) -> tuple[Figure, Sequence[Axes], int]:
    """A figure, its panels, and how many letters fit above one; unused panels are not seen."""
    if axes is not None:
        return *given_axes(axes, count), 40
    deep = -(-count // PANELS_PER_LINE)
    columns = -(-count // deep)
    left = 0.15 + 0.075 * max(map(len, names))
    tall = 0.15 + 0.25 * len(names)
    height = deep * (tall + 0.95) + 0.35
    right = min(WIDTH - 0.18, left + columns * WIDEST_PANEL)
    panel = (right - left) / (columns + GAP * (columns - 1))
    figure = Drawing(figsize=(WIDTH, height))
    edges = {"left": left / WIDTH, "right": right / WIDTH}
    edges |= {"top": 1 - 0.6 / height, "bottom": 0.7 / height}
    grid = {**edges, "wspace": GAP, "hspace": 0.95 / tall}
    rows = figure.subplots(deep, columns, sharey=True, squeeze=False, gridspec_kw=grid)
    panels = [panel for row in rows for panel in row]
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels, int((panel + 0.17) / 0.085)


def _cells(found: Findings) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the summary by metric and method."""
    return {(row["metric"], row["method"]): row for row in found.rows}


def _draw_panel(
    axes: Axes,
    cells: Mapping[tuple[str, str], Row],
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
            ends = matched["ci_low"], matched["ci_high"]
            axes.fill_betweenx([place - 0.5, place + 0.5], *ends, color=BAND, linewidth=0)
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
    above: Look = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(direction, (0, 1), (0, 4), color=MUTED, size=8, **above)


def _explain_marks(owner: Figure | Axes, verdicts: set[str], **place: Any) -> None:
    if verdicts == {""}:
        return
    handles: list[Any] = [
        Line2D([], [], linestyle="", label=words, **_MARKS[verdict])
        for verdict, words in _WORDS.items()
        if verdict in verdicts
    ]
    handles.append(Patch(color=BAND, label="interval of matched random"))
    owner.legend(handles=handles, labelcolor=INK, **place)


def radar(
    found: Findings, methods: Sequence[str] | None = None, axes: Sequence[Axes] | None = None
) -> Plot | None:
    """The profile of every method over the metrics, one wheel each, outward is better.

    Behind it, in grey, is the profile of its matched random attribution. None for fewer than
    three metrics, or fewer than three methods to span the scales. Of all methods but random ones,
    or of some; in a new figure, or in axes that are given.
    """
    cards = found.manifest.methods
    every = [method for method in found.methods if not cards[method].is_random]
    shown = every if methods is None else methods
    if len(found.metrics) < 3 or len(found.methods) < 3 or not shown:
        return None
    cells = _cells(found)
    reach = _reach(found, cells)
    with house_style():
        figure, panels = _wheel_panels(len(shown), axes)
        for panel, method in zip(panels, shown, strict=True):
            panel.set(xlim=(-WHEEL_WIDE / 2, WHEEL_WIDE / 2), ylim=(-WHEEL_BELOW, WHEEL_ABOVE))
            panel.set_axis_off()
            panel.set_aspect("equal")
            name, high = shorten(method, 28), WHEEL_ABOVE - 0.1
            panel.text(0, high, name, ha="center", va="top", weight="bold")
            _draw_wheel(panel, found.metrics)
            if matched := cards[method].matched_random:
                _draw_profile(panel, reach[matched], MUTED, BAND, 0.8)
            _draw_profile(panel, reach[method], BETTER, BETTER, 0.14)
            for point, metric in zip(_points(reach[method]), found.metrics, strict=True):
                panel.plot(*point, **_RADAR_MARKS[cells[metric, method]["verdict"]])
            if np.isnan(reach[method]).all():
                panel.text(0, 0, "no score", ha="center", va="center", color=MUTED, size=8)
        verdicts = {row["verdict"] for row in cells.values() if row["method"] in shown}
        if axes is None:
            _explain_wheels(figure, found, verdicts)
    said = (
        "A radar shows the profile of a method, not sizes: every axis runs from the worst (inside) "
        "to the best (outside) mean of all methods and random attributions on that metric."
    )
    if any(cards[method].matched_random for method in shown):
        said += " Grey is random attribution of the same granularity."
    about = "Profile of every method over the metrics, one wheel each."
    return Plot("radar", "Profiles", figure, about, said)


def _wheel_panels(count: int, axes: Sequence[Axes] | None) -> tuple[Figure, Sequence[Axes]]:
    """A figure and a panel for each wheel, in inches."""
    if axes is not None:
        return given_axes(axes, count)
    tall = WHEEL_BELOW + WHEEL_ABOVE
    height = -(-count // WHEELS_PER_LINE) * tall + 0.4
    figure = Drawing(figsize=(WIDTH, height))
    places = (divmod(place, WHEELS_PER_LINE) for place in range(count))
    size = (1 / WHEELS_PER_LINE, tall / height)
    return figure, [
        figure.add_axes((column / WHEELS_PER_LINE, 1 - (line + 1) * tall / height, *size))
        for line, column in places
    ]


def _reach(found: Findings, cells: Mapping[tuple[str, str], Row]) -> dict[str, Array]:
    """How far out each method lies on every metric: from INNERMOST (worst) to 1 (best)."""
    means = np.array([[cells[k, m]["mean"] for k in found.metrics] for m in found.methods])
    ways = np.array([1 if found.arrow(metric) == "↑" else -1 for metric in found.metrics])
    signed = means * ways
    known = np.where(np.isnan(signed), np.inf, signed)
    worst = known.min(0)
    best = np.where(np.isnan(signed), -np.inf, signed).max(0)
    span = np.where(best > worst, best - worst, np.nan)
    with np.errstate(invalid="ignore"):
        shares = np.where(np.isnan(span) & ~np.isnan(signed), 0.5, (signed - worst) / span)
    return dict(zip(found.methods, INNERMOST + (1 - INNERMOST) * shares, strict=True))


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
        label = broken(shorten(metric, 22)) if few else shorten(metric, 10)
        axes.text(away * x, away * y, label, ha=side, va=height, size=6.5, color=MUTED)


def _draw_profile(axes: Axes, reach: Array, edge: str, face: str, opacity: float) -> None:
    """A closed line through the known points; its area is filled if none is missing."""
    points = _points(reach)
    if not np.isnan(reach).any():
        axes.add_patch(Polygon(points, facecolor=face, alpha=opacity, linewidth=0))
    axes.plot(*zip(*points, points[0], strict=True), color=edge, linewidth=1.3)


def _explain_wheels(figure: Figure, found: Findings, verdicts: set[str]) -> None:
    handles: list[Any] = [
        Line2D([], [], linestyle="", label=words, **_RADAR_MARKS[verdict])
        for verdict, words in _WORDS.items()
        if verdict in verdicts and verdict
    ]
    if any(card.matched_random for card in found.manifest.methods.values()):
        handles.append(Patch(facecolor=BAND, edgecolor=MUTED, label="matched random"))
        figure.legend(handles=handles, loc="lower left", ncols=len(handles), labelcolor=INK)


def correlations(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """Do metrics agree on which method is better? A triangle of mean rank correlations.

    In a new figure, or in axes that are given. None for fewer than two metrics, or fewer than
    three methods to rank.
    """
    if len(found.metrics) < 2 or len(found.methods) < 3:
        return None
    word = found.replicate.word
    places = {metric: place for place, metric in enumerate(found.metrics)}
    names = [shorten(metric, 26) for metric in found.metrics]
    tall, count = 0.55, len(names)
    left = 0.2 + 0.078 * max(map(len, names[1:]))
    right = 0.1 + 0.04 * len(names[-2])
    wide = np.clip((WIDTH - left - right) / (count - 1), 0.85, 1.5)
    width = max(WIDTH, left + (count - 1) * wide + right)
    height = 0.4 + (count - 1) * tall + 0.75
    with house_style():
        if axes is None:
            figure: Figure = Drawing(figsize=(width, height))
            size = ((count - 1) * wide / width, (count - 1) * tall / height)
            panel = figure.add_axes((left / width, 0.75 / height, *size))
            _draw_scale(figure, left / width)
        else:
            figure, (panel,) = given_axes(axes, 1)
        panel.set(xlim=(0, count - 1), ylim=(count, 1))
        panel.set_axis_off()
        for row in found.correlations().to_pylist():
            _draw_correlation(panel, places[row["metric"]], places[row["other"]], row)
        for place, name in enumerate(names):
            if place:
                panel.text(-0.08, place + 0.5, name, ha="right", va="center")
            if place < count - 1:
                panel.text(place + 0.04, place + 0.92, name, ha="left", va="bottom")
    return Plot(
        "correlations",
        "Do the metrics agree?",
        figure,
        "Rank correlation of every two metrics over methods, as a triangle of numbers.",
        f"Do metrics agree on which method is better? Rank correlation over methods, {word} by "
        f"{word}: its mean over {word}s and 95 % interval. 1 is the same order, 0 no relation, −1 "
        "the opposite order; random attributions are among the methods.",
    )


def _draw_correlation(axes: Axes, column: int, row: int, cell: Row) -> None:
    value = cell["correlation"]
    known = not np.isnan(value)
    face = to_hex(AGREEMENT((value + 1) / 2)) if known else BAND
    box = Rectangle((column + 0.02, row + 0.03), 0.96, 0.94, facecolor=face, linewidth=0)
    axes.add_patch(box)
    # The colours of a cell stay what they are on a dark page, so must those of its text.
    ink = _readable(face) if known else INK
    middle = column + 0.5
    number = minus(f"{value:.2f}") if known else "—"
    low, high = cell["ci_low"], cell["ci_high"]
    alone = np.isnan(low)
    look: Look = {"ha": "center", "va": "center", "color": ink}
    axes.text(middle, row + (0.5 if alone else 0.38), number, weight="bold", size=9.5, **look)
    if not alone:
        axes.text(middle, row + 0.73, minus(f"[{low:.2f}, {high:.2f}]"), size=7, **look)


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


def sensitivity(rows: Sequence[Row], word: str = "image") -> Plot | None:
    """What each choice of the protocol moves: scores, the order of methods, that of every sample.

    One line per metric below each choice, with a dot for every place where it was measured, that
    is for every setting of the other choices. None without rows (`sensitivity_rows` makes them).
    """
    if not rows:
        return None
    parts = list(_sensitivity_lines(rows))
    labels = [shorten(metric, 40) if cells else "" for _, metric, cells in parts]
    most = max(len(cells) for _, _, cells in parts)
    left = 0.3 + 0.075 * max(map(len, labels))
    heights = [0.11 + 0.065 * max(2, len(cells)) for _, _, cells in parts]
    ends = np.cumsum(heights)
    tall, top, bottom = float(ends[-1]), 0.45, 0.4
    width, height = max(WIDTH, left + 7.5), top + tall + bottom
    with house_style():
        figure = Drawing(figsize=(width, height))
        edges = {"left": left / width, "right": 1 - 0.15 / width}
        edges |= {"top": 1 - top / height, "bottom": bottom / height, "wspace": 0.12}
        grid = {**edges, "width_ratios": (2.8, 1.3, 1.4)}
        panels = figure.subplots(1, 3, sharey=True, gridspec_kw=grid)
        whole = (0, bottom / height, 1, tall / height)
        behind = figure.add_axes(whole, zorder=-1, sharey=panels[0])
        behind.set_axis_off()
        for axes, title in zip(panels, SENSITIVITIES, strict=True):
            _prepare_lines(axes, title)
        scales = _scales(rows)
        middles = ends - np.array(heights) / 2
        for y, (choice, metric, cells) in zip(middles, parts, strict=True):
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
        "How the choices of the protocol change the scores",
        figure,
        "What each choice of the protocol does to scores and to the order of methods.",
        "From the first value of a choice to the other: the mean change of a score with its 95 % "
        "interval (each metric on its own scale, the numbers say how much; orange if the interval "
        "does not cover 0), the share of pairs of methods whose order of means flips, and the rank "
        f"correlation over methods, {word} by {word} (1: every {word} keeps its order). Random "
        f"attribution is among the methods.{dots}",
    )


Cells = Sequence[Row]


def _sensitivity_lines(rows: Cells) -> Iterator[tuple[str, str, Cells]]:
    """A line for every choice without cells, then one for each metric with them."""
    choices: dict[str, dict[str, list[Row]]] = {}
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


def _prepare_lines(axes: Axes, title: str) -> None:
    heading(axes, title)
    axes.patch.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    if title == SENSITIVITIES[0]:
        axes.set_xlim(-1.1, 2.9)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    elif title == SENSITIVITIES[1]:
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
    axes.text(1.15, y, minus(words), va="center", size=7.5, color=INK)


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


OF_TRAININGS: Sequence[Callable[[Findings], Plot | None]] = (
    *(lines.performance, masked_image, lines.sparsity),
)
OF_SAMPLES: Sequence[Callable[[Findings], Plot | None]] = (
    *(intervals, radar, lines.removal),
    *(correlations, lines.k_choice),
)
