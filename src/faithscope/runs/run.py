"""A run: a typed manifest and tables, in memory or in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from faithscope.errors import FaithscopeError
from faithscope.runs.files import digest, parquet, read_parquet, replace_file, sealed, unsealed
from faithscope.runs.manifest import Manifest
from faithscope.runs.tables import SCHEMAS


@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind: its manifest, and its tables by name."""

    manifest: Manifest
    tables: Mapping[str, pa.Table] = field(repr=False)

    def get_table(self, name: str) -> pa.Table:
        """One of its tables, empty if the run has none."""
        found = self.tables.get(name)
        return SCHEMAS[name].empty_table() if found is None else found

    @property
    def scores(self) -> pa.Table:
        """Every score: model, data, training, sample, method, procedure, draw, metric, value …."""
        return self.get_table("scores")

    @property
    def responses(self) -> pa.Table:
        """What the model answered, by span."""
        return self.get_table("responses")

    @property
    def samples(self) -> pa.Table:
        """The intact samples: label, target, predicted class, log-probability."""
        return self.get_table("samples")

    @property
    def maps(self) -> pa.Table:
        """Every map: whether it is finite and constant, its units, the K that was chosen for it."""
        return self.get_table("maps")

    @property
    def pictures(self) -> pa.Table:
        """Small pictures of samples and maps."""
        return self.get_table("pictures")

    @property
    def trainings(self) -> pa.Table:
        """Every point of every curve."""
        return self.get_table("trainings")

    @property
    def sparsity(self) -> pa.Table:
        """The share of the scores that the top tokens hold."""
        return self.get_table("sparsity")

    @property
    def examples(self) -> pa.Table:
        """A few texts, level by level."""
        return self.get_table("examples")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    try:
        return (folder / "manifest.json").exists()
    except OSError:  # a name too long to be one
        return False


def save_run(run: Run, folder: Path) -> Run:
    """Write tables, then manifest.json: a folder without that is not a whole run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    hashes = {}
    for name in SCHEMAS:
        file = folder / f"{name}.parquet"
        if name not in run.tables:
            file.unlink(missing_ok=True)
            continue
        content = parquet(run.tables[name])
        replace_file(file, content)
        hashes[file.name] = digest(content)
    manifest = run.manifest.model_copy(update={"files": hashes})
    replace_file(folder / "manifest.json", sealed(manifest.content()))
    return replace(run, manifest=manifest)


def load_run(folder: str | Path) -> Run:
    """Read a finished run; every file must be what was written."""
    root = Path(folder)
    try:
        manifest = Manifest.read(_unsealed(root / "manifest.json"))
        tables = {}
        for file, expected in manifest.files.items():
            name = file.removesuffix(".parquet")
            if name not in SCHEMAS:
                raise ValueError(f"'{file[:100]}' is no table of a run")
            content = (root / f"{name}.parquet").read_bytes()
            if digest(content) != expected:
                raise ValueError(f"{file} is damaged")
            tables[name] = read_parquet(content, SCHEMAS[name])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FaithscopeError(
            f"'{folder}' is not a whole faithscope run ({_why(error)}): give a folder that "
            "result.save, `faithscope evaluate --out` or `faithscope roar --out` wrote.",
            reason=_why(error),
        ) from None
    return Run(manifest, tables)


def _unsealed(file: Path) -> dict[str, Any]:
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


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        place = ".".join(map(str, error.errors()[0]["loc"]))
        return f"its manifest's '{place}' is not what it should be"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) if type(error) is ValueError else type(error).__name__
