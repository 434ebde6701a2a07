"""What removing salience did: each group of units alone, and one after the other.

Which response is a metric's group or level stands in the run's `spans`, so that nothing is worked
out again here; all methods and samples are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.verdicts.findings import Findings, codes, numbered

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Kind = tuple[int, int | None]
"""How many units a map has, and the K that was chosen for it, if it was."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Answers to the removals of one method's maps: D draws (one if not random), S samples.

    A map's units are ranked by falling salience and cut into k groups. `salience` and `p` are of
    each group, as SaCo compares them: what it holds, and the probability of the target class with
    that group alone removed; NaN beyond a map's own k. `curve` is the probability while the most
    salient units go, level by level, and `intact` that of the whole input. A map that could not be
    used has k = 0 and NaN.

    Shapes: k [D, S]; salience, p [D, S, K]; curve [D, S, L + 1]; intact [S].
    """

    k: Whole
    salience: Array
    p: Array
    curve: Array
    intact: Array

    @property
    def drop(self) -> Array:
        """p(intact) - p of each group: [D, S, K]."""
        return self.intact[:, None] - self.p

    def averaged(self) -> Removal:
        """The mean over draws, as one draw; where k="auto" gave several k, over the first's."""
        first = self.k == self.k[:1]
        return Removal(
            self.k[:1],
            _mean(self.salience, first[..., None]),
            _mean(self.p, first[..., None]),
            _mean(self.curve, np.ones_like(first)[..., None]),
            self.intact,
        )


def removal_groups(found: Findings, saco: str | None = None) -> dict[str, Removal]:
    """Groups and curves of every method of a run, by its label; empty for a run without SaCo.

    Groups are those of the metric labelled `saco`, or of the first SaCo. Samples are in the order
    of `found.samples`. The curve is AOPC's, or that of another metric that removes the most
    salient first; a run without one has NaN in its place.
    """
    label = saco or next(iter(labels_of(found, "saco")), None)
    if label is None:
        return {}
    groups = _Reading.of(found, label)
    steps = _Reading.of(found, cumulative[0]) if (cumulative := cumulative_metrics(found)) else None
    curve = np.full((*groups.count.shape, 1), np.nan) if steps is None else steps.p
    salience = groups.salience
    if found.manifest.protocol["group"] == "mean":
        salience = salience / np.maximum(groups.sizes, 1)
    intact = np.exp(found.samples["log_p0"].to_numpy())
    removals = {}
    for row, (method, card) in enumerate(found.manifest.methods.items()):
        own = row, slice(card.draws)
        removals[method] = Removal(
            groups.count[own], salience[own], groups.p[own], curve[own], intact
        )
    return removals


def labels_of(found: Findings, name: str) -> list[str]:
    """The metrics of a run that have a name, whatever their options."""
    return [label for label, card in found.manifest.metrics.items() if card.name == name]


def cumulative_metrics(found: Findings) -> list[str]:
    """Metrics that read a whole curve, from intact to everything removed; AOPC's are the first."""
    spans = {label: _spans(found, label) for label in found.metrics}
    whole = [
        label
        for label, kinds in spans.items()
        if kinds
        and all(
            len(cuts) > 1 and not cuts[:, 0].any() and cuts[0, 1] == 0 and cuts[-1, 1] == units
            for (units, _), cuts in kinds.items()
        )
    ]
    return sorted(whole, key=lambda label: found.manifest.metrics[label].name != "aopc")


def removal_curves(found: Findings) -> tuple[Array, dict[str, Array]]:
    """Probability of the target by share removed, most relevant first, random draws averaged.

    The levels are those of the map with the most; the probabilities of others, of short texts, are
    read off between their own. NaN stands for a sample without a usable map.

    Shapes: levels [L] (none if the run holds no such curve), by method [samples, L].
    """
    metrics = cumulative_metrics(found)
    if not metrics:
        return np.empty(0), {}
    reading = max((_Reading.of(found, label) for label in metrics), key=lambda r: r.p.shape[-1])
    own = {
        kind: np.unique(cuts[:, 1] / units, return_index=True)
        for kind, ((units, _), cuts) in enumerate(reading.kinds.items())
    }
    levels = max((shares for shares, _ in own.values()), key=len, default=np.empty(0))
    if len(levels) < 3:
        return np.empty(0), {}
    curves = np.full((*reading.kind.shape, len(levels)), np.nan)
    for kind, (shares, first) in own.items():
        between = np.stack([np.interp(levels, shares, one) for one in np.eye(len(shares))])
        mine = np.nonzero(reading.kind == kind)
        curves[mine] = reading.p[mine][:, first] @ between
    known = ~np.isnan(curves)
    with np.errstate(invalid="ignore"):
        means = np.where(known, curves, 0.0).sum(1) / known.sum(1)
    return levels, {name: means[row] for row, name in enumerate(found.methods) if known[row].any()}


