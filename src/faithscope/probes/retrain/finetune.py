"""Fine-tuning a Hugging Face sequence classifier as the paper does: RoBERTa's recipe, any encoder.

A training depends on its data, its seed and its recipe only: the head, the order of the texts and
the dropout are keyed by (seed, epoch), so a resumed training continues as if never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faithscope.data.encoding import encode
from faithscope.data.text import TextData, TokenData, Tokens
from faithscope.errors import FaithscopeError
from faithscope.methods import Method
from faithscope.methods.encoder import explain_blocks, explain_tokens
from faithscope.methods.text import reads_words_only
from faithscope.models import TextModel
from faithscope.models.device import device_to_train_on
from faithscope.models.tensor_files import tensor_digest
from faithscope.models.text_classifier import Pretrained, TextClassifier, read_lengths
from faithscope.models.text_model import text_model, tokenizer_digest
from faithscope.probes.retrain.classification import classification_scores, selection_score
from faithscope.probes.retrain.learner import Learner, Recipe, Trained, Training, Weights
from faithscope.rng import stream_keys

BETAS, EPSILON, WARM_UP = (0.9, 0.98), 1e-8, 0.06


def finetune_recipe(kind: str) -> Recipe:
    """The paper's recipe for RoBERTa on a kind of data set.

    >>> finetune_recipe("babi").epochs, finetune_recipe("sst").epochs
    (8, 3)
    """
    epochs = 8 if kind == "babi" else 3
    return Recipe(epochs=epochs, batch_size=16, learning_rate=2e-5, weight_decay=0.01)


def warm_up_and_decay(step: int, steps: int) -> float:
    """The share of the learning rate at a step (from 0): linear up to 1, then down to 0.

    The first int(0.06 steps) steps lead up.

    >>> [round(warm_up_and_decay(step, 100), 2) for step in (0, 3, 6, 53, 99)]
    [0.0, 0.5, 1.0, 0.5, 0.01]
    """
    warm_up = int(WARM_UP * steps)
    return step / warm_up if step < warm_up else (steps - step) / max(1, steps - warm_up)


class FinetuneLearner(Learner):
    """A pretrained encoder to be fine-tuned on one data set, a model at a time.

    Args:
        name: ``hf:ID or folder``.
        data: the data set, whose kind chooses the recipe and whose classes size the head.
        recipe: how to train, if not as the paper does.
        device: "auto" is a GPU if there is one.
        pretrained: take the checkpoint's weights; False begins with random ones.
        trust_remote_code: run the Python files that come with the model.
    """

    pack_size = 1

    def __init__(
        self,
        name: str,
        data: TextData,
        *,
        recipe: Recipe | None = None,
        device: str = "auto",
        pretrained: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = name
        self.device = str(device_to_train_on(device))
        self.recipe = recipe or finetune_recipe(data.kind)
        self.checkpoint = Pretrained(
            name, len(data.classes), pretrained=pretrained, trust_remote_code=trust_remote_code
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights a training begins with, so that others are noticed."""
        about = {
            "pretrained": str(self.checkpoint.pretrained),
            "size": str(self.checkpoint.parameters),
        }
        return tensor_digest(self.checkpoint.backbone, about)

    def parameters(self, data: TokenData) -> int:
        """How many numbers a model learns; the data set does not change them."""
        return self.checkpoint.parameters

    def card(self, data: TokenData) -> dict[str, Any]:
        """What is needed to use a trained model, beside its weights."""
        held = self.checkpoint
        known = {"checkpoint": held.name, "tokenizer": tokenizer_digest(held.tokenizer)}
        return {"kind": "hf", **known, "classes": data.classes}

    def encode(self, data: TextData) -> TokenData:
        return encode(self.checkpoint, data)

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> Training:
        if len(data) != 1 or len(seeds) != 1:
            raise FaithscopeError(
                f"'{self.name}' is fine-tuned one model at a time, got a pack of {len(data)}."
            )
        with _random_state_kept(torch.device(self.device)):
            model = self.checkpoint.classifier(seeds[0], self.device)
        return Finetuning(model, data[0], seed=seeds[0], recipe=self.recipe)

    def explain(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        self.check(measure)
        if not measure.reads_model:
            raise FaithscopeError(f"The measure '{measure.label}' does not ask the model.")
        found = []
        with _random_state_kept(torch.device(self.device)):
            for state, part in zip(weights, tokens, strict=True):
                self._explained.module.load_state_dict(state)
                found.append(self._scores(part, measure))
        return found

    def _scores(self, tokens: Tokens, measure: Method) -> Tensor:
        """Scores [N, T] of a split by the module as it is."""
        model = self._explained
        if reads_words_only(measure):
            return explain_tokens(model, tokens, measure)
        return explain_blocks(
            self._seen_inside,
            tokens,
            measure,
            pad_id=model.pad_id,
            tokens_per_pass=model.tokens_per_pass,
        )

    @cached_property
    def _seen_inside(self) -> TextModel:
        """The module to explain, with its blocks."""
        return text_model(self._explained.module, self.checkpoint.tokenizer, name=self.name)

    @cached_property
    def _explained(self) -> TextClassifier:
        """The one module that weights to explain are loaded into."""
        return self.checkpoint.classifier(0, self.device)

    def check(self, measure: Method) -> None:
        if measure.label == "attention":
            reason = (
                f"The measure 'attention' needs one attention weight per token, but "
                f"'{self.name}' has several layers of many heads"
            )
            advice = "say which, as rollout or raw_attention do, or use the BiLSTM"
            raise FaithscopeError(f"{reason}: {advice}.", reason=reason)
        if not reads_words_only(measure) and not measure.is_random:
            self._seen_inside.require_vit(f"The measure '{measure.label}'")


class Finetuning(Training):
    """The fine-tuning of one model."""

    def __init__(
        self, model: TextClassifier, data: TokenData, *, seed: int, recipe: Recipe
    ) -> None:
        self.model, self.data, self.seed, self.recipe = model, data, seed, recipe
        self.module = model.module
        self.optimizer = _adam(self.module, recipe)
        self.validation: list[float] = []
        self.best_epoch = 0
        self.best: Weights = {}

    @property
    def epoch(self) -> int:
        return len(self.validation)

    @property
    def is_done(self) -> bool:
        return self.epoch >= self.recipe.epochs

    def run_epoch(self) -> None:
        with _random_state_kept(self.model.device):
            self._train()
            validation = self.data.validation
            logits = self.model.predict(validation.ids, validation.lengths)
        score = selection_score(logits, validation.labels, self.data.selection)
        self.validation.append(score)
        # the earliest of equal ones; an epoch without a score (NaN) only if there is no other
        if not self.best or _or_worst(score) > _or_worst(self.validation[self.best_epoch - 1]):
            self.best_epoch, self.best = self.epoch, _copy(self.module.state_dict())

    def _train(self) -> None:
        tokens, size = self.data.train, self.recipe.batch_size
        totals = read_lengths(tokens.ids, self.data.pad_id)
        order = torch.randperm(len(tokens), generator=self._generator("order"))
        batches = torch.split(order, size)
        steps = self.recipe.epochs * len(batches)
        self.module.train()
        _seed_dropout(self.model.device, self._key("dropout"))
        for number, index in enumerate(batches, start=self.epoch * len(batches)):
            rate = self.recipe.learning_rate * warm_up_and_decay(number, steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._step(index, int(totals[index].max()))
        self.module.eval()

    def _step(self, index: Tensor, width: int) -> None:
        tokens, device = self.data.train, self.model.device
        ids, lengths = tokens.ids[index, :width].to(device), tokens.lengths[index].to(device)
        loss = F.cross_entropy(self.model.logits(ids, lengths), tokens.labels[index].to(device))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _key(self, purpose: str) -> int:
        keys = stream_keys(["finetune"], seed=self.seed, purpose=purpose, draw=self.epoch)
        return int(keys[0])

    def _generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(self._key(purpose))

    def state(self) -> dict[str, Tensor]:
        """Weights, what AdamW remembers, the scores so far and, where they differ, the best.

        The epoch says which part of the schedule, of the order and of the dropout comes next.
        """
        moments = self.optimizer.state_dict()["state"]
        found = _named("model", self.module.state_dict())
        for number, memory in moments.items():
            found |= _named(f"optimizer.{number}", memory)
        if self.best_epoch != self.epoch:
            found |= _named("best", self.best)
        numbers = {
            "validation": torch.tensor(self.validation, dtype=torch.float64),
            "best_epoch": torch.tensor(self.best_epoch),
        }
        return _copy(found | numbers)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.module.load_state_dict(_under("model", state))
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer", state).items():
            number, _, key = name.partition(".")
            memory.setdefault(int(number), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": memory, "param_groups": groups})
        self.validation = state["validation"].tolist()
        self.best_epoch = int(state["best_epoch"])
        is_best = 0 < self.best_epoch == self.epoch
        self.best = _copy(_under("model" if is_best else "best", state))

    def finish(self) -> list[Trained]:
        if not self.best:
            raise FaithscopeError("This training has not finished an epoch: run one first.")
        self.module.load_state_dict(self.best)
        test = self.data.test
        with _random_state_kept(self.model.device):
            logits = self.model.predict(test.ids, test.lengths)
        scores = classification_scores(logits, test.labels)
        return [Trained(self.best, self.best_epoch, tuple(self.validation), scores)]


def _adam(module: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW whose weight decay spares biases and the weights of normalisations."""
    spared = {
        f"{name}.{own}"
        for name, child in module.named_modules()
        for own, _ in child.named_parameters(recurse=False)
        if own == "bias" or "Norm" in type(child).__name__
    }
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in spared]},
        {"params": [p for name, p in named if name in spared], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=recipe.learning_rate,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


@contextmanager
def _random_state_kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside, also by a library, random state is as it was outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _seed_dropout(device: torch.device, key: int) -> None:
    """Let dropout draw from this key; only where random state is kept."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key)


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def _named(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name[len(start) :]: state[name] for name in state if name.startswith(start)}
