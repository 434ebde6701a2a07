"""Other metrics of a run that is done: computed from the stored responses, without the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.metrics import Metric
from faithscope.probes.perturb.plan import MapPlan, plan_map
from faithscope.probes.perturb.rows import score_table, spans_of
from faithscope.probes.perturb.score import PlanResponses, score_responses
from faithscope.request import Perturb
from faithscope.runs.cards import MetricCard
from faithscope.runs.run import Run

Columns = list[tuple[str, int]]
"""(method, draw) of every column of maps, in the order of the run."""


def rescore(
    run: Run, request: Perturb, metrics: Sequence[Metric], k: int | str, cards: Sequence[MetricCard]
) -> Run:
    """The run with other metrics, another k or group salience, from what the model answered.

    Every perturbed input that a metric needs must have been run; one that was not is refused.
    """
    if any(metric.resolution(k) == "auto" for metric in metrics):
        raise FaithscopeError("k='auto' looks at maps, which a run does not keep: give a number.")
    if not run.responses.num_rows:
        raise FaithscopeError("This run has kept no answers of the model: evaluate again.")
    plan = run.manifest.plan
    columns = [(card.label, draw) for card in plan.methods for draw in range(card.draws)]
    samples = run.samples["sample"].to_pylist()
    grid = _Grid(run.maps, samples, columns)
    responses = list(_responses(run, metrics, k if isinstance(k, int) else 0, samples, columns))
    imprecise = [
        card.options.get("precision", "fp64") != "fp64"
        for card in plan.methods
        for _ in range(card.draws)
    ]
    scores, ks, flags = score_responses(
        metrics,
        responses,
        torch.from_numpy(run.samples["log_p0"].to_numpy().copy()),
        _truth(run),
        group=request.group,
        finite=grid.of("finite"),
        constant=grid.of("constant"),
        failed=grid.of("failed"),
        imprecise=torch.tensor(imprecise),
        is_refilled=any(doubt.kind == "refilled" for doubt in run.manifest.doubts),
    )
    names = (plan.model.name, plan.data.name, (request.fill, request.upsample))
    resolved = request.model_copy(update={"metrics": tuple(card.label for card in cards)})
    changed = plan.model_copy(update={"request": resolved, "metrics": tuple(cards)})
    manifest = run.manifest.model_copy(
        update={"plan": changed, "metrics": {card.label: card for card in cards}, "files": {}}
    )
    plans = {part.plan.cuts: (part.plan, _units(part.plan), None) for part in responses}
    tables = {
        **run.tables,
        "scores": score_table(*names, columns, samples, scores, ks, flags),
        "spans": spans_of(list(plans.values())),
    }
    return replace(run, manifest=manifest, tables=tables)


def _units(plan: MapPlan) -> int:
    return max(stop for _, stop in plan.cuts)


def _truth(run: Run) -> Tensor:
    label, predicted = (run.samples[name].to_numpy() for name in ("label", "predicted"))
    return torch.from_numpy(np.where(label >= 0, label, predicted).astype(np.int64))


class _Grid:
    """A table with a row for each map, as [samples, columns]."""

    def __init__(self, table: pa.Table, samples: list[str], columns: Columns) -> None:
        self.table, self.shape = table, (len(samples), len(columns))
        self.places = places(table, samples, columns)

    def of(self, name: str) -> Tensor:
        """One of its columns of truth values."""
        found = np.zeros(self.shape, dtype=bool)
        found[self.places] = self.table[name].to_numpy()
        return torch.from_numpy(found)


def places(table: pa.Table, samples: list[str], columns: Columns) -> Any:
    """Row and column of every line of a table in the grid samples × maps."""
    row = {sample: place for place, sample in enumerate(samples)}
    column = {name: place for place, name in enumerate(columns)}
    names = zip(table["method"].to_pylist(), table["draw"].to_pylist(), strict=True)
    return (
        np.array([row[sample] for sample in table["sample"].to_pylist()], dtype=np.int64),
        np.array([column[name] for name in names], dtype=np.int64),
    )


def _responses(
    run: Run, metrics: Sequence[Metric], k: int, samples: list[str], columns: Columns
) -> Iterator[PlanResponses]:
    """The stored answers in the order of the plans that the metrics need."""
    table = run.responses
    rows, maps = places(table, samples, columns)
    cuts = np.stack([table["start"].to_numpy(), table["stop"].to_numpy()], axis=1)
    stored = {name: table[name].to_numpy() for name in ("log_p", "top1", "salience")}
    pair = rows * len(columns) + maps
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    by_cuts: dict[bytes, list[np.ndarray]] = {}
    for lines in np.split(order, starts[1:]):
        by_cuts.setdefault(cuts[lines].tobytes(), []).append(lines)
    for alike in by_cuts.values():
        lines = np.stack(alike)
        known = {tuple(cut): place for place, cut in enumerate(cuts[lines[0]].tolist())}
        plan = plan_map(metrics, max(stop for _, stop in known), k=k, auto=k)
        _check_stored(metrics, plan, known)
        chosen = lines[:, [known[cut] for cut in plan.cuts]]
        yield PlanResponses(
            plan,
            torch.from_numpy(rows[lines[:, 0]]),
            torch.from_numpy(maps[lines[:, 0]]),
            torch.from_numpy(stored["log_p"][chosen]),
            torch.from_numpy(stored["top1"][chosen].astype(np.int64)),
            torch.from_numpy(stored["salience"][chosen]),
        )


def _check_stored(metrics: Sequence[Metric], plan: MapPlan, known: Any) -> None:
    for metric in metrics:
        missing = sum(plan.cuts[place] not in known for place in plan.index[metric.label])
        if missing:
            raise FaithscopeError(
                f"The metric '{metric.label}' needs {missing} inputs of each map that were not "
                "run: evaluate again with it among the metrics."
            )
    if any(cut not in known for cut in plan.cuts):
        raise FaithscopeError("Answers of the model are missing in this run: evaluate again.")
