"""BiLSTM-attention classifiers, many at once: every tensor has a model axis M in front.

One model is M = 1. Models of a pack have the same shape and nothing else in common, so a matrix
product of one becomes a batched product of all, and one pass trains or explains them together.

    ids ─ embed ─ project ─ recur (both directions) ─ attend ─ decode ─ logits
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from faithscope.models.recurrence import Counts, recur, spans_of, starts_of

SPECIALS = ("[PAD]", "[CLS]", "[EOS]", "[MASK]", "[UNK]")
"""The first tokens of every vocabulary; the first three are never attended to."""
PAD, CLS, EOS, MASK, UNK = range(5)

Parameters = Mapping[str, Tensor]
"""Parameters by name, each [M, …]."""


class WordVectors(Protocol):
    """Pretrained vectors of words; others start at zero, or from N(0, 1) (`normal`)."""

    @property
    def vectors(self) -> Mapping[str, np.ndarray]: ...

    @property
    def size(self) -> int: ...

    @property
    def normal(self) -> bool: ...


@dataclass(frozen=True)
class Shape:
    """The sizes of a BiLSTM-attention model: V words, E per word, H per direction, C classes."""

    words: int
    embedding: int
    hidden: int
    classes: int
    is_paired: bool

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's name and shape, without the model axis.

        >>> sizes = Shape(25, 50, 32, 36, is_paired=True).parameters().values()
        >>> sum(math.prod(size) for size in sizes)
        55048
        """
        e, h, c = self.embedding, self.hidden, self.classes
        shapes: dict[str, tuple[int, ...]] = {}
        for reader in ("main", "auxiliary") if self.is_paired else ("main",):
            shapes[f"{reader}.embedding"] = (self.words, e)
            shapes[f"{reader}.input_weight"] = (2, 4 * h, e)
            shapes[f"{reader}.hidden_weight"] = (2, 4 * h, h)
            shapes[f"{reader}.input_bias"] = (2, 4 * h)
            shapes[f"{reader}.hidden_bias"] = (2, 4 * h)
        shapes |= {"attention.weight": (h, 2 * h), "attention.bias": (h,)}
        if self.is_paired:
            shapes |= {"attention.query_weight": (h, 2 * h), "attention.query_bias": (h,)}
        shapes["attention.vector"] = (h,)
        if self.is_paired:
            shapes |= {"decoder.context_weight": (h, 2 * h), "decoder.context_bias": (h,)}
            shapes |= {"decoder.query_weight": (h, 2 * h), "decoder.query_bias": (h,)}
        width = h if self.is_paired else 2 * h
        return shapes | {"decoder.weight": (c, width), "decoder.bias": (c,)}

    def count(self) -> int:
        """How many numbers a model learns."""
        return sum(math.prod(size) for size in self.parameters().values())


def initial(
    shape: Shape,
    seed: int,
    *,
    words: Sequence[str] = (),
    vectors: WordVectors | None = None,
    pad_id: int = 0,
) -> dict[str, Tensor]:
    """One model as it starts: PyTorch's default initialisation, drawn from `seed`.

    Embeddings are the pretrained `vectors` of `words` where there are any, else N(0, 1); both
    encoders of a pair start from the same; the padding's row is zero.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(shape.words, shape.embedding, generator=generator)
    if vectors is not None:
        table = _pretrained(vectors, words, table if vectors.normal else torch.zeros_like(table))
    table[pad_id] = 0
    made = {}
    for name, size in shape.parameters().items():
        if name.endswith("embedding"):
            made[name] = table.clone()
            continue
        bound = 1 / math.sqrt(_fan(name, size, shape))
        made[name] = torch.empty(size).uniform_(-bound, bound, generator=generator)
    return made


def _pretrained(vectors: WordVectors, words: Sequence[str], otherwise: Tensor) -> Tensor:
    rows = [vectors.vectors.get(word) for word in words]
    for place, row in enumerate(rows):
        if row is not None:
            otherwise[place] = torch.from_numpy(np.array(row, dtype=np.float32))
    return otherwise


def _fan(name: str, size: tuple[int, ...], shape: Shape) -> int:
    """What bounds the initial values: the LSTM's own size, or the inputs of a linear layer."""
    if name.startswith(("main", "auxiliary")):
        return shape.hidden
    if name.endswith("vector"):
        return size[-1]
    if name == "decoder.bias":
        return shape.hidden if shape.is_paired else 2 * shape.hidden
    return 2 * shape.hidden if name.endswith("bias") else size[-1]


