"""How our figures look, and how a figure becomes a file, or SVG in the colours of the page."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError
from faithscope.markup import keep_together
from faithscope.runs.files import write_output

Array = NDArray[np.float64]
Look = Mapping[str, Any]
"""Colour, marker and dash of a line."""

INK, MUTED, LINE, BAND = "#1b2330", "#5b6675", "#d9dee5", "#e3e7ec"
BETTER, WORSE = "#0a6fb3", "#c4501b"
SERIES = (
    "#0b74b8",
    "#d1601a",
    "#148a68",
    "#b0478f",
    "#8a7a12",
    "#3fa7d6",
    "#7a52c7",
    "#c23b4e",
)
"""Lines that people who see few colours can distinguish, on white and (restyled) on black."""

WIDTH = 10.0
"""Of a plot, in inches."""
MARKERS = dict(zip("osD^vPX*<", "●■◆▲▼✚✖★◀", strict=True))
"""Of lines, and what stands for them in words; one more than colours, so pairs do not repeat."""
DASHES = {"-": "─{}─", "--": "–{}–", "-.": "–{}·", ":": "·{}·"}
UNMARKED = {"--": "– – –", ":": "·····"}
"""What stands for a dash around a marker, and without one."""
SUFFIXES = (".png", ".pdf", ".svg")
DPI, SCREEN_DPI = 200, 110
"""Of files, and of what a notebook shows."""
LEGEND = 2.4
"""Width of a legend at the right, in inches."""
MOST_PIXELS = 60_000
"""Longest side matplotlib draws, with some room."""

NOTES = {
    "nan": "not drawn: the map\nholds NaN or infinity",
    "constant": "constant map:\nit ranks nothing",
}
SCALES = {"plain": ("lowest", "highest"), "signed": ("negative", "positive")}

_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    BAND: "band",
    BETTER: "better",
    WORSE: "worse",
    **{colour: f"series-{number}" for number, colour in enumerate(SERIES)},
}
_BREAK = "\N{ZERO WIDTH SPACE}"
_PAINT = re.compile(rf"((?:fill|stroke): )({'|'.join(_VARIABLES)})\b")
_OWN_SETTINGS = {
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # a label is a name: "$" in it is a dollar sign
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "faithscope",  # the same run gives the same page, byte for byte
}


@contextmanager
def house_style() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults; the user's come back afterwards."""
    with style.context(["default", _OWN_SETTINGS]):
        yield


