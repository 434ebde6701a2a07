"""Paths as people give them: one reader for all, so that `~` is a home folder everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from faithscope.errors import FaithscopeError, shown

LONGEST_NAME, LONGEST_PATH = 255, 4095
"""In bytes, as file systems have them."""


def as_path(value: Any, what: str = "The path") -> Path:
    """A path with `~` expanded; what cannot be one is refused.

    Args:
        value: text, or anything that is a path to Python.
        what: begins the sentence, "The path" or the name of an argument.

    >>> as_path("runs/mine").parts
    ('runs', 'mine')
    """
    try:
        text = os.fsdecode(os.fspath(value))
    except Exception:  # somebody's own __fspath__, too
        text = ""
    if not text and isinstance(value, str):
        raise FaithscopeError(f"{what} is empty: give a file or folder.")
    if not text:
        raise FaithscopeError(f"{what} must be a path, got {shown(value)}.")
    try:
        names = os.fsencode(text)
    except UnicodeEncodeError:
        names = b"\0"
    if b"\0" in names:
        raise FaithscopeError(f"{what} {shown(text)} holds a character that no file name can have.")
    if len(names) > LONGEST_PATH or any(len(name) > LONGEST_NAME for name in names.split(b"/")):
        raise FaithscopeError(
            f"{what} {shown(text)} is too long: a name has at most {LONGEST_NAME} bytes, a path "
            f"{LONGEST_PATH}."
        )
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise FaithscopeError(
            f"{what} {shown(text)} begins with the home folder of nobody who is known here: write "
            "it in full, from '/'."
        ) from None


def existing_path(value: Any) -> Path | None:
    """The path of something that is there, or None: of what is none, too."""
    try:
        path = as_path(value)
        return path if path.exists() else None
    except (FaithscopeError, OSError):  # no path, or one whose folder may not be looked into
        return None
