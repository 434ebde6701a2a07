"""Who may write to the folder of a run: one process at a time, and it may be killed at any moment.

A folder of this machine is locked by the system (`flock`), which lets go when the holder dies. At
an address nobody does that. There the lock is a file that only one can create:

    run/.lock/000001.json    who holds it, and a beat that the holder counts up every few seconds

Whoever finds such a file takes over by creating the next number: at once if the holder was on this
very machine and is dead, else after its beat has stood still for a lease, by the finder's own
clock; two machines' clocks are never compared. A holder that sees a higher number, or cannot show
that it is alive for half a lease, does not write any more.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from faithscope.errors import FaithscopeError, warn
from faithscope.request.paths import Place
from faithscope.request.remote import RemotePath
from faithscope.runs.files import StoreError, writing

BEAT = 5.0
"""Seconds between two signs of life."""
LEASE = 20.0
"""Seconds without one after which somebody else takes over."""
_HELD: set[str] = set()
"""The tokens of this process, which may have failed to remove the file of an earlier lock."""


def _nothing() -> None:
    """A lock of the system needs no second look."""


MOMENT = 0.5
"""Seconds after which a lock is held by a run."""


@dataclass(frozen=True, eq=False)
class Lock:
    """A lock that is held; with a `refusal`, which says why, nothing can be written."""

    refusal: FaithscopeError | None = None
    check: Callable[[], None] = _nothing
    """Refuse to go on if somebody else has it by now."""


@contextmanager
def locked(root: Place, *, reads: bool = False, name: str = ".lock") -> Iterator[Lock]:
    """Make the folder and keep every other process from writing to it.

    With `reads`, a folder that is there and cannot be written to is no error: gives what it is.
    """
    lock = RemoteLock(root) if isinstance(root, RemotePath) else FileLock(root / name)
    held = Lock(check=lock.check) if isinstance(lock, RemoteLock) else Lock()
    try:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            # whoever looks for abandoned folders holds the lock of a new one for a moment
            lock.acquire(timeout=MOMENT if isinstance(lock, FileLock) else 0)
    except Timeout:
        raise FaithscopeError(
            f"Another run is writing to '{root}': wait for it, or choose another folder."
        ) from None
    except FaithscopeError as error:
        if not (reads and _is_folder(root)):
            raise
        held = Lock(error)
    try:
        yield held
    finally:
        lock.release()


def _is_folder(root: Place) -> bool:
    try:
        return root.is_dir()
    except OSError:
        return False


class RemoteLock:
    """The lock of a folder at an address."""

    def __init__(self, root: RemotePath) -> None:
        self.root, self.folder = root, root / ".lock"
        self.token = secrets.token_hex(8)
        self.generation = self.beat = 0
        self.last = 0.0
        self.lost: FaithscopeError | None = None
        self._beating = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, timeout: float = 0) -> None:
        """Take the lock, or raise a Timeout if somebody who is alive has it."""
        _HELD.add(self.token)  # before it can be seen
        try:
            while not self._take():
                pass
        except BaseException:
            _HELD.discard(self.token)
            raise
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Refuse to go on if the lock is lost; make sure if that is not known."""
        if self.lost is None and _clock() - self.last > LEASE / 2:
            self._show_life()
        if self.lost is not None:
            raise self.lost

    def release(self) -> None:
        """Let go: the file goes, with those of earlier holders that were killed."""
        if self._thread is None:
            return
        self._end.set()
        self._thread.join(LEASE)
        self._thread = None
        _HELD.discard(self.token)
        if self.lost is None:
            with suppress(OSError):  # then it will be found dead
                for number in sorted(self._generations()):
                    if number <= self.generation:
                        self._file(number).unlink(missing_ok=True)

    def _take(self) -> bool:
        """Whether the lock could be taken; if not, look again, since something has changed."""
        number = max(self._generations(), default=0)
        before = None
        if number:
            try:
                before = self._file(number).read_bytes()
            except FileNotFoundError:  # let go this moment
                return False
            if not self._is_dead(number, before):
                return False
        self.generation = number + 1
        now = _clock()
        if not self._file(self.generation).create(self._content()):
            return False
        # Another may have taken over, finished and let go since we looked, and a third begun anew.
        if before is not None and self._read(number) != before:
            self._file(self.generation).unlink(missing_ok=True)
            return False
        self.last = now
        if number:
            self._file(number).unlink(missing_ok=True)
        return True

    def _is_dead(self, number: int, content: bytes) -> bool:
        """Whether a holder is dead; a Timeout if it is alive, False if it has let go."""
        try:
            owner = json.loads(content)
            there, process, started = (owner[key] for key in ("host", "process", "started"))
            token = owner["token"]
        except (ValueError, TypeError, KeyError):  # no lock of ours: nobody counts it up
            there = process = started = token = None
        if there is not None and there == _host():
            is_own = process == os.getpid() and token not in _HELD
            if is_own or started is None or _started(process) != started:
                return True
            raise Timeout(str(self._file(number)))
        warn(
            f"'{self.root}' is locked by a process on another machine: waiting {LEASE:.0f} s to "
            "see if it is alive."
        )
        until = _clock() + LEASE
        while _clock() < until:
            time.sleep(min(1.0, LEASE / 10))
            found = self._read(number)
            if found is None:
                return False
            if found != content:
                raise Timeout(str(self._file(number)))
        return True

    def _keep_beating(self) -> None:
        while not self._end.wait(BEAT):
            with suppress(OSError):  # `check` sees how long ago the last one was
                self._show_life()
            if self.lost is not None:
                return

    def _show_life(self) -> None:
        """Look if the lock is still ours, and count up the beat if it is."""
        with self._beating:
            now, newest = _clock(), max(self._generations(), default=0)
            found = self._read(self.generation)
            is_others = found is not None and self.token.encode() not in found
            if newest > self.generation or is_others:
                self.lost = StoreError(
                    f"Another run has taken over '{self.root}', since this one was silent for "
                    f"more than {LEASE:.0f} s: wait for it, and run the same command again."
                )
            elif found is None:
                self.lost = StoreError(
                    f"The lock of '{self.root}' is gone, and maybe what was finished there with "
                    "it: run the same command to resume, or to begin anew."
                )
            else:
                self.beat += 1
                self._file(self.generation).write_bytes(self._content())
                self.last = now

    def _generations(self) -> set[int]:
        names = [file.stem for file in self.folder.iterdir()]
        return {int(name) for name in names if name.isdecimal()}

    def _file(self, number: int) -> RemotePath:
        return self.folder / f"{number:06d}.json"

    def _read(self, number: int) -> bytes | None:
        try:
            return self._file(number).read_bytes()
        except FileNotFoundError:
            return None

    def _content(self) -> bytes:
        owner: dict[str, Any] = {"token": self.token, "host": _host(), "process": os.getpid()}
        owner |= {"started": _started(os.getpid()), "beat": self.beat}
        return json.dumps(owner).encode()


def _clock() -> float:
    """Seconds that pass while a machine sleeps, too."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _host() -> str | None:
    """This machine, since it was started and as far as it shares its numbers of processes.

    None elsewhere than on Linux: there a lease decides.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(process: Any) -> str | None:
    """When a process of this machine began; None if there is none."""
    try:
        return Path(f"/proc/{int(process)}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, ValueError, TypeError, IndexError):
        return None