class Drawing(Figure):
    """A figure in our style whenever it is drawn, which a notebook shows by itself.

    pyplot does not know it, so that nothing is shown twice.
    """

    def draw(self, renderer: Any) -> None:
        with house_style(), boxes_for_glyphs():
            super().draw(renderer)

    def get_tightbbox(self, *args: Any, **options: Any) -> Any:
        with house_style(), boxes_for_glyphs():
            return super().get_tightbbox(*args, **options)

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=SCREEN_DPI, bbox_inches="tight")
        return content.getvalue()


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure with its name and heading, and words for those who cannot see or read it.

    `looks` are those of its lines by their names, which stand beside the figure: in a file at its
    right, on a page above it, where they may wrap. One `on_paper` is on white paper by night, too.
    """

    name: str
    title: str
    figure: Figure
    description: str
    caption: str
    looks: Mapping[str, Look] = field(default_factory=dict)
    on_paper: bool = False

    def svg(self) -> str:
        """Inline SVG for a page."""
        return to_svg(self.figure, self.description)

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """For a page: a sign of every line, its colour and its name."""
        return [
            (
                DASHES[look.get("linestyle", "-")].format(MARKERS[look["marker"]])
                if "marker" in look
                else UNMARKED[look["linestyle"]],
                page_colour(look["color"]),
                name,
            )
            for name, look in self.looks.items()
        ]

    def save(self, path: str | Path) -> Path:
        """Write the figure in the format of the suffix: .pdf, .png or .svg."""
        with house_style():
            legend = self._add_legend(self.figure, bbox_to_anchor=(0.99, 0.97))
            save_figure(self.figure, Path(path), crop=True)
            legend.remove()
        return Path(path)

    def whole(self, axes: Sequence[Axes] | None = None) -> Figure:
        """The figure with its legend inside: at the right, or in the last of axes that were given.

        It is changed in place.
        """
        if self.looks:
            with house_style():
                if axes is None:
                    share = 1 - LEGEND / float(self.figure.get_size_inches()[0])
                    for panel in self.figure.axes:
                        box = panel.get_position()
                        panel.set_position((share * box.x0, box.y0, share * box.width, box.height))
                    self._add_legend(self.figure, bbox_to_anchor=(share, 0.97))
                else:
                    self._add_legend(axes[-1], loc="best", fontsize="small")
        return self.figure

    def _add_legend(self, owner: Figure | Axes, **place: Any) -> Any:
        """A legend of all lines."""
        handles = [Line2D([], [], **look) for look in self.looks.values()]
        numbers = [str(number) for number in range(len(handles))]
        legend = owner.legend(handles, numbers, **{"loc": "upper left", "handlelength": 3, **place})
        # Written afterwards: matplotlib leaves out labels that begin with an underscore.
        for text, name in zip(legend.get_texts(), self.looks, strict=True):
            text.set(text=shorten(name, 26), color=INK)
        legend.set_in_layout(bool(handles))
        return legend


def colours(scaled: Array, kind: str) -> Array:
    """Colours of a map's scale: -1…1 if "signed", else 0…1.

    Shapes: [...] -> [..., 3] in 0…1.
    """
    if kind == "signed":
        scale, place = "RdBu_r", 0.5 + 0.5 * np.sign(scaled) * (0.35 + 0.65 * np.abs(scaled))
    else:
        scale, place = "BuPu", 0.15 + 0.85 * scaled
    found: Array = colormaps[scale](place)[..., :3]
    return found


def ink(paper: Array, scaled: Array, kind: str) -> Array:
    """Colour values of -1…1 ("signed") or 0…1 ("plain"), the more opaque the stronger."""
    opacity = 0.92 * np.abs(scaled)[..., None] ** 0.75
    painted: Array = (1 - opacity) * paper + opacity * colours(scaled, kind)
    return painted


def wrap_label(text: str, width: int, *, lines: int = 3) -> str:
    r"""Break a label into lines at spaces, after ``_`` or before ``(``; the end of a long one goes.

    >>> wrap_label("transformer_attribution", 14)
    'transformer_\nattribution'
    """
    together = re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)
    loose = re.sub(r"(?<=_)(?=\S)|(?<=\S)(?=\()", _BREAK, together)
    broken = wrap(loose.replace(_BREAK, f"{_BREAK} "), width, max_lines=lines, placeholder="…")
    return "\n".join(line.replace(f"{_BREAK} ", "").replace(_BREAK, "") for line in broken)


def shorten(text: str, width: int) -> str:
    """Keep a label to one line; a long one loses its middle, as its end may tell it apart.

    >>> shorten("a_long_name(steps=20)", 12)
    'a_long…ps=20)'
    """
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[-(width // 2) :]}"


def text_width(text: str, *, size: float, weight: str = "normal") -> float:
    """How wide a line is, in inches."""
    font = FontProperties(size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def fit(text: str, width: float, *, size: float, weight: str = "normal", lines: int = 1) -> str:
    """Break or shorten a text so that no line of it is wider than so many inches."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)

    def tried(characters: int) -> str:
        if lines == 1:
            return shorten(plain, characters)
        return wrap_label(plain, characters, lines=lines)

    def too_wide(characters: int) -> bool:
        widths = (
            text_width(line, size=size, weight=weight) for line in tried(characters).split("\n")
        )
        return max(widths) > 0.97 * width  # screens round letters up to whole pixels

    counts = range(4, max(5, len(plain) + 1))
    return tried(counts[max(0, bisect_left(counts, True, key=too_wide) - 1)])


def to_svg(figure: Figure, description: str) -> str:
    """Write a figure as inline SVG whose colours are CSS variables of the page, with fallbacks."""
    buffer = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with house_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg ") :].strip()
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)  # ids must be unique in a page
    drawing = _PAINT.sub(lambda m: f"{m[1]}{page_colour(m[2])}", drawing)
    label = f'<svg role="img" aria-label="{escape(keep_together(description))}" '
    return drawing.replace("<svg ", label, 1)


def page_colour(colour: str) -> str:
    """One of our colours as a variable of the page, which has another value in the dark."""
    return f"var(--{_VARIABLES[colour]}, {colour})"


def check_suffix(file: Path) -> None:
    """Refuse a file of a format that figures are not written in."""
    if file.suffix.lower() not in SUFFIXES:
        raise FaithscopeError(f"Figures are written as {', '.join(SUFFIXES)}, got '{file.name}'.")


def save_figure(figure: Figure, file: Path, *, crop: bool = False) -> None:
    """Write a figure in the format of the suffix, no larger than matplotlib can draw."""
    dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
    content = BytesIO()
    kind = file.suffix[1:].lower()
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # same run, same bytes
    with house_style(), boxes_for_glyphs():
        figure.savefig(
            content,
            format=kind,
            dpi=dpi,
            bbox_inches="tight" if crop else None,
            metadata=dates.get(kind),
        )
    write_output(file, content.getvalue(), "figure")


@contextmanager
def boxes_for_glyphs() -> Iterator[None]:
    """Say nothing of letters that the font does not have: a box stands for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def given_axes(axes: Sequence[Axes], count: int) -> tuple[Figure, Sequence[Axes]]:
    """Axes to draw in and their figure; a wrong number of them is refused."""
    if len(axes) != count:
        raise FaithscopeError(
            f"This plot has {count} panel{'s' * (count != 1)}, got {len(axes)} axes: give one axes "
            "for each panel, or choose what is drawn."
        )
    return axes[0].figure.figure, axes  # of a subfigure, the whole one


def heading(axes: Axes, text: str) -> None:
    """The title of a panel."""
    axes.set_title(text, loc="left", weight="bold", size=9)


def tidy(axes: Axes) -> None:
    """Thin lines behind, no ticks."""
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED)
