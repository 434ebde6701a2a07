"""The tables of a run: their columns, and how rows become tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

_text = pa.dictionary(pa.int32(), pa.string())
_whole, _real = pa.int32(), pa.float64()

SCHEMAS: Mapping[str, pa.Schema] = {
    # a score: of a sample (the model was given) or of a training (a seed's whole curve)
    "scores": pa.schema(
        [
            ("model", _text),
            ("data", _text),
            ("training", _whole),
            ("sample", _text),
            ("method", _text),
            ("procedure", _text),
            ("draw", _whole),
            ("metric", _text),
            ("k", _whole),
            ("fill", _text),
            ("upsample", _text),
            ("value", _real),
            ("flag", _text),
        ]
    ),
    # what the model answered when the units of these ranks were replaced
    "responses": pa.schema(
        [
            ("sample", _text),
            ("method", _text),
            ("draw", _whole),
            ("start", _whole),
            ("stop", _whole),
            ("log_p", _real),
            ("top1", _whole),
            ("salience", _real),
        ]
    ),
    # a map; k is what "auto" chose for it
    "maps": pa.schema(
        [
            ("sample", _text),
            ("method", _text),
            ("draw", _whole),
            ("granularity", _text),
            ("units", _whole),
            ("k", _whole),
            ("finite", pa.bool_()),
            ("constant", pa.bool_()),
        ]
    ),
    # which responses a metric reads, in its own order, of a map with so many units and that k
    "spans": pa.schema(
        [
            ("units", _whole),
            ("k", _whole),
            ("metric", _text),
            ("place", _whole),
            ("start", _whole),
            ("stop", _whole),
        ]
    ),
    "samples": pa.schema(
        [
            ("sample", _text),
            ("label", _whole),
            ("target", _whole),
            ("predicted", _whole),
            ("log_p0", _real),
            ("digest", _text),
        ]
    ),
    # a sample that could not be used; in the end this stands in the manifest
    "skipped": pa.schema([("sample", _text), ("reason", pa.string())]),
    "pictures": pa.schema(
        [
            ("sample", _text),
            ("method", _text),
            ("kind", _text),
            ("height", _whole),
            ("width", _whole),
            ("content", pa.binary()),
        ]
    ),
    # a point of a curve by one test metric; a training that several curves share is repeated
    "trainings": pa.schema(
        [
            ("job", _text),
            ("data", _text),
            ("model", _text),
            ("measure", _text),
            ("procedure", _text),
            ("strategy", _text),
            ("k", _whole),
            ("seed", _whole),
            ("metric", _text),
            ("value", _real),
            ("epoch", _whole),
            ("seconds", _real),
            ("validation", pa.list_(_real)),
        ]
    ),
    "sparsity": pa.schema(
        [
            ("data", _text),
            ("model", _text),
            ("measure", _text),
            ("seed", _whole),
            ("kind", _text),
            ("x", _whole),
            ("value", _real),
        ]
    ),
    # a text at one level of masking, with the scores that decided what is masked
    "examples": pa.schema(
        [
            ("split", _text),
            ("index", _whole),
            ("measure", _text),
            ("procedure", _text),
            ("seed", _whole),
            ("k", _whole),
            ("label", _text),
            ("words", pa.list_(pa.string())),
            ("auxiliary", pa.list_(pa.string())),
            ("eligible", pa.list_(_whole)),
            ("masked", pa.list_(_whole)),
            ("scores", pa.list_(_real)),
        ]
    ),
    # what a task took, and where it ran
    "tasks": pa.schema(
        [
            ("task", _text),
            ("kind", _text),
            ("method", _text),
            ("seconds", _real),
            ("explaining", _real),
            ("passes", pa.int64()),
            ("explanation_passes", pa.int64()),
            ("halvings", _whole),
            ("parameters", pa.int64()),
            ("device", _text),
            ("machine", _text),
            ("versions", pa.map_(pa.string(), pa.string())),
        ]
    ),
}
"""The tables of a run and their columns; a column that says nothing of a row is null."""

DISTINCT = ("spans",)
"""Tables whose equal rows are one."""


def make_table(name: str, columns: Mapping[str, Any], rows: int | None = None) -> pa.Table:
    """A table from columns; one that is left out is null in all of so many rows."""
    schema = SCHEMAS[name]
    count = len(next(iter(columns.values()))) if rows is None else rows
    arrays = [_array(columns.get(field.name, [None] * count), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def table_of_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table from rows; what a row does not name is null."""
    held = list(rows)
    columns = {field.name: [row.get(field.name) for row in held] for field in SCHEMAS[name]}
    return make_table(name, columns)


def join_tables(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of one kind as one."""
    if not parts:
        return SCHEMAS[name].empty_table()
    joined = pa.concat_tables(parts).unify_dictionaries()
    return joined.combine_chunks() if name not in DISTINCT else _distinct(name, joined)


def _distinct(name: str, table: pa.Table) -> pa.Table:
    rows = table.to_pylist()
    seen = {tuple(row.values()): row for row in rows}
    return table if len(seen) == len(rows) else table_of_rows(name, seen.values())


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)
