"""Figures of ROAR runs: what masking costs, how few tokens hold the importance, the synthetic task.

As for images a plot is drawn once, for the page (as SVG) and for papers (as files).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from faithscope.probes.retrain.verdict import METRICS
from faithscope.report.figures import check_suffix
from faithscope.report.plots import LINE_MARKERS, WIDTH, Plot
from faithscope.report.roar_rows import NO_ENDS, sparsity_rows
from faithscope.report.style import INK, MUTED, SERIES, heading, house_style, shorten, tidy
from faithscope.verdicts.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from faithscope.cli.synthetic import SyntheticResult
    from faithscope.probes.retrain.result import RoarResult

Row = Mapping[str, Any]
Look = Mapping[str, Any]

PANELS = {"recursive": "Recursive ROAR: ranked again at each level", "roar": "ROAR: ranked once"}
"""Procedures in the order of panels, that of the tables, and their headings."""
SPARSITIES = {
    "count": ("By number of tokens", "most important tokens"),
    "relative": ("By share of a text's tokens", "most important tokens, share of all"),
}
"""Kinds of sparsity, the headings of their panels and what is counted."""
MAJORITY = "largest class alone"
SYNTHETIC: Mapping[str, tuple[str, Look]] = {
    "truth": ("ground truth first", {"color": MUTED, "linestyle": "--", "linewidth": 3.5}),
    "worst": ("ground truth last", {"color": MUTED, "linestyle": ":"}),
    "roar": ("ROAR", {"color": SERIES[1], "marker": "s"}),
    "recursive": ("Recursive ROAR", {"color": SERIES[0], "marker": "o"}),
}
"""Curves of the synthetic problem: what they are called and how they look, the widest below."""


MEASURES = (
    *("attention", "gradient", "input_x_gradient", "integrated_gradients"),
    "mutual_information",
)
"""Measures that have a colour of their own."""

_LINE: Look = {"markersize": 4, "linewidth": 1.5}
_SIGNS = dict(zip(LINE_MARKERS, "●■◆▲▼✚✖★◀", strict=True))
_VARIABLES = {MUTED: "muted", INK: "ink", **{c: f"series-{i}" for i, c in enumerate(SERIES)}}


def roar_plots(result: RoarResult, *, legend: bool = True) -> list[Plot]:
    """Every plot that a run gives; `legend` is whether the names of lines are drawn, too."""
    drawn = (draw(result, legend=legend) for draw in (performance_curves, sparsity_curves))
    return [plot for plot in drawn if plot is not None]


def written_legend(result: RoarResult, plot: Plot) -> list[tuple[str, str, str]]:
    """The lines of a plot for a page, where a legend may wrap: a sign, its colour, a name."""
    looks = measure_looks(result.measures)
    lines = [
        (f"─{_SIGNS[look['marker']]}─" if "marker" in look else "– – –", look["color"], name)
        for name, look in looks.items()
    ]
    if plot.name == "curves":
        lines.append(("·····", INK, MAJORITY))
    return [(sign, f"var(--{_VARIABLES[c]}, {c})", name) for sign, c, name in lines]


def performance_curves(result: RoarResult, *, legend: bool = True) -> Plot:
    """Performance of the retrained models against the share of tokens masked.

    One panel per procedure side by side, one line per measure with its 95 % interval over seeds;
    random masking is grey and what the largest class alone would score is dotted.
    """
    protocol, data = result.manifest["protocol"], result.manifest["data"]
    rows = result.curves().to_pylist()
    panels = [name for name in PANELS if name in protocol["procedures"]]
    looks = measure_looks(protocol["measures"])
    metric = METRICS[data["metric"]]
    with house_style():
        figure = Figure(figsize=(WIDTH, 3.7))
        every = _panels(figure, len(panels), legend=legend)
        for axes, procedure in zip(every, panels, strict=True):
            own = [row for row in rows if row["procedure"] == procedure]
            _draw_lines(axes, own, "k", looks)
            axes.axhline(data["majority"]["score"], color=INK, linewidth=1, linestyle=":")
            heading(axes, PANELS[procedure])
            axes.set_xlabel("tokens masked, the most important first")
            if data["metric"] != "cross_entropy":
                _in_percent(axes.yaxis, 1)
            _in_percent(axes.xaxis, 100 if protocol["strategy"] == "relative" else None)
        figure.axes[0].set_ylabel(f"{metric} on the test split")
        if legend:
            majority = Line2D([], [], color=INK, linewidth=1, linestyle=":")
            _name_looks(figure, {**looks, MAJORITY: majority})
    seeds = len(protocol["seeds"])
    bands = (
        f" Bands are 95 % intervals over {seeds} seeds."
        if seeds >= FEWEST_SEEDS
        else f" {NO_ENDS}."
    )
    return Plot(
        "curves",
        figure,
        f"{metric} of retrained models against the share of tokens masked, by measure.",
        f"For every level a new model is trained and tested on texts in which the tokens that a "
        f"measure calls most important are masked. A faithful measure makes the {metric} fall "
        f"faster than random masking (grey); the dotted line is what the largest class alone "
        f"would score.{bands}",
    )


def sparsity_curves(result: RoarResult, *, legend: bool = True) -> Plot | None:
    """Share of the importance that the first tokens hold. None for a run without sparsity."""
    rows = sparsity_rows({"": result})
    if not rows:
        return None
    kinds = [kind for kind in SPARSITIES if any(row["kind"] == kind for row in rows)]
    looks = measure_looks(list(dict.fromkeys(row["measure"] for row in rows)))
    with house_style():
        figure = Figure(figsize=(WIDTH, 3.4))
        for axes, kind in zip(_panels(figure, len(kinds), legend=legend), kinds, strict=True):
            title, counted = SPARSITIES[kind]
            heading(axes, title)
            _draw_lines(axes, [row for row in rows if row["kind"] == kind], "x", looks)
            axes.set_xlabel(counted)
            axes.set_ylim(0, 1.02)
            _in_percent(axes.yaxis, 1)
            _in_percent(axes.xaxis, 100 if kind == "relative" else None)
        figure.axes[0].set_ylabel("share of the whole importance")
        if legend:
            _name_looks(figure, looks)
    return Plot(
        "sparsity",
        figure,
        "Share of the whole importance that the most important tokens hold, by measure.",
        "How few tokens hold the importance: the share of the summed scores that the most "
        "important tokens of a text have, mean over the validation split of the unmasked data. "
        "A steep curve is a sparse explanation, which is not yet a faithful one.",
    )


def synthetic_curves(result: SyntheticResult) -> Plot:
    """Accuracy on the synthetic problem while features go, in the order each procedure gives."""
    with house_style():
        figure = Figure(figsize=(WIDTH, 3.4))
        (axes,) = _panels(figure, 1)
        looks: dict[str, Any] = {}
        for name, (label, look) in SYNTHETIC.items():
            values = np.asarray(result.curves[name], dtype=np.float64)
            (looks[label],) = axes.plot(values, **{**_LINE, **look})
        axes.set_xlabel("features removed")
        axes.set_ylabel("test accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _in_percent(axes.yaxis, 1)
        tidy(axes)
        _name_looks(figure, looks)
    return Plot(
        "synthetic",
        figure,
        "Accuracy on the synthetic problem against the number of features removed.",
        "A problem whose answer is known: only four of 16 features are informative. The best order "
        "removes them first, the worst last. ROAR ranks once and is misled by features that say "
        "the same; Recursive ROAR ranks again after each removal.",
    )


def draw_synthetic(result: SyntheticResult, path: str | Path) -> Path:
    """Write the figure of the synthetic problem in the format of the suffix."""
    check_suffix(Path(path))
    return synthetic_curves(result).save(path)


def measure_looks(measures: Sequence[str]) -> dict[str, Look]:
    """A colour and a marker for every measure, known ones the same in every run; random is grey."""
    own = [name for name in measures if name != "random"]
    order = [*MEASURES, *(name for name in own if name not in MEASURES)]
    looks: dict[str, Look] = {
        name: {
            "color": SERIES[order.index(name) % len(SERIES)],
            "marker": LINE_MARKERS[order.index(name) % len(LINE_MARKERS)],
            **_LINE,
        }
        for name in own
    }
    if "random" in measures:
        looks["random"] = {"color": MUTED, "linestyle": "--", "linewidth": 1.8}
    return looks


def _panels(figure: Figure, count: int, *, legend: bool = True) -> list[Axes]:
    """Axes side by side, with room for a legend at the right if there is one; a scale each."""
    height = float(figure.get_size_inches()[1])
    grid = {
        "left": 0.065,
        "right": 0.775 if legend else 0.985,
        "top": 1 - 0.3 / height,
        "bottom": 0.5 / height,
        "wspace": 0.16,
    }
    return list(figure.subplots(1, count, sharey=True, squeeze=False, gridspec_kw=grid)[0])


def _draw_lines(axes: Axes, rows: Sequence[Row], x: str, looks: Mapping[str, Look]) -> None:
    for measure, look in looks.items():
        own = sorted((row for row in rows if row["measure"] == measure), key=lambda row: row[x])
        if not own:
            continue
        places, means, low, high = (
            np.array([row[key] for row in own], dtype=np.float64)
            for key in (x, "mean", "ci_low", "ci_high")
        )
        if not np.isnan(low).all():
            axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(places, means, **look)
    tidy(axes)


def _in_percent(axis: Any, whole: int | None) -> None:
    """Write an axis in percent of `whole`, or as whole numbers for None."""
    if whole is None:
        axis.set_major_locator(MaxNLocator(integer=True))
        return
    if whole == 100:
        axis.set_major_locator(MultipleLocator(20))
    axis.set_major_formatter(PercentFormatter(whole, decimals=0, symbol="\N{NO-BREAK SPACE}%"))


def _name_looks(figure: Figure, looks: Mapping[str, Any]) -> None:
    """A legend at the right of all panels."""
    handles = [
        look if isinstance(look, Line2D) else Line2D([], [], **look) for look in looks.values()
    ]
    numbers = [str(number) for number in range(len(handles))]
    legend = figure.legend(
        handles, numbers, loc="upper left", bbox_to_anchor=(0.785, 0.95), handlelength=3
    )
    # Written afterwards, because matplotlib leaves out labels that begin with an underscore.
    for text, name in zip(legend.get_texts(), looks, strict=True):
        text.set_text(shorten(name, 26))
        text.set_color(INK)
