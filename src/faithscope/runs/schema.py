"""What a run holds: its tables, its manifest, and whether both are whole.

Checked once, when a run is read, so that nothing trips over it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_text = pa.dictionary(pa.int32(), pa.string())
SCHEMAS = {
    "scores": pa.schema(
        [
            ("model", _text),
            ("data", _text),
            ("sample", _text),
            ("method", _text),
            ("draw", pa.int32()),
            ("metric", _text),
            ("k", pa.int32()),
            ("fill", _text),
            ("upsample", _text),
            ("value", pa.float64()),
            ("flag", _text),
        ]
    ),
    "responses": pa.schema(
        [
            ("sample", _text),
            ("method", _text),
            ("draw", pa.int32()),
            ("start", pa.int32()),
            ("stop", pa.int32()),
            ("log_p", pa.float64()),
            ("top1", pa.int32()),
            ("salience", pa.float64()),
        ]
    ),
    "samples": pa.schema(
        [
            ("sample", _text),
            ("label", pa.int32()),
            ("target", pa.int32()),
            ("predicted", pa.int32()),
            ("log_p0", pa.float64()),
        ]
    ),
    "pictures": pa.schema(
        [
            ("sample", _text),
            ("method", _text),
            ("kind", _text),
            ("height", pa.int32()),
            ("width", pa.int32()),
            ("content", pa.binary()),
        ]
    ),
}
"""The tables of a run and their columns."""

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "protocol": ("target", "k", "fill", "units", "upsample", "ties", "group", "seed", "precision"),
    "model": ("name", "weights", "fingerprint", "dtype", "classes"),
    "data": ("name", "images", "fingerprint", "accuracy", "skipped"),
    "methods": (),
    "metrics": (),
    "cost": ("response_passes", "seconds"),
    "machine": (),
    "versions": ("faithscope",),
}
"""The sections of a manifest and what every one must hold."""
CARDS: Mapping[str, tuple[str, ...]] = {
    "methods": ("granularity", "random", "matched_random"),
    "metrics": ("higher_is_better", "equation", "paper"),
}
"""What is known of every method and metric."""


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that lacks something, with a ValueError that names it."""
    for section, keys in SECTIONS.items():
        found = manifest.get(section)
        if not isinstance(found, dict):
            raise ValueError(f"its manifest lacks '{section}'")
        for key in keys:
            if key not in found:
                raise ValueError(f"its manifest lacks '{section}.{key}'")
    for section, keys in CARDS.items():
        if not manifest[section]:
            raise ValueError(f"its manifest has no {section}")
        for name, card in manifest[section].items():
            if not isinstance(card, dict) or not card.keys() >= set(keys):
                raise ValueError(f"its manifest lacks parts of '{section}.{name}'")
    for key, value in manifest["cost"].items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"its manifest's 'cost.{key}' is no number")
    for section in ("protocol", "machine", "versions"):
        for key, value in manifest[section].items():
            if isinstance(value, dict | list):
                raise ValueError(f"its manifest's '{section}.{key}' is no single value")
    datetime.fromisoformat(str(manifest.get("created")))


def check_tables(manifest: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """Refuse tables that are of another kind, of another run or not whole, with a ValueError."""
    for name, table in tables.items():
        if not table.schema.equals(SCHEMAS[name]):
            raise ValueError(f"{name}.parquet has other columns")
    samples = tables["samples"]["sample"].to_pylist()
    if not samples or len(set(samples)) != len(samples):
        raise ValueError("samples.parquet is empty or names a sample twice")
    known = {"sample": set(samples), "method": {"", *manifest["methods"]}}
    known["metric"] = set(manifest["metrics"])
    for name, table in tables.items():
        for column, valid in known.items():
            if column in table.column_names and name != "samples":
                found = set(table[column].unique().to_pylist())
                if not found <= valid:
                    raise ValueError(f"{name}.parquet and the manifest are of different runs")
    counts = tables["scores"].group_by(["method", "metric"]).aggregate([([], "count_all")])
    rows = counts["count_all"].to_pylist()
    cells = len(manifest["methods"]) * len(manifest["metrics"])
    if len(rows) != cells or any(count % len(samples) for count in rows):
        raise ValueError("scores.parquet is not whole")
    if "pictures" in tables:
        _check_pictures(tables["pictures"])


def _check_pictures(pictures: pa.Table) -> None:
    maps = pictures.filter(pc.not_equal(pictures["method"].cast(pa.string()), ""))
    sizes = pc.multiply(maps["height"], maps["width"])
    if not pc.all(pc.equal(pc.binary_length(maps["content"]), sizes), min_count=0).as_py():
        raise ValueError("pictures.parquet holds maps of a wrong size")
