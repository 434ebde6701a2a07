"""What a Hugging Face text classifier that is trained leaves behind: embeddings and gradients.

Whatever reads more of it than these, its blocks, is explained as any text model is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from faithscope.data.text import Tokens
from faithscope.methods.explain import explain_batch
from faithscope.methods.method import Method
from faithscope.methods.text import Path, TokenEvidence, path_of
from faithscope.models import TextModel, TokenInputs, undisturbed
from faithscope.models.text_classifier import TextClassifier, read_lengths, within


def encoder_evidence(
    model: TextClassifier,
    ids: Tensor,
    lengths: Tensor,
    labels: Tensor,
    *,
    needs: Collection[str] = ("gradient",),
    path: Path | None = None,
    eligible: Tensor | None = None,
) -> TokenEvidence:
    """What the measures read of a batch, everything 0 beyond the main part.

    A path leads only through word embeddings of the main part; position embeddings and the
    auxiliary text never change. Its baseline puts [PAD] in the place of `eligible` tokens [B, T].
    """
    path = path or Path()
    main = within(lengths, ids.shape[1])[..., None]
    gradient = gram = along = start = None
    with undisturbed(model.module), torch.enable_grad():
        embeddings = model.embedding(ids).detach()
        if "gradient" in needs:
            gradient = main * model.gradient(ids, lengths, labels, embeddings)
            gram = model.gram()
        if "path_gradient" in needs:
            if path.baseline != "zero":
                padded = (
                    main[..., 0] if path.baseline == "pad_all" or eligible is None else eligible
                )
                start = model.embedding(ids.masked_fill(padded, model.pad_id)).detach()
            along = main * model.path_gradient(ids, lengths, labels, embeddings, path.points, start)
    return TokenEvidence(
        embeddings=main * embeddings,
        gradient=gradient,
        gram=gram,
        baseline=None if start is None else main * start,
        path_gradient=along,
    )


def explain_tokens(model: TextClassifier, tokens: Tokens, measure: Method) -> Tensor:
    """Scores [N, T] of a split by a measure that reads words, float32 on the CPU."""
    path = path_of(measure) if "path_gradient" in measure.needs else None
    scores = torch.zeros(tokens.ids.shape)
    for index, ids in model.by_length(tokens.ids):
        parts = (tokens.lengths, tokens.labels, tokens.eligible[:, : ids.shape[1]])
        lengths, labels, eligible = (part[index].to(ids.device) for part in parts)
        evidence = encoder_evidence(
            model, ids, lengths, labels, needs=measure.needs, path=path, eligible=eligible
        )
        scores[index, : ids.shape[1]] = measure(evidence).float().cpu()
    return scores


def explain_blocks(
    model: TextModel,
    tokens: Tokens,
    measures: Sequence[Method],
    *,
    pad_id: int,
    tokens_per_pass: int,
) -> list[Tensor]:
    """Scores [N, T] of a split by any methods for texts, float32 on the CPU; gold labels."""
    totals = read_lengths(tokens.ids, pad_id)
    scores = [torch.zeros(tokens.ids.shape) for _ in measures]
    pairs = [(measure, 0) for measure in measures]
    for total in sorted(set(totals.tolist())):
        alike = (totals == total).nonzero().flatten()
        for index in alike.split(max(1, tokens_per_pass // max(1, total))):
            texts = _texts(tokens, index, total).to(model.device)
            labels, keys = tokens.labels[index].to(model.device), [str(i) for i in index.tolist()]
            maps = explain_batch(model, texts, labels, pairs, keys=keys)
            for held, own in zip(scores, maps, strict=True):
                held[index, :total] = own[:, 0].float().cpu()
    main = within(tokens.lengths, tokens.ids.shape[1])
    return [held * main for held in scores]


def _texts(tokens: Tokens, index: Tensor, total: int) -> TokenInputs:
    """Texts of one length, as they stand, every token a unit; beyond the main part of type 1."""
    ids = tokens.ids[index, :total]
    types = (~within(tokens.lengths[index], total)).long()
    units = torch.arange(total).expand_as(ids)
    return TokenInputs(ids, torch.ones_like(ids), types, units, total)
