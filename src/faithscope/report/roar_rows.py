"""What tables and pages say of ROAR runs, as rows of numbers and as sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from faithscope.probes.retrain.verdict import METRICS, PROCEDURES, score
from faithscope.verdicts.statistics import FEWEST_SEEDS, is_surely_above, told_interval

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

Row = dict[str, Any]

ENDS = ("mean", "ci_low", "ci_high")
NO_ENDS = "No interval is shown, because fewer than three seeds are too few for one"


def run_labels(results: Mapping[str, RoarResult]) -> dict[str, str]:
    """What a table calls each run: its data set, with the run's name where data and model repeat.

    Taken of all runs once, so that a run is called the same in every row of every table.
    """
    names = {run: _names(run, result) for run, result in results.items()}
    pairs = Counter((row["data"], row["model"]) for row in names.values())
    return {
        run: f"{row['data']} ({run})" if pairs[row["data"], row["model"]] > 1 else row["data"]
        for run, row in names.items()
    }


def racu_rows(results: Mapping[str, RoarResult]) -> list[Row]:
    """RACU of every measure but random, by run and procedure, and how it compares with random.

    A run that masks a few tokens has none: RACU is relative to what masking everything loses.
    """
    columns = ("measure", "procedure", *ENDS, "n", "area", "area_low", "area_high")
    return [
        {
            **_names(run, result),
            **{key: row[key] for key in columns},
            "verdict": _verdict(row, result.is_unlearned),
        }
        for run, result in results.items()
        if result.is_relative
        for row in _ordered(result, result.racu().to_pylist())
    ]


def curve_rows(results: Mapping[str, RoarResult]) -> list[Row]:
    """Performance at every level, by run, procedure and measure."""
    return [
        {
            **_names(run, result),
            "metric": result.metric,
            "strategy": result.manifest["protocol"]["strategy"],
            **row,
        }
        for run, result in results.items()
        for row in _ordered(result, result.curves().to_pylist())
    ]


def majority_rows(results: Mapping[str, RoarResult]) -> list[Row]:
    """What the largest class alone scores, beside models of unmasked and of fully masked texts."""
    rows = []
    for run, result in results.items():
        data = result.manifest["data"]
        rows.append(
            {
                **_names(run, result),
                "metric": data["metric"],
                "majority_class": str(data["majority"]["class"]),
                "majority": float(data["majority"]["score"]),
                **{f"masked_{key}": value for key, value in at_level(result, 100).items()},
                **{f"unmasked_{key}": value for key, value in at_level(result, 0).items()},
            }
        )
    return rows


def sparsity_rows(results: Mapping[str, RoarResult]) -> list[Row]:
    """Share of the importance that the first tokens hold: mean and interval over seeds."""
    rows = []
    for run, result in results.items():
        groups: dict[tuple[str, str, int], list[float]] = {}
        for row in result.sparsity.to_pylist():
            key = row["measure"], row["kind"], row["x"]
            groups.setdefault(key, []).append(row["value"])
        rows += [
            {
                **_names(run, result),
                "measure": measure,
                "kind": kind,
                "x": x,
                **dict(zip(ENDS, told_interval(values), strict=True)),
                "n": len(values),
            }
            for (measure, kind, x), values in groups.items()
        ]
    return rows


def time_rows(results: Mapping[str, RoarResult]) -> list[Row]:
    """What one step with each measure takes, in seconds: explain a model, train the next."""
    return [
        {
            **_names(run, result),
            "measure": row["measure"],
            "explaining_seconds": 60 * row["explaining"],
            "training_seconds": 60 * row["training"],
            "step_seconds": 60 * row["minutes"],
        }
        for run, result in results.items()
        for row in result.compute_time().to_pylist()
    ]


def at_level(result: RoarResult, k: int) -> Row:
    """Performance at 0 % or 100 %, which all measures share: mean and interval over seeds.

    NaN for a level that is none of the run's, or that only means "so many tokens".
    """
    if (k and not result.is_relative) or k not in result.levels:
        return dict.fromkeys(ENDS, math.nan)
    values = result.values("random", result.procedures[0])[:, result.levels.index(k)]
    return dict(zip(ENDS, told_interval(values), strict=True))


def ends_sentence(result: RoarResult) -> str:
    """How models of unmasked and of fully masked texts do."""
    data = result.manifest["data"]
    metric = data["metric"]
    said = f"Unmasked the models reach {score(metric, at_level(result, 0)['mean'])}"
    masked = at_level(result, 100)["mean"]
    if not math.isnan(masked):
        said += f", with every token masked {score(metric, masked)}"
    majority = score(metric, data["majority"]["score"])
    return f"{said} ({METRICS[metric]}); the largest class alone would score {majority}."


def _names(run: str, result: RoarResult) -> Row:
    manifest = result.manifest
    return {"run": run, "data": manifest["data"]["name"], "model": manifest["model"]["name"]}


def _ordered(result: RoarResult, rows: Sequence[Row]) -> list[Row]:
    """Rows of a run by procedure and measure, as asked for; the recursive one first."""
    procedures, measures = list(PROCEDURES), result.measures
    return sorted(
        rows, key=lambda row: (procedures.index(row["procedure"]), measures.index(row["measure"]))
    )


def _verdict(row: Row, is_unlearned: bool) -> str:
    """How RACU compares with random masking, whose RACU is 0.

    "" with too few seeds to say, or if the models learnt nothing that an explanation could show.
    """
    if is_unlearned or row["n"] < FEWEST_SEEDS or math.isnan(row["ci_low"]):
        return ""
    if is_surely_above(row["values"]):
        return "better"
    return "worse" if is_surely_above([-value for value in row["values"]]) else "same"
