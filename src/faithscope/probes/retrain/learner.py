"""What the ROAR procedures ask of a model that can be trained: encode, train, explain.

A *pack* is a list of models trained together: equal in shape, each with its own data (masked in
its own way) and its own seed. A learner that cannot share work trains them one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from faithscope.data.text import TextData, TokenData, Tokens
from faithscope.methods import Method

Weights = Mapping[str, Tensor]
"""One trained model: its parameters by name, on the CPU."""


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
    """A kind of model, ready to be trained on one data set."""

    name: str
    recipe: Recipe
    device: str
    pack_size: int

    def encode(self, data: TextData) -> TokenData:
        """Turn texts into tokens, once for all trainings."""

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> Training:
        """Begin to train a pack, model i on data[i] with seeds[i]."""

    def explain(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        """Scores [N, T] (float32, CPU) of model i on tokens[i]; positions beyond lengths are 0."""

    def check(self, measure: Method) -> None:
        """Refuse a measure that this model cannot give."""
