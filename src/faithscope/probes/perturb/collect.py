"""The finished shards of an evaluation as one run, with all that is needed to judge it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from faithscope.data import (
    Skipped,
)
from faithscope.models.text_model import UNITS as TEXT_UNITS
from faithscope.probes.perturb.columns import matched_label
from faithscope.probes.perturb.failures import FAILED, nothing_usable
from faithscope.probes.perturb.stopping import Tolerance
from faithscope.request import Perturb
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Doubt,
    Failed,
    Left,
    MethodCard,
    ModelCard,
)
from faithscope.runs.checks import check_collected
from faithscope.runs.machine import joined_versions, machine_of
from faithscope.runs.manifest import Manifest
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.saved import Rows, parts_of, read_rows
from faithscope.runs.scheduler import Answers
from faithscope.runs.tables import joined

TABLES = ("scores", "responses", "maps", "spans", "samples", "pictures", "tasks")
"""What a run leaves behind."""


@dataclass(frozen=True)
class Known:
    """What the manifest says of the model, and how far fp16 was off where it was tried."""

    model: ModelCard
    deviation: float | None
    doubts: tuple[Doubt, ...] = ()
    names: Sequence[str] = ()
    """Of the samples in the order of the data, where tasks take them in another."""


def collect(plan: Plan, known: Known, answers: Answers, rule: Tolerance | None) -> Run:
    """Join the tables of the finished shards; `rule` says why they ended where they did."""
    ordered = _in_order(answers.parts("samples"), known.names)
    tables = {"samples": answers.join("samples", ordered)}
    tables |= {name: answers.joined(name) for name in TABLES if name != "samples"}
    skipped = [row for part in answers.parts("skipped") for row in part.to_pylist()]
    tasks = read_rows(tables["tasks"]).to_pylist()
    count = tables["samples"].num_rows
    if not count:
        left = [Skipped(row["sample"], row["reason"]) for row in skipped]
        of_texts = getattr(plan.request, "units", "") in TEXT_UNITS
        raise nothing_usable(left, "texts" if of_texts else "images")
    check_collected(plan, tables)
    answered = read_rows(tables["samples"], "label", "predicted")
    label, predicted = (column.to_numpy() for column in answered.columns)
    hits = (label == predicted)[(label >= 0) & (predicted != FAILED)]
    failed = [
        Failed(sample=row["sample"], method=row["method"], why=row["reason"])
        for part in answers.parts("failures")
        for row in part.to_pylist()
    ]
    if rule is not None:
        for part in answers.parts("scores"):
            rule.add({"scores": part})
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        plan=plan,
        model=known.model,
        data=DataCard(
            name=plan.data.name,
            samples=count,
            fingerprint=_fingerprint(tables["samples"]),
            accuracy=float(hits.mean()) if len(hits) else None,
            skipped=tuple(Left(name=row["sample"], why=row["reason"]) for row in skipped),
            failed=tuple(failed),
        ),
        methods=_matched(plan, tables["maps"]),
        metrics={card.label: card for card in plan.metrics},
        cost=_cost(tasks, known.deviation),
        machine=machine_of(plan, tasks),
        versions=joined_versions(row["versions"] for row in tasks),
        stopping=None if rule is None else rule.summary(),
        doubts=(
            *known.doubts,
            *_doubts(failed, tables["scores"], count),
            *_overflowed(answers.parts("overflows")),
        ),
        inputs=answers.inputs,
    )
    return Run(manifest, tables)


def _matched(plan: Plan, maps: Rows) -> dict[str, MethodCard]:
    """The methods with the granularity that their maps had, and the random one of the same."""
    assert isinstance(plan.request, Perturb)
    seen: dict[str, str] = {}
    for part in parts_of(maps, "method", "granularity"):
        if len(seen) < len(plan.methods):
            for method, size in zip(*part.to_pydict().values(), strict=True):
                seen.setdefault(method, size)
    random = {card.label for card in plan.methods if card.is_random}
    cards = {}
    for card in plan.methods:
        size = seen[card.label]
        if size == "pixel" and plan.request.units == "patches":
            size = "patch"
        match = matched_label(size)
        matched = match if match in random and card.label not in random else None
        cards[card.label] = card.model_copy(
            update={"granularity": seen[card.label], "matched_random": matched}
        )
    return cards


def _in_order(parts: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """The samples in the order of the data; of no names, as the tasks took them."""
    if not names:
        yield from parts
        return
    samples = joined([*parts])
    place = {name: at for at, name in enumerate(names)}
    yield samples.take(np.argsort([place[name] for name in samples["sample"].to_pylist()]))


def _cost(tasks: Sequence[Mapping[str, Any]], deviation: float | None) -> Cost:
    passes, seconds = (sum(row[name] for row in tasks) for name in ("passes", "seconds"))
    explaining = sum(row["explaining"] for row in tasks)
    return Cost(
        seconds=seconds,
        response_passes=passes,
        explanation_passes=sum(row["explanation_passes"] for row in tasks),
        explain_seconds=explaining,
        passes_per_second=passes / max(1e-9, seconds - explaining),
        batch_halvings=sum(row["halvings"] for row in tasks),
        fp16_deviation=deviation,
    )


def _doubts(failed: Sequence[Failed], scores: Rows, samples: int) -> tuple[Doubt, ...]:
    """What has no score: images on which something failed, and those with NaN."""
    named = {item.sample: f"{item.sample}: {item.method or 'the model'}" for item in failed}
    parts = parts_of(scores, "sample", "value", "flag")
    missing = (row for part in parts for row in part.filter(pc.is_nan(part["value"])).to_pylist())
    undefined = dict.fromkeys(row["sample"] for row in missing if "failed" not in row["flag"])
    lost, missed = tuple(named.values()), tuple(undefined)
    doubts = (
        Doubt(kind="failed", names=lost[:3], count=len(lost), total=samples),
        Doubt(kind="undefined", names=missed[:3], count=len(missed), total=samples),
    )
    return tuple(doubt for doubt in doubts if doubt.count)


def _overflowed(parts: Iterable[pa.Table]) -> Iterator[Doubt]:
    """Methods whose gradients overflowed in half precision, and on how many samples."""
    found = Counter(name for part in parts for name in part["method"].to_pylist())
    for name, samples in found.items():
        yield Doubt(kind="overflowed", method=name, count=samples)


def _fingerprint(samples: Rows) -> str:
    """A hash of all samples, by name and by their pixels."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts_of(samples, "sample", "digest"):
        for sample, pixels in zip(*part.to_pydict().values(), strict=True):
            digest.update(f"{sample}|{pixels}".encode())
    return digest.hexdigest()
