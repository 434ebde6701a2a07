"""A run that survives: each finished shard is kept in the run's folder until the result is whole.

    run/plan.json        what is being run; another request is refused
    run/shards/00007/    the tables of one shard and their hashes, renamed into place
    run/manifest.json    written last, with the whole tables; the shards are then gone

Killed at any moment, the same request goes on where it was and repeats at most one shard.
"""

from __future__ import annotations

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

from faithscope.errors import FaithscopeError
from faithscope.result import Result, load_result
from faithscope.runs.files import parquet, write_file
from faithscope.runs.folder import begin, digest, locked, writing
from faithscope.runs.schema import SCHEMAS


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
        with locked(root):
            for unfinished in (root / "shards").glob(".unfinished-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            begin(root, plan)
            yield Store(root, plan)

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
                if digest(content) != card["files"][name]:
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
        with writing(self.root):
            (self.root / "shards").mkdir(exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=self.root / "shards", prefix=".unfinished-"))
            try:
                files = {}
                for name, table in shard.tables.items():
                    content = parquet(table)
                    files[name] = digest(content)
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
