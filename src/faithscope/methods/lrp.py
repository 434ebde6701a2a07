"""Methods that read LRP relevance; how it is propagated is in relevance.py."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.attention import check_start, head_mean, positive, roll
from faithscope.methods.evidence import Evidence, Layer
from faithscope.methods.method import layer_method, register_method
from faithscope.methods.relevance import Descent, Rules


def _needs(*, gradient: bool, **_: object) -> tuple[str, ...]:
    return ("relevance", "attention", *(["attention_gradient"] if gradient else []))


def _relevant_attention(layer: Layer, rules: str, gradient: bool) -> Tensor:
    """Positive relevance of attention, times its gradient if asked, mean over heads: [B, N, N]."""
    relevance = layer.relevance(rules)
    if relevance.shape != layer.attention.shape:  # which a view has checked
        raise FaithscopeError(
            "The relevance of attention is not of its shape: use lrp, which needs no attention."
        )
    if gradient:
        relevance = relevance * layer.attention_gradient
    return head_mean(positive(relevance))


@register_method("lrp", granularity="pixel", needs=("relevance", "tapes"), in_papers=True)
def lrp(evidence: Evidence, *, rules: Rules = "original") -> Tensor:
    """Relevance of every pixel, propagated from the logit through all layers; signed channel sum.

    `rules` is "original" (what the literature evaluates as full LRP) or "conserving".
    """
    stem = evidence.tape("stem")
    relevance = evidence.sweep(rules).descend(0)
    descent = Descent(stem, rules, "its patch embedding")
    with torch.no_grad():
        pixels = descent.run(evidence.tensor("entered"), relevance, stem.roots[0], pixels=True)
    return pixels.sum(1)


@layer_method("partial_lrp", needs=_needs, in_papers=True)
def partial_lrp(
    row: Tensor, layer: Layer, *, rules: Rules = "original", gradient: bool = False
) -> Tensor:
    r"""Positive relevance of the last block's attention, mean over heads.

    .. math:: \mathbb{E}_h (C_{L-1})^+ [\mathrm{CLS}]

    With `gradient`, relevance is multiplied by the attention's gradient before the clamp.
    """
    return roll(row, _relevant_attention(layer, rules, gradient)) if layer.is_last else row


@layer_method("transformer_attribution", needs=_needs, in_papers=True)
def transformer_attribution(
    row: Tensor,
    layer: Layer,
    *,
    rules: Rules = "conserving",
    gradient: bool = True,
    start_layer: int = 0,
) -> Tensor:
    r"""Gradient times relevance of attention, rolled out over all blocks (Chefer et al. 2021).

    .. math:: B_l = \mathbb{E}_h (G_l \odot C_l)^+, \qquad J = (I + B_{L-1}) \cdots (I + B_0)

    Without `gradient`, :math:`B_l = \mathbb{E}_h (C_l)^+`.
    """
    check_start("transformer_attribution", start_layer, layer)
    if layer.index < start_layer:
        return row
    return row + roll(row, _relevant_attention(layer, rules, gradient))
