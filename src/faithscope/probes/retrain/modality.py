"""What differs between texts and images in ROAR; everything else is written once.

A modality knows where its data comes from, which measures there are, what a mask is made of and
what the manifest says. It is chosen by the model that is trained (learners.py), nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from faithscope.methods import Method
from faithscope.probes.retrain.jobs import Jobs
from faithscope.probes.retrain.learner import Learner, Masks, Scores
from faithscope.request import Given, Retrain
from faithscope.runs.cards import DataCard


class Modality(Protocol):
    """Texts, or images. `source` is data as it was loaded, `data` as a learner encoded it."""

    name: Literal["text", "image"]
    sample: str
    """What a data set consists of, in a word."""
    unit: str
    """What is masked, in a word."""
    keeps_masks: bool
    """Whether what was masked is small enough to stay with every training."""
    shows_intact: bool
    """Whether examples begin with what is not masked at all."""

    def open_options(self, request: Retrain) -> dict[str, Any]:
        """The options that a request leaves open, decided; those of the other are refused."""

    def measures(self, request: Retrain, given: Given) -> list[Method]:
        """The measures that are asked for."""

    def load(self, request: Retrain, given: Given) -> Any:
        """The data that is asked for."""

    def encode(self, learner: Learner, source: Any, request: Retrain) -> Any:
        """The data as the learner takes it."""

    def granularity(self, method: Method, request: Retrain) -> str:
        """How fine the scores of a measure are."""

    def fingerprint(self, data: Any) -> str:
        """A hash of everything that is trained on."""

    def card(self, source: Any, data: Any, jobs: Jobs) -> DataCard:
        """What the manifest says of the data."""

    def statistics(self, data: Any) -> Any:
        """What measures that need no model read of the training split; made once."""

    def model_free(
        self, learner: Learner, data: Any, statistics: Any, item: Method, seed: int
    ) -> dict[str, Any]:
        """The scores of a measure that reads no model, by split."""

    def sparsity(
        self, data: Any, scores: Scores, request: Retrain
    ) -> Mapping[str, Mapping[int, float]]:
        """How sharp scores are; empty where nobody asks."""

    def examples(self, data: Any, masks: Masks, scores: Scores | None) -> list[dict[str, Any]]:
        """A few test samples: what was masked of them and by which scores, or a `picture` of it."""
