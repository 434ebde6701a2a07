"""The figures of the page on text: curves by data set, all runs at once, one token, sparsity.

A measure has the same colour and marker in all of them as in `faithscope report`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from filling import Row, Summaries, save
from text_runs import MEASURES, MODELS, WIDEST, WORDS, Run, published_racu, runs
from text_tables import picture_name

WIDTH = 10.0
ACROSS = 3
"""Panels in a row of small ones."""
COLUMNS = {"recursive": "Recursive ROAR: ranked again", "roar": "ROAR: ranked once"}
"""Procedures as columns; Recursive ROAR first, because some runs have no other."""


def draw_text(have: Summaries) -> None:
    """Draw every figure that there are runs for."""
    from faithscope.report.style import Plot

    percents, tokens = runs(have), runs(have, relative=False)
    drawn: dict[str, tuple[Any, str]] = {}
    for _, same in groupby(percents, key=lambda run: run.known.dataset):
        own = list(same)
        drawn[picture_name(own[0])] = by_data_set(own), f"{own[0].known.dataset}: curves"
    if len(percents) > 1:
        drawn["text-all"] = small(percents, curve_panel("recursive")), "all runs"
    if near := [run for run in percents if run.is_comparable]:
        drawn["text-racu"] = racu_figure(near), "RACU, ours and the paper's"
    if tokens:
        drawn["text-count"] = small(tokens, curve_panel("recursive")), "one token at a time"
    if sparse := [run for run in percents if run.rows("sparsity")]:
        drawn["text-sparsity"] = small(sparse, sparsity_panel, floor=False), "sparsity"
    for name, (figure, words) in drawn.items():
        save(Plot(name, words, figure, words, words), name)


def by_data_set(own: Sequence[Run]) -> Any:
    """The curves of a data set: a row for each model, a column for each procedure."""
    from matplotlib.figure import Figure

    from faithscope.report.style import heading, house_style

    columns = [name for name in COLUMNS if any(name in run.procedures for run in own)]
    with house_style():
        width = WIDTH * (1.0 if len(columns) > 1 else 0.6)
        figure = Figure(figsize=(width, 0.55 + 3.1 * len(own)))
        grid = frame(figure, len(own), len(columns), left=0.65 / width, right=1 - 2.2 / width)
        for line, run in zip(grid, own, strict=True):
            for axes, procedure in zip(line, columns, strict=True):
                if procedure not in run.procedures:
                    axes.set_axis_off()
                    continue
                curves(axes, run, procedure)
                words = COLUMNS[procedure]
                model = f"{run.known.ours}: {words.partition(':')[0]}"
                heading(axes, f"{model if len(own) > 1 else words}{seed_words(run)}")
                axes.set_xlabel("tokens masked, the most important first")
            line[0].set_ylabel(f"{run.metric} on the test split")
        legend(figure, own, beside=True)
    return figure


def small(own: Sequence[Run], panel: Callable[[Any, Run], None], *, floor: bool = True) -> Any:
    """Small panels, one for each run; `floor` if they show the largest class alone."""
    from matplotlib.figure import Figure

    from faithscope.report.style import heading, house_style

    across = min(ACROSS, len(own))
    down = -(-len(own) // across)
    with house_style():
        figure = Figure(figsize=(WIDTH, 0.9 + 2.6 * down))
        grid = frame(figure, down, across, right=0.985, foot=0.85, share=False)
        panels = [axes for line in grid for axes in line]
        for axes, run in zip(panels, own, strict=False):
            panel(axes, run)
            heading(axes, f"{run.title}{seed_words(run)}")
        for axes in panels[len(own) :]:
            axes.set_axis_off()
        legend(figure, own, beside=False, floor=floor)
    return figure


def seed_words(run: Run) -> str:
    """The number of seeds, if they are too few for a band."""
    few = run.with_seeds.removeprefix(run.short)
    return few and f" ({len(run.seeds)} seeds)"


def curve_panel(procedure: str) -> Callable[[Any, Run], None]:
    """A panel with the curves of a procedure."""

    def draw(axes: Any, run: Run) -> None:
        curves(axes, run, procedure if procedure in run.procedures else run.procedures[0])
        axes.set_ylabel(run.metric)
        axes.set_xlabel("share of tokens masked" if run.is_relative else "tokens masked")

    return draw


def sparsity_panel(axes: Any, run: Run) -> None:
    """How few tokens hold most of the scores."""
    from matplotlib.ticker import PercentFormatter

    rows = [row for row in run.rows("sparsity") if row["kind"] == "relative"]
    lines(axes, {name: [r for r in rows if r["measure"] == name] for name in WORDS}, "x")
    axes.set_ylim(0, 1.03)
    axes.set_xlim(5, 95)
    for axis, whole in ((axes.yaxis, 1), (axes.xaxis, 100)):
        axis.set_major_formatter(PercentFormatter(whole, decimals=0, symbol=" %"))
    axes.set_xticks(range(10, 100, 20))
    axes.set_ylabel("share of the scores")
    axes.set_xlabel("most important tokens")


def curves(axes: Any, run: Run, procedure: str) -> None:
    """The curves of a run by one procedure, and the largest class alone."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

    from faithscope.report.style import INK

    rows = [row for row in run.rows("curves") if row["procedure"] == procedure]
    lines(axes, {name: [r for r in rows if r["measure"] == name] for name in WORDS}, "k")
    axes.axhline(run.study["data"]["majority"]["score"], color=INK, linewidth=1, linestyle=":")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    if run.is_relative:
        axes.xaxis.set_major_locator(MultipleLocator(20))
        axes.xaxis.set_major_formatter(PercentFormatter(100, decimals=0, symbol=" %"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def lines(axes: Any, found: Mapping[str, Sequence[Row]], x: str) -> None:
    """A line for each measure, with its band if it has one."""
    from faithscope.report.style import tidy

    looks = all_looks()
    for name, rows in found.items():
        own = sorted(rows, key=lambda row: row[x])
        if not own:
            continue
        places, means, low, high = (
            np.array([row[key] for row in own], dtype=np.float64)
            for key in (x, "mean", "ci_low", "ci_high")
        )
        if not np.isnan(low).all():
            known = slice(None, solid(places))
            band = {"color": looks[name]["color"], "alpha": 0.1, "lw": 0}
            axes.fill_between(places[known], low[known], high[known], **band)
        line(axes, places, means, looks[name])
    tidy(axes)


def solid(places: Any) -> int:
    """How many points of a curve are close enough to each other to be joined."""
    is_cut = len(places) > 2 and places[-1] - places[-2] > WIDEST
    return len(places) - is_cut


def line(axes: Any, places: Any, means: Any, look: Mapping[str, Any]) -> None:
    """A curve; a wide gap before its last point is dotted: nothing was trained there."""
    known = solid(places)
    axes.plot(places[:known], means[:known], **look)
    if known < len(places):
        axes.plot(places[-2:], means[-2:], **{**look, "linestyle": (0, (1, 3)), "linewidth": 1.2})


def racu_figure(own: Sequence[Run]) -> Any:
    """RACU of every run and measure, the paper's and ours."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    from faithscope.report.style import INK, MUTED, heading, house_style, tidy

    across = min(ACROSS, len(own))
    down = -(-len(own) // across)
    looks = all_looks()
    with house_style():
        figure = Figure(figsize=(WIDTH, 0.85 + 1.75 * down))
        grid = frame(figure, down, across, right=0.985, left=0.155, foot=0.75, share=False)
        panels = [axes for line in grid for axes in line]
        for place, (axes, run) in enumerate(zip(panels, own, strict=False)):
            for name in run.measures:
                y = list(MEASURES).index(name)
                paper = published_racu(run, name)
                ours = run.racu(name)
                if paper is not None:
                    dot(axes, paper, y - 0.2, {"color": MUTED, "marker": "x"})
                if ours is not None:
                    dot(axes, ours, y + 0.2, looks[name])
            axes.axvline(0, color=MUTED, linewidth=1, linestyle="--")
            axes.set_yticks(
                range(len(MEASURES)), [""] * len(MEASURES) if place % across else MEASURES.values()
            )
            axes.set_ylim(len(MEASURES) - 0.5, -0.5)
            axes.set_xlim(*racu_ends(run))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
            theirs = MODELS[run.known.model]
            other = "" if run.known.ours == theirs else f" / {theirs}"
            heading(axes, f"{run.title}{other}{seed_words(run)}")
            tidy(axes)
            axes.tick_params(axis="y", labelcolor=INK)
        for axes in panels[len(own) :]:
            axes.set_axis_off()
        racu_legend(figure)
    return figure


def racu_ends(run: Run) -> tuple[float, float]:
    """The range of a panel: everything that is drawn, and 0."""
    pairs = [(run.racu(name), published_racu(run, name)) for name in run.measures]
    rows = [row for pair in pairs for row in pair if row is not None]
    keys = ("mean", "ci_low", "ci_high")
    known = [row[key] for row in rows for key in keys if row.get(key) is not None]
    known += [value for row in rows for value in row.get("values", [])] if known else [0.0]
    return min(0.0, *known) - 0.03, max(0.0, *known) + 0.03


def dot(axes: Any, row: Row, y: float, look: Mapping[str, Any]) -> None:
    """A mean with its interval, or with single seeds if there is none."""
    if row["ci_low"] is not None:
        axes.plot([row["ci_low"], row["ci_high"]], [y, y], color=look["color"], linewidth=1.6)
    else:
        each = row["values"]
        axes.plot(each, [y] * len(each), "|", color=look["color"], markersize=11, mew=1.6)
    few = row["ci_low"] is None
    axes.plot(row["mean"], y, **look_of(look), markersize=3.5 if few else 5.5)


def look_of(look: Mapping[str, Any]) -> dict[str, Any]:
    """Colour and marker alone."""
    return {"color": look["color"], "marker": look["marker"], "mew": 1.6, "linestyle": ""}


def racu_legend(figure: Any) -> None:
    """What the marks of the RACU figure mean."""
    from matplotlib.lines import Line2D

    from faithscope.report.style import INK, MUTED

    entries = {
        "paper (Table 2)": Line2D([], [], color=MUTED, marker="x", markersize=5.5, mew=1.6),
        "ours, in the measure's colour": Line2D([], [], color=INK, marker="o", markersize=5.5),
        "one seed, where there are fewer than three": Line2D(
            [], [], color=INK, marker="|", linestyle="", markersize=11, mew=1.6
        ),
        "random masking": Line2D([], [], color=MUTED, linewidth=1, linestyle="--"),
    }
    figure.legend(entries.values(), entries, loc="lower center", ncol=len(entries))


# Shared by all figures


def all_looks() -> dict[str, Any]:
    """Colour and marker of every measure."""
    from faithscope.report.lines import line_looks

    return dict(line_looks(WORDS))


def frame(
    figure: Any,
    down: int,
    across: int,
    *,
    right: float,
    left: float = 0.065,
    foot: float = 0.5,
    share: bool = True,
) -> Any:
    """Panels with room for titles, names of axes and a legend."""
    height = float(figure.get_size_inches()[1])
    grid = {
        "left": left,
        "right": right,
        "top": 1 - 0.3 / height,
        "bottom": foot / height,
        "wspace": 0.08 if share else 0.34,
        "hspace": 0.36 if share else 0.44,
    }
    sharing = "row" if share else False
    return figure.subplots(down, across, sharey=sharing, squeeze=False, gridspec_kw=grid)


def legend(figure: Any, own: Sequence[Run], *, beside: bool, floor: bool = True) -> None:
    """Which line is which: at the right, or below."""
    from matplotlib.lines import Line2D

    from faithscope.report.style import INK

    looks = all_looks()
    names = [name for name in WORDS if any(name in run.all_measures for run in own)]
    entries = {WORDS[name]: Line2D([], [], **looks[name]) for name in names}
    if floor:
        entries["largest class alone"] = Line2D([], [], color=INK, linewidth=1, linestyle=":")
    place: dict[str, Any] = (
        {"loc": "upper right", "bbox_to_anchor": (1.0, 0.95)}
        if beside
        else {"loc": "lower center", "ncol": len(entries)}
    )
    figure.legend(entries.values(), entries, handlelength=2.6, columnspacing=1.4, **place)
