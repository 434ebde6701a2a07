"""Pictures of explanations: every image beside its maps, for people and for papers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from faithscope.data.pictures import photographs, scale_map
from faithscope.errors import FaithscopeError
from faithscope.models import Model
from faithscope.perturb import to_pixels
from faithscope.report.style import INK, MUTED, colours, house_style, wrap_label
from faithscope.runs.files import write_output

Array = NDArray[np.float64]
Rectangle = tuple[float, float, float, float]

SUFFIXES = (".png", ".pdf", ".svg")
MAPS_PER_LINE = 6
DPI = 200
NOTES = {
    "nan": "not drawn: the map\nholds NaN or infinity",
    "constant": "constant map:\nit ranks nothing",
}
SCALES = {"plain": ("lowest", "highest"), "signed": ("negative", "positive")}
MOST_PIXELS = 60_000
"""Longest side matplotlib draws, with some room."""

_CHARACTERS_PER_INCH = 15
_TEXT_LINE = 0.155


def draw_explanations(
    model: Model,
    images: Tensor,
    maps: Mapping[str, Tensor],
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    subtitle: str | None = None,
) -> Path:
    """Draw every image beside its maps, one row per image and one column per method.

    A map with values of both signs is drawn in two colours around zero, any other in one scale
    from its lowest to its highest value; a key below says so. More than six methods continue in
    further lines, each with the images at its left.

    Args:
        model: whose normalisation is undone; without a known one, images are stretched to 0…1.
        images: [B, C, H, W], normalised for the model.
        maps: by method, [B, H, W], or [B, h, w] by patch.
        path: where to write; the suffix (.png, .pdf, .svg) is the format.
        titles: a caption for each image, such as "cat → dog (71 %)".
        scores: SaCo of each image, by method; written below the maps.
        subtitle: a line above the picture.
    """
    file = Path(path)
    _check(images, maps, titles, scores, file)
    shown = photographs(images, model.mean, model.std)
    size = (images.shape[-2], images.shape[-1])
    columns = {
        label: [
            paint(photograph, values)
            for photograph, values in zip(
                shown, as_array(to_pixels(given, size, "nearest")), strict=True
            )
        ]
        for label, given in maps.items()
    }
    layout = _Layout.of(list(maps), size, titles or [], subtitle or "", len(images))
    with house_style():
        figure = Figure(figsize=(layout.width, layout.height), facecolor="white")
        figure.text(0.15 / layout.width, layout.from_top(0.15), layout.subtitle, va="top")
        for line, labels in enumerate(layout.lines):
            _draw_line(figure, layout, line, shown, {m: columns[m] for m in labels}, scores)
        _draw_key(figure, layout, {cell.kind for cells in columns.values() for cell in cells})
        save_figure(figure, file)
    return file


@dataclass(frozen=True, eq=False)
class Cell:
    """A map laid over its image: what to show, how it was coloured, and a note if it could not be.

    Shapes: picture [H, W, 3] in 0…1.
    """

    picture: Array
    kind: str
    note: str = ""


@dataclass(frozen=True)
class _Layout:
    """Where things stand, in inches from the top left."""

    lines: tuple[tuple[str, ...], ...]
    headers: tuple[str, ...]
    captions: tuple[str, ...]
    subtitle: str
    cell: tuple[float, float]
    rows: int

    gap = 0.1
    margin = 0.15

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        size: tuple[int, int],
        titles: Sequence[str],
        subtitle: str,
        rows: int,
    ) -> _Layout:
        """Share the methods evenly among as few lines as hold them; few columns are wider."""
        count = -(-len(labels) // MAPS_PER_LINE)
        longest = -(-len(labels) // count)
        lines = tuple(
            tuple(labels[start : start + longest]) for start in range(0, len(labels), longest)
        )
        wide = 2.2 if longest <= 2 else 1.5
        high = min(max(wide * size[0] / size[1], wide / 3), wide * 3)
        characters = int(wide * _CHARACTERS_PER_INCH)
        total = int((longest + 1) * wide * _CHARACTERS_PER_INCH)
        return cls(
            lines=lines,
            headers=tuple(wrap_label(label, characters, lines=4) for label in labels),
            captions=tuple(wrap_label(title, characters, lines=5) for title in titles),
            subtitle=wrap_label(subtitle, total),
            cell=(wide, high),
            rows=rows,
        )

    @property
    def width(self) -> float:
        """Of the whole figure."""
        columns = len(self.lines[0]) + 1
        return 2 * self.margin + columns * self.cell[0] + (columns - 1) * self.gap

    @property
    def height(self) -> float:
        """Of the whole figure."""
        return self.key_top + 0.62

    @property
    def key_top(self) -> float:
        """Where the colour key begins."""
        return self.body_top + len(self.lines) * self.line_height

    @property
    def body_top(self) -> float:
        """Where the first line begins."""
        return self.margin + (_text_height([self.subtitle]) + 0.08 if self.subtitle else 0.0)

    @property
    def header_height(self) -> float:
        """Of the method names above a line."""
        return _text_height(self.headers) + 0.08

    @property
    def row_height(self) -> float:
        """Of one image with what stands below it."""
        return self.cell[1] + max(_text_height(self.captions), _TEXT_LINE) + 0.14

    @property
    def line_height(self) -> float:
        """Of all images beside as many methods as fit in the width."""
        return self.header_height + self.rows * self.row_height + 0.05

    def header(self, label: str) -> str:
        """The wrapped name of a method."""
        labels = [name for line in self.lines for name in line]
        return self.headers[labels.index(label)]

    def from_top(self, inches: float) -> float:
        """A vertical place as a share of the figure, as matplotlib wants it."""
        return 1 - inches / self.height

    def corner(self, line: int, row: int, column: int) -> tuple[float, float]:
        """Top left of a cell."""
        left = self.margin + column * (self.cell[0] + self.gap)
        top = self.body_top + line * self.line_height + self.header_height
        return left, top + row * self.row_height

    def rectangle(self, left: float, top: float, wide: float, high: float) -> Rectangle:
        """A rectangle in shares of the figure: left, bottom, width, height."""
        return left / self.width, self.from_top(top + high), wide / self.width, high / self.height


def _check(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str] | None,
    scores: Mapping[str, Sequence[float]] | None,
    file: Path,
) -> None:
    """Refuse what cannot be drawn before anything is."""
    check_suffix(file)
    if images.ndim != 4 or not len(images) or not maps:
        raise FaithscopeError(
            f"There is nothing to draw: needed are images [B, C, H, W] and maps by method, got "
            f"images {list(images.shape)} and {len(maps)} methods."
        )
    counts = {f"the maps '{label}'": len(values) for label, values in maps.items()}
    counts |= {f"the scores of '{label}'": len(values) for label, values in (scores or {}).items()}
    counts |= {} if titles is None else {"titles": len(titles)}
    for name, count in counts.items():
        if count != len(images):
            raise FaithscopeError(f"There are {len(images)} images, but {count} of {name}.")
    for label, values in maps.items():
        if values.ndim != 3:
            raise FaithscopeError(
                f"The maps '{label}' have shape {list(values.shape)}: needed is [B, H, W]."
            )


def check_suffix(file: Path) -> None:
    """Refuse a file of a format that figures are not written in."""
    if file.suffix.lower() not in SUFFIXES:
        raise FaithscopeError(f"Figures are written as {', '.join(SUFFIXES)}, got '{file.name}'.")


def as_array(values: Tensor) -> Array:
    """A tensor of the model's device in float64."""
    array: Array = values.detach().cpu().double().numpy()
    return array