def pair_parts(salience: Array, drop: Array) -> Array:
    """What every pair of groups adds to SaCo: positive if in the right order; their sum is SaCo.

    Pair (i, j) of i < j stands at [..., i, j], the rest is 0. NaN where SaCo is undefined.

    Shapes: salience, drop [..., K] -> [..., K, K].

    >>> s, d = np.array([4.0, 3.0, 2.0, 1.0]), np.array([0.4, 0.1, 0.2, 0.05])
    >>> pair_parts(s, d).sum().round(3)
    np.float64(0.8)
    """
    above = np.triu(np.ones((salience.shape[-1],) * 2), k=1)
    weight = (salience[..., :, None] - salience[..., None, :]) * above
    satisfied = drop[..., :, None] >= drop[..., None, :]
    total = np.abs(weight).sum((-1, -2), keepdims=True)
    least = 1e-12 * np.abs(salience).sum(-1)[..., None, None]  # as `fs.saco` has it
    parts: Array = np.where(satisfied, weight, -weight) / np.where(total > least, total, np.nan)
    return parts


@dataclass(frozen=True, eq=False)
class _Reading:
    """What one metric reads of every map, in its own order: M methods, D draws, S samples, P spans.

    `kind` says which of `kinds` a map is, -1 for one that could not be used; its spans are the
    first `count`.

    Shapes: kind, count [M, D, S]; p, salience, sizes [M, D, S, P].
    """

    kinds: Mapping[Kind, Whole]
    kind: Whole
    count: Whole
    p: Array
    salience: Array
    sizes: Array

    @classmethod
    def of(cls, found: Findings, label: str) -> _Reading:
        kinds = _spans(found, label)
        draws = max((card.draws for card in found.manifest.methods.values()), default=1)
        shape = (len(found.methods), draws, found.samples.num_rows)
        kind = np.full(int(np.prod(shape)), -1)
        maps = found.maps
        kind[_cells(found, maps, shape)] = _kinds_of(maps, list(kinds))
        width = max((len(cuts) for cuts in kinds.values()), default=1)
        p, salience, sizes = (np.full((kind.size, width), np.nan) for _ in range(3))
        responses = found.responses
        cells = _cells(found, responses, shape)
        start, stop = (responses[name].to_numpy().astype(np.int64) for name in ("start", "stop"))
        given = np.exp(responses["log_p"].to_numpy()), responses["salience"].to_numpy()
        for place, ((units, _), cuts) in enumerate(kinds.items()):
            rows = np.flatnonzero(kind[cells] == place)
            spans, back = np.unique(_code(cuts[:, 0], cuts[:, 1], units), return_inverse=True)
            wanted = _code(start[rows], stop[rows], units)
            at = np.minimum(np.searchsorted(spans, wanted), len(spans) - 1)
            rows, at = rows[spans[at] == wanted], at[spans[at] == wanted]
            mine = np.flatnonzero(kind == place)  # a span may stand at several places
            for table, values in zip((p, salience), given, strict=True):
                held = np.full((kind.size, len(spans)), np.nan)
                held[cells[rows], at] = values[rows]
                table[mine, : len(cuts)] = held[mine][:, back]
            sizes[mine, : len(cuts)] = cuts[:, 1] - cuts[:, 0]
        counts = np.array([*(len(cuts) for cuts in kinds.values()), 0])[kind]
        tables = (table.reshape(*shape, width) for table in (p, salience, sizes))
        return cls(kinds, kind.reshape(shape), counts.reshape(shape), *tables)


def _spans(found: Findings, label: str) -> dict[Kind, Whole]:
    """The spans that a metric reads, in its own order, by kind of map: [P, 2]."""
    table = found.get_table("spans")
    cuts: dict[Kind, dict[int, tuple[int, int]]] = {}
    for row in table.to_pylist():
        if row["metric"] == label:
            own = cuts.setdefault((row["units"], row["k"]), {})
            own[row["place"]] = row["start"], row["stop"]
    return {kind: np.array([own[place] for place in sorted(own)]) for kind, own in cuts.items()}


def _kinds_of(maps: pa.Table, kinds: list[Kind]) -> Whole:
    """Which kind every map is; -1 if it holds NaN. Spans without a K are those of any."""
    place = {kind: number for number, kind in enumerate(kinds)}
    columns = (maps[name].to_pylist() for name in ("units", "k", "finite"))
    found = [
        place.get((units, k), place.get((units, None), -1)) if finite else -1
        for units, k, finite in zip(*columns, strict=True)
    ]
    return np.array(found, dtype=np.int64)


def _cells(found: Findings, table: pa.Table, shape: tuple[int, ...]) -> Whole:
    """Where every row of a table stands in the grid methods × draws × samples, flattened."""
    places = (
        codes(table["method"], numbered(found.methods)),
        table["draw"].to_numpy(),
        codes(table["sample"], numbered(found.replicates)),
    )
    return np.ravel_multi_index(places, shape).astype(np.int64)


def _code(start: Whole, stop: Whole, units: int) -> Whole:
    """A span as one number."""
    return start * (units + 1) + stop


def _mean(values: Array, used: NDArray[np.bool_]) -> Array:
    """The mean over the first axis of what is known and used, which stays as an axis of one."""
    known = used & ~np.isnan(values)
    sums = np.where(known, values, 0.0).sum(0, keepdims=True)
    with np.errstate(invalid="ignore"):
        mean: Array = sums / known.sum(0, keepdims=True)
    return mean
