"""The tables of a run: their columns, and how rows become tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

_KINDS = {
    "text": pa.dictionary(pa.int32(), pa.string()),
    "long": pa.string(),  # texts that hardly repeat
    "whole": pa.int32(),
    "large": pa.int64(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "bytes": pa.binary(),
    "words": pa.list_(pa.string()),
    "wholes": pa.list_(pa.int32()),
    "reals": pa.list_(pa.float64()),
    "names": pa.map_(pa.string(), pa.string()),
}


def _schema(*columns: str) -> pa.Schema:
    """A schema from "kind: name name …"."""
    split = (line.split(": ") for line in columns)
    return pa.schema([(name, _KINDS[kind]) for kind, names in split for name in names.split()])


SCHEMAS: Mapping[str, pa.Schema] = {
    # a score: of a sample (the model was given) or of a training (a seed's whole curve)
    "scores": _schema(
        "text: model data",
        "whole: training",
        "text: sample method procedure",
        "whole: draw",
        "text: metric",
        "whole: k",
        "text: fill upsample",
        "real: value",
        "text: flag",
    ),
    # what the model answered when the units of these ranks were replaced; the class is -1 where it
    # answered NaN and -2 where it raised, as is the predicted class of a sample
    "responses": _schema(
        "text: sample method",
        "whole: draw start stop",
        "real: log_p",
        "whole: top1",
        "real: salience",
    ),
    # a map; k is what "auto" chose for it; of one that failed there is none
    "maps": _schema(
        "text: sample method",
        "whole: draw",
        "text: granularity",
        "whole: units k",
        "flag: finite constant failed",
    ),
    # which responses a metric reads, in its own order, of a map with so many units and that k
    "spans": _schema("whole: units k", "text: metric", "whole: place start stop"),
    "samples": _schema(
        "text: sample", "whole: label target predicted", "real: log_p0", "text: digest"
    ),
    # a sample that could not be used; in the end this stands in the manifest
    "skipped": _schema("text: sample", "long: reason"),
    # a sample on which the model ("" as method) or a method raised; likewise
    "failures": _schema("text: sample method", "long: reason"),
    # a sample and a method whose gradients overflowed in half precision; likewise
    "overflows": _schema("text: sample method"),
    "pictures": _schema("text: sample method kind", "whole: height width", "bytes: content"),
    # a point of a curve by one test metric; a training that several curves share is repeated
    "trainings": _schema(
        "text: job data model measure procedure strategy",
        "whole: k seed",
        "text: metric",
        "real: value",
        "whole: epoch",
        "real: seconds",
        "reals: validation",
    ),
    "sparsity": _schema(
        "text: data model measure", "whole: seed", "text: kind", "whole: x", "real: value"
    ),
    # a text at one level of masking, with the scores that decided what is masked
    "examples": _schema(
        "text: split",
        "whole: index",
        "text: measure procedure",
        "whole: seed k",
        "text: label",
        "words: words auxiliary",
        "wholes: eligible masked",
        "reals: scores",
    ),
    # what a task took, and where it ran
    "tasks": _schema(
        "text: task kind method",
        "real: seconds explaining",
        "large: passes explanation_passes",
        "whole: halvings",
        "large: parameters",
        "text: device machine host",
        "names: versions",
    ),
}
"""The tables of a run and their columns; a column that says nothing of a row is null."""

DISTINCT = ("spans",)
"""Tables whose equal rows are one."""


def make_table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """A table from columns; one that is left out is null in all rows."""
    schema = SCHEMAS[name]
    count = len(next(iter(columns.values())))
    arrays = [_array(columns.get(field.name, [None] * count), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def table_of_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table from rows; what a row does not name is null."""
    held = list(rows)
    columns = {field.name: [row.get(field.name) for row in held] for field in SCHEMAS[name]}
    return make_table(name, columns)


def join_tables(name: str, parts: Iterable[pa.Table]) -> pa.Table:
    """Tables of one kind as one."""
    return joined([*passed_on(name, parts)])


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns as one, in which every name is written down once."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def passed_on(name: str, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """What tables of one kind hold together, part by part: at least one, and no row is twice."""
    if name in DISTINCT:
        rows = (row for part in parts for row in part.to_pylist())
        yield table_of_rows(name, {tuple(row.values()): row for row in rows}.values())
        return
    found = iter(parts)
    yield next(found, SCHEMAS[name].empty_table())
    yield from found


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)
