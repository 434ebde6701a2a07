"""The net: what a dozen small runs gave before the house was rebuilt, they still give."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import pytest

import net_runs


@pytest.mark.parametrize("name", net_runs.RUNS)
def test_runs_are_what_they_were(name: str) -> None:
    record = net_runs.make(name)
    numbers = json.loads(gzip.decompress((net_runs.RECORDS / f"{name}.json.gz").read_bytes()))
    close = 1e-4 if name in net_runs.IN_FLOAT32 else 1e-9
    now = net_runs.plainly({key: held for key, held in record.items() if key != "words"})
    assert list(differences(numbers, now, close)) == []
    said = (net_runs.RECORDS / f"{name}.txt").read_text("utf-8")
    assert net_runs.words(record) == said


def differences(old: Any, new: Any, close: float, where: str = "") -> Any:
    """Where two records differ, floats by more than rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if key not in old or key not in new:
                yield f"{where}/{key} is only in the {'new' if key in new else 'old'} one"
            else:
                yield from differences(old[key], new[key], close, f"{where}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where} has {len(new)} entries and not {len(old)}"
        for place, (left, right) in enumerate(zip(old, new, strict=False)):
            yield from differences(left, right, close, f"{where}[{place}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=close, abs_tol=close):
            yield f"{where} is {new!r} and not {old!r}"
    elif old != new:
        yield f"{where} is {new!r} and not {old!r}"
