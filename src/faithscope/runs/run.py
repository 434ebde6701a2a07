"""A run: a typed manifest and tables, in memory or in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from faithscope.errors import FaithscopeError, choose
from faithscope.request.paths import Place, as_place
from faithscope.request.remote import RemotePath
from faithscope.runs.checks import check_tables
from faithscope.runs.files import (
    reason,
    replace_file,
    sealed,
    unreadable,
    unsealed,
)
from faithscope.runs.manifest import Manifest
from faithscope.runs.saved import Rows, SavedTable, open_rows, parts_of, read_rows, write_rows
from faithscope.runs.tables import SCHEMAS


def _table(name: str, about: str) -> property:
    return property(lambda run: run.get_table(name), doc=about)


@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind: its manifest, and its tables by name.

    A large table of a run in a folder stays in its file, and is read whenever it is asked for.
    """

    manifest: Manifest
    tables: Mapping[str, Rows] = field(repr=False)

    def get_table(self, name: str, *columns: str) -> pa.Table:
        """One of its tables, or some of its columns, in memory; empty if the run has none."""
        return read_rows(self._rows(name), *columns)

    def parts(self, name: str, *columns: str) -> Iterator[pa.Table]:
        """The same, some thousand rows at a time."""
        return parts_of(self._rows(name), *columns)

    def count(self, name: str) -> int:
        """How many rows one of its tables has."""
        rows: int = self._rows(name).num_rows
        return rows

    def _rows(self, name: str) -> Rows:
        return self.tables.get(choose("table", name, SCHEMAS), SCHEMAS[name].empty_table())

    scores = _table("scores", "Every score: model, data, training, sample, method, metric, value …")
    responses = _table("responses", "What the model answered, by span.")
    samples = _table("samples", "The intact samples: label, target, predicted class, log-p.")
    maps = _table("maps", "Every map: whether it is finite and constant, its units, its K.")
    pictures = _table("pictures", "Small pictures of samples and maps.")
    trainings = _table("trainings", "Every point of every curve.")
    sparsity = _table("sparsity", "The share of the scores that the top tokens hold.")
    examples = _table("examples", "A few texts, level by level.")


def check_defined(scores: Rows) -> None:
    """Refuse a score that is not defined, as `strict` asks."""
    missing = (part.filter(pc.is_nan(part["value"])) for part in parts_of(scores))
    row = next((part.slice(0, 1).to_pylist()[0] for part in missing if part.num_rows), None)
    if row is None:
        return
    of = f"'{row['sample']}'" if row["sample"] is not None else f"seed {row['training']}"
    why = f" ({row['flag']})" if row["flag"] else ""
    raise FaithscopeError(
        f"{row['metric']} of '{row['method']}' is not defined for {of}{why}, so it would be left "
        "out, which strict forbids: fix the cause, or leave strict out."
    )


def is_run(folder: Place) -> bool:
    """Whether a folder holds a finished run."""
    try:
        return (folder / "manifest.json").exists()
    except OSError as error:
        if isinstance(folder, Path):  # a name too long to be one
            return False
        raise unreadable(folder, error) from error


def save_run(run: Run, folder: Place) -> Run:
    """Write tables, then manifest.json: a folder without that is not a whole run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    hashes, tables = dict[str, str](), dict[str, Rows]()
    for name in SCHEMAS:
        file = folder / f"{name}.parquet"
        if name not in run.tables:
            file.unlink(missing_ok=True)
            continue
        rows = run.tables[name]
        if isinstance(rows, SavedTable) and rows.is_in(file):
            hashes[file.name], tables[name] = rows.digest, rows
        else:
            hashes[file.name], tables[name] = write_rows(file, parts_of(rows))
    manifest = run.manifest.model_copy(update={"files": hashes})
    replace_file(folder / "manifest.json", sealed(manifest.content()))
    return replace(run, manifest=manifest, tables=tables)


def load_run(folder: str | Place) -> Run:
    """Read a finished run; every file must be what was written."""
    root = as_place(folder)
    try:
        manifest = _read_manifest(root / "manifest.json")
        tables = dict[str, Rows]()
        for file, expected in manifest.files.items():
            name = file.removesuffix(".parquet")
            if name not in SCHEMAS:
                raise ValueError(f"'{file[:100]}' is no table of a run")
            tables[name] = open_rows(root / f"{name}.parquet", expected, SCHEMAS[name])
        check_tables(manifest.plan, tables)
        if "samples" in tables and tables["samples"].num_rows != manifest.data.samples:
            raise ValueError("there are not as many samples as it says")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(root, RemotePath) and isinstance(error, OSError):
            if not isinstance(error, FileNotFoundError):  # no answer: it may be whole
                raise unreadable(root, error) from error
        raise FaithscopeError(
            f"'{folder}' is not a whole faithscope run ({reason(error)}): run the command that "
            "made it again, or give the folder of another run.",
            reason=reason(error),
        ) from None
    return Run(manifest, tables)


def _read_manifest(file: Place) -> Manifest:
    held = _unsealed(file)
    try:
        return Manifest.read(held)
    except ValidationError as error:
        raise ValueError(f"{file.name}: {reason(error)}") from None


def _unsealed(file: Place) -> dict[str, Any]:
    content = file.read_bytes()
    try:
        return unsealed(content)
    except ValueError as error:
        try:
            older = "format" in json.loads(content)
        except (ValueError, TypeError, RecursionError):
            older = False
        if older and str(error) == "it carries no hash":
            raise ValueError("it was made by another version of faithscope") from None
        raise ValueError(f"manifest.json: {error}") from None
