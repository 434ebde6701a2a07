"""Pictures of explanations: every image beside its maps, for people and for papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from faithscope.data.pictures import photographs, scale_map
from faithscope.errors import FaithscopeError
from faithscope.models import Model
from faithscope.models.text_model import Encoded
from faithscope.perturb import to_pixels
from faithscope.report.style import (
    INK,
    MUTED,
    NOTES,
    SCALES,
    Drawing,
    check_suffix,
    fit,
    given_axes,
    house_style,
    ink,
    save_figure,
    wrap_label,
)
from faithscope.report.words import Coloured, Word, coloured, draw_words, lay_out, text_height

Array = NDArray[np.float64]

MAPS_PER_LINE = 6

TEXT_WIDTH, TEXT_NAMES, TEXT_SIZE = 10.0, 2.9, 9.0
"""Of a picture of texts: its width and that of the names in inches, the size of letters."""
KEY = 0.62
"""Height of the key below the pictures, in inches."""
_CHARACTERS_PER_INCH = 15
_TEXT_LINE = 0.155


def draw_explanations(
    model: Model,
    images: Tensor,
    maps: Mapping[str, Tensor],
    path: str | Path,
    **options: Any,
) -> Path:
    """Write a picture of every image beside its maps; the suffix (.png, .pdf, .svg) is its format.

    Options are those of `explanations`.
    """
    file = Path(path)
    check_suffix(file)
    save_figure(explanations(model, images, maps, **options), file)
    return file


def explanations(
    model: Model | None,
    images: Tensor,
    maps: Mapping[str, Tensor],
    *,
    titles: Sequence[str] | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    subtitle: str | None = None,
    axes: Sequence[Axes] | None = None,
) -> Figure:
    """Draw every image beside its maps, one row per image and one column per method.

    A map with values of both signs is drawn in two colours around zero, any other in one scale
    from its lowest to its highest value; a key below says so. More than six methods continue in
    further lines, each with the images at its left.

    Args:
        model: whose normalisation is undone; without a known one, images are stretched to 0…1.
        images: [B, C, H, W], normalised for the model.
        maps: by method, [B, H, W], or [B, h, w] by patch.
        titles: a caption for each image, such as "cat → dog (71 %)".
        scores: SaCo of each image, by method; written below the maps.
        subtitle: a line above the picture.
        axes: to draw the maps in, one for each map of the first image, of the second, and so on;
            then the images themselves are not drawn.
    """
    check_maps(images, maps, titles, scores)
    mean, std = (None, None) if model is None else (model.mean, model.std)
    shown = photographs(images, mean, std)
    high, wide = images.shape[-2:]
    columns = {
        label: [
            paint(*pair)
            for pair in zip(shown, as_array(to_pixels(given, (high, wide), "nearest")), strict=True)
        ]
        for label, given in maps.items()
    }
    captions_of = partial(_caption, scores or {})
    if axes is not None:
        with house_style():
            figure, panels = given_axes(axes, len(shown) * len(maps))
            cells = ((label, number) for number in range(len(shown)) for label in maps)
            for panel, (label, number) in zip(panels, cells, strict=True):
                _draw_cell(panel, columns[label][number], captions_of(label, number))
                panel.set_title(wrap_label(label, 24), weight="bold", size="medium")
                panel.set_aspect("equal")
        return figure
    lines = _lines(list(maps))
    room = 2.2 if len(lines[0]) <= 2 else 1.5
    tall = min(max(room * high / wide, room / 3), room * 3)
    letters = int(room * _CHARACTERS_PER_INCH)
    heads = {label: wrap_label(label, letters, lines=4) for label in maps}
    captions = [wrap_label(title, letters, lines=5) for title in titles or [""] * len(shown)]
    width = (len(lines[0]) + 1) * (room + 0.1) + 0.2
    above = wrap_label(subtitle or "", int(width * _CHARACTERS_PER_INCH))
    start = 0.15 + (_text_height([above]) + 0.08) * bool(above)
    head, row = _text_height(heads.values()) + 0.1, tall + _text_height([*captions, " "]) + 0.14
    deep = head + len(shown) * row + 0.05
    height = start + len(lines) * deep + KEY

    def at(line: int, number: int, column: int) -> Axes:
        left, top = 0.15 + column * (room + 0.1), start + line * deep + head + number * row
        rectangle = (left / width, 1 - (top + tall) / height, room / width, tall / height)
        return figure.add_axes(rectangle)

    with house_style():
        figure = Drawing(figsize=(width, height), facecolor="white")
        figure.text(0.15 / width, 1 - 0.12 / height, above, va="top")
        for line, labels in enumerate(lines):
            for number, photograph in enumerate(shown):
                _draw_cell(at(line, number, 0), Cell(photograph, "none"), captions[number])
                for column, label in enumerate(labels, start=1):
                    panel = at(line, number, column)
                    _draw_cell(panel, columns[label][number], captions_of(label, number))
                    panel.set_title("" if number else heads[label], weight="bold", size="medium")
        _draw_key(figure, {cell.kind for cells in columns.values() for cell in cells})
    return figure


def draw_texts(
    texts: Sequence[Encoded],
    maps: Mapping[str, Sequence[Tensor]],
    path: str | Path,
    **options: Any,
) -> Path:
    """Write a picture of every text in the colours of its maps, as `explained_texts` draws it."""
    file = Path(path)
    check_suffix(file)
    save_figure(explained_texts(texts, maps, **options), file)
    return file


def explained_texts(
    texts: Sequence[Encoded],
    maps: Mapping[str, Sequence[Tensor]],
    *,
    titles: Sequence[str] | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    subtitle: str | None = None,
) -> Figure:
    """Draw every text in the colours of its maps, a method below the other.

    Args:
        texts: what their units are called.
        maps: by method, a map [n] or [1, n] for each text.
        titles: what stands above each text, such as "positive (71 %)".
        scores: SaCo of each text, by method; written before the text.
        subtitle: a line above the picture.
    """
    _check_counts("texts", len(texts), maps, titles, scores)
    shown = [
        {label: coloured_map(text, given[number], label).cut() for label, given in maps.items()}
        for number, text in enumerate(texts)
    ]
    left, wide = 0.15 + TEXT_NAMES, TEXT_WIDTH - TEXT_NAMES - 0.3
    laid = [
        {label: lay_out(held.words, wide, size=TEXT_SIZE) for label, held in own.items()}
        for own in shown
    ]
    tall = [[text_height(held, size=TEXT_SIZE) + 0.06 for held in own.values()] for own in laid]
    above, head = 0.36 * bool(subtitle), 0.3 * bool(titles)
    kinds = {held.kind for own in shown for held in own.values()}
    height = 0.15 + above + sum(map(sum, tall)) + len(texts) * (head + 0.2) + KEY
    with house_style():
        figure = Drawing(figsize=(TEXT_WIDTH, height), facecolor="white")

        def write(x: float, y: float, text: str, **look: Any) -> None:
            figure.text(x / TEXT_WIDTH, 1 - y / height, text, va="top", **look)

        write(0.15, 0.15, fit(subtitle or "", TEXT_WIDTH - 0.3, size=TEXT_SIZE), color=MUTED)
        top = 0.15 + above
        for number, own in enumerate(laid):
            if titles is not None:
                title = fit(titles[number], TEXT_WIDTH - 0.3, size=11, weight="bold")
                write(0.15, top, title, size=11, weight="bold")
            top += head
            for (label, placed), high in zip(own.items(), tall[number], strict=True):
                name = fit(label, TEXT_NAMES - 0.75, size=TEXT_SIZE)
                write(0.15, top + 0.04, name, size=TEXT_SIZE)
                score = _score(scores or {}, label, number)
                write(left - 0.15, top + 0.04, score, size=TEXT_SIZE, weight=700, ha="right")
                high -= 0.06
                place = (left / TEXT_WIDTH, 1 - (top + high) / height, wide / TEXT_WIDTH)
                axes = figure.add_axes((*place, high / height))
                draw_words(axes, placed, wide=wide, size=TEXT_SIZE)
                top += high + 0.06
            top += 0.2
        _draw_key(figure, kinds, of_texts=True)
    return figure


def coloured_map(text: Encoded, values: Tensor, label: str) -> Coloured:
    """A text in the colours of a map that has a value for each of its units."""
    salience = as_array(values).ravel()
    if len(salience) != len(text.words):
        raise FaithscopeError(
            f"The map '{label}' has {len(salience)} values for a text of {len(text.words)} units: "
            "give what fs.explain gives for the same model and units."
        )
    found = coloured(text.words, salience, text.second)
    note = (Word(f"({found.note})", "rest"),) if found.note else ()
    return replace(found, words=(*note, *found.words))


def _lines(labels: Sequence[str]) -> list[Sequence[str]]:
    """Share the methods evenly among as few lines as hold them."""
    count = -(-len(labels) // MAPS_PER_LINE)
    longest = -(-len(labels) // count)
    return [labels[start : start + longest] for start in range(0, len(labels), longest)]


@dataclass(frozen=True, eq=False)
class Cell:
    """A map laid over its image: what to show, how it was coloured, and a note if it could not be.

    Shapes: picture [H, W, 3] in 0…1.
    """

    picture: Array
    kind: str
    note: str = ""


def check_maps(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str] | None,
    scores: Mapping[str, Sequence[float]] | None,
) -> None:
    """Refuse what cannot be drawn before anything is."""
    if images.ndim != 4 or not len(images) or not maps:
        raise FaithscopeError(
            f"There is nothing to draw: expected images [B, C, H, W] and maps by method, got "
            f"images {list(images.shape)} and {len(maps)} methods."
        )
    _check_counts("images", len(images), maps, titles, scores)
    for label, values in maps.items():
        if values.ndim != 3:
            raise FaithscopeError(
                f"The maps '{label}' have shape {list(values.shape)}: expected [B, H, W]."
            )


def _check_counts(
    noun: str,
    total: int,
    maps: Mapping[str, Tensor] | Mapping[str, Sequence[Tensor]],
    titles: Sequence[str] | None,
    scores: Mapping[str, Sequence[float]] | None,
) -> None:
    """Refuse anything that there is not one of for each sample."""
    counts = {f"the maps '{label}'": len(values) for label, values in maps.items()}
    counts |= {f"the scores of '{label}'": len(values) for label, values in (scores or {}).items()}
    counts |= {} if titles is None else {"titles": len(titles)}
    for name, count in counts.items():
        if count != total:
            raise FaithscopeError(f"There are {total} {noun}, but {count} of {name}.")


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


def to_bytes(picture: Array) -> NDArray[np.uint8]:
    """Round to bytes, where matplotlib would cut off."""
    return (255 * picture).round().astype(np.uint8)


def _draw_cell(axes: Axes, cell: Cell, caption: str) -> None:
    axes.imshow(to_bytes(cell.picture), interpolation="auto", aspect="auto")
    axes.set_xlabel(caption)
    hide_axes(axes)
    if cell.note:
        write_note(axes, cell.note)


def write_note(axes: Axes, note: str) -> None:
    """Say in the middle of axes why nothing is drawn there."""
    paper = {"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.4"}
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", bbox=paper)


def hide_axes(axes: Axes) -> None:
    """Leave only what is drawn in axes."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _caption(scores: Mapping[str, Sequence[float]], label: str, number: int) -> str:
    """The SaCo of one map, where it is known."""
    score = _score(scores, label, number)
    return "no SaCo" if score == "—" else score and f"SaCo {score}"


