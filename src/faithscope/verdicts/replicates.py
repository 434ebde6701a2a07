"""What is repeated, and which statistics fit it: samples of a given model, or whole trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from faithscope.runs.manifest import Manifest
from faithscope.verdicts.statistics import (
    FEWEST_SEEDS,
    bootstrap_intervals,
    holm,
    interval_or_nan,
    is_above_zero,
    paired_p_values,
)

Array = NDArray[np.float64]

SIGNIFICANT = 0.05


class Tested(NamedTuple):
    """The tests of several paired differences: p-values, if there are any, and verdicts."""

    p: list[float]
    verdicts: list[str]
    """"better", "worse", "same", or "" where nothing can be said."""


class Replicate(Protocol):
    """The statistics of one kind of replicate."""

    @property
    def word(self) -> str:
        """What one is called."""

    @property
    def how(self) -> str:
        """How a difference is tested, in words."""

    def intervals(self, values: Sequence[Array]) -> list[tuple[float, float]]:
        """The 95 % interval of every mean; NaN if there are too few values that are not NaN."""

    def test(self, differences: Sequence[Array], higher_is_better: Sequence[bool]) -> Tested:
        """Test every mean difference against zero; NaN stands for a pair that is missing."""

    def needed(self, comparisons: int) -> int:
        """The fewest replicates with which any of so many comparisons can come out significant."""


@dataclass(frozen=True)
class Samples:
    """Samples of a model that was given: paired permutation tests, Holm-adjusted together."""

    word: str = "image"

    @property
    def how(self) -> str:
        """How a difference is tested, in words."""
        test = f"paired permutation test over {self.word}s"
        return f"{test}, p ≤ {SIGNIFICANT} after Holm's correction"

    def intervals(self, values: Sequence[Array]) -> list[tuple[float, float]]:
        """Bootstrap over samples, all from the same draws."""
        low, high = bootstrap_intervals(values)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def test(self, differences: Sequence[Array], higher_is_better: Sequence[bool]) -> Tested:
        """Sign-flip permutation tests."""
        if not differences:
            return Tested([], [])
        adjusted = holm(paired_p_values(np.stack(differences, axis=1)))
        enough = self.needed(int((~np.isnan(adjusted)).sum()))
        verdicts = []
        for difference, p_value, higher in zip(
            differences, adjusted, higher_is_better, strict=True
        ):
            known = difference[~np.isnan(difference)]
            judged = len(known) >= enough and not np.isnan(p_value)
            if judged and p_value > SIGNIFICANT:
                verdicts.append("same")
            else:
                rises = len(known) > 0 and known.mean() > 0
                verdicts.append(("better" if rises == higher else "worse") if judged else "")
        return Tested([float(p) for p in adjusted], verdicts)

    def needed(self, comparisons: int) -> int:
        """With n samples the smallest p-value is 2 / 2^n, which Holm's correction multiplies.

        >>> Samples().needed(25)
        10
        """
        return 1 + math.ceil(math.log2(max(1, comparisons) / SIGNIFICANT))


class Seeds:
    """Whole trainings: Student's interval together with the bootstrap's, from three on."""

    word = "seed"
    how = "95 % interval over seeds, by bootstrap and by Student's t, that excludes 0"

    def intervals(self, values: Sequence[Array]) -> list[tuple[float, float]]:
        """Bootstrap over seeds."""
        known = [column[~np.isnan(column)] for column in values]
        nothing = (float("nan"), float("nan"))
        return [interval_or_nan(column)[1:] if len(column) else nothing for column in known]

    def test(self, differences: Sequence[Array], higher_is_better: Sequence[bool]) -> Tested:
        """Both intervals; nothing is corrected for the number of comparisons."""
        verdicts = []
        for difference, higher in zip(differences, higher_is_better, strict=True):
            gain = difference[~np.isnan(difference)] * (1 if higher else -1)
            if len(gain) < FEWEST_SEEDS:
                verdicts.append("")
            elif is_above_zero(gain):
                verdicts.append("better")
            else:
                verdicts.append("worse" if is_above_zero(-gain) else "same")
        return Tested([float("nan")] * len(verdicts), verdicts)

    def needed(self, comparisons: int) -> int:
        """Three."""
        return FEWEST_SEEDS


def replicate_of(manifest: Manifest) -> Replicate:
    """What a run repeats, by its way of probing."""
    return Seeds() if manifest.kind == "retrain" else Samples(manifest.sample)
