"""Words coloured by their salience: on pages, in figures, in terminals.

The colours are those of heat-maps on white paper, in a few steps, each with an ink that can be
read on it. On a dark page a colour has the same hue and the opposite lightness.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text as RichText

from faithscope.data.pictures import scale_map
from faithscope.errors import printable
from faithscope.report.style import INK, MUTED, NOTES, boxes_for_glyphs, fit, ink, text_width
from faithscope.report.table import Number, minus

Array = NDArray[np.float64]
Colour = tuple[float, float, float]

STEPS = 8
"""Colours from nothing to the most salient; a signed map has as many on either side."""
MOST_WORDS = 120
"""Words of a text that are shown where texts stand one below the other."""
FIRST = 5
"""The most salient words, named where there are no colours."""
BETWEEN = "‖"
"""What stands between the texts of a pair."""
BLANK = "␣"
"""What stands for a token that shows nothing."""
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""They show nothing themselves, but belong to words."""
DARK_PAPER = 0.09
"""The lightness of a dark page."""
LINE = 1.75
"""Of text in a figure, in units of the letters' size."""


class Word(NamedTuple):
    """A word with the class of its look, and its score in words."""

    text: str
    look: str = ""
    said: str = ""


@dataclass(frozen=True)
class Coloured:
    """A text under one method: its words, the kind of scale, the most salient words.

    `note` says why nothing is coloured.
    """

    words: tuple[Word, ...]
    kind: str
    first: str
    note: str = ""

    def cut(self, most: int = MOST_WORDS) -> Coloured:
        """The same with the words that come first."""
        rest = len(self.words) - most
        if rest <= 0:
            return self
        more = Word(f"… and {rest:,} more", "rest")
        return Coloured((*self.words[:most], more), self.kind, self.first, self.note)


class Explained(NamedTuple):
    """A text as a method explains it, with its SaCo and the flag of that."""

    method: str
    saco: float
    flag: str
    text: Coloured

    @property
    def score(self) -> str:
        """SaCo in words."""
        return minus(str(Number(self.saco)))


def coloured(words: Sequence[str], salience: Array, second: int | None = None) -> Coloured:
    """Colour the words of a text by a map [n]; `second` is where the second text of a pair begins.

    >>> found = coloured(["good", "film"], np.array([0.5, 0.0]))
    >>> found.words[0]
    Word(text='good', look='plain-8', said='salience 0.5')
    >>> found.first
    'good 0.5, film 0'
    """
    kind, scaled = scale_map(salience)
    made = [
        Word(plain_word(word), look_of(kind, share), f"salience {value:.3g}")
        for word, share, value in zip(words, scaled, salience, strict=True)
    ]
    order = np.argsort(-salience, kind="stable")[:FIRST]
    first = ", ".join(f"{made[place].text} {salience[place]:.3g}" for place in order)
    note = NOTES.get(kind, "").replace("\n", " ")
    return Coloured(tuple(with_break(made, second)), kind, "" if note else first, note)


def with_break(words: Sequence[Word], second: int | None) -> list[Word]:
    """Words of a pair with a sign before those of the second text."""
    if second is None:
        return list(words)
    return [*words[:second], Word(BETWEEN, "rest"), *words[second:]]


def plain_word(word: str) -> str:
    """A word without the signs by which tokenizers mark its beginning; one must be seen."""
    bare = word.lstrip("Ġ▁") or word
    seen = readable(bare.strip())
    return seen if seen.strip(JOINERS) else BLANK


def readable(text: str) -> str:
    """A text whose signs all show, but for those that belong to words."""
    return "".join(one if one in JOINERS else printable(one) for one in text)


def look_of(kind: str, share: float) -> str:
    """The class of a word's look, by its place on a scale.

    >>> look_of("plain", 0.5), look_of("signed", -1.0), look_of("constant", 0.0)
    ('plain-4', 'signed--8', '')
    """
    return f"{kind}-{round(STEPS * share)}" if kind in RAMPS else ""


RAMPS = {"plain": range(STEPS + 1), "signed": range(-STEPS, STEPS + 1)}
"""The steps of every scale."""


