"""Training and explaining packs of BiLSTM-attention models (models/bilstm.py).

All models of a pack take their step together. On a GPU the step (forward, backward, optimiser) is
recorded once as a CUDA graph and replayed, so that nothing but the arithmetic is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faithscope.data.text import TextData, TokenData, Tokens
from faithscope.data.vocabulary import Vocabulary
from faithscope.errors import FaithscopeError
from faithscope.methods import Method
from faithscope.methods.bilstm import (
    Texts,
    bilstm_evidence,
    check_measure,
    stack,
    token_scores,
)
from faithscope.methods.text import Path, path_of
from faithscope.models import bilstm
from faithscope.models.bilstm import Parameters, Shape
from faithscope.models.recurrence import Counts
from faithscope.probes.retrain.learner import Recipe, Weights
from faithscope.probes.retrain.pack import Packed


@dataclass(frozen=True)
class Setting:
    """What the paper chose for a kind of data set (ROAR.md, BiLSTM-attention)."""

    recipe: Recipe
    hidden: int
    embedding: int
    decays_attention: bool


SETTINGS = {
    "babi": Setting(Recipe(100, 50), 32, 50, True),
    "snli": Setting(Recipe(25, 128), 128, 300, True),
    "sst": Setting(Recipe(8, 32), 128, 300, False),
    "imdb": Setting(Recipe(8, 32), 128, 300, False),
    "mimic": Setting(Recipe(8, 32), 128, 300, False),
    "own": Setting(Recipe(8, 32), 128, 300, False),
}
"""The hyper-parameters by kind of data set; other data is trained as the single tasks are."""

TOKENS_PER_PASS = {"cpu": 2**13, "cuda": 2**22}
"""Tokens (of all models, texts and path steps) explained or tested in one pass by 32 units."""

TOKENS_PER_STEP = {"cpu": 2**17, "cuda": 2**21}
"""Tokens (of all models of a pack) in one training step of 32 hidden units: some gigabytes."""


class BiLSTMLearner:
    """BiLSTM-attention as a learner: one vocabulary, many packs."""

    name = "bilstm"
    weights = "random"

    def __init__(
        self,
        kind: str,
        *,
        device: str = "cpu",
        recipe: Recipe | None = None,
        pack_size: int | None = None,
    ) -> None:
        self.setting = SETTINGS[kind]
        self.recipe = recipe or self.setting.recipe
        self.device = device
        self.pack_size = pack_size or (64 if device.startswith("cuda") else 8)
        self._is_pack_given = pack_size is not None

    @property
    def fingerprint(self) -> str:
        """What decides a model besides its data, recipe and seed."""
        setting = self.setting
        decay = "" if setting.decays_attention else ", attention without weight decay"
        return f"hidden {setting.hidden}, embedding {setting.embedding}{decay}"

    def encode(self, data: TextData) -> TokenData:
        """Turn texts into tokens of the training split's vocabulary; long ones make packs small."""
        encoded = Vocabulary.of(data).encode(data)
        if not self._is_pack_given:
            longest = int(encoded.train.lengths.max())
            room = self._tokens(TOKENS_PER_STEP)
            most = room // (min(self.recipe.batch_size, len(encoded.train)) * longest)
            self.pack_size = max(1, min(self.pack_size, most))
        return encoded

    def card(self, data: TokenData) -> dict[str, Any]:
        """What is needed to use a trained model, beside its weights."""
        kinds = {"texts": data.kind, "words": data.words, "classes": data.classes}
        return {"kind": "bilstm", **kinds}

    def _tokens(self, of_32_units: Mapping[str, int]) -> int:
        """How many tokens there is room for: larger models take more of it."""
        return of_32_units[torch.device(self.device).type] * 32 // self.setting.hidden

    @property
    def tokens_per_pass(self) -> int:
        """Tokens (of all models, texts and path steps) that are explained or tested in one pass."""
        return self._tokens(TOKENS_PER_PASS)

    def shape(self, data: TokenData) -> Shape:
        """The sizes of the model for a data set."""
        size = self.setting.embedding if data.vectors is None else data.vectors.size
        paired = data.train.auxiliary is not None
        return Shape(len(data.words), size, self.setting.hidden, len(data.classes), paired)

    def parameters(self, data: TokenData) -> int:
        """How many numbers a model learns."""
        return self.shape(data).count()

    def check(self, measure: Method) -> None:
        """A BiLSTM-attention model gives every measure that needs no Transformer."""
        check_measure(measure)

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> PackTraining:
        """Begin to train a pack, model i on data[i] with seeds[i]."""
        return PackTraining(self, data, seeds)

    def explain(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measure: Method,
        seeds: Sequence[int] = (),
    ) -> list[Tensor]:
        """Scores [N, T] of every model on its tokens: the same texts, masked in different ways."""
        p = {name: stack([w[name] for w in weights], self.device) for name in weights[0]}
        texts = Texts.of(tokens, self.device)
        path = path_of(measure) if "path_gradient" in measure.needs else Path()
        found = torch.zeros(texts.ids.shape, dtype=p["decoder.bias"].dtype, device=self.device)
        budget = self.tokens_per_pass
        for rows in texts.by_length(budget // min(len(path.points), 10)):
            batch = texts.at(rows)
            evidence = bilstm_evidence(p, batch, measure.needs, path, budget)
            scores = [token_scores(measure, held) for held in evidence]
            steps = batch.ids.shape[2]
            found[:, rows, :steps] = torch.stack(scores) * batch.inside
        return list(found.float().cpu())


class PackTraining(Packed):
    """The training of a pack: Adam with AMSGrad, the best validation epoch is kept."""

    def __init__(
        self, learner: BiLSTMLearner, data: Sequence[TokenData], seeds: Sequence[int]
    ) -> None:
        self.learner = learner
        device = torch.device(learner.device)
        self.texts = {
            name: Texts.of([getattr(part, name) for part in data], learner.device)
            for name, _ in data[0].splits
        }
        shape, first = learner.shape(data[0]), data[0]
        starts = [
            bilstm.initial(
                shape, seed, words=first.words, vectors=first.vectors, pad_id=first.pad_id
            )
            for seed in seeds
        ]
        parameters = {
            name: stack([start[name] for start in starts], learner.device).requires_grad_(True)
            for name in starts[0]
        }
        super().__init__(learner.recipe, seeds, first.selection, device, parameters)
        self.losses = torch.zeros(self.steps_per_epoch, len(seeds), device=self.device)
        self._recorded: _Recorded | None = None

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam with AMSGrad; weight decay spares the attention where the paper does."""
        recipe, spares = self.learner.recipe, not self.learner.setting.decays_attention
        groups: dict[float, list[Tensor]] = {}
        for name, value in self.parameters.items():
            spared = spares and name.startswith("attention")
            groups.setdefault(0.0 if spared else recipe.weight_decay, []).append(value)
        return torch.optim.Adam(
            [{"params": values, "weight_decay": decay} for decay, values in groups.items()],
            lr=recipe.learning_rate,
            amsgrad=True,
            fused=True,
            capturable=self.device.type == "cuda",
        )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last one may be smaller."""
        return -(-len(self.texts["train"].lengths) // self.batch_size)

    @property
    def batch_size(self) -> int:
        """Texts in a step, not more than there are."""
        return min(self.learner.recipe.batch_size, len(self.texts["train"].lengths))

    def order(self, epoch: int) -> Tensor:
        """The texts of every step [steps, M, batch], shuffled by (seed, epoch); -1 is none."""
        orders = {seed: self._shuffled(seed, epoch) for seed in set(self.seeds)}
        return torch.stack([orders[seed] for seed in self.seeds], 1)

    def _shuffled(self, seed: int, epoch: int) -> Tensor:
        """The texts of every step [steps, batch] of a seed."""
        count, size = len(self.texts["train"].lengths), self.batch_size
        order = torch.full((self.steps_per_epoch * size,), -1)
        generator = torch.Generator().manual_seed((seed << 20) + epoch + 1)
        order[:count] = torch.randperm(count, generator=generator)
        return order.view(-1, size)

    def most_rows(self, epochs: int) -> Counts:
        """How many rows of a batch there are at each time, at most, in all steps of so many epochs.

        Long texts come first in a batch, and its second longest text is hardly ever as long as the
        longest of all: much less is read than if every row were that long.
        """
        lengths = self.texts["train"].lengths.cpu()
        longest = torch.zeros(self.batch_size, dtype=lengths.dtype)
        for epoch in range(epochs):
            for seed in set(self.seeds):
                order = self._shuffled(seed, epoch)
                read = torch.where(order >= 0, lengths[order], 0)
                longest = longest.maximum(read.sort(1, descending=True).values.amax(0))
        longest = longest.clamp(min=int(lengths.min()))  # read where there is no text
        steps = torch.arange(int(longest.max()))
        return tuple((longest > steps[:, None]).sum(1).tolist())

    def run_epoch(self) -> None:
        """Train one more epoch and validate it."""
        order = self.order(self.epoch)
        if self.device.type == "cuda":
            if self._recorded is None or self.epoch >= self._recorded.epochs:
                self._recorded = _Recorded(self)
            self._recorded.run(order)
        else:
            for at, rows in enumerate(order):
                self.losses[at] = self.step(rows)
        self.validate()

    def step(self, rows: Tensor, counts: Counts | None = None) -> Tensor:
        """One step of every model on its rows [M, batch], long ones first; gives the losses [M]."""
        texts = self.texts["train"]
        if counts is None:
            rows = _longest_first(rows[:, (rows >= 0).all(0)], texts.lengths)
        there = rows >= 0
        rows = torch.where(there, rows, texts.shortest)
        self.optimizer.zero_grad(set_to_none=True)
        steps = int(texts.lengths[rows].max()) if counts is None else len(counts)
        batch = texts.batch(rows, steps)
        logits = batch.answer(self.parameters, counts).logits
        each = functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), reduction="none"
        ).view(rows.shape)
        losses = torch.where(there, each, 0.0).sum(1) / there.sum(1)
        torch.autograd.backward(losses.sum())
        self.optimizer.step()
        return losses.detach()

    @torch.no_grad()
    def logits(self, split: str, p: Parameters) -> Tensor:
        """What the models say of a whole split: [M, N, C] on the CPU."""
        texts = self.texts[split]
        found = None
        for rows in texts.by_length(self.learner.tokens_per_pass):
            part = texts.at(rows).answer(p).logits
            if found is None:
                found = part.new_empty(part.shape[0], len(texts.lengths), part.shape[2])
            found[:, rows] = part
        if found is None:
            raise FaithscopeError(f"The {split} split is empty: give some texts.")
        return found.cpu()

    def labels(self, split: str) -> Tensor:
        """The classes of a split [N], on the CPU."""
        return self.texts[split].labels.cpu()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        self._recorded = None
        super().load_state(state)


