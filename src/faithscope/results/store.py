"""A run that survives: each finished shard is kept in the run's folder until the result is whole.

    run/plan.json        what is being run; another request is refused
    run/shards/00007/    the tables of one shard and their hashes, renamed into place
    run/manifest.json    written last, with the whole tables; the shards are then gone

Killed at any moment, the same request goes on where it was and repeats at most one shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from faithscope.errors import FaithscopeError
from faithscope.results.files import parquet, replace_file, write_file
from faithscope.results.result import Result, load_result
from faithscope.results.schema import SCHEMAS


@dataclass(frozen=True, eq=False)
class Shard:
    """The tables of some samples, the hashes of their images, and what they cost."""

    tables: Mapping[str, pa.Table]
    digests: tuple[str, ...]
    cost: Mapping[str, float]
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class Store:
    """The folder of one run, open for writing by one process."""

    root: Path
    plan: Mapping[str, Any]

    @staticmethod
    @contextmanager
    def open(root: Path, plan: Mapping[str, Any]) -> Iterator[Store]:
        """Begin a run in a folder, or go on with the one that is there if it is the same."""
        root = Path(root)
        lock = FileLock(root / ".lock")
        try:
            with _writing(root):
                root.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
        except Timeout:
            raise FaithscopeError(
                f"Another run is writing to '{root}': wait for it, or give another folder."
            ) from None
        try:
            store = Store(root, plan)
            for unfinished in (root / "shards").glob(".unfinished-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            store._begin()
            yield store
        finally:
            lock.release()

    def _begin(self) -> None:
        file = self.root / "plan.json"
        if not file.exists():
            if (self.root / "manifest.json").exists():
                raise FaithscopeError(
                    f"'{self.root}' holds a result already: give another folder, or remove it."
                )
            with _writing(self.root):
                text = json.dumps(self.plan, indent=1, ensure_ascii=False)
                replace_file(file, text.encode())
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        differences = list(_differences(found, json.loads(json.dumps(self.plan))))
        if differences:
            raise FaithscopeError(
                f"'{self.root}' holds another run ({'; '.join(differences[:3])}): give another "
                "folder, or remove it."
            )

    def finished(self) -> Result | None:
        """The result, if the run is whole."""
        if not (self.root / "manifest.json").exists():
            return None
        result = load_result(self.root)
        if result.metrics != list(self.plan["metrics"]):
            raise FaithscopeError(
                f"'{self.root}' holds another result than its plan says: give another folder, or "
                "remove it."
            )
        return result

    def read(self, index: int) -> Shard | None:
        """A shard that was finished; None if it was not, or is damaged (which is said)."""
        folder = self._folder(index)
        if not folder.exists():
            return None
        try:
            card = json.loads((folder / "shard.json").read_text(encoding="utf-8"))
            tables = {}
            for name, schema in SCHEMAS.items():
                content = (folder / f"{name}.parquet").read_bytes()
                if _hash(content) != card["files"][name]:
                    raise ValueError(f"{name}.parquet is not what was written")
                tables[name] = pq.read_table(pa.BufferReader(content), schema=schema)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(
                f"The shard '{folder}' is damaged ({error}): it is computed again.", stacklevel=2
            )
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return Shard(tables, tuple(card["digests"]), card["cost"], card["notes"])

    def write(self, index: int, shard: Shard) -> None:
        """Keep a finished shard: all of it or nothing."""
        with _writing(self.root):
            (self.root / "shards").mkdir(exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=self.root / "shards", prefix=".unfinished-"))
            try:
                files = {}
                for name, table in shard.tables.items():
                    content = parquet(table)
                    files[name] = _hash(content)
                    write_file(temporary / f"{name}.parquet", content)
                card = {
                    "digests": shard.digests,
                    "cost": shard.cost,
                    "notes": shard.notes,
                    "files": files,
                }
                write_file(temporary / "shard.json", json.dumps(card).encode())
                os.replace(temporary, self._folder(index))
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise

    def finish(self, result: Result) -> None:
        """Write the whole result; what it was made of is then not needed any more."""
        result.save(self.root)
        shutil.rmtree(self.root / "shards", ignore_errors=True)

    def _folder(self, index: int) -> Path:
        return self.root / "shards" / f"{index:05d}"


def shards_in(root: Path) -> int:
    """How many shards of an unfinished run a folder holds."""
    return len(list((root / "shards").glob("[0-9]*")))


def batch_size_of(root: Path) -> int | None:
    """The batch size that was chosen for the run in a folder, if there is one."""
    try:
        chosen = json.loads((root / "plan.json").read_text(encoding="utf-8"))["batch_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return chosen if isinstance(chosen, int) else None


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:  # of the lock, which is an OSError, too
        raise
    except OSError as error:
        raise FaithscopeError(
            f"'{root}' cannot be written to ({error.strerror}): make room or give another folder; "
            "what is finished is kept, and the same command goes on from there."
        ) from error


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """What differs between two plans, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name} {key}".strip())
    elif there != here:
        yield f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
