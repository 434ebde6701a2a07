"""Methods that read LRP relevance; how it is propagated is in relevance.py."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.attention import (
    Aggregate,
    check_start,
    head_mean,
    joined_roll,
    positive,
    roll,
    scaled,
)
from faithscope.methods.evidence import Evidence, Layer
from faithscope.methods.method import layer_method, register_method
from faithscope.methods.relevance import Descent, Rules


def _needs(*, gradient: bool, **_: object) -> tuple[str, ...]:
    return ("relevance", "attention", *(["rerun_gradient"] if gradient else []))


def _relevant_attention(layer: Layer, rules: str, gradient: bool, *, clamp: bool = True) -> Tensor:
    """Positive relevance of attention, times its gradient if asked, mean over heads: [B, N, N]."""
    relevance = layer.relevance(rules)
    if relevance.shape != layer.attention.shape:  # which a view has checked
        raise FaithscopeError(
            "The relevance of attention is not of its shape: use lrp, which needs no attention."
        )
    if gradient:
        relevance = relevance * layer.rerun_gradient
    return head_mean(positive(relevance) if clamp else relevance)


@register_method("lrp", granularity="pixel", needs=("relevance", "tapes"), in_papers=True)
def lrp(evidence: Evidence, *, rules: Rules = "original") -> Tensor:
    """Relevance of every pixel, propagated from the logit through all layers; signed channel sum.

    `rules` is "original" (what the literature evaluates as full LRP) or "conserving".
    """
    stem = evidence.tape("stem")
    relevance = evidence.descend(rules)
    descent = Descent(stem, rules, "its patch embedding")
    with torch.no_grad():
        pixels = descent.run(evidence.tensor("entered"), relevance, stem.roots[0], pixels=True)
    return pixels.sum(1)


@register_method(
    "lrp",
    granularity="token",
    needs=("relevance",),
    in_papers=True,
    modality="text",
    by_token=False,
)
def text_lrp(evidence: Evidence, *, rules: Rules = "original") -> Tensor:
    """Relevance of every token, propagated from the logit to what enters the first block.

    `rules` is "original" (what the literature evaluates as full LRP) or "conserving".
    """
    return evidence.to_map(evidence.descend(rules).sum(-1))


@layer_method("partial_lrp", needs=_needs, in_papers=True)
def partial_lrp(
    row: Tensor,
    layer: Layer,
    *,
    rules: Rules = "original",
    gradient: bool = False,
    clamp: bool = True,
    minmax: bool = False,
) -> Tensor:
    r"""Positive relevance of the last block's attention, mean over heads.

    .. math:: \mathbb{E}_h (C_{L-1})^+ [\mathrm{CLS}]

    With `gradient`, relevance is multiplied by the attention's gradient before the clamp; with
    `minmax` the matrix of all tokens is scaled to [0, 1].
    """
    if not layer.is_last:
        return row
    matrix = _relevant_attention(layer, rules, gradient, clamp=clamp)
    return roll(row, scaled(matrix) if minmax else matrix)


@layer_method("transformer_attribution", needs=_needs, in_papers=True, modality="image")
def transformer_attribution(
    row: Tensor,
    layer: Layer,
    *,
    rules: Rules = "conserving",
    gradient: bool = True,
    start_layer: int = 0,
    aggregate: Aggregate = "product",
) -> Tensor:
    r"""Gradient times relevance of attention, rolled out over all blocks (Chefer et al. 2021).

    .. math:: B_l = \mathbb{E}_h (G_l \odot C_l)^+, \qquad J = (I + B_{L-1}) \cdots (I + B_0)

    Without `gradient`, :math:`B_l = \mathbb{E}_h (C_l)^+`; with aggregate="normalised" the rows of
    each factor are divided by their sums.
    """
    check_start("transformer_attribution", start_layer, layer)
    if layer.index < start_layer:
        return row
    return joined_roll(row, _relevant_attention(layer, rules, gradient), aggregate)


@layer_method("transformer_attribution", needs=_needs, in_papers=True, modality="text")
def text_attribution(
    row: Tensor,
    layer: Layer,
    *,
    rules: Rules = "conserving",
    gradient: bool = True,
    start_layer: int = 0,
    aggregate: Aggregate = "normalised",
) -> Tensor:
    r"""Gradient times relevance of attention, rolled out over all blocks (Chefer et al. 2021).

    .. math:: B_l = \mathbb{E}_h (G_l \odot C_l)^+, \qquad J = M_{L-1} \cdots M_0,
        \qquad M_l = \mathrm{rownorm}(I + B_l)

    Without `gradient`, :math:`B_l = \mathbb{E}_h (C_l)^+`; with aggregate="product" rows are not
    divided by their sums, as in the program for ViT.
    """
    return transformer_attribution(
        row, layer, rules=rules, gradient=gradient, start_layer=start_layer, aggregate=aggregate
    )