def paint(photograph: Array, values: Array) -> Cell:
    """Lay one map over its greyed image."""
    grey = photograph @ np.array([0.299, 0.587, 0.114])
    paper = np.repeat(0.5 + 0.5 * grey[..., None], 3, axis=2)
    kind, scaled = scale_map(values)
    if kind in NOTES:
        return Cell(paper, "none", NOTES[kind])
    return Cell(ink(paper, scaled, kind), kind)


def ink(paper: Array, scaled: Array, kind: str) -> Array:
    """Colour values of -1…1 ("signed") or 0…1 ("plain"), the more opaque the stronger."""
    opacity = 0.92 * np.abs(scaled)[..., None] ** 0.75
    painted: Array = (1 - opacity) * paper + opacity * colours(scaled, kind)
    return painted


def to_bytes(picture: Array) -> NDArray[np.uint8]:
    """Round to bytes, where matplotlib would cut off."""
    return (255 * picture).round().astype(np.uint8)


def _draw_line(
    figure: Figure,
    layout: _Layout,
    line: int,
    shown: Array,
    columns: Mapping[str, Sequence[Cell]],
    scores: Mapping[str, Sequence[float]] | None,
) -> None:
    """Draw all images beside the methods of one line."""
    for row, photograph in enumerate(shown):
        caption = layout.captions[row] if layout.captions else ""
        _draw_cell(figure, layout, (line, row, 0), Cell(photograph, "none"), caption)
        for column, (label, cells) in enumerate(columns.items(), start=1):
            score = _score_text(scores[label][row]) if scores and label in scores else ""
            _draw_cell(figure, layout, (line, row, column), cells[row], score)
    for column, label in enumerate(columns, start=1):
        left, top = layout.corner(line, 0, column)
        middle = (left + layout.cell[0] / 2) / layout.width
        figure.text(
            middle,
            layout.from_top(top - 0.06),
            layout.header(label),
            ha="center",
            va="bottom",
            weight="bold",
        )


