"""The rows of a run, in memory or left in their files: large tables are read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from faithscope.errors import FaithscopeError
from faithscope.hashing import digest_of
from faithscope.request.paths import Place
from faithscope.runs.files import (
    GROUP,
    open_parquet,
    read_checked,
    read_groups,
    read_parquet,
    reason,
    write_parquet,
)
from faithscope.runs.tables import joined


@dataclass(frozen=True, eq=False)
class SavedTable:
    """A table in its file, of which no more than the rows at hand is ever in memory.

    The file must stay what it was when its hash was taken; its path holds from any folder.
    """

    file: Path
    digest: str
    num_rows: int
    mark: tuple[int, ...]
    """By which a file is known to be the same, without reading it again."""

    def is_in(self, file: Place) -> bool:
        """Whether it is this file, whatever way leads to it, still as it was."""
        return isinstance(file, Path) and file.is_file() and _mark(file.stat()) == self.mark

    def parts(self, *columns: str) -> Iterator[pa.Table]:
        """Its rows, a few thousand at a time, or some of its columns."""
        try:
            with self.file.open("rb") as file:
                if _mark(os.fstat(file.fileno())) != self.mark:
                    raise ValueError("it is not what was written")
                yield from read_groups(pq.ParquetFile(file), columns or None)
        except (OSError, ValueError) as error:
            raise FaithscopeError(
                f"'{self.file}' cannot be read any more ({reason(error)}): a large table stays in "
                "its file, so keep the folder of a run where it is, or load the run again."
            ) from None


Rows: TypeAlias = pa.Table | SavedTable
"""A table, wherever it is."""


def parts_of(rows: Rows, *columns: str) -> Iterator[pa.Table]:
    """The rows of a table, part by part, or some of its columns."""
    if isinstance(rows, SavedTable):
        yield from rows.parts(*columns)
    else:
        yield rows.select(columns) if columns else rows


def read_rows(rows: Rows, *columns: str) -> pa.Table:
    """A table in memory, or some of its columns."""
    if isinstance(rows, SavedTable):
        return joined([*rows.parts(*columns)])
    return rows.select(columns) if columns else rows


def write_rows(file: Place, parts: Iterable[pa.Table]) -> tuple[str, Rows]:
    """Put a table into place; gives its hash and the table, which is left there if it is large."""
    held, rows, size, is_left = list[pa.Table](), 0, 0, isinstance(file, Path)

    def passing() -> Iterator[pa.Table]:
        nonlocal rows, size
        for part in parts:
            rows, size = rows + part.num_rows, size + part.nbytes
            held.append(part)
            if is_left and size > GROUP:
                held.clear()
            yield part

    digest = write_parquet(file, passing())
    if isinstance(file, Path) and size > GROUP:
        return digest, SavedTable(file.absolute(), digest, rows, _mark(file.stat()))
    return digest, joined(held)


def open_rows(file: Place, digest: str, schema: pa.Schema) -> Rows:
    """A table that was written, left in its file if it is large; a ValueError if it is another."""
    if not isinstance(file, Path):
        return read_parquet(read_checked(file, digest), schema)
    with file.open("rb") as held:
        if digest_of(held) != digest:
            raise ValueError(f"{file.name} is not what was written")
        mark = _mark(os.fstat(held.fileno()))
        found = open_parquet(held, mark[0], schema)
        if found.num_row_groups > 1 or mark[0] > GROUP:
            return SavedTable(file.absolute(), digest, found.metadata.num_rows, mark)
        return joined([*read_groups(found)] or [schema.empty_table()])


def _mark(about: os.stat_result) -> tuple[int, ...]:
    return about.st_size, about.st_mtime_ns, about.st_ino
