"""Paths as people give them: one reader for all, so that `~` is a home folder everywhere."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

from faithscope.errors import FaithscopeError, shown
from faithscope.registry import parse_spec
from faithscope.request.remote import ADDRESS, RemotePath, remote_path

Place = Path | RemotePath
"""Where a run may lie: a folder here, or at an address such as s3://bucket/run."""
LONGEST_NAME, LONGEST_PATH = 255, 4095
"""In bytes, as file systems have them."""
MOST_BRACKETS = 100
"""More than a name with options has: each is tried as the one where the options begin."""


def as_path(value: Any, what: str = "The path") -> Path:
    """A path on this machine, with `~` expanded; what cannot be one is refused.

    Args:
        value: text, or anything that is a path to Python.
        what: begins the sentence, "The path" or the name of an argument.

    >>> as_path("runs/mine").parts
    ('runs', 'mine')
    """
    place = as_place(value, what)
    if isinstance(place, RemotePath):
        raise FaithscopeError(
            f"{what} '{place}' is not on this machine: give a file or folder here; only runs and "
            "their pages may lie elsewhere."
        )
    return place


def as_place(value: Any, what: str = "The path") -> Place:
    """A path, or the place of a run at an address; what cannot be one is refused."""
    if isinstance(value, RemotePath):
        return value
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
    if (address := ADDRESS.fullmatch(text)) is not None:
        if address[1].lower() not in ("file", "local"):
            return remote_path(text, what)
        text = address[2]
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


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the options off a name that may itself hold brackets, as paths do.

    >>> split_options("sets (old)/cifar(split=train)")
    ('sets (old)/cifar', {'split': 'train'})
    """
    text = text.strip()
    is_open = text.count("(") > text.count(")")
    if not (text.endswith(")") or is_open) or existing_path(text) is not None:
        return text, {}
    for bracket in islice(re.finditer(r"\(", text), MOST_BRACKETS):
        try:
            _, options = parse_spec(f"_{text[bracket.start() :]}")
        except FaithscopeError:
            continue
        return text[: bracket.start()].strip(), options
    return parse_spec(text)