@dataclass(frozen=True, eq=False)
class Reading:
    """The texts of M models in the order in which they are read.

    The axis N goes over time and, at each time, over the rows of the batch that are not over yet
    (on a GPU over as many as `of` was given, because shapes must not change). `both` [M, 2, N] are
    the ids forwards and, within each text's length, backwards; `place` [N] is where a token stands
    in [B, T].
    """

    both: Tensor
    counts: Counts
    place: Tensor
    turn: Tensor
    rows: int
    steps: int

    @staticmethod
    def of(ids: Tensor, lengths: Tensor, counts: Counts | None = None) -> Reading:
        """From ids [M, B, T] and lengths [M, B]; least work if long texts come first.

        On a GPU, which does not look at the lengths, `counts` are the whole batch at all times or
        those that are given, of which no text may be longer.
        """
        models, rows, steps = ids.shape
        if counts is None:  # padding beyond the longest text is not read
            counts = (rows,) * steps if ids.is_cuda else _counts(lengths, steps)
        time, row = spans_of(counts, ids.device)
        starts = starts_of(counts, ids.device)
        length = lengths[:, row]
        mirrored = torch.where(time < length, length - 1 - time, time)
        texts = ids.flatten(1)
        place = row * steps + time
        forwards = texts[:, place]
        backwards = texts.gather(1, row * steps + mirrored)
        first = torch.arange(models, device=ids.device)[:, None] * len(place)
        turn = (first + starts[mirrored] + row).reshape(-1)
        both = torch.stack((forwards, backwards), 1)
        return Reading(both, counts, place, turn, rows, steps)

    def laid_out(self, values: Tensor) -> Tensor:
        """What belongs to the tokens, [M, B, T, D], in the order of `both`: [M, 2, N, D]."""
        forwards = values.flatten(1, 2).index_select(1, self.place)
        return torch.stack((forwards, self.turned(forwards)), 1)

    @property
    def is_full(self) -> bool:
        """Whether every row is there at all times."""
        return self.counts[-1] == self.rows and len(self.counts) == self.steps

    def turned(self, values: Tensor) -> Tensor:
        """Turn what belongs to the tokens, [M, N, D], around within each text."""
        turned: Tensor = _Turn.apply(values, self.turn)
        return turned

    def padded(self, values: Tensor, filling: float) -> Tensor:
        """Numbers of tokens [M, N] as [M, B, T]."""
        if self.is_full:
            return values.view(-1, self.steps, self.rows).transpose(1, 2)
        full = values.new_full((len(values), self.rows * self.steps), filling)
        return full.index_copy(1, self.place, values).view(-1, self.rows, self.steps)

    def packed(self, values: Tensor) -> Tensor:
        """Numbers [M, B, T] as those of the tokens, [M, N]."""
        if self.is_full:
            return values.transpose(1, 2).flatten(1)
        return values.flatten(1).index_select(1, self.place)

    def summed(self, values: Tensor, weight: Tensor) -> Tensor:
        """Add up what belongs to the tokens of each text, weighted: [M, N, D] -> [M, B, D].

        On a GPU as a matrix product, always in the same order; so is `spread`.
        """
        if values.is_cuda and not self.is_full:
            return (self._member(values) * weight[:, None]) @ values
        values = values * weight[..., None]
        if self.is_full:
            return values.view(len(values), self.steps, self.rows, -1).sum(1)
        models, _, size = values.shape
        empty = values.new_zeros(models * self.rows, size)
        summed = empty.index_add(0, self._rows(models), values.reshape(-1, size))
        return summed.view(models, self.rows, size)

    def spread(self, values: Tensor) -> Tensor:
        """Give every token what belongs to its text: [M, B, D] -> [M, N, D]."""
        models, _, size = values.shape
        if self.is_full:
            return values[:, None].expand(-1, self.steps, -1, -1).reshape(models, -1, size)
        if values.is_cuda:
            return self._member(values).T @ values
        rows = values.reshape(-1, size).index_select(0, self._rows(models))
        return rows.view(models, -1, size)

    def _member(self, like: Tensor) -> Tensor:
        """Which tokens belong to a text, 1 or 0: [B, N]."""
        row = torch.arange(self.rows, device=self.place.device)[:, None]
        return (self.place // self.steps == row).to(like.dtype)

    def _rows(self, models: int) -> Tensor:
        """The text of each token of all models: on a flat axis rows are added up much faster."""
        first = torch.arange(models, device=self.place.device)[:, None] * self.rows
        return (first + self.place // self.steps).reshape(-1)

    def repeated(self, times: int) -> Reading:
        """Every text `times` times, one after the other (token n becomes n · times + 0, 1, …)."""
        again = torch.arange(times, device=self.turn.device)
        row, time = self.place // self.steps, self.place % self.steps
        place = (row[:, None] * times + again) * self.steps + time[:, None]
        turn = self.turn[:, None] * times + again
        counts = tuple(count * times for count in self.counts)
        both = self.both.repeat_interleave(times, 2)
        return Reading(
            both, counts, place.reshape(-1), turn.reshape(-1), self.rows * times, self.steps
        )


def _counts(lengths: Tensor, steps: int) -> Counts:
    """How many rows are needed at each time: up to the last text that is not over yet."""
    longest = lengths.amax(0).flip(0).cummax(0).values
    counts = (longest > torch.arange(steps)[:, None]).sum(1).tolist()
    return tuple(count for count in counts if count)


class _Turn(torch.autograd.Function):
    """Reorder rows by a permutation that is its own inverse, so its gradient is the same."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, turn: Tensor) -> Tensor:
        ctx.save_for_backward(turn)
        return values.reshape(turn.numel(), -1).index_select(0, turn).view(values.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (turn,) = ctx.saved_tensors
        gradient = gradients[0]
        rows = gradient.reshape(turn.numel(), -1).index_select(0, turn)
        return rows.view(gradient.shape), None


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of M tables: table [M, V, E], ids [M, …] -> [M, …, E]."""
    rows: Tensor = _LookUp.apply(table, ids)
    return rows


class _LookUp(torch.autograd.Function):
    """Rows of M tables.

    Few words are met again and again: on a GPU their gradients are then summed by a matrix product,
    where adding them one by one would queue for the same few rows.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        models, words, size = table.shape
        first = torch.arange(models, device=ids.device) * words
        rows = (ids.flatten(1) + first[:, None]).reshape(-1)
        ctx.save_for_backward(ids if words <= 64 and table.is_cuda else rows)
        ctx.sizes = (models, words, size)
        return table.reshape(-1, size).index_select(0, rows).view(*ids.shape, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        models, words, size = ctx.sizes
        gradient = gradients[0].reshape(models, -1, size)
        if kept.dim() > 1:
            word = torch.arange(words, device=kept.device)[:, None]
            which = (kept.flatten(1)[:, None, :] == word).to(gradient.dtype)
            return which @ gradient, None
        summed = gradient.new_zeros(models * words, size)
        return summed.index_add_(0, kept, gradient.reshape(-1, size)).view(ctx.sizes), None


def project(p: Parameters, reader: str, embedded: Tensor) -> Tensor:
    """Project word embeddings to gates, biases included: [M, 2, N, E] -> [2M, N, 4H]."""
    weight = p[f"{reader}.input_weight"].flatten(0, 1)
    bias = (p[f"{reader}.input_bias"] + p[f"{reader}.hidden_bias"]).flatten(0, 1)
    return torch.baddbmm(bias[:, None, :], embedded.flatten(0, 1), weight.transpose(1, 2))


def read(p: Parameters, reader: str, reading: Reading) -> Tensor:
    """The gates of every token: [2M, N, 4H].

    What a word is projected to does not depend on where it stands, so a small vocabulary is
    projected instead of a large batch.
    """
    table = p[f"{reader}.embedding"]
    if table.shape[1] <= reading.both.shape[2]:
        projected = project(p, reader, table[:, None].expand(-1, 2, -1, -1))
        return look_up(projected, reading.both.flatten(0, 1))
    return project(p, reader, look_up(table, reading.both))


def _hidden(p: Parameters, reader: str, gates: Tensor, counts: Counts) -> Tensor:
    """Hidden states [M, 2, N, H], the second direction in its own order."""
    states = recur(gates, p[f"{reader}.hidden_weight"].flatten(0, 1), counts)
    return states.view(-1, 2, *states.shape[1:])


@dataclass(frozen=True, eq=False)
class Answer:
    """Logits [M, B, C] and attention [M, B, T], zero where a token may not be attended to."""

    logits: Tensor
    attention: Tensor


def query_of(p: Parameters, ids: Tensor, lengths: Tensor) -> Tensor:
    """The auxiliary text as its two last states: ids [M, B, U], lengths [M, B] -> [M, B, 2H]."""
    reading = Reading.of(ids, lengths)
    states = _hidden(p, "auxiliary", read(p, "auxiliary", reading), reading.counts)
    starts = starts_of(reading.counts, ids.device)
    last = starts[lengths - 1] + torch.arange(reading.rows, device=ids.device)
    last = last[:, None, :, None].expand(-1, 2, -1, states.shape[-1])
    return states.gather(2, last).transpose(1, 2).flatten(2)


def answer(
    p: Parameters, reading: Reading, gates: Tensor, eligible: Tensor, query: Tensor | None
) -> Answer:
    """From the main text's gates to logits.

    Shapes: gates [2M, N, 4H], eligible [M, B, T], query [M, B, 2H] in a paired task.
    """
    forwards, backwards = _hidden(p, "main", gates, reading.counts).unbind(1)
    both = torch.cat((forwards, reading.turned(backwards)), -1)
    score = _linear(both, p, "attention")
    if query is not None:
        score = score + reading.spread(_linear(query, p, "attention.query"))
    token = (score.tanh() @ p["attention.vector"][:, :, None])[..., 0]
    blocked = ~eligible
    logit = reading.padded(token, -math.inf).masked_fill(blocked, -math.inf)
    # a text with nothing to attend to has a context of zeros
    weight = logit.softmax(-1).masked_fill(blocked, 0)
    context = reading.summed(both, reading.packed(weight))
    if query is None:
        logits = _linear(context, p, "decoder")
    else:
        inner = _linear(context, p, "decoder.context") + _linear(query, p, "decoder.query")
        logits = _linear(inner.tanh(), p, "decoder")
    return Answer(logits, weight)


def _linear(values: Tensor, p: Parameters, name: str) -> Tensor:
    """A linear layer of each model: [M, N, I] -> [M, N, O]."""
    joint = "_" if name.count(".") else "."
    weight, bias = p[f"{name}{joint}weight"], p[f"{name}{joint}bias"]
    return torch.baddbmm(bias[:, None, :], values, weight.transpose(1, 2))


def classify(
    p: Parameters,
    ids: Tensor,
    lengths: Tensor,
    eligible: Tensor,
    auxiliary: Tensor | None = None,
    auxiliary_lengths: Tensor | None = None,
    counts: Counts | None = None,
) -> Answer:
    """Read texts and answer: ids [M, B, T], lengths [M, B], eligible [M, B, T]."""
    reading = Reading.of(ids, lengths, counts)
    gates = read(p, "main", reading)
    query = None
    if auxiliary is not None and auxiliary_lengths is not None:
        query = query_of(p, auxiliary, auxiliary_lengths)
    return answer(p, reading, gates, eligible, query)
