"""Enough is enough: is every mean known as precisely as was asked for?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from faithscope.runs.cards import MethodCard, MetricCard, Stopping
from faithscope.runs.cards import Sequence as SequenceCard
from faithscope.runs.task import Tables
from faithscope.verdicts.sequences import sequence_width


class Tolerance:
    """Follows the confidence sequence of every method × metric, shard by shard.

    A confidence sequence is valid at every moment, so that stopping when it is narrow is allowed:
    with 95 % probability, for each method and metric, the mean lies in it *whenever* one looks. It
    is exact (empirical Bernstein) for bounded metrics and asymptotic for unbounded ones. Images
    must come in random order.
    """

    def __init__(
        self, tolerance: float, methods: Sequence[MethodCard], metrics: Sequence[MetricCard]
    ) -> None:
        self.tolerance = tolerance
        self.metrics = metrics
        self.labels = [card.label for card in methods for _ in range(card.draws)]
        self.methods = [card.label for card in methods]
        self.parts: list[NDArray[np.float64]] = []

    def add(self, tables: Tables) -> None:
        """Take in the scores of a shard, random draws averaged."""
        if "scores" not in tables:  # no image of the shard could be used
            return
        scores, owner = tables["scores"], np.array(self.labels)
        each = (pc.equal(scores["metric"], card.label) for card in self.metrics)
        values = np.stack(
            [scores.filter(own)["value"].to_numpy().reshape(-1, len(self.labels)) for own in each]
        )
        self.parts.append(np.stack([_known_mean(values[..., owner == m]) for m in self.methods]))

    def sequences(self) -> dict[str, dict[str, SequenceCard]]:
        """Width and kind of the sequence, by method and metric."""
        values = np.concatenate(self.parts, axis=-1)
        found: dict[str, dict[str, SequenceCard]] = {method: {} for method in self.methods}
        for place, metric in enumerate(self.metrics):
            low, high = metric.bounds
            bounds = (-np.inf if low is None else low, np.inf if high is None else high)
            width = sequence_width(values[:, place], bounds)
            for method, value in zip(self.methods, width.width, strict=True):
                known = float(value) if np.isfinite(value) else None
                found[method][metric.label] = SequenceCard(width=known, kind=width.kind)
        return found

    def is_enough(self) -> bool:
        """Whether every sequence is narrower than the tolerance."""
        if not self.parts:
            return False
        cells = [cell for by_metric in self.sequences().values() for cell in by_metric.values()]
        return all(cell.width is not None and cell.width < self.tolerance for cell in cells)

    def summary(self) -> Stopping:
        """What the manifest keeps of it."""
        return Stopping(
            tolerance=self.tolerance,
            samples=sum(part.shape[-1] for part in self.parts),
            reached=self.is_enough(),
            sequences=self.sequences(),
        )


def _known_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last axis of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(-1)
    mean: NDArray[np.float64] = total / np.where(known.any(-1), known.sum(-1), np.nan)
    return mean
