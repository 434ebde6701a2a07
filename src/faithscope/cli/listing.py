"""What `faithscope list` shows: the entries of the catalogue, and how one is put into words.

The catalogue is a file, made from the registries (`make docs`), since importing everything that
fills them takes seconds. Where other packages have entries too, the registries are asked.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from faithscope.registry import format_spec

Entry = dict[str, Any]
FILE = Path(__file__).with_name("catalog.json")
KINDS = ("methods", "metrics", "fills", "models", "data", "measures", "texts", "text models")
PROBES = {"perturb": "evaluate", "retrain": "roar"}
"""Probes by the commands that use them."""


def catalogue() -> dict[str, list[Entry]]:
    """Everything there is to choose from, by kind."""
    if any(group.startswith("faithscope.") for group in entry_points().groups):
        from faithscope.cli.catalog import CATALOGUES

        return {kind: CATALOGUES[kind]() for kind in KINDS}
    found: dict[str, list[Entry]] = json.loads(FILE.read_text("utf-8"))
    return found


def title(entry: Entry) -> str:
    """The name of an entry and, for a metric, which way is better."""
    if "higher_is_better" not in entry:
        return str(entry["name"])
    return f"{entry['name']} {'↑' if entry['higher_is_better'] else '↓'}"


def traits(entry: Entry) -> str:
    """Everything but name and summary, in words, on a few lines.

    >>> traits({"granularity": "pixel", "needs": ["gradient"], "options": {"steps": 50}})
    'pixel map · reads gradient · steps=50'
    """
    short = [
        PROBES.get(entry.get("probe", ""), ""),
        f"of {entry['of']}" if "of" in entry else "",
        f"{entry['granularity']} map" if "granularity" in entry else "",
        f"reads {', '.join(entry['needs'])}" if entry.get("needs") else "",
        _range(entry["bounds"]) if "bounds" in entry else "",
        ", ".join(options(entry)),
        "in 'all'" if entry.get("in_papers") else "",
        f"for example {entry['example']}" if "example" in entry else "",
    ]
    lines = [entry.get("equation", ""), " · ".join(filter(None, short)), entry.get("paper", "")]
    return "\n".join(filter(None, lines))


def options(entry: Entry) -> list[str]:
    """Every option with its default and, after it, the other values it may have.

    >>> options({"options": {"at": "tokens"}, "choices": {"at": ["tokens", "pixels"]}})
    ['at=tokens|pixels']
    """
    said = []
    for name, default in entry.get("options", {}).items():
        others = [value for value in entry.get("choices", {}).get(name, ()) if value != default]
        said.append("|".join([format_spec("", {name: default})[1:-1], *others]))
    return said


def _range(bounds: list[float | None]) -> str:
    """A range in words, with None for an end that is open.

    >>> _range([-1.0, None])
    '−1 … ∞'
    """
    low, high = bounds
    ends = "−∞" if low is None else f"{low:g}", "∞" if high is None else f"{high:g}"
    return " … ".join(ends).replace("-", "−")
