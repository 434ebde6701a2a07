"""What befalls a run: damaged files, full disks, kills. And what must be left afterwards."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faithscope.runs import files


def content_of(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}


def cards_in(root: Path) -> int:
    """How many tasks are finished."""
    return len(list(root.glob("tasks/[!.]*.json")))


def leftovers(root: Path) -> list[Path]:
    """Files that were not written to their end."""
    return [file for file in root.rglob(".*") if file.name != ".lock"]


def harm(file: Path, how: str, place: int = -20, bits: int = 1) -> None:
    """Let a file be "gone", "cut" or "flipped" in one place."""
    content = bytearray(file.read_bytes())
    if how == "gone":
        return file.unlink()
    if how == "cut":
        del content[len(content) // 2 :]
    else:
        content[place] ^= bits
    file.write_bytes(content)


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """After so many files there is room for half a file."""
    write, left = files.write_file, [room]

    def fill_up(path: Path, chunks: Iterable[bytes]) -> None:
        content = b"".join(chunks)
        left[0] -= 1
        if left[0] < 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, [content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_file", fill_up)
        yield


@contextmanager
def another_process(work: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    """Work in a process of its own, which is killed in the end."""
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


def kill_again_and_again(
    work: Callable[..., Any], out: Path, *, times: int, seed: int = 0, done: Callable[[Path], int]
) -> None:
    """Kill a run so many times; what is done is never less than before, and something at last."""
    draw, kept, patience = random.Random(seed), [0], 0.5
    while len(kept) <= times or kept[-1] == 0:
        with another_process(work, out):
            time.sleep(draw.uniform(0.02, patience))
        patience *= 1.0 if kept[-1] else 1.3  # a busy machine needs longer for its first task
        kept.append(done(out))
    assert kept == sorted(kept)


class Killed(BaseException):
    """What stands for a kill by -9: nothing that comes after it is done either."""


OPERATIONS = ("open", "read", "fsync", "replace", "mkdir", "unlink", "lock")


@contextmanager
def failing(
    root: Path,
    error: int | type[BaseException],
    *,
    at: int = 0,
    lasts: bool = True,
    operations: tuple[str, ...] = OPERATIONS,
) -> Iterator[list[str]]:
    """Let an operation on files below a folder fail, alone or with all that follow.

    `error` is a number, as errno.EIO, or an exception; `at` how many operations go well before.
    Gives the operations that were counted.
    """
    seen: list[str] = []
    lock = threading.Lock()

    def watched(real: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            operation = name(*args, **options)
            if operation not in operations or not _is_below(root, args[0]):
                return real(*args, **options)
            with lock:
                place = len(seen)
                seen.append(operation)
            if place == at or (lasts and place > at):
                if isinstance(error, int):
                    raise OSError(error, os.strerror(error), str(args[0]))
                raise error
            return real(*args, **options)

        return call

    def opened(_: Any, mode: str = "r", *__: Any, **___: Any) -> str:
        return "read" if set(mode) <= set("rbt") else "open"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", watched(io.open, opened))
        for place, operation in {
            "fsync": "fsync",
            "replace": "replace",
            "mkdir": "mkdir",
            "unlink": "unlink",
            "open": "lock",
        }.items():
            patch.setattr(os, place, watched(getattr(os, place), lambda *_, o=operation, **__: o))
        yield seen


def _is_below(root: Path, where: Any) -> bool:
    """Whether a path, or that of an open file, lies in a folder."""
    path = os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where
    return Path(path).is_relative_to(root)
