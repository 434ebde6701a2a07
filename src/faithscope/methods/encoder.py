"""What a Hugging Face text classifier leaves behind for the measures: embeddings and gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from faithscope.data.text import Tokens
from faithscope.methods import Method
from faithscope.methods.text import TokenEvidence, path_of
from faithscope.models import undisturbed
from faithscope.models.text_classifier import TextClassifier, within


def encoder_evidence(
    model: TextClassifier,
    ids: Tensor,
    lengths: Tensor,
    labels: Tensor,
    *,
    needs: Collection[str] = ("gradient",),
    path: Sequence[tuple[float, float]] = (),
) -> TokenEvidence:
    """What the measures read of a batch, everything 0 beyond the main part.

    `path` has the scales of the main part's word embeddings and the weight of the gradient at each;
    position embeddings and the auxiliary text are never scaled.
    """
    main = within(lengths, ids.shape[1])[..., None]
    gradient = gram = along = None
    with undisturbed(model.module), torch.enable_grad():
        embeddings = model.embedding(ids).detach()
        if "gradient" in needs:
            gradient = main * model.gradient(ids, lengths, labels, embeddings)
            gram = model.gram()
        if "path_gradient" in needs:
            along = main * model.path_gradient(ids, lengths, labels, embeddings, path)
    return TokenEvidence(
        embeddings=main * embeddings, gradient=gradient, gram=gram, path_gradient=along
    )


def explain_tokens(model: TextClassifier, tokens: Tokens, measure: Method) -> Tensor:
    """Scores [N, T] of a split by a measure that reads the model, float32 on the CPU."""
    path = path_of(measure) if "path_gradient" in measure.needs else ()
    scores = torch.zeros(tokens.ids.shape)
    for index, ids in model.by_length(tokens.ids):
        lengths, labels = (part[index].to(ids.device) for part in (tokens.lengths, tokens.labels))
        evidence = encoder_evidence(model, ids, lengths, labels, needs=measure.needs, path=path)
        scores[index, : ids.shape[1]] = measure(evidence).float().cpu()
    return scores