def _score(scores: Mapping[str, Sequence[float]], label: str, number: int) -> str:
    if label not in scores:
        return ""
    value = scores[label][number]
    return "—" if np.isnan(value) else f"{value:+.2f}".replace("-", "−")


def _draw_key(figure: Figure, kinds: set[str], *, of_texts: bool = False) -> None:
    """Say what the colours mean, for the kinds of map that occur."""
    shown = [kind for kind in SCALES if kind in kinds]
    width, height = figure.get_size_inches()
    for place, kind in enumerate(shown):
        left = (place + 0.5) / len(shown) - 0.45 / width
        draw_scale(figure.add_axes((left, 0.42 / height, 0.9 / width, 0.12 / height)), kind)
    said = "each map on its own scale, which ends at its 99th percentile"
    said += "" if of_texts else ", over the greyed image"
    if shown:
        lines = wrap_label(said, int(width * _CHARACTERS_PER_INCH))
        figure.text(0.5, 0.33 / height, lines, ha="center", va="top", color=MUTED)


def draw_scale(axes: Axes, kind: str) -> None:
    """Draw the colours of one kind of map, with a word at either end."""
    ramp = np.linspace(-1 if kind == "signed" else 0, 1, 200)[None]
    axes.imshow(to_bytes(ink(np.full((1, 200, 3), 0.8), ramp, kind)), aspect="auto")
    hide_axes(axes)
    low, high = SCALES[kind]
    for x, side, word in ((-0.06, "right", low), (1.06, "left", high)):
        axes.text(x, 0.5, word, transform=axes.transAxes, ha=side, va="center", color=INK)


def _text_height(texts: Iterable[str]) -> float:
    return _TEXT_LINE * max((text.count("\n") + 1 for text in texts if text), default=0)
