"""What removing salience did: each group of units alone, and one after the other.

Everything is read from the stored responses, for all methods and samples at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.metrics import Metric, metric
from faithscope.result import Result

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

STEPS = 10
"""Steps of a curve in a run that did not ask for AOPC."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Answers to the removals of one method's maps: D draws (one if not random), S samples.

    A map's units are ranked by falling salience and cut into k groups. `salience` and `p` are of
    each group, as SaCo compares them: what it holds, and the probability of the target class with
    that group alone removed; NaN beyond a map's own k. `curve` is the probability with the most
    salient 0, 1/L, … of all units removed. A map that could not be used has k = 0 and NaN.

    Shapes: k [D, S]; salience, p [D, S, K]; curve [D, S, L + 1].
    """

    k: Whole
    salience: Array
    p: Array
    curve: Array

    @property
    def drop(self) -> Array:
        """p(intact) - p of each group: [D, S, K]."""
        return self.curve[..., :1] - self.p

    @property
    def levels(self) -> Array:
        """The share removed at each point of the curve: [L + 1]."""
        return np.linspace(0, 1, self.curve.shape[-1])

    def averaged(self) -> Removal:
        """The mean over draws, as one draw; where k="auto" gave several k, over the first's."""
        first = self.k == self.k[:1]
        return Removal(
            self.k[:1],
            _mean(self.salience, first[..., None]),
            _mean(self.p, first[..., None]),
            _mean(self.curve, np.ones_like(first)[..., None]),
        )


def removal_groups(result: Result, saco: str | None = None) -> dict[str, Removal]:
    """Groups and curves of every method of a run, by its label; empty for a run without SaCo.

    Groups are those of the metric labelled `saco`, or of the first SaCo. Samples are in the order
    of `result.samples`. A run without curves has NaN in their place.
    """
    compared = find_metric(result, "saco") if saco is None else metric(saco)
    if compared is None:
        return {}
    cumulative = find_metric(result, "aopc")
    steps = getattr(cumulative, "steps", STEPS)
    k = _group_counts(result, compared.label)
    responses, cells = result.responses, _cells(result, result.responses, k.shape)
    start, stop = (responses[name].to_numpy().astype(np.int64) for name in ("start", "stop"))
    p, salience = np.exp(responses["log_p"].to_numpy()), responses["salience"].to_numpy()
    units = np.zeros(k.size, dtype=np.int64)
    np.maximum.at(units, cells, stop)
    n, groups = units[cells], k.ravel()[cells]
    if result.manifest["protocol"]["group"] == "mean":
        salience = salience / np.maximum(stop - start, 1)

    place = -(-start * groups // np.maximum(n, 1))
    alone = (place < groups) & (_edge(place, n, groups) == start)
    alone &= _edge(place + 1, n, groups) == stop
    width = max(int(k.max(initial=0)), 1)
    by_group = [
        _scattered(values[alone], cells[alone], place[alone], (*k.shape, width))
        for values in (salience, p)
    ]
    level = -(-stop * steps // np.maximum(n, 1))
    on_curve = (start == 0) & (_edge(level, n, steps) == stop)
    curve = _scattered(p[on_curve], cells[on_curve], level[on_curve], (*k.shape, steps + 1))
    # With fewer units than steps, several levels are the same input: it stands at the first.
    total = np.maximum(units, 1).reshape(*k.shape, 1)
    first = -(-_edge(np.arange(steps + 1), total, steps) * steps // total)
    curve = np.take_along_axis(curve, first, axis=-1)
    draws = _draw_counts(result)
    return {
        method: Removal(k[row, :count], *(values[row, :count] for values in (*by_group, curve)))
        for row, (method, count) in enumerate(zip(result.methods, draws, strict=True))
    }


def find_metric(result: Result, name: str) -> Metric | None:
    """The first metric of a run with a name, whatever its options."""
    found = (label for label in result.metrics if label.partition("(")[0] == name)
    return next((metric(label) for label in found), None)


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


def removal_curves(responses: pa.Table, methods: Sequence[str]) -> tuple[Array, dict[str, Array]]:
    """Probability of the target by share removed, most relevant first, random draws averaged.

    The levels are those of the map with the fewest, so that all have them; others are read off
    between their own. NaN stands for a sample without a usable map.

    Shapes: levels [L] (none if the run holds no such curve), by method [samples, L].
    """
    stop, first = responses["stop"].to_numpy(), responses["start"].to_numpy() == 0
    if not first.any():
        return np.empty(0), {}
    method, method_names = _codes(responses["method"])
    sample, sample_names = _codes(responses["sample"])
    units = np.zeros(len(sample_names))
    np.maximum.at(units, sample, stop)
    keys = np.stack([method, sample, responses["draw"].to_numpy()])[:, first]
    share = (stop / units[sample])[first]
    p = np.exp(responses["log_p"].to_numpy()[first])
    order = np.lexsort((share, *keys[::-1]))
    keys, share, p = keys[:, order], share[order], p[order]
    starts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(0)])
    shares, answers = np.split(share, starts[1:]), np.split(p, starts[1:])
    levels = min(shares, key=len)
    if levels[-1] < 1 or np.diff(levels).max() > 0.5:
        return np.empty(0), {}
    totals = np.zeros((len(method_names), len(sample_names), len(levels)))
    draws = np.zeros((len(method_names), len(sample_names), 1))
    for (row, column, _), x, y in zip(keys[:, starts].T, shares, answers, strict=True):
        totals[row, column] += np.interp(levels, x, y)
        draws[row, column] += 1
    with np.errstate(invalid="ignore"):
        curves = dict(zip(method_names, totals / draws, strict=True))
    drawn = {method_names[row] for row in keys[0]}
    return levels, {name: curves[name] for name in methods if name in drawn}


def _codes(column: pa.ChunkedArray) -> tuple[Whole, list[str]]:
    """A column of names as numbers, and the names."""
    unified = column.unify_dictionaries()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in unified.chunks])
    return codes.astype(np.int64), unified.chunk(0).dictionary.to_pylist()


