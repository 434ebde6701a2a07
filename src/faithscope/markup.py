"""HTML that people see: elements whose content is escaped, and the card that a notebook shows.

A name is written so that it stands there as it is and does nothing, whatever is in it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from markupsafe import Markup

FEW = 6
"""Up to so many sentences of a card are shown at once; more of them are folded."""

_CARD = "faithscope-card"
_LOOK = """
.X { max-width: 60rem; padding: .2rem 0; line-height: 1.45; }
.X p { margin: .25rem 0; }
.X .muted, .X small { opacity: .72; font-weight: normal; }
.X .warning { padding-left: .6rem; border-left: 3px solid #c7741f; }
.X .scroll { overflow-x: auto; margin: .5rem 0; }
.X table { border-collapse: collapse; margin: 0; color: inherit; font-size: inherit;
  font-variant-numeric: tabular-nums; }
.X wbr, .X .same { display: none; }
.X th, .X td { padding: .3rem .8rem .3rem 0; border: 0; text-align: right; vertical-align: top;
  white-space: nowrap; }
.X th:first-child { text-align: left; font-weight: 600; }
.X thead th { vertical-align: bottom; border-bottom: 1px solid rgba(128, 128, 128, .5); }
.X tbody tr + tr > * { border-top: 1px solid rgba(128, 128, 128, .22); }
.X td small, .X th small { display: block; font-size: .85em; }
.X .better, .X .worse { opacity: 1; font-weight: 600; }
.X .better { color: #2f80c4; }
.X .worse { color: #c4662a; }
.X ul { margin: .25rem 0; padding-left: 1.2rem; }
.X dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .35rem 0; }
.X dt { opacity: .72; font-weight: normal; }
.X small dt { opacity: 1; }
.X dd { margin: 0; overflow-wrap: anywhere; }
.X summary { cursor: pointer; }
.X .strip { display: flex; flex-wrap: wrap; gap: .4rem; margin: .4rem 0; }
.X .strip img { height: 64px; margin: 0; }
""".replace(".X", f".{_CARD}")


def tag(name: str, *content: Any, **attributes: Any) -> Markup:
    """An HTML element whose content and attributes are escaped; None leaves an attribute out.

    >>> tag("th", "a < b", class_="name", title=None)
    Markup('<th class="name">a &lt; b</th>')
    """
    given = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_"), keep_together(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(map(keep_together, content))
    return Markup("<{}{}>{}</{}>").format(name, given, inside, name)


def keep_together(text: Any) -> Any:
    """Plain text in which a number and its sign stay on one line; anything else as it is."""
    if type(text) is not str:
        return text
    return re.sub(r"(?<=[\d\]]) (?=%)", "\N{NO-BREAK SPACE}", text)


def breakable(name: str) -> Markup:
    """A name that a narrow column may break after a sign."""
    return Markup("<wbr>").join(re.split(r"(?<=[_:/])|(?=\()", keep_together(name)))


def card(title: str, *content: Markup) -> str:
    """What a notebook shows of an object; it takes its colours from there, light or dark."""
    heading = tag("p", tag("strong", title))
    # The tag for styles stands first: where a viewer removes it, the rest is readable without.
    return str(tag("div", tag("style", Markup(_LOOK)), heading, *content, class_=_CARD))


def facts(named: Mapping[str, Any]) -> Markup:
    """Names and what they are, one below the other; what is not known ("") is left out."""
    known = ((tag("dt", name), tag("dd", value)) for name, value in named.items() if value != "")
    return tag("dl", *chain.from_iterable(known))


def bullets(title: str, lines: Iterable[str]) -> Markup:
    """Sentences one below the other; many are folded below their title, none are nothing."""
    items = [tag("li", line) for line in lines]
    if not items:
        return Markup("")
    if len(items) <= FEW:
        return tag("ul", *items)
    return tag("details", tag("summary", f"{title} ({len(items)})"), tag("ul", *items))


def picture(content: bytes, kind: str, *, title: str = "") -> Markup:
    """An image that stands in the page itself; `kind` is "png" or "jpeg"."""
    source = f"data:image/{kind};base64,{b64encode(content).decode()}"
    return Markup('<img src="{}" alt="{}" title="{}">').format(source, title, title)
