"""What the scores of a run say: means with intervals, tests against random, every two methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, choose
from faithscope.runs.run import Run
from faithscope.verdicts.curves import Trainings
from faithscope.verdicts.replicates import Replicate, replicate_of
from faithscope.verdicts.statistics import effect_size, metric_correlation

Array = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """What is scored: a method and, where it was retrained, by which procedure."""

    method: str
    procedure: str | None = None

    @property
    def label(self) -> str:
        """What it is called: a method, or METHOD/PROCEDURE."""
        return self.method if self.procedure is None else f"{self.method}/{self.procedure}"


@dataclass(frozen=True, eq=False)
class Findings(Run):
    """A run with its statistics; every number is a function of its tables."""

    @property
    def methods(self) -> list[str]:
        """Method labels in the order they were asked for."""
        return list(self.manifest.methods)

    @property
    def metrics(self) -> list[str]:
        """Metric labels in the order they were asked for."""
        return list(self.manifest.metrics)

    @cached_property
    def procedures(self) -> list[str]:
        """How models were retrained; none where the model was given."""
        return list(getattr(self.manifest.plan.request, "procedures", ()))

    @cached_property
    def series(self) -> list[Series]:
        """Everything that is scored, in the order it was asked for."""
        procedures: list[str | None] = [*self.procedures] or [None]
        return [Series(method, name) for method in self.methods for name in procedures]

    @property
    def replicate(self) -> Replicate:
        """The statistics of what is repeated: samples, or trainings."""
        return replicate_of(self.manifest)

    @cached_property
    def replicates(self) -> list[Any]:
        """The names of the samples, or the seeds."""
        if self.manifest.kind == "retrain":
            return self.trained.seeds
        names: list[Any] = self.get_table("samples", "sample")["sample"].to_pylist()
        return names

    @cached_property
    def trained(self) -> Trainings:
        """The trainings as curves; refused of a run that trained nothing."""
        card = self.manifest.data.splits
        if card is None:
            raise FaithscopeError("This run trained no models: it has no curves over levels.")
        return Trainings(self.manifest.plan, card, self.trainings)

    @cached_property
    def cube(self) -> Array:
        """All scores, random draws averaged: [series, metrics, replicates]."""
        sums, counts = np.zeros(self._shape), np.zeros(self._shape, dtype=np.int64)
        for part, places in self._placed("value"):
            values = part["value"].to_numpy()
            known = ~np.isnan(values)
            np.add.at(sums.reshape(-1), places[known], values[known])
            np.add.at(counts.reshape(-1), places[known], 1)
        with np.errstate(invalid="ignore"):
            return sums / counts

    @property
    def _shape(self) -> tuple[int, int, int]:
        return len(self.series), len(self.metrics), len(self.replicates)

    def _placed(self, column: str) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """The scores part by part, and where each stands in the flattened cube."""
        own = "training" if self.manifest.kind == "retrain" else "sample"
        names = {"method": self.methods, "metric": self.metrics, own: self.replicates}
        if self.procedures:
            names["procedure"] = self.procedures
        known = {name: numbered(held) for name, held in names.items()}
        for part in self.parts("scores", *names, column):
            place = {name: codes(part[name], held) for name, held in known.items()}
            series = place["method"] * max(1, len(self.procedures)) + place.get("procedure", 0)
            yield part, np.ravel_multi_index((series, place["metric"], place[own]), self._shape)

    def values(self, method: str, metric: str, procedure: str | None = None) -> Array:
        """Scores of one method and metric, random draws averaged: [replicates]."""
        choose("method of this result", method, self.methods)
        choose("metric of this result", metric, self.metrics)
        if self.procedures or procedure is not None:
            name = self.procedures[-1] if procedure is None else procedure
            procedure = choose("procedure of this result", name, self.procedures)
        return self.scores_of(Series(method, procedure), metric)

    def scores_of(self, series: Series, metric: str) -> Array:
        """The same of a series."""
        values: Array = self.cube[self.series.index(series), self.metrics.index(metric)]
        return values

    @property
    def forbids_verdicts(self) -> bool:
        """Whether a doubt stands against every verdict: the model has learnt nothing, say."""
        return any(doubt.forbids_verdict for doubt in self.manifest.doubts)

    def baseline(self, series: Series, metric: str) -> Array | None:
        """What scores are tested against: those of the matched random method, or zero."""
        card = self.manifest.methods[series.method]
        if card.is_random or card.matched_random is None:
            return None
        if self.manifest.metrics[metric].against == "zero":
            return np.zeros(len(self.replicates))
        return self.scores_of(Series(card.matched_random, series.procedure), metric)

    @cached_property
    def rows(self) -> list[Row]:
        """The summary's rows."""
        flagged = self._flagged()
        intervals = iter(self.replicate.intervals([each for row in self.cube for each in row]))
        rows: list[Row] = []
        differences, directions = [], []
        for i, series in enumerate(self.series):
            card = self.manifest.methods[series.method]
            for j, metric in enumerate(self.metrics):
                values = self.cube[i, j]
                other = self.baseline(series, metric)
                gap = np.full_like(values, np.nan) if other is None else values - other
                differences.append(gap)
                directions.append(self.manifest.metrics[metric].higher_is_better)
                low, high = next(intervals)
                rows.append(
                    {
                        "method": series.method,
                        "procedure": series.procedure,
                        "metric": metric,
                        "mean": _mean(values),
                        "ci_low": low,
                        "ci_high": high,
                        "n": int((~np.isnan(values)).sum()),
                        "flagged": int(flagged[i, j]),
                        "matched_random": card.matched_random or "",
                        "difference": _mean(gap),
                    }
                )
        tested = self.replicate.test(differences, directions)
        for row, p_value, verdict in zip(rows, tested.p, tested.verdicts, strict=True):
            row["p_vs_random"] = p_value
            row["verdict"] = "" if self.forbids_verdicts else verdict
        return rows

    def summary(self) -> pa.Table:
        """Method × metric: mean, 95 % interval, n, flagged, and the test against random.

        `p_vs_random` is Holm-adjusted over the whole table (NaN over trainings, which are judged by
        their intervals); `verdict` is "better", "worse" or "same" than the matched random method,
        "" where there is none or too little to say.
        """
        return pa.Table.from_pylist(self.rows)

    def arrow(self, metric: str) -> str:
        """Which way is better."""
        choose("metric of this result", metric, self.metrics)
        return "↑" if self.manifest.metrics[metric].higher_is_better else "↓"

    def comparisons(self) -> pa.Table:
        """Every two methods on every metric: difference with interval, p and effect sizes.

        p-values are Holm-adjusted over all of them.
        """
        pairs = [
            (metric, first, second)
            for metric in self.metrics
            for first, second in combinations(self.series, 2)
            if first.procedure == second.procedure
        ]
        differences = [
            self.scores_of(first, metric) - self.scores_of(second, metric)
            for metric, first, second in pairs
        ]
        intervals = self.replicate.intervals(differences)
        tested = self.replicate.test(differences, [True] * len(pairs))
        rows: list[Row] = []
        for (metric, first, second), difference, (low, high), p_value in zip(
            pairs, differences, intervals, tested.p, strict=True
        ):
            size = effect_size(difference)
            rows.append(
                {
                    "metric": metric,
                    "method": first.label,
                    "other": second.label,
                    "difference": _mean(difference),
                    "ci_low": low,
                    "ci_high": high,
                    "n": int((~np.isnan(difference)).sum()),
                    "d_z": float(size.d_z),
                    "rank_biserial": float(size.rank_biserial),
                    "p": p_value,
                }
            )
        return pa.Table.from_pylist(rows)

    def correlations(self) -> pa.Table:
        """Do metrics agree on which method is better? Rank correlation, replicate by replicate.

        The mean with its interval; + means that they agree. Random attribution is one of the
        methods.
        """
        better = np.array([self.manifest.metrics[m].higher_is_better for m in self.metrics])
        found = metric_correlation(self.cube, better)
        return pa.Table.from_pylist(
            [
                {
                    "metric": self.metrics[one],
                    "other": self.metrics[other],
                    "correlation": float(found.mean[one, other]),
                    "ci_low": float(found.low[one, other]),
                    "ci_high": float(found.high[one, other]),
                    "samples": int(found.samples[one, other]),
                }
                for one, other in combinations(range(len(self.metrics)), 2)
            ]
        )

    @cached_property
    def marks(self) -> list[tuple[Any, str, str]]:
        """Sample, method and flags of the scores that have flags, each once."""
        names = ("sample", "method", "flag")
        parts = [plain(part.filter(_is_marked(part))) for part in self.parts("scores", *names)]
        held = pa.concat_tables(parts).group_by([*names], use_threads=False).aggregate([])
        return list(zip(*(held[name].to_pylist() for name in names), strict=True))

    def _flagged(self) -> NDArray[np.int64]:
        """How many replicates have a flag: [series, metrics]."""
        flagged = np.zeros(self._shape, dtype=bool)
        for part, places in self._placed("flag"):
            flagged.reshape(-1)[places[_is_marked(part).to_numpy()]] = True
        counts: NDArray[np.int64] = flagged.sum(-1)
        return counts


def _is_marked(scores: pa.Table) -> pa.ChunkedArray:
    """Which scores have a flag."""
    return pc.not_equal(scores["flag"].cast(pa.string()), "").fill_null(False)


def plain(table: pa.Table) -> pa.Table:
    """The same with names as text, each written out."""
    kinds = [
        pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(kinds))


def numbered(names: Sequence[Any]) -> dict[Any, int]:
    """The place of every name in a list."""
    return {name: place for place, name in enumerate(names)}


def codes(column: pa.ChunkedArray, place: Mapping[Any, int]) -> NDArray[np.int64]:
    """A column of names as their places in a list."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    known = np.array([place[name] for name in encoded.dictionary.to_pylist()], dtype=np.int64)
    found: NDArray[np.int64] = known[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
