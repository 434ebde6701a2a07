"""How our figures look, and how a figure becomes SVG that follows the colours of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from textwrap import wrap

import numpy as np
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

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
"""Lines that people who see few colours can tell apart, on white and (restyled) on black."""

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


def wrap_label(text: str, width: int, *, lines: int = 3) -> str:
    r"""Break a label into lines at spaces, after ``_`` or before ``(``; the end of a long one goes.

    >>> wrap_label("transformer_attribution", 14)
    'transformer_\nattribution'
    """
    together = re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)
    loose = re.sub(r"(?<=_)(?=\S)|(?<=\S)(?=\()", _BREAK, together)
    broken = wrap(loose.replace(_BREAK, f"{_BREAK} "), width, max_lines=lines, placeholder="…")
    return "\n".join(line.replace(f"{_BREAK} ", "").replace(_BREAK, "") for line in broken)


def number(value: float) -> str:
    """A score as people write it.

    >>> number(-0.314), number(-0.0)
    ('−0.314', '0.000')
    """
    return f"{value:z.3f}".replace("-", "−")


def shorten(text: str, width: int) -> str:
    """Keep a label to one line; a long one loses its middle, as its end may tell it apart.

    >>> shorten("a_long_name(steps=20)", 12)
    'a_long…ps=20)'
    """
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[-(width // 2) :]}"


def to_svg(figure: Figure, description: str) -> str:
    """Write a figure as inline SVG whose colours are CSS variables of the page, with fallbacks."""
    buffer = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with house_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg ") :].strip()
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)  # ids must be unique in a page
    drawing = _PAINT.sub(lambda m: f"{m[1]}var(--{_VARIABLES[m[2]]}, {m[2]})", drawing)
    label = f'<svg role="img" aria-label="{escape(description)}" '
    return drawing.replace("<svg ", label, 1)


def heading(axes: Axes, text: str) -> None:
    """The title of a panel."""
    axes.set_title(text, loc="left", weight="bold", size=9)


def tidy(axes: Axes) -> None:
    """Thin lines behind, no ticks."""
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=MUTED)
