"""What BiLSTM-attention models leave behind for the measures, M models at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from faithscope.data.text import Tokens
from faithscope.data.vocabulary import PAD
from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import METHODS, Method
from faithscope.methods.text import Path, TokenEvidence, reads_words_only
from faithscope.models import Model, TokenInputs, bilstm
from faithscope.models.bilstm import Parameters, Reading
from faithscope.models.bilstm_text import BiLSTMText
from faithscope.models.recurrence import Counts
from faithscope.registry import format_spec


def stack(tensors: Sequence[Tensor], device: str) -> Tensor:
    """Tensors of one shape as one, on a device."""
    return torch.stack([tensor.to(device) for tensor in tensors])


@dataclass(frozen=True, eq=False)
class Texts:
    """A split as M models read it: ids [M, N, T] are their own, all else [N, …] is shared."""

    ids: Tensor
    lengths: Tensor
    eligible: Tensor
    labels: Tensor
    auxiliary: Tensor | None
    auxiliary_lengths: Tensor | None

    @staticmethod
    def of(tokens: Sequence[Tokens], device: str) -> Texts:
        """Stack the same split, masked in different ways."""
        first = tokens[0]
        aux, lengths = first.auxiliary, first.auxiliary_lengths
        return Texts(
            stack([part.ids for part in tokens], device),
            first.lengths.to(device),
            first.eligible.to(device),
            first.labels.to(device),
            None if aux is None else aux.to(device),
            None if lengths is None else lengths.to(device),
        )

    @property
    def inside(self) -> Tensor:
        """Which positions lie within a text [N, T] (or [M, N, T])."""
        return torch.arange(self.ids.shape[-1], device=self.ids.device) < self.lengths[..., None]

    def by_length(self, budget: int) -> Iterator[Tensor]:
        """Rows in batches of about `budget` tokens of all models, texts of like length together."""
        order, lengths = self._longest_first
        start = 0
        while start < len(lengths):
            rows = max(1, budget // (self.ids.shape[0] * lengths[start]))
            yield order[start : start + rows]
            start += rows

    @cached_property
    def _longest_first(self) -> tuple[Tensor, list[int]]:
        lengths, order = self.lengths.sort(stable=True, descending=True)
        return order, lengths.tolist()

    @cached_property
    def shortest(self) -> Tensor:
        """The row that costs least to read."""
        return self.lengths.argmin()

    def at(self, rows: Tensor) -> Batch:
        """The same rows [B] for all models, cut to the longest text."""
        steps = int(self.lengths[rows].max())
        everyone = rows.expand(self.ids.shape[0], -1)
        return self.batch(everyone, steps)

    def batch(self, rows: Tensor, steps: int) -> Batch:
        """Rows [M, B], each model its own, cut to `steps` tokens."""
        models, texts, _ = self.ids.shape
        first = torch.arange(models, device=rows.device)[:, None] * texts
        ids = self.ids.flatten(0, 1)[:, :steps].index_select(0, (rows + first).reshape(-1))
        aux, aux_lengths = self.auxiliary, self.auxiliary_lengths
        return Batch(
            ids.view(*rows.shape, -1),
            self.lengths[rows],
            self.eligible[:, :steps][rows],
            self.labels[rows],
            None if aux is None else aux[rows],
            None if aux_lengths is None else aux_lengths[rows],
        )


class Batch(Texts):
    """Some texts of each of M models: everything [M, B, …]."""

    def answer(self, p: Parameters, counts: Counts | None = None) -> bilstm.Answer:
        """What the models say; `counts` as for Reading.of."""
        pair = (self.auxiliary, self.auxiliary_lengths)
        return bilstm.classify(p, self.ids, self.lengths, self.eligible, *pair, counts)


def check_measure(measure: Method) -> None:
    """Refuse what needs a Transformer; of the family `attention` a BiLSTM has α, and no options."""
    if _is_attention(measure):
        if measure.options:
            raise _has_no_options(measure.label)
    elif not reads_words_only(measure):
        reason = "it reads the blocks of a Transformer, which a BiLSTM has not"
        raise FaithscopeError(
            f"The measure '{measure.label}' cannot be run, since {reason}: leave it out, or train "
            "an encoder (hf:…).",
            reason=reason,
        )


def _is_attention(measure: Method) -> bool:
    return measure.function is METHODS.of("text")["attention"].function


def as_read_by(model: Model, measures: Sequence[Method]) -> list[Method]:
    """The same methods; of a BiLSTM `attention` is α, which needs no blocks, none in half."""
    if not isinstance(model, BiLSTMText):
        return list(measures)
    halved = [replace(held, in_half=False) for held in measures]
    return [
        replace(held, function=_alpha, needs=frozenset(), by_layer=False)
        if _is_attention(held)
        else held
        for held in halved
    ]


def _alpha(evidence: Evidence, **options: Any) -> Tensor:
    """α of every unit."""
    if options:
        raise _has_no_options(format_spec("attention", options))
    assert isinstance(evidence.model, BiLSTMText) and isinstance(evidence.inputs, TokenInputs)
    return evidence.to_map(evidence.model.attention(evidence.inputs))


def _has_no_options(label: str) -> FaithscopeError:
    reason = "a BiLSTM has one attention weight for each token, α, and no blocks or heads"
    return FaithscopeError(
        f"The measure '{label}' cannot be run, since {reason}: leave its options out.",
        reason=reason,
    )


def token_scores(measure: Method, evidence: TokenEvidence) -> Tensor:
    """The scores of a measure, [B, T]; the measure `attention` is α."""
    alpha = evidence.attention if _is_attention(measure) else None
    return measure(evidence) if alpha is None else alpha


def bilstm_evidence(
    p: Parameters,
    batch: Batch,
    needs: frozenset[str],
    path: Path,
    budget: int,
) -> list[TokenEvidence]:
    """What a measure reads, for each of M models, from as few passes as the budget allows."""
    reading = Reading.of(batch.ids, batch.lengths)
    embedded = bilstm.look_up(p["main.embedding"], reading.both)
    query = None
    if batch.auxiliary is not None and batch.auxiliary_lengths is not None:
        query = bilstm.query_of(p, batch.auxiliary, batch.auxiliary_lengths)
    natural = _standing(embedded[:, 0], reading)
    if "attention" in needs:
        with torch.no_grad():
            gates = bilstm.read(p, "main", reading)
            weights = bilstm.answer(p, reading, gates, batch.eligible, query).attention
        return [
            TokenEvidence(embeddings=e, attention=a) for e, a in zip(natural, weights, strict=True)
        ]
    start = _path_start(p, batch, path.baseline)
    gradient = path_gradient(p, batch, reading, embedded, query, path.points, budget, start)
    if "path_gradient" in needs:
        starts = [None] * len(natural) if start is None else _standing(start[:, 0], reading)
        parts = zip(natural, starts, gradient, strict=True)
        return [TokenEvidence(embeddings=e, baseline=b, path_gradient=g) for e, b, g in parts]
    table = p["main.embedding"]
    grams = table.transpose(1, 2) @ table
    found = zip(natural, gradient, grams, strict=True)
    return [TokenEvidence(embeddings=e, gradient=g, gram=w) for e, g, w in found]


def _path_start(p: Parameters, batch: Batch, baseline: str) -> Tensor | None:
    """The word embeddings where a path begins, in the order of reading; None at 0."""
    if baseline == "zero":
        return None
    padded = batch.eligible if baseline == "pad" else torch.ones_like(batch.eligible)
    reading = Reading.of(batch.ids.masked_fill(padded, PAD), batch.lengths)
    return bilstm.look_up(p["main.embedding"], reading.both)


def _standing(values: Tensor, reading: Reading) -> Tensor:
    """What belongs to the tokens, [M, N, E], where they stand: [M, B, T, E]."""
    full = values.new_zeros(len(values), reading.rows * reading.steps, values.shape[-1])
    full[:, reading.place] = values
    return full.view(len(values), reading.rows, reading.steps, -1)


def path_gradient(
    p: Parameters,
    batch: Batch,
    reading: Reading,
    embedded: Tensor,
    query: Tensor | None,
    path: Sequence[tuple[float, float]],
    budget: int,
    start: Tensor | None = None,
) -> Tensor:
    """The gold logit's gradient summed over a path of (share, weight): [M, B, T, E].

    What lies between two embeddings is projected to what lies between their projections, so these
    are made once; and the gradient is summed over the path before it is projected back.
    """
    bias = (p["main.input_bias"] + p["main.hidden_bias"]).flatten(0, 1)[:, None, None]
    weight = p["main.input_weight"].flatten(0, 1)
    projected = (embedded.flatten(0, 1) @ weight.transpose(1, 2))[:, :, None]
    if start is not None:
        begun = (start.flatten(0, 1) @ weight.transpose(1, 2))[:, :, None]
        bias, projected = bias + begun, projected - begun
    summed = torch.zeros_like(projected[:, :, 0])

    @cache
    def repeated(times: int) -> tuple[Reading, Tensor, Tensor | None, Tensor]:
        return (
            reading.repeated(times),
            batch.eligible.repeat_interleave(times, 1),
            None if query is None else query.repeat_interleave(times, 1),
            batch.labels.repeat_interleave(times, 1)[..., None],
        )

    together = max(1, budget // (batch.ids.shape[0] * embedded.shape[2]))
    for part in projected.new_tensor(path).chunk(-(-len(path) // together)):
        again, eligible, asked, labels = repeated(len(part))
        gates = torch.addcmul(bias, projected, part[:, :1]).flatten(1, 2).requires_grad_(True)
        with torch.enable_grad():
            logits = bilstm.answer(p, again, gates, eligible, asked).logits
            gold = logits.gather(2, labels).view(*batch.labels.shape, -1)
            total = (gold * part[:, 1]).sum()
        (found,) = torch.autograd.grad(total, gates)
        summed += found.view(*summed.shape[:2], len(part), -1).sum(2)
    back = (summed @ weight).view(embedded.shape)
    return _standing(back[:, 0] + reading.turned(back[:, 1]), reading)
