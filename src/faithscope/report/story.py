"""The story of one sample: what each map claims, what removing it does, what scores make of it.

One row per method, read from left to right: the map; how much salience each group of units holds;
how far confidence falls without that group; which pairs of groups that puts in the right order,
which is SaCo; and how confidence falls as the groups go one after the other, which is AOPC.
Random attribution is drawn several times, since one draw on one sample may be lucky.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from faithscope.data.pictures import photographs
from faithscope.errors import FaithscopeError, choose
from faithscope.models import Model
from faithscope.models.text_model import Encoded
from faithscope.perturb import to_pixels
from faithscope.report.figures import (
    Cell,
    as_array,
    coloured_map,
    draw_scale,
    hide_axes,
    paint,
    to_bytes,
    write_note,
)
from faithscope.report.removal import labels_of, pair_parts, removal_groups
from faithscope.report.style import (
    BETTER,
    INK,
    LINE,
    MUTED,
    SCALES,
    WORSE,
    Drawing,
    Look,
    Plot,
    check_suffix,
    fit,
    house_style,
    save_figure,
    shorten,
)
from faithscope.report.table import number
from faithscope.report.words import Coloured, draw_words, lay_out, text_height
from faithscope.verdicts.findings import Findings

Array = NDArray[np.float64]
Limits = tuple[float, float]

WIDTH, MARGIN = 11.0, 0.25
COLUMNS = {
    "map": (0.25, 1.45),
    "salience": (2.25, 1.75),
    "alone": (4.5, 1.85),
    "pairs": (6.95, 1.45),
    "curve": (9.05, 1.7),
}
"""Where a column begins and how wide it is, in inches."""
TALL = 1.45
"""Height of photograph and panels."""
TEXT = 4.0
"""Width of a text that stands in the place of a map over its image."""
LETTERS = 9.0
"""Their size in such a text."""
NAME, BELOW = 0.5, 0.36
"""Room above the panels of a row, for its name and scores, and below them, for ticks."""
SMALL = 7.5

_MARKS = {1: ("▲ above", BETTER), 0: ("≈ within", MUTED), -1: ("▼ below", WORSE)}
_GREY = "#c9ced6"
_VIOLET = "#8b6bb1"
_READING = (
    "A faithful map puts first what the model needs: the more salience a group of units holds, "
    "the further confidence\nfalls without it. Read each row from left to right."
)


@dataclass(frozen=True, eq=False)
class Row:
    """What the story of one sample says of one method: D draws (one if not random), K groups.

    A map that could not be used has no groups; `note` says why.

    Shapes: salience, drop [D, K]; pairs [K, K], what each pair adds to SaCo; curve [D, L + 1];
    saco, aopc [D].
    """

    method: str
    random: bool
    reference: str | None
    flag: str
    is_constant: bool
    salience: Array
    drop: Array
    pairs: Array
    curve: Array
    saco: Array
    aopc: Array

    @property
    def k(self) -> int:
        """How many groups there are."""
        return int(self.salience.shape[-1])

    @property
    def share(self) -> Array:
        """Salience of the groups as a share of the sum of its sizes: [D, K]."""
        total = np.abs(self.salience).sum(-1, keepdims=True)
        return self.salience / np.where(total > 0, total, 1)

    @property
    def note(self) -> str:
        """Why there is nothing to draw, or ""."""
        if not self.k:
            return "not scored: the map holds NaN or infinity"
        known = (np.isfinite(part).all() for part in (self.salience, self.drop, self.curve))
        return "" if all(known) else "not scored: the model answered NaN"

    def as_data(self) -> dict[str, Any]:
        """For a program to read: scores by draw, all else averaged over draws."""
        return {
            "saco": float(self.saco.mean()),
            "aopc": float(self.aopc.mean()),
            "draws": {"saco": self.saco.tolist(), "aopc": self.aopc.tolist()},
            "random": self.reference,
            "flag": self.flag,
            "k": self.k,
            "salience": self.salience.mean(0).tolist(),
            "drop": self.drop.mean(0).tolist(),
            "removed": np.linspace(0, 1, self.curve.shape[-1]).round(12).tolist(),
            "p": self.curve.mean(0).tolist(),
        }


def read_story(found: Findings, *, sample: int = 0) -> dict[str, Row]:
    """What the story of one sample of a run says of every method."""
    saco, aopc = _metrics(found)
    if not 0 <= sample < found.samples.num_rows:
        raise FaithscopeError(
            f"There is no sample {sample}: the result holds {found.samples.num_rows}, from 0 on."
        )
    name = found.samples["sample"][sample].as_py()
    scores = _scores_of(found, name, (saco, aopc))
    flat = found.maps.filter((pc.field("sample") == name) & pc.field("constant"))
    constant, rows = set(flat["method"].to_pylist()), {}
    for method, removal in removal_groups(found, saco).items():
        k = int(removal.k[0, sample])
        alike = removal.k[:, sample] == k  # k="auto" may give draws different k
        salience = removal.salience[alike, sample, :k]
        drop = removal.drop[alike, sample, :k]
        card = found.manifest.methods[method]
        rows[method] = Row(
            method=method,
            random=card.is_random,
            reference=method if card.is_random else card.matched_random,
            flag=scores[method, saco][0]["flag"],
            is_constant=method in constant,
            salience=salience,
            drop=drop,
            pairs=pair_parts(salience, drop).mean(0),
            curve=removal.curve[:, sample],
            saco=np.array([row["value"] for row in scores[method, saco]]),
            aopc=np.array([row["value"] for row in scores[method, aopc]]),
        )
    return rows


def _metrics(found: Findings) -> tuple[str, str]:
    """The first SaCo that weighs pairs by their difference alone, as they are drawn, and AOPC."""
    cards = found.manifest.metrics
    sacos = [
        label
        for label in labels_of(found, "saco")
        if cards[label].options.get("weight", "difference") == "difference"
        and not cards[label].options.get("penalty")
    ]
    aopcs = labels_of(found, "aopc")
    if not sacos or not aopcs:
        raise FaithscopeError(
            "A story needs the metrics saco (with its own weights) and aopc, got "
            f"{', '.join(found.metrics)}: evaluate the {found.manifest.sample} with both."
        )
    return sacos[0], aopcs[0]


def draw_story(
    model: Model,
    image: Tensor | Encoded,
    maps: Mapping[str, Tensor],
    found: Findings,
    path: str | Path,
    **options: Any,
) -> Path:
    """Write a picture of the story; the suffix (.png, .pdf, .svg) is its format.

    Options are those of `story`.
    """
    file = Path(path)
    check_suffix(file)
    save_figure(story(model, image, maps, found, **options), file)
    return file


def story(
    model: Model,
    image: Tensor | Encoded,
    maps: Mapping[str, Tensor],
    found: Findings,
    *,
    sample: int = 0,
    title: str | None = None,
) -> Figure:
    """Draw how the scores of one image or text come about, one row per method.

    Args:
        model: whose normalisation is undone and whose classes are named.
        image: [C, H, W] or [1, C, H, W], normalised for the model; or a text as the model reads it.
        maps: by method of the result, [H, W] or [1, H, W], or by patch; of a text [n].
        found: an evaluation that holds the sample, with the metrics saco and aopc. With several
            random draws, their range is drawn as well.
        sample: its place in the result.
        title: what is explained. [default: the class and its probability]
    """
    told = read_story(found, sample=sample)
    for method in maps:
        choose("method of this result", method, told)
    photograph, cells = None, dict[str, Cell | Coloured]()
    if isinstance(image, Encoded):
        cells |= {name: coloured_map(image, held, name).cut() for name, held in maps.items()}
    else:
        photograph = _photograph(model, image, maps)
        cells |= {method: _cell(photograph, values) for method, values in maps.items()}
    about = found.samples.slice(sample, 1).to_pylist()[0]
    own = found.manifest.metrics[_metrics(found)[0]].options
    protocol = {**found.manifest.protocol, **{name: own[name] for name in ("k",) if name in own}}
    rows = [told[method] for method in maps]
    references = {name: told[name] for name in {row.reference for row in rows} if name in told}
    with house_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for it
        page = _Page.of(rows, references, list(cells.values()))
        heading = title or _title(model, about)
        page.draw_head(photograph, heading, [model.name, *_facts(model, about, protocol)])
        page.draw_columns(protocol)
        for place, row in enumerate(rows):
            page.draw_row(place, row, cells[row.method], references.get(row.reference or ""))
        page.draw_key({cell.kind for cell in cells.values()}, references)
    return page.figure


def story_plot(
    model: Model, image: Tensor | Encoded, maps: Mapping[str, Tensor], found: Findings
) -> Plot:
    """The story with its title and words, for a page."""
    return Plot(
        "story",
        "How the scores come about",
        story(model, image, maps, found),
        f"The story of one {found.manifest.sample}, one row per method.",
        "From left to right: what a method claims, what the removal of each group does alone, "
        "which pairs of groups are in the right order (SaCo), and what removing one after the "
        "other does (AOPC).",
        on_paper=True,
    )


@dataclass(frozen=True, eq=False)
class _Page:
    """The figure, with places in inches from the top left, and the limits that all rows share.

    `wider` is by how much texts are wider than maps, `tall` how tall maps or texts are.
    """

    figure: Figure
    rows: int
    highest_share: float
    drops: Limits
    confidence: Limits
    wider: float
    tall: float

    columns = 0.78

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        references: Mapping[str, Row],
        cells: Sequence[Cell | Coloured],
    ) -> _Page:
        """An empty page for so many rows."""
        texts = [lay_out(c.words, TEXT, size=LETTERS) for c in cells if isinstance(c, Coloured)]
        wider = TEXT - COLUMNS["map"][1] if texts else 0.0
        tall = max([TALL, *(text_height(text, size=LETTERS) for text in texts)])
        compared = [row for row in references.values() if not row.note]
        drawn = [row for row in rows if not row.note]
        height = _head(wider) + cls.columns + len(rows) * (NAME + tall + BELOW) + 0.62
        return cls(
            Drawing(figsize=(WIDTH + wider, height), facecolor="white"),
            len(rows),
            _limits([row.share for row in drawn])[1],
            _limits([100 * row.drop for row in drawn]),
            _limits([100 * row.curve for row in [*drawn, *compared]]),
            wider,
            tall,
        )

    @property
    def head(self) -> float:
        """Where the columns begin."""
        return _head(self.wider)

    @property
    def width(self) -> float:
        """Of the whole figure."""
        return WIDTH + self.wider

    def column(self, name: str) -> tuple[float, float]:
        """Where a column begins and how wide it is."""
        left, wide = COLUMNS[name]
        return (left, wide + self.wider) if name == "map" else (left + self.wider, wide)

    @property
    def height(self) -> float:
        """Of the whole figure."""
        return float(self.figure.get_size_inches()[1])

    def axes(self, left: float, top: float, wide: float, high: float) -> Axes:
        """New axes at a place."""
        bottom = 1 - (top + high) / self.height
        return self.figure.add_axes(
            (left / self.width, bottom, wide / self.width, high / self.height), facecolor="none"
        )

    def text(self, left: float, top: float, text: str, **options: Any) -> None:
        """Text that begins at a place and hangs below it."""
        options = {"va": "top", **options}
        self.figure.text(left / self.width, 1 - top / self.height, text, **options)

    def picture(self, top: float, picture: Array) -> Axes:
        """An image in the first column, in its own proportions."""
        axes = self.axes(COLUMNS["map"][0], top, COLUMNS["map"][1], TALL)
        axes.imshow(to_bytes(picture), interpolation="auto")
        axes.set_anchor("NW")
        hide_axes(axes)
        return axes

    def words(self, top: float, text: Coloured) -> None:
        """A text in the first column."""
        placed = lay_out(text.words, TEXT, size=LETTERS)
        axes = self.axes(COLUMNS["map"][0], top, TEXT, text_height(placed, size=LETTERS))
        draw_words(axes, placed, wide=TEXT, size=LETTERS)

    def draw_head(self, photograph: Array | None, heading: str, facts: Sequence[str]) -> None:
        """The photograph, what is explained, and how it was measured."""
        left = MARGIN
        if photograph is not None:
            self.picture(MARGIN, photograph)
            left = self.column("salience")[0] - 0.35
        wide = self.width - MARGIN - left
        title = fit(heading, wide, size=15, weight="bold", lines=2)
        self.text(left, MARGIN - 0.02, title, size=15, weight="bold", linespacing=1.15)
        top = MARGIN + 0.12 + 0.25 * (title.count("\n") + 1)
        for place, fact in enumerate(facts):
            self.text(left, top, fit(fact, wide, size=9), size=9, color=MUTED if place else INK)
            top += 0.19
        self.text(left, top + 0.06, _READING, size=9)

    def draw_columns(self, protocol: Mapping[str, Any]) -> None:
        """What each column shows."""
        words = _column_words(protocol, of_texts=self.wider > 0)
        for place, name in enumerate(COLUMNS):
            (left, wide), (title, said) = self.column(name), words[name]
            room = wide + (0.35 if place < len(COLUMNS) - 1 else 0.1)
            left -= 0 if name == "map" else 0.35
            self.text(left, self.head, title, weight="bold", size=9)
            text, look = fit(said, room + 0.1, size=SMALL, lines=4), {"size": SMALL, "color": MUTED}
            self.text(left, self.head + 0.18, text, linespacing=1.2, **look)

    def draw_row(self, place: int, row: Row, cell: Cell | Coloured, reference: Row | None) -> None:
        """One method from its map to its scores."""
        top = self.head + self.columns + place * (NAME + self.tall + BELOW)
        rule = self.axes(MARGIN, top, self.width - 2 * MARGIN, 0.01)
        rule.axhline(0.5, color=LINE, linewidth=1)
        rule.axis("off")
        room = self.column("pairs")[0] - MARGIN - 0.6
        name = fit(row.method, room, size=10.5, weight="bold", lines=1)
        self.text(MARGIN, top + 0.1, name, size=10.5, weight="bold")
        if row.random:
            said = f"mean of {len(row.saco)} draws, bars with their range; the map is the first"
            said = said if len(row.saco) > 1 else "one draw"
            self.text(MARGIN, top + 0.29, said, size=SMALL, color=MUTED)
        panels = top + NAME
        if isinstance(cell, Coloured):
            self.words(panels, cell)
        else:
            axes = self.picture(panels, cell.picture)
            if cell.note:
                write_note(axes, cell.note)
        self.draw_score("pairs", top, "SaCo", row, reference)
        self.draw_score("curve", top, "AOPC", row, reference)
        if row.note:
            left = self.column("salience")[0]
            note = self.axes(left, panels, self.width - MARGIN - left, TALL)
            hide_axes(note)
            write_note(note, row.note)
            return
        panel = {
            name: self.axes(left, panels, wide, TALL)
            for name, (left, wide) in ((name, self.column(name)) for name in COLUMNS)
            if name != "map"
        }
        _draw_salience(panel["salience"], row, self.highest_share)
        _draw_alone(panel["alone"], row, self.drops)
        _draw_pairs(panel["pairs"], row)
        _draw_curve(panel["curve"], row, reference, self.confidence)
        if place < self.rows - 1:
            for axes in panel.values():
                axes.set_xlabel("")

    def draw_score(
        self, column: str, top: float, name: str, row: Row, reference: Row | None
    ) -> None:
        """A score above its panel, and where it lies among those of random draws."""
        left = self.column(column)[0] - 0.35
        draws = np.empty(0) if reference is None else getattr(reference, name.lower())
        mean = float(getattr(row, name.lower()).mean())
        said = f"no {name}" if np.isnan(mean) else f"{name} {number(mean)}"
        self.text(left, top + 0.1, said, size=10.5, weight="bold")
        if len(draws) < 2 or np.isnan(draws).any():
            return
        low, high = number(draws.min()), number(draws.max())
        words, colour = f"{len(draws)} draws:", MUTED
        if not (row.random or np.isnan(mean)):
            side = int(mean > draws.max()) - int(mean < draws.min())
            words, colour = _MARKS[side]
            words = f"{words} {len(draws)} random:"
        self.text(left, top + 0.29, f"{words} {low} … {high}", size=SMALL, color=colour)

    def draw_key(self, kinds: set[str], references: Mapping[str, Row]) -> None:
        """Say what colours and grey mean."""
        top = self.height - 0.36
        left = MARGIN + 0.55
        for kind in SCALES:
            if kind in kinds:
                draw_scale(self.axes(left, top, 0.7, 0.11), kind)
                left += 1.95
        if kinds & set(SCALES):
            self.text(left - 0.6, top - 0.02, "each map on its own scale", color=MUTED, size=SMALL)
            left += 1.2
        several = {name: row for name, row in references.items() if len(row.saco) > 1}
        if several:
            count = max(len(row.saco) for row in several.values())
            names = " or ".join(sorted(several)) + ", as fits the map" * (len(several) > 1)
            patch = self.axes(left, top, 0.22, 0.11)
            patch.set_facecolor(_GREY)
            hide_axes(patch)
            said = f"range of {count} draws of random attribution ({names})"
            self.text(left + 0.3, top - 0.02, said, color=MUTED, size=SMALL)


def _head(wider: float) -> float:
    """Room for what stands above all rows: the photograph, or of a text only words."""
    return MARGIN + (TALL if not wider else TALL - 0.3) + 0.3


def _column_words(
    protocol: Mapping[str, Any], *, of_texts: bool = False
) -> dict[str, tuple[str, str]]:
    """Title and explanation of each column."""
    units = protocol["units"]
    groups = "groups" if protocol["k"] == "auto" else f"{protocol['k']} groups"
    return {
        "map": ("The text", f"{units} coloured by their salience")
        if of_texts
        else ("The map", "over the greyed image"),
        "salience": (
            "What it claims",
            f"salience of {groups} of {units}, most salient first: share of the sum of its "
            "absolute values",
        ),
        "alone": (
            "Each group removed alone",
            "percentage points that confidence falls; hatched: less than a less salient group, "
            "dotted: what order would need",
        ),
        "pairs": (
            "Pair by pair: SaCo",
            "■ the more salient group hurts more, □ it does not; area: their difference in "
            "salience",
        ),
        "curve": (
            "One after another: AOPC",
            "confidence in % while the most salient go first; shaded: its fall, the mean of which "
            "is AOPC",
        ),
    }


def _title(model: Model, about: Mapping[str, Any]) -> str:
    """What is explained and how sure the model is of it."""
    percent = 100 * np.exp(about["log_p0"])
    said = "less than 0.1 %" if percent < 0.1 else f"{percent:.1f} %"
    return f"{model.class_name(about['target'])}, {said}"


def _facts(model: Model, about: Mapping[str, Any], protocol: Mapping[str, Any]) -> list[str]:
    """What else must be known of the sample and of how it was measured."""
    others = []
    if about["predicted"] != about["target"]:
        others.append(f"the model predicts {shorten(model.class_name(about['predicted']), 40)}")
    if about["label"] not in (-1, about["target"]):
        others.append(f"the true class is {shorten(model.class_name(about['label']), 40)}")
    options = {
        "group salience": "group",
        "fill": "fill",
        "upsampling of patch maps": "upsample",
        "side": "side",
        "ties": "ties",
        "seed": "seed",
    }
    known = (f"{said}: {protocol[name]}" for said, name in options.items() if name in protocol)
    how = " · ".join((f"groups of {protocol['units']}, K = {protocol['k']}", *known))
    return ["; ".join(others), how] if others else [how]


def _photograph(model: Model, image: Tensor, maps: Mapping[str, Tensor]) -> Array:
    """The image itself; refused if it is not one."""
    image = image[None] if image.ndim == 3 else image
    if image.ndim != 4 or len(image) != 1 or not maps:
        raise FaithscopeError(
            f"A story is of one image [1, C, H, W] and its maps by method, got an image of shape "
            f"{list(image.shape)} and {len(maps)} methods."
        )
    photograph: Array = photographs(image, model.mean, model.std)[0]
    return photograph


def _cell(photograph: Array, values: Tensor) -> Cell:
    given = values[None] if values.ndim == 2 else values
    if given.ndim != 3 or len(given) != 1:
        raise FaithscopeError(
            f"A story needs one map [H, W] of each method, got shape {list(values.shape)}."
        )
    size = (photograph.shape[0], photograph.shape[1])
    return paint(photograph, as_array(to_pixels(given, size, "nearest"))[0])


def _scores_of(
    found: Findings, sample: str, metrics: Sequence[str]
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of the scores of one sample by method and metric, in the order of draws."""
    own = found.scores.filter(pc.field("sample") == sample).sort_by("draw")
    scores: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in own.to_pylist():
        if row["metric"] in metrics:
            scores.setdefault((row["method"], row["metric"]), []).append(row)
    return scores


