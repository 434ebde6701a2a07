"""Other metrics of a run that is done: computed from the stored responses, without the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.metrics import Metric, MetricLike, check_k, resolve_metrics
from faithscope.probes.perturb.collect import metric_cards, score_table
from faithscope.probes.perturb.plan import plan_map
from faithscope.probes.perturb.score import PlanResponses, score_responses
from faithscope.result import Result


def rescore(
    result: Result,
    metrics: MetricLike | Iterable[MetricLike],
    *,
    k: int | None = None,
    group: str | None = None,
) -> Result:
    """The result with other metrics, another k or group salience, from what the model answered.

    Every perturbed input that a metric needs must have been run; one that was not is refused.
    """
    if k is not None:
        check_k(k)
    protocol = dict(result.manifest["protocol"])
    protocol |= {} if k is None else {"k": k}
    protocol |= {} if group is None else {"group": group}
    wanted = resolve_metrics(metrics)
    if any(metric.resolution(protocol["k"]) == "auto" for metric in wanted):
        raise FaithscopeError("k='auto' looks at maps, which a run does not keep: give a number.")
    columns = _columns(result)
    samples = result.samples["sample"].to_pylist()
    finite = _flagged(result, "nan_map", samples, columns).logical_not()
    responses = list(_responses(result, wanted, protocol["k"], samples, columns))
    scores, ks, flags = score_responses(
        wanted,
        responses,
        torch.from_numpy(result.samples["log_p0"].to_numpy().copy()),
        _truth(result),
        group=protocol["group"],
        finite=finite,
        constant=_flagged(result, "degenerate", samples, columns, everywhere=True),
        imprecise=_flagged(result, "low_precision", samples, columns).all(0),
    )
    model, data = result.manifest["model"]["name"], result.manifest["data"]["name"]
    table = score_table(model, data, protocol, columns, samples, scores, ks, flags)
    manifest = {**result.manifest, "protocol": protocol, "metrics": metric_cards(wanted)}
    return replace(result, scores=table, manifest=manifest)


def _columns(result: Result) -> list[tuple[str, int]]:
    """(method, draw) of every column of maps, in the order of the run."""
    seen = zip(result.scores["method"].to_pylist(), result.scores["draw"].to_pylist(), strict=True)
    return list(dict.fromkeys(seen))


def _truth(result: Result) -> Tensor:
    label, predicted = (result.samples[name].to_numpy() for name in ("label", "predicted"))
    return torch.from_numpy(np.where(label >= 0, label, predicted).astype(np.int64))


def _places(table: pa.Table, samples: list[str], columns: list[tuple[str, int]]) -> Any:
    """Row and column of every line of a table in the grid samples × maps."""
    row = {sample: place for place, sample in enumerate(samples)}
    column = {name: place for place, name in enumerate(columns)}
    names = zip(table["method"].to_pylist(), table["draw"].to_pylist(), strict=True)
    return (
        np.array([row[sample] for sample in table["sample"].to_pylist()]),
        np.array([column[name] for name in names]),
    )


def _flagged(
    result: Result,
    flag: str,
    samples: list[str],
    columns: list[tuple[str, int]],
    *,
    everywhere: bool = False,
) -> Tensor:
    """Which maps have a flag on some metric, or on every one (as constant maps have): [S, M]."""
    rows, places = _places(result.scores, samples, columns)
    has = np.array([flag in text.split(",") for text in result.scores["flag"].to_pylist()])
    counts = np.zeros((len(samples), len(columns)), dtype=np.int64)
    np.add.at(counts, (rows[has], places[has]), 1)
    return torch.from_numpy(counts >= (len(result.metrics) if everywhere else 1))


def _responses(
    result: Result,
    metrics: list[Metric],
    k: int,
    samples: list[str],
    columns: list[tuple[str, int]],
) -> Iterator[PlanResponses]:
    """The stored answers in the order of the plans that the metrics need."""
    table = result.responses
    rows, places = _places(table, samples, columns)
    cuts = np.stack([table["start"].to_numpy(), table["stop"].to_numpy()], axis=1)
    stored = {name: table[name].to_numpy() for name in ("log_p", "top1", "salience")}
    pair = rows * len(columns) + places
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    by_cuts: dict[bytes, list[np.ndarray]] = {}
    for lines in np.split(order, starts[1:]):
        by_cuts.setdefault(cuts[lines].tobytes(), []).append(lines)
    for alike in by_cuts.values():
        lines = np.stack(alike)
        known = {tuple(cut): place for place, cut in enumerate(cuts[lines[0]].tolist())}
        plan = plan_map(metrics, max(stop for _, stop in known), k=k, auto=k)
        _check_stored(metrics, plan.cuts, plan.index, known)
        chosen = lines[:, [known[cut] for cut in plan.cuts]]
        yield PlanResponses(
            plan,
            torch.from_numpy(rows[lines[:, 0]]),
            torch.from_numpy(places[lines[:, 0]]),
            torch.from_numpy(stored["log_p"][chosen]),
            torch.from_numpy(stored["top1"][chosen].astype(np.int64)),
            torch.from_numpy(stored["salience"][chosen]),
        )


def _check_stored(metrics: list[Metric], cuts: Any, index: Any, known: Any) -> None:
    for metric in metrics:
        missing = sum(cuts[place] not in known for place in index[metric.label])
        if missing:
            raise FaithscopeError(
                f"The metric '{metric.label}' needs {missing} inputs of each map that were not "
                "run: evaluate anew, with it among the metrics."
            )
