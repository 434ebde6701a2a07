"""The trainings of a run as curves: test performance by measure, procedure, seed and level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from faithscope.errors import choose
from faithscope.metrics import Curves as MeasureCurves
from faithscope.metrics import absolute_area, racu, racu_doubts
from faithscope.request import Retrain
from faithscope.runs.cards import SplitsCard
from faithscope.runs.plan import Plan
from faithscope.verdicts.statistics import interval_or_nan

Array = NDArray[np.float64]
Row = dict[str, Any]

BASELINE = "random"
"""The measure that all others are compared with; it is always among them."""


@dataclass(frozen=True, eq=False)
class Trainings:
    """Every point of every curve of a run, and what sums them up."""

    plan: Plan
    card: SplitsCard
    table: pa.Table

    @property
    def request(self) -> Retrain:
        """What was asked for."""
        assert isinstance(self.plan.request, Retrain)
        return self.plan.request

    @property
    def measures(self) -> list[str]:
        """Labels of the measures in the order they were asked for."""
        return [card.label for card in self.plan.methods]

    @property
    def procedures(self) -> list[str]:
        """The procedures that were run: roar, recursive."""
        return list(self.request.procedures)

    @property
    def seeds(self) -> list[int]:
        """The seeds, one training each per point of a curve."""
        seeds = self.request.seeds
        return list(seeds) if isinstance(seeds, tuple) else list(range(seeds))

    @property
    def levels(self) -> list[int]:
        """The levels of masking, rising from 0."""
        return list(self.request.levels or ())

    @property
    def metric(self) -> str:
        """The test metric that the paper reports for this data."""
        return self.card.metric

    @property
    def is_relative(self) -> bool:
        """Whether levels are percentages of a sample's units, which RACU needs."""
        return self.request.strategy == "relative"

    @property
    def is_better_higher(self) -> bool:
        """Whether more of the test metric is better."""
        return self.metric != "cross_entropy"

    @property
    def last(self) -> int:
        """The level that is no measure's own: 100 %, or none if units are counted."""
        return 100 if self.is_relative else 2**31

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Every measure with every procedure."""
        return [(measure, name) for measure in self.measures for name in self.procedures]

    @property
    def ratios(self) -> torch.Tensor:
        """The levels relative to the last: [I]."""
        return torch.tensor(self.levels, dtype=torch.float64) / max(self.levels)

    @property
    def tested(self) -> int:
        """How many samples the test split has."""
        return self.card.sizes.get("test", 0)

    def noise(self, value: float) -> float:
        """Two standard errors of a share of the test samples; none of a cross-entropy."""
        inside = min(max(value, 0.0), 1.0)
        return 2 * float(np.sqrt(inside * (1 - inside) / max(self.tested, 1)))

    @property
    def base_and_majority(self) -> tuple[float, float]:
        """How models of the intact data do, in the mean, and the most common class alone."""
        base = self.values(BASELINE, self.procedures[0])[:, 0]
        base = base[np.isfinite(base)]  # a model that diverged has no score
        mean = float(base.mean()) if len(base) else float("nan")
        return mean, self.card.majority.score

    @property
    def is_unlearned(self) -> bool:
        """Whether models of the intact data are no better than the most common class alone.

        Better by less than two standard errors on as many test samples may be chance, and is not.
        """
        base, majority = self.base_and_majority
        if not self.is_better_higher:
            return not base < majority
        return not base > majority + self.noise(majority) + 1e-9

    def values(self, measure: str, procedure: str, metric: str | None = None) -> Array:
        """Test performance of one measure and procedure: [seeds, levels]."""
        choose("measure of this result", measure, self.measures)
        choose("procedure of this result", procedure, self.procedures)
        name = choose("metric", self.metric if metric is None else metric, self._cubes)
        return self._cubes[name][measure, procedure]

    def pair(self, measure: str, procedure: str, metric: str | None = None) -> MeasureCurves:
        """A measure's curves beside those of random masking, as metrics take them."""
        return MeasureCurves(
            torch.from_numpy(self.values(measure, procedure, metric)),
            torch.from_numpy(self.values(BASELINE, procedure, metric)),
            self.ratios,
            self.is_relative,
            self.is_better_higher,
        )

    def curve_rows(self, metric: str | None = None) -> list[Row]:
        """Every point of every curve: mean over seeds, 95 % interval (NaN below 3 seeds), n."""
        rows = []
        for measure, procedure in self.kinds:
            values = self.values(measure, procedure, metric)
            for place, k in enumerate(self.levels):
                mean, low, high = interval_or_nan(values[:, place])
                ends = {"mean": mean, "ci_low": low, "ci_high": high}
                names = {"measure": measure, "procedure": procedure, "k": k}
                rows.append({**names, **ends, "n": len(values)})
        return rows

    def racu_rows(self, clip: bool = True, metric: str | None = None) -> Iterator[Row]:
        """RACU of every measure but random: by seed, its mean with interval, the absolute area."""
        for measure, procedure in self.kinds:
            if measure == BASELINE:
                continue
            held = self.pair(measure, procedure, metric)
            doubts = racu_doubts(held.baseline, held.ratios)
            found = racu(held.curve, held.baseline, held.ratios, clip=clip)
            found = found.masked_fill(doubts.degenerate, torch.nan)
            areas = absolute_area(held.curve, held.baseline, held.ratios)
            known = found[~doubts.degenerate].numpy()
            mean, low, high = interval_or_nan(known) if len(known) else (float("nan"),) * 3
            area, area_low, area_high = interval_or_nan(areas.numpy())
            yield {
                "measure": measure,
                "procedure": procedure,
                "mean": mean,
                "ci_low": low,
                "ci_high": high,
                "n": len(known),
                "seeds": self.seeds,
                "values": found.tolist(),
                "area": area,
                "area_low": area_low,
                "area_high": area_high,
                "areas": areas.tolist(),
                "degenerate": self._named(doubts.degenerate),
                "negative": self._named(doubts.negative),
            }

    def one_class(self) -> list[Row]:
        """Trainings on partly masked data that give one class as their only answer.

        Nothing was left to learn there, or the training failed. Their accuracy a is the share of
        that class, and its F1 the only one of C that is not 0: macro-F1 is 2a / (1 + a) / C. That
        other answers give a whole C is a coincidence of few test samples.
        """
        found = []
        for measure, procedure in self.kinds:
            share, f1 = (self.values(measure, procedure, name) for name in ("accuracy", "macro_f1"))
            with np.errstate(divide="ignore", invalid="ignore"):
                classes = 2 * share / (1 + share) / f1
            alone = (np.abs(classes - classes.round()) < 1e-9 * classes) & (classes > 1.5)
            for seed, place in np.argwhere(alone).tolist():
                k = self.levels[place]
                if measure != BASELINE and 0 < k < self.last:
                    kind = {"measure": measure, "procedure": procedure}
                    found.append({**kind, "seed": self.seeds[seed], "k": k})
        return found

    def at_level(self, k: int) -> Row:
        """Performance at 0 % or 100 %, which all measures share: mean and interval over seeds.

        NaN for a level that is none of the run's, or that only means "so many units".
        """
        ends = ("mean", "ci_low", "ci_high")
        if (k and not self.is_relative) or k not in self.levels:
            return dict.fromkeys(ends, float("nan"))
        values = self.values(BASELINE, self.procedures[0])[:, self.levels.index(k)]
        return dict(zip(ends, interval_or_nan(values), strict=True))

    def _named(self, which: torch.Tensor) -> list[int]:
        return [seed for seed, yes in zip(self.seeds, which.tolist(), strict=True) if yes]

    @cached_property
    def _cubes(self) -> dict[str, dict[tuple[str, str], Array]]:
        """By metric, measure and procedure: values [seeds, levels]."""
        shape = (len(self.seeds), len(self.levels))
        cubes: dict[str, dict[tuple[str, str], Array]] = {}
        names = ("metric", "measure", "procedure", "seed", "k", "value")
        columns = [self.table[name].to_pylist() for name in names]
        places = {seed: i for i, seed in enumerate(self.seeds)}
        levels = {k: i for i, k in enumerate(self.levels)}
        for metric, measure, procedure, seed, k, value in zip(*columns, strict=True):
            kinds = cubes.setdefault(metric, {})
            cube = kinds.setdefault((measure, procedure), np.full(shape, np.nan))
            cube[places[seed], levels[k]] = value
        return cubes