def _limits(parts: Sequence[Array]) -> Limits:
    """Limits that hold zero and everything there is, with some room."""
    values = np.concatenate([np.zeros(1), *(part.ravel() for part in parts)])
    low, high = float(values.min()), float(values.max())
    spread = max(high - low, 1e-6)
    return low - (0.06 * spread if low < 0 else 0), high + 0.06 * spread


def _tidy(axes: Axes, limits: Limits) -> None:
    """What all panels with a scale have in common."""
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=SMALL)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.label.set_fontsize(SMALL)
    axes.xaxis.label.set_color(MUTED)


def _tick(value: float, unit: str = "") -> str:
    return f"{value:.3g}{unit}".replace("-", "−")


def _number_groups(axes: Axes, k: int) -> None:
    axes.set_xlim(0.4, k + 0.6)
    axes.set_xticks(_ticks(k))
    axes.set_xlabel("group")


def _ticks(k: int) -> list[int]:
    """The first, the last, and a few groups between."""
    step = max(1, -(-k // 10) if k <= 10 else 5)
    between = [group for group in range(step, k, step) if 1 < group < k - step / 2]
    return sorted({1, k, *between})


def _draw_ranges(axes: Axes, values: Array) -> None:
    """From the lowest to the highest draw of each group, where there are several: [D, K]."""
    axes.axhline(0, color=MUTED, linewidth=0.8)
    if len(values) > 1:
        places = np.arange(1, values.shape[-1] + 1)
        axes.vlines(places, values.min(0), values.max(0), color=INK, linewidth=0.9)


def _draw_salience(axes: Axes, row: Row, highest: float) -> None:
    axes.bar(np.arange(1, row.k + 1), row.share.mean(0), width=0.72, color=_VIOLET)
    _draw_ranges(axes, row.share)
    _tidy(axes, (_limits([row.share])[0], highest))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(100 * value, " %")))
    _number_groups(axes, row.k)


