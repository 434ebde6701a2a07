"""Enough is enough: is every mean known as precisely as was asked for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.metrics import Metric
from faithscope.probes.perturb.ask import Column
from faithscope.verdicts.sequences import sequence_width


class Watch:
    """Follows the confidence sequence of every method × metric, shard by shard.

    A confidence sequence is valid at every moment, so that stopping when it is narrow is allowed:
    with 95 % probability, for each method and metric, the mean lies in it *whenever* one looks. It
    is exact (empirical Bernstein) for bounded metrics and asymptotic for unbounded ones. Images
    must come in random order.
    """

    def __init__(
        self, tolerance: float, columns: Sequence[Column], metrics: Sequence[Metric]
    ) -> None:
        self.tolerance = tolerance
        self.metrics = metrics
        self.labels = [column.label for column in columns]
        self.methods = list(dict.fromkeys(self.labels))
        self.parts: list[NDArray[np.float64]] = []

    def add(self, scores: pa.Table) -> None:
        """Take in the scores of a shard, random draws averaged."""
        values = scores["value"].to_numpy().reshape(len(self.metrics), -1, len(self.labels))
        owner = np.array(self.labels)
        self.parts.append(np.stack([_known_mean(values[..., owner == m]) for m in self.methods]))

    def widths(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Width and kind of the sequence, by method and metric."""
        values = np.concatenate(self.parts, axis=-1)
        found: dict[str, dict[str, dict[str, Any]]] = {method: {} for method in self.methods}
        for place, metric in enumerate(self.metrics):
            width = sequence_width(values[:, place], metric.bounds)
            for method, value in zip(self.methods, width.width, strict=True):
                cell = {"width": float(value) if np.isfinite(value) else None, "kind": width.kind}
                found[method][metric.label] = cell
        return found

    def is_enough(self) -> bool:
        """Whether every sequence is narrower than the tolerance."""
        cells = [cell for by_metric in self.widths().values() for cell in by_metric.values()]
        return all(cell["width"] is not None and cell["width"] < self.tolerance for cell in cells)

    def said(self) -> Mapping[str, Any]:
        """What the manifest keeps of it."""
        return {
            "tolerance": self.tolerance,
            "images": sum(part.shape[-1] for part in self.parts),
            "reached": self.is_enough(),
            "sequences": self.widths(),
        }


def _known_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last axis of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(-1)
    mean: NDArray[np.float64] = total / np.where(known.any(-1), known.sum(-1), np.nan)
    return mean