def looks_of(kind: str) -> list[str]:
    """The classes of a scale in order, for a key."""
    return [f"{kind}-{step}" for step in RAMPS[kind]]


def paper_and_ink(look: str, *, is_dark: bool = False) -> tuple[Colour, Colour] | None:
    """The colours of a look, red, green and blue in 0…1; None for words without one."""
    kind, _, step = look.partition("-")
    if kind not in RAMPS or step == "0":
        return None
    red, green, blue = ink(np.ones((1, 3)), np.array([int(step) / STEPS]), kind)[0].tolist()
    if is_dark:
        hue, lightness, saturation = rgb_to_hls(red, green, blue)
        red, green, blue = hls_to_rgb(hue, 1 - (1 - DARK_PAPER) * lightness, saturation)
    paper = (red, green, blue)
    return paper, max(((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), key=lambda held: contrast(held, paper))


def contrast(first: Colour, second: Colour) -> float:
    """The contrast of two colours, 1 to 21, as WCAG defines it."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Colour) -> float:
    parts = np.array(colour)
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


# Pages


def word_styles() -> str:
    """The style sheet of all looks, by day and by night."""

    def rules(*, is_dark: bool) -> Iterator[str]:
        for look in (look for kind in RAMPS for look in looks_of(kind)):
            if held := paper_and_ink(look, is_dark=is_dark):
                yield f".{look} {{ background: {_hex(held[0])}; color: {_hex(held[1])}; }}"

    day, night = ("\n".join(rules(is_dark=is_dark)) for is_dark in (False, True))
    return f"{day}\n@media screen and (prefers-color-scheme: dark) {{\n{night}\n}}"


# Terminals


def for_terminal(words: Iterable[Word]) -> RichText:
    """Words on white paper, whatever the terminal's own."""
    base = Style(color=INK, bgcolor="#ffffff")
    text = RichText(style=base)
    for place, word in enumerate(words):
        held = paper_and_ink(word.look)
        style = None if held is None else Style(color=_hex(held[1]), bgcolor=_hex(held[0]))
        text.append(" " * bool(place)).append(word.text, style)
    return text


# Figures


class Placed(NamedTuple):
    """A word in a figure: how far from the side where lines begin, and in which line."""

    word: Word
    left: float
    line: int


def lay_out(words: Iterable[Word], wide: float, *, size: float) -> list[Placed]:
    """Break a text into lines of so many inches; a word that is wider than all is shortened."""
    space, left, line, placed = 0.7 * size / 72, 0.0, 0, list[Placed]()
    with boxes_for_glyphs():
        for word in words:
            text = fit(word.text, wide, size=size)
            width = text_width(text, size=size)
            if left and left + width > wide:
                left, line = 0.0, line + 1
            placed.append(Placed(word._replace(text=text), left, line))
            left += width + space
    return placed


def text_height(placed: Sequence[Placed], *, size: float) -> float:
    """How tall a text is, in inches."""
    return (placed[-1].line + 1) * LINE * size / 72 if placed else 0.0


def draw_words(axes: Axes, placed: Sequence[Placed], *, wide: float, size: float) -> None:
    """Draw a text into axes of so many inches, as tall as it is; it may run to the left."""
    axes.set(xlim=(0, wide), ylim=(text_height(placed, size=size), 0))
    axes.axis("off")
    to_left = runs_to_left(held.word.text for held in placed)
    for word, left, line in placed:
        held = paper_and_ink(word.look)
        colours = held or (None, MUTED if word.look == "rest" else INK)
        box = None if colours[0] is None else {"facecolor": colours[0], "linewidth": 0, "pad": 1.2}
        axes.text(
            wide - left if to_left else left,
            (line + 0.5) * LINE * size / 72,
            word.text,
            size=size,
            color=colours[1],
            bbox=box,
            ha="right" if to_left else "left",
            va="center_baseline",
        )


def runs_to_left(words: Iterable[str]) -> bool:
    """Whether a text is written from right to left: its first letter says so.

    >>> runs_to_left(["!", "שלום"]), runs_to_left(["a", "שלום"])
    (True, False)
    """
    directions = (unicodedata.bidirectional(letter) for word in words for letter in word)
    return next((found != "L" for found in directions if found in ("L", "R", "AL")), False)
