"""The one error a user should ever see: a sentence that says what is wrong and what to do."""

from __future__ import annotations

import re
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr

LONGEST = 1000
"""Characters of a message; what stands in the middle of a longer one is left out."""
LONGEST_NAME = 200
"""Characters of a name in a message, and of one that is compared with those that are known."""

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 100, 100, 40


class FaithscopeError(ValueError):
    """Bad input, explained in one sentence; the command line prints it and exits with 2.

    `reason` is what is wrong alone, without the advice what to do. Both are one line of bounded
    length, whatever the names in it are.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(shortened(printable(message)))
        self.reason = shortened(printable(reason)) or str(self).rstrip(".")

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the lines of the user's own code, and the sentence.

        If an error of somebody else's code is behind it, that one comes first, whole.
        """
        behind = [] if self.__cause__ is None else traceback.format_exception(self.__cause__)
        steps = [
            step
            for step in traceback.walk_tb(self.__traceback__)
            if not _is_ours(step[0].f_globals.get("__name__", "IPython"))
        ]
        lines = traceback.StackSummary.extract(iter(steps)).format()
        text = "".join([*behind, *lines, f"{type(self).__name__}: {self}"])
        return text.splitlines()


def printable(text: str) -> str:
    r"""A text in which whatever a terminal would obey is written out.

    >>> print(printable("café \x1b[31mred\n"))
    café \x1b[31mred\n
    """
    if text.isprintable():
        return text
    return "".join(
        held
        if held.isprintable() or unicodedata.category(held) == "Zs"
        else held.encode("unicode_escape").decode("ascii")
        for held in text
    )


def shortened(text: str, most: int = LONGEST) -> str:
    """A text of bounded length: of a longer one, its beginning and its end, in whole words.

    >>> shortened("a" * 10 + "z" * 10, 11)
    'aaaaaa … zz'
    >>> shortened("nobody likes words that are cut", 22)
    'nobody likes … cut'
    """
    if len(text) <= most:
        return text
    last = (most - 3) // 3
    head = re.sub(r"(?<=\S)\s\S{0,30}$", "", text[: most - 3 - last + 1])[: most - 3 - last]
    tail = re.sub(r"^\S{0,30}\s(?=\S)", "", text[-last - 1 :])[-last:]
    return f"{head} … {tail}"


def check_encodable(what: str, name: str) -> None:
    """Refuse a name that cannot be written to a file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FaithscopeError(
            f"{what} {shown(name)} holds a character that cannot be written: rename it."
        ) from None


def first_line(error: Exception) -> str:
    """What an error says first, short enough for a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(lines[0].rstrip(".:"), 200)


def said(error: Exception) -> str:
    """An error of somebody's code in one line.

    >>> said(ValueError("no faces here"))
    'ValueError: no faces here'
    """
    first, *others = str(error).strip().splitlines() or [""]
    more = " …" if others else ""
    return f"{type(error).__name__}: {shortened(first, 200)}{more}".rstrip(": ")


def shown(value: object) -> str:
    """A value as a message shows it: its `repr`, cut where it is long or deep.

    >>> shown("a" * 200)[:5], len(shown("a" * 200)), shown([1, 2])
    ("'aaaa", 100, '[1, 2]')
    """
    try:
        return _SHORT.repr(value)
    except Exception:  # somebody's own __repr__
        return f"a {type(value).__name__}"


def quoted(name: object) -> str:
    """A name in quotes, cut where it is long."""
    return f"'{shortened(str(name), LONGEST_NAME)}'"


def unknown(kind: str, name: str, valid: Iterable[str]) -> FaithscopeError:
    """Say that a name is unknown, guess what was meant and list what there is.

    >>> str(unknown("metric", "sacco", ["aopc", "saco"]))
    "Unknown metric 'sacco': did you mean 'saco'? Valid: aopc, saco."
    """
    names, name = sorted(valid), shortened(name, LONGEST_NAME)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f": did you mean '{close[0]}'?" if close else "."
    shown = ", ".join(names)
    if len(names) > 40:
        nearest = get_close_matches(name, names, n=10, cutoff=0.0)
        shown = f"{', '.join(nearest)} and {len(names) - len(nearest)} more"
    return FaithscopeError(f"Unknown {kind} '{name}'{guess} Valid: {shown}.")


def warn(text: str) -> None:
    """Warn of something, at the line of the user's own code that called us."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("faithscope", "contextlib", "functools", "IPython")


def choose(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return `name` if it is one of `valid`, else raise the error that lists them."""
    names = list(valid)
    if not isinstance(name, str) or name not in names:
        raise unknown(kind, name if isinstance(name, str) else shown(name), names)
    return name
