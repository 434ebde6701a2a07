"""The one error a user should ever see: a sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FaithscopeError(ValueError):
    """Bad input, explained in one sentence; the command line prints it and exits with 2.

    `reason` is what is wrong alone, without the advice what to do.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message.rstrip(".")


def unknown(kind: str, name: str, valid: Iterable[str]) -> FaithscopeError:
    """Say that a name is unknown, guess what was meant and list what there is.

    >>> str(unknown("metric", "sacco", ["aopc", "saco"]))
    "Unknown metric 'sacco': did you mean 'saco'? Valid: aopc, saco."
    """
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean '{close[0]}'? " if close else ""
    shown = ", ".join(names)
    if len(names) > 40:
        nearest = get_close_matches(name, names, n=10, cutoff=0.0)
        shown = f"{', '.join(nearest)} and {len(names) - len(nearest)} more"
    return FaithscopeError(f"Unknown {kind} '{name}': {guess}Valid: {shown}.")


def choose(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return `name` if it is one of `valid`, else raise the error that lists them."""
    names = list(valid)
    if name not in names:
        raise unknown(kind, str(name), names)
    return name
