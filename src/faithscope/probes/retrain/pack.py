"""What the trainings of packs have in common: the best epochs, a state to resume from, the end.

All models of a pack take their step together; every parameter has a model axis M in front. A pack
of another kind of model says what a step is, and how a split is answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from faithscope.probes.retrain.classification import classification_scores, selection_score
from faithscope.probes.retrain.learner import Recipe, Trained, Weights


class Packed:
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
    def epoch(self) -> int:
        """Finished epochs."""
        return len(self.validation)

    @property
    def is_done(self) -> bool:
        """Whether all epochs are finished."""
        return self.epoch >= self.recipe.epochs

    def validate(self) -> None:
        """Score every model on the validation split, and keep those that are better than ever."""
        labels = self.labels("validation")
        logits = self.logits("validation", self.parameters)
        values = [selection_score(part, labels, self.selection) for part in logits]
        now = torch.tensor(values, dtype=torch.float64)
        past = torch.tensor([[-math.inf] * len(values), *self.validation], dtype=torch.float64)
        better = (_or_worst(now) > _or_worst(past).amax(0)).to(self.device)
        self.validation.append(values)
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
        finished = []
        for place, part in enumerate(logits):
            history = tuple(values[place] for values in self.validation)
            ranked = _or_worst(torch.tensor(history, dtype=torch.float64)).tolist()
            finished.append(
                Trained(
                    weights=self.weights(self.best, place),
                    epoch=ranked.index(max(ranked)) + 1,
                    validation=history,
                    scores=classification_scores(part, labels),
                )
            )
        return finished


def _or_worst(scores: Tensor) -> Tensor:
    """A training that diverged has no score (NaN): any other is better."""
    return scores.nan_to_num(nan=-1.0, neginf=-math.inf)
