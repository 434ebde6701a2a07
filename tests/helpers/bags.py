"""A learner for tests of ROAR: bags of words, two classes, trained in milliseconds.

Each model is a softmax-linear model of word counts, trained on minibatches in an order that its
own generator draws, so that a state which forgets anything gives other bits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from faithscope.data.text import TextData, Texts, TokenData, Tokens
from faithscope.data.vocabulary import Vocabulary
from faithscope.errors import FaithscopeError
from faithscope.methods import Method
from faithscope.probes.retrain.classification import classification_scores, selection_score
from faithscope.probes.retrain.learner import Recipe, Trained, Weights

MEASURES = ["gradient", "input_x_gradient", "mutual_information"]
"""What the tests ask for; random comes by itself."""


def bag_texts(train: int = 60, others: int = 24, *, words: int = 12, seed: int = 0) -> TextData:
    """Texts of 10 to 15 words; the class is what most of its telling words say, mostly."""
    draw = np.random.default_rng(seed)
    names = [f"w{i}" for i in range(words)]

    def split(count: int) -> Texts:
        texts, labels = [], []
        for _ in range(count):
            label = int(draw.integers(2))
            telling = names[:3] if label else names[3:6]
            length = int(draw.integers(10, 16))
            chosen = [
                str(draw.choice(telling if draw.random() < 0.4 else names)) for _ in range(length)
            ]
            texts.append(tuple(chosen))
            labels.append(label)
        return Texts(tuple(map(" ".join, texts)), tuple(texts), np.array(labels))

    return TextData(
        "bags",
        "own",
        split(train),
        split(others),
        split(others),
        classes=("no", "yes"),
        metric="accuracy",
        selection="accuracy",
    )


def counts(tokens: Tokens, size: int) -> Tensor:
    """How often each word occurs: float64 [N, V]."""
    held = torch.zeros(len(tokens), size, dtype=torch.float64)
    inside = (tokens.ids > 0).to(torch.float64)
    return held.scatter_add_(1, tokens.ids, inside)


@dataclass(eq=False)
class BagTraining:
    """Several bags trained one after another."""

    learner: BagLearner
    data: Sequence[TokenData]
    seeds: Sequence[int]
    epoch: int = 0

    def __post_init__(self) -> None:
        size, classes = len(self.data[0].words), len(self.data[0].classes)
        self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        self.weights = [
            0.1 * torch.randn(size, classes, generator=drawn, dtype=torch.float64)
            for drawn in self.generators
        ]
        self.best = [weights.clone() for weights in self.weights]
        self.validation: list[list[float]] = [[] for _ in self.seeds]

    @property
    def is_done(self) -> bool:
        return self.epoch >= self.learner.recipe.epochs

    def run_epoch(self) -> None:
        self.learner.epochs_run += 1
        if self.learner.epochs_run == self.learner.stop_at:
            raise KeyboardInterrupt
        time.sleep(self.learner.seconds)
        for i, data in enumerate(self.data):
            x, y = counts(data.train, len(data.words)), data.train.labels
            order = torch.randperm(len(x), generator=self.generators[i])
            for rows in order.split(self.learner.recipe.batch_size):
                error = (x[rows] @ self.weights[i]).softmax(-1) - one_hot(y[rows], 2)
                step = x[rows].T @ error / len(rows)
                self.weights[i] -= self.learner.recipe.learning_rate * step
            logits = counts(data.validation, len(data.words)) @ self.weights[i]
            score = selection_score(logits, data.validation.labels, data.selection)
            if not self.validation[i] or score > max(self.validation[i]):
                self.best[i] = self.weights[i].clone()
            self.validation[i].append(score)
        self.epoch += 1

    def state(self) -> dict[str, Tensor]:
        return {
            "epoch": torch.tensor(self.epoch),
            "weights": torch.stack(self.weights),
            "best": torch.stack(self.best),
            "validation": torch.tensor(self.validation, dtype=torch.float64),
            "generators": torch.stack([drawn.get_state() for drawn in self.generators]),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.epoch = int(state["epoch"])
        self.weights = list(state["weights"].clone())
        self.best = list(state["best"].clone())
        self.validation = state["validation"].tolist()
        for drawn, held in zip(self.generators, state["generators"], strict=True):
            drawn.set_state(held.clone())
        self.learner.resumed.append(self.epoch)

    def finish(self) -> list[Trained]:
        trained = []
        for data, best, history in zip(self.data, self.best, self.validation, strict=True):
            scores = classification_scores(
                counts(data.test, len(data.words)) @ best, data.test.labels
            )
            epoch = 1 + history.index(max(history))
            trained.append(Trained({"weight": best}, epoch, tuple(history), scores))
        return trained


@dataclass(eq=False)
class BagLearner:
    """Trains bags of words; counts what it is asked for, and can be slow or stop."""

    name: str = "bag"
    recipe: Recipe = field(default_factory=lambda: Recipe(epochs=4, batch_size=16, learning_rate=1))
    device: str = "cpu"
    pack_size: int = 7
    seconds: float = 0.0
    stop_at: int | None = None
    epochs_run: int = 0
    begun: list[tuple[bytes, int]] = field(default_factory=list)
    explained: list[tuple[str, bytes]] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    def encode(self, data: TextData) -> TokenData:
        return Vocabulary.of(data).encode(data)

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> BagTraining:
        assert 0 < len(data) <= self.pack_size
        self.begun += [(_content(one), seed) for one, seed in zip(data, seeds, strict=True)]
        return BagTraining(self, data, seeds)

    def explain(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        assert len(weights) == len(tokens) == len(seeds)
        return [
            self._scores(held["weight"], part, measure)
            for held, part in zip(weights, tokens, strict=True)
        ]

    def _scores(self, weight: Tensor, tokens: Tokens, measure: Method) -> Tensor:
        content = weight.numpy().tobytes() + tokens.ids.numpy().tobytes()
        self.explained.append((measure.label, content))
        gold = weight[:, tokens.labels].T.gather(1, tokens.ids)
        if measure.name == "input_x_gradient":
            gold = gold * counts(tokens, len(weight)).gather(1, tokens.ids)
        inside = torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
        return gold.abs().masked_fill(~inside, 0.0).to(torch.float32)

    def check(self, measure: Method) -> None:
        if measure.name not in ("gradient", "input_x_gradient"):
            reason = f"A bag of words cannot give '{measure.name}'"
            raise FaithscopeError(f"{reason}: take gradient.", reason=reason)


def _content(data: TokenData) -> bytes:
    return b"".join(tokens.ids.numpy().tobytes() for _, tokens in data.splits)
