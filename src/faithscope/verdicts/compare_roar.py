"""Two ROAR runs against each other: seeds are paired, and RACU and areas are compared.

The rows have the shape of a comparison over images, so that the same table shows them and the same
conditions fail a job: a method is a measure by one procedure, the metrics are `racu` and `area`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, unknown
from faithscope.result import named
from faithscope.verdicts.statistics import is_surely_above, told_interval

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

Array = NDArray[np.float64]
Row = dict[str, Any]

ROAR_METRICS = {"racu": True, "area": False}
"""What is compared, and whether more of it is better.

`area` is the mean performance over the levels of masking: the lower it is, the more was lost by
masking what the measure names.
"""
FEWEST_SEEDS = 5
"""Of which an interval over shared seeds is a verdict; as many as in the paper."""


@dataclass(frozen=True, eq=False)
class RoarComparison:
    """The second run against the first, on the measures, procedures and seeds that both have.

    `differs` says in words what differs between the runs; `only_first` and `only_second` count the
    seeds that one run has alone, and `lone_methods` and `lone_metrics` name what is left out.
    """

    first: RoarResult
    second: RoarResult
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    lone_methods: tuple[str, ...]
    lone_metrics: tuple[str, ...]
    differs: tuple[str, ...]

    enough = FEWEST_SEEDS
    unit = "seed"
    notes = ()

    @property
    def shared(self) -> int:
        """How many seeds both runs have."""
        return len(self.seeds)

    @property
    def only_first(self) -> int:
        """Seeds of the first run alone."""
        return len(self.first.seeds) - len(self.seeds)

    @property
    def only_second(self) -> int:
        """Seeds of the second run alone."""
        return len(self.second.seeds) - len(self.seeds)

    def summary(self) -> pa.Table:
        """Measure × procedure × metric: both means, their difference with its interval, verdict."""
        return pa.Table.from_pylist(self.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """The table's rows.

        A difference is second − first over the shared seeds with its BCa interval; `verdict` says
        on which side of 0 that lies, and is "" with too few seeds to say. Numbers that are all
        equal are the "same" however few.
        """
        values = [_values(result, self.seeds) for result in (self.first, self.second)]
        return [
            {
                "method": method,
                "measure": _measure(method),
                "metric": metric,
                "random": self.is_random(method),
                **_paired(*(found[method, metric] for found in values), better=self.up(metric)),
            }
            for method in self.methods
            for metric in self.metrics
            if (method, metric) in values[0]
        ]

    def is_random(self, method: str) -> bool:
        """Whether a method is random masking."""
        return _measure(method) == "random"

    def up(self, metric: str) -> bool:
        """Whether more of a metric is better; where less is good, more of its area is lost."""
        return ROAR_METRICS[metric] or self.first.metric == "cross_entropy"

    def explained(self) -> list[Row]:
        """The rows of measures, without random masking."""
        return [row for row in self.rows if not row["random"]]

    @property
    def names(self) -> list[str]:
        """What a condition may call a method: a measure, or a measure by one procedure."""
        methods = [*self.methods, *self.lone_methods]
        return [*methods, *dict.fromkeys(_measure(name) for name in methods)]

    @property
    def lost_methods(self) -> list[str]:
        """What the second run should have and does not."""
        return [name for name in self.lone_methods if name in _methods(self.first)]

    @property
    def lost_metrics(self) -> list[str]:
        """None: both runs have all metrics."""
        return []

    def headline(self) -> str:
        """The comparison in one sentence."""
        rows = [row for row in self.explained() if row["n"]]
        seeds = f"{len(self.seeds)} shared seed{'s' * (len(self.seeds) > 1)}"
        if not rows:
            return f"No score to compare on {seeds}: no measure is in both runs."
        if all(row["verdict"] == "same" and not row["ci_low"] < row["ci_high"] for row in rows):
            return f"Nothing changed on {seeds}: every difference is 0."
        if all(row["n"] < FEWEST_SEEDS for row in rows):
            are = "are" if len(self.seeds) > 1 else "is"
            return f"{seeds} {are} too few for a verdict: it needs at least {FEWEST_SEEDS}."
        said = []
        for metric in self.metrics:
            own = [row for row in rows if row["metric"] == metric]
            for verdict in ("better", "worse"):
                names = [row["method"] for row in own if row["verdict"] == verdict]
                if names:
                    said.append(
                        f"{metric} is {verdict} for {len(names)} of {len(own)}{named(names)}"
                    )
        told = "; ".join(said) or "no measure can be told apart on any metric"
        return f"The second run against the first on {seeds}: {told}."

    def sentences(self) -> list[str]:
        """What else a reader must know."""
        moved = [row["method"] for row in self.rows if row["random"] and row["verdict"] != "same"]
        if not moved or len(self.seeds) < FEWEST_SEEDS:
            return []
        return [
            "Random masking moved too: part of a change of the area is the model's, not the "
            "measure's."
        ]


def compare_roar(
    first: RoarResult,
    second: RoarResult,
    *,
    methods: Iterable[str] | None = None,
    metrics: Iterable[str] | None = None,
) -> RoarComparison:
    """Compare two ROAR runs on the measures, procedures and seeds that both have.

    Data set, metric, strategy, levels and clipping must be the same. `methods` chooses measures,
    as "attention" or "attention/recursive", `metrics` of racu (not of runs that mask a few tokens)
    and area.
    """
    _check_same(first, second)
    seeds = tuple(seed for seed in first.seeds if seed in second.seeds)
    if not seeds:
        raise FaithscopeError(
            f"The runs have no seed in common ({_listed(first.seeds)} and "
            f"{_listed(second.seeds)}): compare runs of the same seeds, which are paired."
        )
    own = [_methods(result) for result in (first, second)]
    both = [name for name in own[0] if name in own[1]]
    lone = [name for name in dict.fromkeys([*own[0], *own[1]]) if name not in both]
    if methods is not None:
        both, lone = _chosen(methods, both), []
    chosen = list(ROAR_METRICS if _is_relative(first) else ["area"])
    if metrics is not None:
        chosen = [_known("metric of these ROAR runs", name, chosen) for name in metrics]
    if not both or not chosen:
        raise FaithscopeError("The runs share nothing to compare: give runs of the same measures.")
    return RoarComparison(
        first,
        second,
        methods=tuple(both),
        metrics=tuple(dict.fromkeys(chosen)),
        seeds=seeds,
        lone_methods=tuple(lone),
        lone_metrics=(),
        differs=tuple(_differences(first, second)),
    )


def _check_same(first: RoarResult, second: RoarResult) -> None:
    """Refuse runs whose numbers do not mean the same, naming what differs."""
    settings = [
        {
            "data set": (data := result.manifest["data"])["name"],
            "texts": data["fingerprint"],
            "metric": data["metric"],
            **{key: result.manifest["protocol"][key] for key in ("strategy", "levels", "clip")},
        }
        for result in (first, second)
    ]
    for key, value in settings[0].items():
        other = settings[1][key]
        if value != other:
            raise FaithscopeError(
                f"The runs differ in their {key} ({_listed(value)} and {_listed(other)}), so their "
                "numbers do not mean the same: compare runs of the same data and levels."
            )


def _differences(first: RoarResult, second: RoarResult) -> list[str]:
    cards = [_settings(result) for result in (first, second)]
    return [
        f"{key}: {value} → {cards[1][key]}"
        for key, value in cards[0].items()
        if value != cards[1].get(key, value)
    ]


def _settings(result: RoarResult) -> Row:
    model = result.manifest["model"]
    return {
        "model": model["name"],
        "parameters": model["parameters"],
        **model["recipe"],
        "faithscope": result.manifest["versions"].get("faithscope", "?"),
    }


def _is_relative(result: RoarResult) -> bool:
    """Whether RACU is defined, which is relative to what masking everything loses."""
    return bool(result.manifest["protocol"]["strategy"] == "relative")


def _methods(result: RoarResult) -> list[str]:
    return [f"{measure}/{name}" for measure in result.measures for name in result.procedures]


def _measure(method: str) -> str:
    """The measure of a method.

    >>> _measure("attention/recursive")
    'attention'
    """
    return method.rpartition("/")[0]


def _chosen(methods: Iterable[str], valid: Sequence[str]) -> list[str]:
    """The methods that are named, by both procedures if none is."""
    found: list[str] = []
    for name in methods:
        fitting = [known for known in valid if name.strip() in (known, _measure(known))]
        if not fitting:
            raise unknown("measure of both runs", name, valid)
        found += fitting
    return list(dict.fromkeys(found))


def _known(kind: str, name: str, valid: Iterable[str]) -> str:
    if name.strip() not in valid:
        raise unknown(kind, name, valid)
    return name.strip()


def _values(result: RoarResult, seeds: Sequence[int]) -> dict[tuple[str, str], Array]:
    """RACU and area of the shared seeds: [seeds] by method and metric; random has no RACU."""
    places = [result.seeds.index(seed) for seed in seeds]
    rows = result.racu().to_pylist() if _is_relative(result) else []
    found = {
        (f"{row['measure']}/{row['procedure']}", "racu"): np.array(row["values"])[places]
        for row in rows
    }
    levels = np.array(result.levels, dtype=np.float64)
    for measure in result.measures:
        for name in result.procedures:
            curves = result.values(measure, name)[places]
            area = np.trapezoid(curves, levels / levels[-1], axis=1)
            found[f"{measure}/{name}", "area"] = area
    return found


def _paired(first: Array, second: Array, *, better: bool) -> Row:
    difference = second - first
    known = ~np.isnan(difference)
    if not known.any():
        ends = dict.fromkeys(("first", "second", "difference", "ci_low", "ci_high"), np.nan)
        return {**ends, "n": 0, "verdict": ""}
    mean, low, high = told_interval(difference[known])
    row = {
        "first": float(first[known].mean()),
        "second": float(second[known].mean()),
        "difference": mean,
        "ci_low": low,
        "ci_high": high,
        "n": int(known.sum()),
    }
    return {**row, "verdict": _verdict(difference[known] if better else -difference[known])}


def _verdict(gain: Array) -> str:
    """Of the second run; "" if there are too few seeds to say."""
    if not gain.any():
        return "same"
    if len(gain) < FEWEST_SEEDS:
        return ""
    return "better" if is_surely_above(gain) else "worse" if is_surely_above(-gain) else "same"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
