"""What the scores of a run say beyond the table: methods and metrics against each other."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from faithscope.verdicts.statistics import (
    bootstrap_interval,
    effect_size,
    holm,
    metric_correlation,
    paired_p_values,
)

if TYPE_CHECKING:
    from faithscope.result import Result

Row = dict[str, Any]


def comparisons(result: Result) -> list[Row]:
    """Every two methods on every metric: paired difference with its interval, p and effect sizes.

    p-values come from paired sign-flip permutation tests, Holm-adjusted over the whole table. Both
    random attributions are among the methods: the matched one, which verdicts use, and the other.
    """
    rows: list[Row] = []
    differences = []
    for metric in result.metrics:
        for first, second in combinations(result.methods, 2):
            difference = result.values(first, metric) - result.values(second, metric)
            known = difference[~np.isnan(difference)]
            low, high = bootstrap_interval(known)
            size = effect_size(difference)
            differences.append(difference)
            rows.append(
                {
                    "metric": metric,
                    "method": first,
                    "other": second,
                    "difference": float(known.mean()) if len(known) else float("nan"),
                    "ci_low": low,
                    "ci_high": high,
                    "n": len(known),
                    "d_z": float(size.d_z),
                    "rank_biserial": float(size.rank_biserial),
                }
            )
    if rows:
        adjusted = holm(paired_p_values(np.stack(differences, axis=1)))
        for row, p_value in zip(rows, adjusted, strict=True):
            row["p"] = float(p_value)
    return rows


def correlations(result: Result) -> list[Row]:
    """Do metrics agree on which method is better? Rank correlation over methods, image by image.

    The mean over images with its interval; + means that they agree. Random attribution is one of
    the methods.
    """
    better = np.array([result.manifest["metrics"][m]["higher_is_better"] for m in result.metrics])
    found = metric_correlation(result.cube, better)
    return [
        {
            "metric": result.metrics[one],
            "other": result.metrics[other],
            "correlation": float(found.mean[one, other]),
            "ci_low": float(found.low[one, other]),
            "ci_high": float(found.high[one, other]),
            "samples": int(found.samples[one, other]),
        }
        for one, other in combinations(range(len(result.metrics)), 2)
    ]


def metric_verdicts(result: Result) -> list[str]:
    """One sentence per metric: does it tell random attribution from the methods, and put it below?

    "Better" and "worse" are paired tests against the matched random attribution, Holm-adjusted
    over the whole table. A fair SaCo of random attribution is 0.
    """
    summary = result.summary().to_pylist()
    sentences = []
    for metric in result.metrics:
        judged = [row for row in summary if row["metric"] == metric and row["verdict"]]
        if not judged:
            continue
        better, worse = (sum(row["verdict"] == w for row in judged) for w in ("better", "worse"))
        said = f"{metric} tells {better + worse} of {len(judged)} methods from random attribution"
        if better + worse:
            said += f" and puts it below {better}"
        if metric.startswith("saco"):
            said += _covers_zero([r for r in summary if r["metric"] == metric], result)
        sentences.append(f"{said}.")
    return sentences


def _covers_zero(rows: list[Row], result: Result) -> str:
    random = [row for row in rows if result.manifest["methods"][row["method"]]["random"]]
    words = []
    for row in random:
        covers = row["ci_low"] <= 0 <= row["ci_high"]
        words.append(
            f"{row['method']}'s interval [{row['ci_low']:.3f}, {row['ci_high']:.3f}] "
            f"{'covers' if covers else 'does not cover'} 0"
        )
    return "".join(f"; {word}" for word in words)