def _draw_alone(axes: Axes, row: Row, limits: Limits) -> None:
    """Bars of the fall without each group; out of order are those that a later one exceeds.

    Random attribution claims no order, so its bars are judged only one by one, in the pairs.
    """
    fall = 100 * row.drop.mean(0)
    needed = np.maximum.accumulate(fall[::-1])[::-1]
    wrong = (needed > fall) & (not row.random)
    places = np.arange(1, row.k + 1)
    axes.bar(places[~wrong], fall[~wrong], width=0.72, color=_colour(row))
    hatched: Look = {"facecolor": "white", "edgecolor": WORSE, "hatch": "//////", "linewidth": 0.9}
    axes.bar(places[wrong], fall[wrong], width=0.72, **hatched)
    dotted: Look = {"color": WORSE, "linewidth": 1.2, "linestyle": (0, (1, 1))}
    axes.hlines(needed[wrong], places[wrong] - 0.36, places[wrong] + 0.36, **dotted)
    _draw_ranges(axes, 100 * row.drop)
    _tidy(axes, limits)
    _number_groups(axes, row.k)


def _colour(row: Row) -> str:
    return MUTED if row.random else BETTER


def _draw_pairs(axes: Axes, row: Row) -> None:
    """A square for each pair of groups, as large as its weight: filled if the order is right."""
    k = row.k
    axes.set_xlim(0.4, k + 0.6)
    axes.set_ylim(k + 0.6, 0.4)
    axes.set_aspect("equal", anchor="NW")
    if row.is_constant or k < 2 or np.isnan(row.pairs).any():
        hide_axes(axes)
        write_note(axes, "all groups weigh\nthe same: SaCo is 0\nby definition")
        return
    largest = np.abs(pair_parts(row.salience, row.drop)).max((-1, -2)).mean()
    for first, second in zip(*np.nonzero(row.pairs), strict=True):
        part = float(row.pairs[first, second])
        side = 0.94 * min(1.0, (abs(part) / largest) ** 0.5)
        colour = BETTER if part > 0 else WORSE
        look: Look = {"facecolor": colour if part > 0 else "white", "edgecolor": colour}
        corner = (second + 1 - side / 2, first + 1 - side / 2)
        axes.add_patch(Rectangle(corner, side, side, linewidth=0.6 if k > 12 else 0.8, **look))
    axes.tick_params(length=0, labelcolor=MUTED, labelsize=SMALL)
    axes.set_xticks(_ticks(k))
    axes.set_yticks(_ticks(k))
    axes.set_xlabel("the less salient group", size=SMALL, color=MUTED)
    axes.set_ylabel("the more salient group", size=SMALL, color=MUTED)
    axes.spines[:].set_visible(False)


def _draw_curve(axes: Axes, row: Row, reference: Row | None, limits: Limits) -> None:
    """Confidence as the groups go one after the other, with AOPC's area and random's range."""
    curve = 100 * row.curve.mean(0)
    levels = np.linspace(0, 100, len(curve))
    axes.fill_between(levels, curve[0], curve, color=_colour(row), alpha=0.13, linewidth=0)
    if reference is not None and len(reference.curve) > 1 and not reference.note:
        drawn = 100 * reference.curve
        axes.fill_between(levels, drawn.min(0), drawn.max(0), color=_GREY, linewidth=0)
    axes.axhline(curve[0], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    axes.plot(levels, curve, color=_colour(row), marker="o", markersize=3, linewidth=1.6)
    _tidy(axes, limits)
    axes.set_xlim(-2, 102)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes.set_xlabel("removed")
