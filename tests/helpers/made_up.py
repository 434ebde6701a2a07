"""Runs over images made of numbers alone, to check statistics, comparisons and pages by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import faithscope as fs
from faithscope.request import Perturb
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Machine,
    MethodCard,
    MetricCard,
    ModelCard,
    Named,
)
from faithscope.runs.manifest import Manifest
from faithscope.runs.plan import Plan
from faithscope.runs.tables import table_of_rows

METRICS = {"saco": True, "auc": False}
"""By whether higher is better."""


def made_up(
    scores: Mapping[str, Mapping[str, Any]],
    names: list[str] | None = None,
    *,
    flags: Mapping[tuple[str, str, int], str] | None = None,
    matched: str | None = "random",
    metrics: Mapping[str, bool] | None = None,
    protocol: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    label: int = -1,
    log_p0: float = 0.0,
) -> fs.Result:
    """A run from scores {method: {metric: [samples] or [samples, draws]}} of samples by name."""
    first = next(iter(scores.values()))
    count = len(next(iter(first.values())))
    names = names or [str(i) for i in range(count)]
    rows = [
        {
            **dict(model="m", data="d", sample=names[place], method=method, draw=draw),
            **dict(metric=metric, k=10, fill="mean", upsample="bilinear", value=float(value)),
            "flag": (flags or {}).get((method, metric, place), ""),
        }
        for method, by_metric in scores.items()
        for metric, values in by_metric.items()
        for place, draws in enumerate(values)
        for draw, value in enumerate(np.atleast_1d(draws))
    ]
    samples = [
        dict(sample=name, label=label, target=0, predicted=0, log_p0=log_p0, digest=name)
        for name in names
    ]
    cards = {
        name: MethodCard(
            label=name,
            name=name,
            granularity="patch",
            is_random=name == "random",
            matched_random=None if name in ("random", matched) else matched,
        )
        for name in scores
    }
    directions = {**METRICS, **(metrics or {})}
    metric_cards = {
        name: MetricCard(
            label=name,
            name=name.partition("(")[0],
            options={"k": 5} if "k=5" in name else {},
            higher_is_better=directions[name],
            groups_units=name.startswith("saco"),
        )
        for name in first
    }
    about = {"name": "m", "weights": "pretrained", "fingerprint": "a" * 32, **(model or {})}
    held = {"name": "d", "fingerprint": "f", "samples": count, **(data or {})}
    options = {"precision": "fp64", **(protocol or {})}
    plan = Plan(
        request=Perturb(
            model=about["name"], data=held["name"], **{"fill": "mean", "units": "pixels", **options}
        ),
        model=Named(name=about["name"], fingerprint=about["fingerprint"]),
        data=Named(name=held["name"], samples=count),
        methods=tuple(cards.values()),
        metrics=tuple(metric_cards.values()),
    )
    manifest = Manifest(
        created="2026-01-01T00:00:00+00:00",
        plan=plan,
        model=ModelCard(dtype="float64", **about),
        data=DataCard(**held),
        methods=cards,
        metrics=metric_cards,
        cost=Cost(seconds=1.0, response_passes=1),
        machine=Machine(device="cpu", threads=1, platform="a machine", python="3.11"),
        versions={"faithscope": "0.1.0", **(versions or {})},
    )
    tables = {
        "scores": table_of_rows("scores", rows),
        "samples": table_of_rows("samples", samples),
    }
    return fs.Result(manifest, tables)
