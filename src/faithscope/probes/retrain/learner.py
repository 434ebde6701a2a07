"""What the ROAR procedures ask of a model that can be trained: encode, train, explain.

A *pack* is a list of models trained together: equal in shape, each with its own data (masked in
its own way) and its own seed. A learner that cannot share work trains them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from faithscope.methods import Method

Weights = Mapping[str, Tensor]
"""One trained model: its parameters by name, on the CPU."""


Masks = Mapping[str, Tensor]
"""The masked positions of one job: bool [N, T] by split."""
Scores = Mapping[str, Tensor]
"""Scores [N, T] by split."""


class Part(Protocol):
    """One split, ready for a model: N samples of at most T units, which can be masked."""

    labels: Tensor

    def __len__(self) -> int: ...

    @property
    def eligible(self) -> Tensor:
        """Which units may be masked: bool [N, T]."""

    def at(self, rows: Tensor) -> Any:
        """Some of the samples."""


class Encoded(Protocol):
    """A data set ready for a model: texts as tokens, or images."""

    name: str
    classes: tuple[str, ...]
    metric: str
    selection: str
    train: Any
    validation: Any
    test: Any

    @property
    def splits(self) -> Iterator[tuple[str, Any]]:
        """The splits by name, each a `Part`."""

    def hidden(self, split: str) -> Tensor | None:
        """Which units of a split are masked already: bool [N, T]; None if none is."""

    def masked(self, masks: Masks) -> Any:
        """The same data with these units masked, whatever was masked before."""

    def with_splits(self, parts: Mapping[str, Any]) -> Any:
        """The same data with other splits."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults per data set are the paper's (ROAR.md §2.3, 2.4)."""

    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished training: the weights of the best validation epoch and how they do on the test.

    `epoch` counts from 1; `scores` has the test metrics by name (accuracy, macro_f1, micro_f1,
    auroc, cross_entropy); `validation` the selection metric of every epoch.
    """

    weights: Weights
    epoch: int
    validation: tuple[float, ...]
    scores: Mapping[str, float]


class Training(Protocol):
    """The training of one pack, epoch by epoch; its state can be kept and taken up again."""

    @property
    def epoch(self) -> int:
        """Finished epochs."""

    @property
    def is_done(self) -> bool:
        """Whether all epochs are finished."""

    def run_epoch(self) -> None:
        """Train one more epoch and validate it."""

    def state(self) -> dict[str, Tensor]:
        """Everything needed to resume, as tensors on the CPU."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state: the epochs that follow are those that would have followed."""

    def finish(self) -> list[Trained]:
        """Test every model's best epoch."""


class Learner(Protocol):
    """A kind of model, ready to be trained on one data set of texts or of images.

    What it trains on, `Encoded`, is its modality's: a learner with `modality = "image"` takes
    `ImageSplits` and gives `PixelData`, all others `TextData` and `TokenData`. One that explains
    models one after the other, which a forecast should know, has `explains_one_by_one = True`.
    """

    name: str
    recipe: Recipe
    device: str
    pack_size: int

    def encode(self, data: Any) -> Any:
        """Turn texts into tokens, or take in images, once for all trainings."""

    def begin(self, data: Sequence[Any], seeds: Sequence[int]) -> Training:
        """Begin to train a pack, model i on data[i] with seeds[i]."""

    def explain(
        self,
        weights: Sequence[Weights],
        parts: Sequence[Any],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        """Scores [N, T] (float32, CPU) of model i on parts[i]; positions beyond lengths are 0."""

    def check(self, measure: Method) -> None:
        """Refuse a measure that this model cannot give."""


def explained_together(
    learner: Learner,
    weights: Sequence[Weights],
    parts: Sequence[Any],
    measures: Sequence[Method],
    seeds: Sequence[int],
) -> Sequence[Any]:
    """By measure, what `explain` gives.

    A learner that has `explain_together(weights, parts, measures, seeds)` does what several
    measures share once.
    """
    together = getattr(learner, "explain_together", None)
    if together is not None:
        made: Sequence[Any] = together(weights, parts, measures, seeds)
        return made
    return [learner.explain(weights, parts, measure, seeds) for measure in measures]