def _draw_cell(
    figure: Figure, layout: _Layout, place: tuple[int, int, int], cell: Cell, caption: str
) -> None:
    left, top = layout.corner(*place)
    axes = figure.add_axes(layout.rectangle(left, top, *layout.cell))
    axes.imshow(to_bytes(cell.picture), interpolation="auto", aspect="auto")
    hide_axes(axes)
    if cell.note:
        axes.text(
            0.5,
            0.5,
            cell.note,
            transform=axes.transAxes,
            ha="center",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.4"},
        )
    figure.text(
        (left + layout.cell[0] / 2) / layout.width,
        layout.from_top(top + layout.cell[1] + 0.05),
        caption,
        ha="center",
        va="top",
    )


def hide_axes(axes: Axes) -> None:
    """Leave only what is drawn in axes."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _score_text(value: float) -> str:
    if np.isnan(value):
        return "no SaCo"
    return f"SaCo {value:+.2f}".replace("-", "−")


def _draw_key(figure: Figure, layout: _Layout, kinds: set[str]) -> None:
    """Say what the colours mean, for the kinds of map that occur."""
    shown = [kind for kind in SCALES if kind in kinds]
    for place, kind in enumerate(shown):
        share = layout.width / len(shown)
        left = place * share + share / 2 - 0.45
        top = layout.key_top + 0.1
        draw_scale(figure.add_axes(layout.rectangle(left, top, 0.9, 0.12)), kind)
    if shown:
        figure.text(
            0.5,
            layout.from_top(layout.key_top + 0.32),
            "each map on its own scale, which ends at its 99th percentile, over the greyed image",
            ha="center",
            va="top",
            color=MUTED,
        )


def draw_scale(axes: Axes, kind: str) -> None:
    """Draw the colours of one kind of map, with a word at either end."""
    ramp = np.linspace(-1 if kind == "signed" else 0, 1, 200)[None]
    axes.imshow(to_bytes(ink(np.full((1, 200, 3), 0.8), ramp, kind)), aspect="auto")
    hide_axes(axes)
    low, high = SCALES[kind]
    for x, side, word in ((-0.06, "right", low), (1.06, "left", high)):
        axes.text(x, 0.5, word, transform=axes.transAxes, ha=side, va="center", color=INK)


def _text_height(texts: Sequence[str]) -> float:
    return _TEXT_LINE * max((text.count("\n") + 1 for text in texts if text), default=0)


def save_figure(figure: Figure, file: Path, *, crop: bool = False) -> None:
    """Write a figure in the format of the suffix, no larger than matplotlib can draw."""
    dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
    content = BytesIO()
    kind = file.suffix[1:].lower()
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # same run, same bytes
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for it
        figure.savefig(
            content,
            format=kind,
            dpi=dpi,
            bbox_inches="tight" if crop else None,
            metadata=dates.get(kind),
        )
    write_output(file, content.getvalue(), "figure")