def _longest_first(rows: Tensor, lengths: Tensor) -> Tensor:
    """Sort batches [..., B] by falling length, -1 last: nothing is read beyond a text's end."""
    length = torch.where(rows >= 0, lengths[rows], 0)
    return rows.gather(-1, length.argsort(dim=-1, descending=True, stable=True))


class _Recorded:
    """A pack's step as a CUDA graph: the same kernels in the same memory, replayed."""

    def __init__(self, training: PackTraining) -> None:
        self.training = training
        device = training.device
        self.epochs = max(training.learner.recipe.epochs, training.epoch + 1)
        self.counts = training.most_rows(self.epochs)
        self.order = self._sorted(training.order(0))
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        before = training.state()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # what is made on first use must not be recorded
            for _ in range(3):
                self._step()
                self.at.zero_()
        torch.cuda.current_stream(device).wait_stream(stream)
        training.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self._restore(before)

    def _step(self) -> None:
        training = self.training
        rows = self.order.index_select(0, self.at)[0]
        losses = training.step(rows, self.counts)
        training.losses.index_copy_(0, self.at, losses[None])
        self.at += 1

    def _sorted(self, order: Tensor) -> Tensor:
        return _longest_first(order.to(self.training.device), self.training.texts["train"].lengths)

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo the steps taken while recording, in place: the graph knows these tensors."""
        for name, value in self.training.parameters.items():
            value.data.copy_(state[f"parameter/{name}"])
            for part, tensor in self.training.optimizer.state[value].items():
                kept = state.get(f"optimizer/{name}/{part}")
                tensor.zero_() if kept is None else tensor.copy_(kept)

    def run(self, order: Tensor) -> None:
        """Take all steps of an epoch."""
        self.order.copy_(self._sorted(order))
        self.at.zero_()
        for _ in range(order.shape[0]):
            self.graph.replay()
