"""The samples that two runs have in common, and whether they are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faithscope.runs.run import Run

SAME_ANSWER = 0.02
"""A model gives the same intact image no probabilities further apart, whatever the rounding."""


def shared_samples(first: Run, second: Run) -> list[str]:
    """The names of the samples that both runs have, in the order of the first."""
    theirs = set(second.samples["sample"].to_pylist())
    return [sample for sample in first.samples["sample"].to_pylist() if sample in theirs]


def intact(run: Run, samples: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Label, classes and log-probability of some samples, in their order."""
    place = {sample: i for i, sample in enumerate(run.samples["sample"].to_pylist())}
    rows = [place[sample] for sample in samples]
    names = ("label", "target", "predicted", "log_p0")
    return {name: run.samples[name].to_numpy()[rows] for name in names}


def other_answers(first: Run, second: Run, samples: Sequence[str]) -> NDArray[np.bool_]:
    """Where one model, asked for one target, answers differently: then the images are not the same.

    Images of an array are named by their place, which may hold another image in another array.
    """
    one, other = intact(first, samples), intact(second, samples)
    apart = np.abs(np.exp(one["log_p0"]) - np.exp(other["log_p0"])) > SAME_ANSWER
    broken = np.isnan(one["log_p0"]) != np.isnan(other["log_p0"])
    different: NDArray[np.bool_] = apart | broken | (one["predicted"] != other["predicted"])
    return different
