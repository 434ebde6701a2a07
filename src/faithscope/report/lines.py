"""Plots of lines: what removal does, what masking costs, how few tokens hold the importance, K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from faithscope.report.removal import removal_curves
from faithscope.report.style import (
    DASHES,
    INK,
    MARKERS,
    MUTED,
    SERIES,
    WIDTH,
    Drawing,
    Look,
    Plot,
    check_suffix,
    given_axes,
    heading,
    house_style,
    shorten,
    tidy,
)
from faithscope.report.trainings import NO_ENDS, sparsity_rows
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sensitivity import ks_of
from faithscope.verdicts.sentences import TEST_METRICS
from faithscope.verdicts.statistics import FEWEST_SEEDS

Array = NDArray[np.float64]
Row = Mapping[str, Any]

RESAMPLES = 500
MEASURES = (
    *("attention", "gradient", "input_x_gradient", "integrated_gradients"),
    "mutual_information",
)
"""Measures that have a colour of their own, the same in every run."""
PANELS = {"recursive": "Recursive ROAR: ranked again at each level", "roar": "ROAR: ranked once"}
"""Procedures in the order of panels, that of the tables, and their headings."""
SPARSITIES = {
    "count": ("By number of tokens", "most important tokens"),
    "relative": ("By share of a text's tokens", "most important tokens, share of all"),
}
"""Kinds of sparsity, the headings of their panels and what is counted."""
MAJORITY: Mapping[str, Look] = {
    "most common class alone": {"color": INK, "linewidth": 1, "linestyle": ":"}
}
SYNTHETIC: Mapping[str, tuple[str, Look]] = {
    "truth": ("ground truth first", {"color": MUTED, "linestyle": "--", "linewidth": 3.5}),
    "worst": ("ground truth last", {"color": MUTED, "linestyle": ":"}),
    "roar": ("ROAR", {"color": SERIES[1], "marker": "s"}),
    "recursive": ("Recursive ROAR", {"color": SERIES[0], "marker": "o"}),
}
"""Curves of the synthetic problem: what they are called and how they look, the widest below."""

_LINE: Look = {"markersize": 4, "linewidth": 1.5}


def removal(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """Mean probability of the target as the most relevant units are removed.

    One line per method with a 95 % bootstrap band over samples, random draws averaged; the legend
    runs from the curve that falls fastest to the one that falls slowest. None for a run that has
    no such curve, because no metric asked for one.
    """
    levels, lines = removal_curves(found)
    if len(levels) == 0:
        return None
    bands = _bands(lines)
    means = {method: np.nanmean(values, axis=0) for method, values in lines.items()}
    every = _looks_of(found)
    looks = {
        name: every[name] for name in sorted(means, key=lambda name: float(means[name].mean()))
    }
    with house_style():
        figure, (panel,) = panels(4.0, 1, axes)
        for method, look in looks.items():
            draw_line(panel, levels, means[method], *bands[method], look, opacity=0.08)
        panel.set_xlim(-0.01, 1.01)
        panel.set_ylim(bottom=0)
        in_percent(panel.xaxis, 1)
        in_percent(panel.yaxis, 1)
        panel.set_xlabel(f"{found.manifest.protocol['units']} removed, most relevant first")
        panel.set_ylabel("mean probability of the target class")
    return Plot(
        "curves",
        "Confidence as the most relevant units are removed",
        figure,
        "Mean probability of the target class against the share removed.",
        "A faithful map makes the probability fall early. The legend runs from the fastest fall to "
        f"the slowest; bands are 95 % bootstrap intervals over {found.replicate.word}s, random "
        "attribution is grey.",
        looks,
    )


def performance(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """Performance of the retrained models against the share of tokens or pixels masked.

    One panel per procedure side by side, one line per measure with its 95 % interval over seeds;
    random masking is grey and what the most common class alone would score is dotted. None for a
    run that trained nothing.
    """
    if not found.trainings.num_rows:
        return None
    curves = found.trained
    rows, metric = curves.curve_rows(), TEST_METRICS[curves.metric]
    sample, units = curves.card.sample, curves.card.units
    procedures = [name for name in PANELS if name in curves.procedures]
    looks = line_looks(curves.measures, reserved=MEASURES)
    with house_style():
        figure, drawn = panels(3.7, len(procedures), axes)
        for panel, name in zip(drawn, procedures, strict=True):
            _draw_rows(panel, [row for row in rows if row["procedure"] == name], "k", looks)
            for look in MAJORITY.values():
                panel.axhline(curves.card.majority.score, **look)
            heading(panel, PANELS[name])
            panel.set_xlabel(f"{units} masked, the most important first")
            if curves.metric != "cross_entropy":
                in_percent(panel.yaxis, 1)
            in_percent(panel.xaxis, 100 if curves.is_relative else None)
        drawn[0].set_ylabel(f"{metric} on the test split")
    seeds = len(curves.seeds)
    bands = f"Bands are 95 % intervals over {seeds} seeds" if seeds >= FEWEST_SEEDS else NO_ENDS
    return Plot(
        "curves",
        f"What masking the most important {'words' if units == 'tokens' else units} costs",
        figure,
        f"{metric} of retrained models against the share of {units} masked, by measure.",
        f"For every level a new model is trained and tested on {sample}s in which the {units} that "
        f"a measure calls most important are masked. A faithful measure makes the {metric} "
        f"{'fall' if curves.is_better_higher else 'rise'} faster than random masking (grey); the "
        f"dotted line is what the most common class alone would score. {bands}.",
        {**looks, **MAJORITY},
    )


def sparsity(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """Share of the importance that the first tokens hold. None for a run without sparsity."""
    rows = sparsity_rows(found)
    if not rows:
        return None
    kinds = [kind for kind in SPARSITIES if any(row["kind"] == kind for row in rows)]
    looks = line_looks(list(dict.fromkeys(row["measure"] for row in rows)), reserved=MEASURES)
    with house_style():
        figure, drawn = panels(3.4, len(kinds), axes)
        for panel, kind in zip(drawn, kinds, strict=True):
            title, counted = SPARSITIES[kind]
            heading(panel, title)
            _draw_rows(panel, [row for row in rows if row["kind"] == kind], "x", looks)
            panel.set_xlabel(counted)
            panel.set_ylim(0, 1.02)
            in_percent(panel.yaxis, 1)
            in_percent(panel.xaxis, 100 if kind == "relative" else None)
        drawn[0].set_ylabel("share of the whole importance")
    return Plot(
        "sparsity",
        "How few words hold the importance",
        figure,
        "Share of the whole importance that the most important tokens hold, by measure.",
        "How few tokens hold the importance: the share of the summed scores that the most "
        "important tokens of a text have, mean over the validation split of the unmasked data. "
        "A steep curve is a sparse explanation, which need not be a faithful one.",
        looks,
    )


def k_choice(found: Findings, axes: Sequence[Axes] | None = None) -> Plot | None:
    """Mean SaCo of every method at each K, with its 95 % interval. None for a run with one K."""
    families = [labels for labels in ks_of(found) if len(labels) > 1]
    if not families:
        return None
    looks = _looks_of(found)
    cells = {(row["metric"], row["method"]): row for row in found.rows}
    with house_style():
        figure, drawn = panels(3.6, len(families), axes)
        for panel, labels in zip(drawn, families, strict=True):
            _draw_ks(panel, labels, cells, looks)
            if len(families) > 1:
                first = next(iter(labels.values()))
                heading(panel, shorten(found.manifest.metrics[first].family, 40))
        drawn[0].set_ylabel("mean SaCo")
    return Plot(
        "k_choice",
        "Does the number of groups matter?",
        figure,
        "Mean SaCo of every method at each K.",
        f"Mean SaCo over {found.replicate.word}s with its 95 % interval, by the number of groups "
        "K. Lines that cross are methods whose order depends on K; random attribution is grey.",
        looks,
    )


def draw_synthetic(curves: Mapping[str, ArrayLike], path: str | Path) -> Path:
    """Draw the accuracy on the synthetic problem while features go, in each order of removal.

    Args:
        curves: accuracy after 0, 1, … removals, by order: truth, worst, roar, recursive.
        path: where to write; the suffix (.png, .pdf, .svg) is the format.
    """
    check_suffix(Path(path))
    looks = {label: {**_LINE, **look} for label, look in SYNTHETIC.values()}
    with house_style():
        figure, (axes,) = panels(3.4, 1, width=0.75 * WIDTH)
        for name, (label, _) in SYNTHETIC.items():
            axes.plot(np.asarray(curves[name], dtype=np.float64), **looks[label])
        axes.set(xlabel="features removed", ylabel="test accuracy")
        in_percent(axes.xaxis, None)
        in_percent(axes.yaxis, 1)
        tidy(axes)
    return Plot("synthetic", "", figure, "", "", looks).save(path)


def line_looks(
    methods: Iterable[str], randoms: Sequence[str] = ("random",), reserved: Sequence[str] = ()
) -> dict[str, Look]:
    """A colour, a marker and a dash for every method; random ones come last and are grey.

    Names that are reserved have the same colour whichever others there are, and whatever options:
    the first of a name with several has it.
    """
    names = list(methods)
    own = [name for name in names if name not in randoms]
    kept = [next((n for n in own if n.partition("(")[0] == held), held) for held in reserved]
    order = [*kept, *(name for name in own if name not in kept)]
    looks: dict[str, Look] = {}
    for name in own:
        place = order.index(name)
        looks[name] = {
            "color": SERIES[place % len(SERIES)],
            "marker": list(MARKERS)[place % len(MARKERS)],
            "linestyle": list(DASHES)[place // len(SERIES) % len(DASHES)],
            **_LINE,
        }
    for place, name in enumerate(name for name in names if name in randoms):
        looks[name] = {"color": MUTED, "linestyle": ("--", ":")[place % 2], "linewidth": 1.8}
    return looks


def _looks_of(found: Findings) -> dict[str, Look]:
    cards = found.manifest.methods
    return line_looks(cards, [method for method, card in cards.items() if card.is_random])


def panels(
    height: float, count: int, axes: Sequence[Axes] | None = None, *, width: float = WIDTH
) -> tuple[Figure, Sequence[Axes]]:
    """A figure and axes side by side in it, or those that are given."""
    if axes is not None:
        return given_axes(axes, count)
    figure = Drawing(figsize=(width, height))
    ends = {"left": 0.065, "right": 0.985, "top": 1 - 0.3 / height, "bottom": 0.5 / height}
    grid = {**ends, "wspace": 0.16}
    return figure, figure.subplots(1, count, sharey=True, squeeze=False, gridspec_kw=grid)[0]


def draw_line(
    axes: Axes, x: Array, mean: Array, low: Array, high: Array, look: Look, *, opacity: float = 0.15
) -> None:
    """A line in the middle of its band."""
    if not np.isnan(low).all():
        axes.fill_between(x, low, high, color=look["color"], alpha=opacity, linewidth=0)
    axes.plot(x, mean, **look)
    tidy(axes)


def _draw_rows(axes: Axes, rows: Sequence[Row], x: str, looks: Mapping[str, Look]) -> None:
    for measure, look in looks.items():
        own = sorted((row for row in rows if row["measure"] == measure), key=lambda row: row[x])
        if own:
            places, mean, low, high = (
                np.array([row[key] for row in own], dtype=np.float64)
                for key in (x, "mean", "ci_low", "ci_high")
            )
            draw_line(axes, places, mean, low, high, look)


def _draw_ks(
    axes: Axes,
    labels: Mapping[str, str],
    cells: Mapping[tuple[str, str], Row],
    looks: Mapping[str, Look],
) -> None:
    """One line per method over the K's in rising order; a K chosen per map stands apart."""
    ks = sorted(labels, key=lambda k: (not k.isdigit(), int(k) if k.isdigit() else 0))
    ordered = sum(k.isdigit() for k in ks)
    for place, (method, look) in enumerate(looks.items()):
        rows = [cells[labels[k], method] for k in ks]
        # Side by side, or the intervals of many methods hide each other.
        x = np.arange(len(ks)) + (place - (len(looks) - 1) / 2) * min(0.03, 0.4 / len(looks))
        low, high, means = (
            np.array([r[key] for r in rows]) for key in ("ci_low", "ci_high", "mean")
        )
        axes.plot(*(np.insert(values, ordered, np.nan) for values in (x, means)), **look)
        axes.vlines(x, low, high, color=look["color"], linewidth=0.9, alpha=0.6)
    axes.set_xticks(range(len(ks)), ks)
    axes.set_xlim(-0.5, len(ks) - 0.5)
    axes.set_xlabel("K, number of groups")
    tidy(axes)
    axes.grid(visible=False, axis="x")


def in_percent(axis: Any, whole: int | None) -> None:
    """Write an axis in percent of `whole`, or as whole numbers for None."""
    if whole is None:
        axis.set_major_locator(MaxNLocator(integer=True))
        return
    if whole == 100:
        axis.set_major_locator(MultipleLocator(20))
    axis.set_major_formatter(PercentFormatter(whole, decimals=0, symbol="\N{NO-BREAK SPACE}%"))


def _bands(curves: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """95 % percentile bootstrap of every mean, all methods on the same resampled samples."""
    if not curves:
        return {}
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