def _places(column: pa.ChunkedArray, names: Sequence[str]) -> Whole:
    """A column of names as their places in a list."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    codes, known = _codes(column)
    place = {name: position for position, name in enumerate(names)}
    places: Whole = np.array([place[name] for name in known], dtype=np.int64)[codes]
    return places


def _cells(result: Result, table: pa.Table, shape: tuple[int, ...]) -> Whole:
    """Where every row of a table stands in the grid methods × draws × samples, flattened."""
    places = (
        _places(table["method"], result.methods),
        table["draw"].to_numpy(),
        _places(table["sample"], result.samples["sample"].to_pylist()),
    )
    return np.ravel_multi_index(places, shape).astype(np.int64)


def _group_counts(result: Result, label: str) -> Whole:
    """The k of a metric that was used for every map: [methods, draws, samples]."""
    scores = result.scores
    draws = int(scores["draw"].to_numpy().max(initial=0)) + 1
    counts = np.zeros((len(result.methods), draws, result.samples.num_rows), dtype=np.int64)
    rows = scores.filter(_places(scores["metric"], result.metrics) == result.metrics.index(label))
    counts.flat[_cells(result, rows, counts.shape)] = rows["k"].to_numpy()
    return counts


def _draw_counts(result: Result) -> list[int]:
    """How many draws each method has."""
    highest = np.zeros(len(result.methods), dtype=np.int64)
    methods = _places(result.scores["method"], result.methods)
    np.maximum.at(highest, methods, result.scores["draw"].to_numpy())
    return [int(draw) + 1 for draw in highest]


def _edge(place: Whole, n: Whole, parts: Whole | int) -> Whole:
    """The first unit of a part of n units cut into so many."""
    return place * n // np.maximum(parts, 1)


def _scattered(values: Array, cells: Whole, places: Whole, shape: tuple[int, ...]) -> Array:
    table = np.full((int(np.prod(shape[:-1])), shape[-1]), np.nan)
    table[cells, places] = values
    return table.reshape(shape)


def _mean(values: Array, used: NDArray[np.bool_]) -> Array:
    """The mean over the first axis of what is known and used, which stays as an axis of one."""
    known = used & ~np.isnan(values)
    sums = np.where(known, values, 0.0).sum(0, keepdims=True)
    with np.errstate(invalid="ignore"):
        mean: Array = sums / known.sum(0, keepdims=True)
    return mean
