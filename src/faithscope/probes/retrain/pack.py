"""What the trainings of packs have in common: the best epochs, a state to resume from, the end.

All models of a pack take their step together; every parameter has a model axis M in front. A pack
of another kind of model says what a step is, and how a split is answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from faithscope.probes.retrain.classification import classification_scores, selection_score
from faithscope.probes.retrain.learner import Recipe, Trained, Weights


class Epochs:
    """How far a training is: the epochs whose scores on the validation split are known."""

    recipe: Recipe
    validation: list[Any]

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return len(self.validation)

    @property
    def is_done(self) -> bool:
        """Whether all epochs are finished."""
        return self.epoch >= self.recipe.epochs


def best_epoch(scores: Sequence[float]) -> int:
    """The epoch, from 1, with the highest score; 0 of none.

    The earliest of equal ones; one that diverged has no score (NaN) and is taken if all have none.

    >>> best_epoch([float("nan"), 0.5, 0.7, 0.7]), best_epoch([float("nan")] * 2), best_epoch([])
    (3, 1, 0)
    """
    ranked = [-math.inf if math.isnan(score) else score for score in scores]
    return 1 + ranked.index(max(ranked)) if ranked else 0


class Packed(Epochs):
    """The training of a pack; of every model the best validation epoch is kept."""

    def __init__(
        self,
        recipe: Recipe,
        seeds: Sequence[int],
        selection: str,
        device: torch.device,
        parameters: dict[str, Tensor],
    ) -> None:
        self.recipe, self.seeds, self.selection = recipe, tuple(seeds), selection
        self.device, self.parameters = device, parameters
        self.best = {name: value.detach().clone() for name, value in parameters.items()}
        self.optimizer = self.make_optimizer()
        self.validation: list[list[float]] = []

    def make_optimizer(self) -> torch.optim.Optimizer:
        """One optimiser over all models."""
        raise NotImplementedError

    def run_epoch(self) -> None:
        """Train one more epoch and validate it."""
        raise NotImplementedError

    def logits(self, split: str, p: Mapping[str, Tensor]) -> Tensor:
        """What the models say of a whole split: [M, N, C] on the CPU."""
        raise NotImplementedError

    def labels(self, split: str) -> Tensor:
        """The classes of a split [N], on the CPU."""
        raise NotImplementedError

    def weights(self, p: Mapping[str, Tensor], place: int) -> Weights:
        """One model of the pack, on the CPU."""
        return {name: value[place].cpu().clone() for name, value in p.items()}

    @property
    def histories(self) -> list[tuple[float, ...]]:
        """The scores of every model, epoch by epoch."""
        return [*zip(*self.validation, strict=True)]

    def validate(self) -> None:
        """Score every model on the validation split, and keep those that are better than ever."""
        labels = self.labels("validation")
        logits = self.logits("validation", self.parameters)
        self.validation.append([selection_score(part, labels, self.selection) for part in logits])
        best = [best_epoch(history) == self.epoch for history in self.histories]
        better = torch.tensor(best, device=self.device)
        for name, value in self.parameters.items():
            chosen = better.view(-1, *[1] * (value.dim() - 1))
            self.best[name].copy_(torch.where(chosen, value.detach(), self.best[name]))

    def state(self) -> dict[str, Tensor]:
        """Everything needed to resume."""
        kept = {f"parameter/{name}": value.detach() for name, value in self.parameters.items()}
        kept |= {f"best/{name}": value for name, value in self.best.items()}
        for name, value in self.parameters.items():
            for part, tensor in self.optimizer.state[value].items():
                kept[f"optimizer/{name}/{part}"] = tensor
        kept["validation"] = torch.tensor(self.validation, dtype=torch.float64)
        return {name: value.to("cpu", copy=True) for name, value in kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        for name, value in self.parameters.items():
            value.data.copy_(state[f"parameter/{name}"])
            self.best[name].copy_(state[f"best/{name}"])
            start = f"optimizer/{name}/"
            self.optimizer.state[value] = {
                key.removeprefix(start): kept.clone().to(self.device)
                for key, kept in state.items()
                if key.startswith(start)
            }
        self.validation = state["validation"].tolist()

    def finish(self) -> list[Trained]:
        """Test every model's best epoch."""
        labels = self.labels("test")
        logits = self.logits("test", self.best)
        return [
            Trained(
                weights=self.weights(self.best, place),
                epoch=best_epoch(history),
                validation=history,
                scores=classification_scores(part, labels),
            )
            for place, (part, history) in enumerate(zip(logits, self.histories, strict=True))
        ]
