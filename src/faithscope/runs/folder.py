"""The folder of a run that survives: written to by one process, for one plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from faithscope.errors import FaithscopeError
from faithscope.runs.files import replace_file


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Make the folder and keep every other process from writing to it."""
    lock = FileLock(root / ".lock")
    try:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise FaithscopeError(
            f"Another run is writing to '{root}': wait for it, or give another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def begin(root: Path, plan: Mapping[str, Any]) -> None:
    """Write what will be run; refuse a folder of another run, naming what differs."""
    if not is_begun(root, plan):
        with writing(root):
            content = json.dumps(plan, indent=1).encode()
            replace_file(root / "plan.json", content)


def is_begun(root: Path, plan: Mapping[str, Any]) -> bool:
    """Whether a folder holds the run of a plan; refuse one that holds another run."""
    file = root / "plan.json"
    if not file.exists():
        if (root / "manifest.json").exists():
            raise FaithscopeError(
                f"'{root}' holds a result already: give another folder, or remove it."
            )
        if (root / "jobs").exists() or (root / "packs").exists():
            raise FaithscopeError(
                f"'{root}' holds trainings but no plan.json that says what they are of: give "
                "another folder, or remove it."
            )
        return False
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not found:
            raise ValueError("it is no plan")
    except (OSError, ValueError, RecursionError):
        raise FaithscopeError(
            f"'{file}' is damaged, so it cannot be told what was run there: put it back, or give "
            "another folder."
        ) from None
    differing = list(differences(found, json.loads(json.dumps(plan))))
    if differing:
        raise FaithscopeError(
            f"'{root}' holds another run ({'; '.join(differing[:3])}): give another folder, or "
            "remove it."
        )
    return True


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Say in a sentence that the disk is full or the folder cannot be written to."""
    try:
        yield
    except Timeout:  # of the lock, which is an OSError, too
        raise
    except OSError as error:
        raise FaithscopeError(
            f"'{root}' cannot be written to ({error.strerror}): make room or give another folder; "
            "what is finished is kept, and the same command goes on from there."
        ) from error


def digest(content: bytes) -> str:
    """The hash by which a file is known to be what was written."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """What differs between two plans, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from differences(there.get(key), here.get(key), f"{name} {key}".strip())
    elif there != here:
        yield f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
