"""Methods that read attention and its gradient: steps over the blocks, last first.

A step takes the row of the product so far, [B, N], and one block, and returns the next row. The
product of all blocks' matrices, read in the row of the class token, needs only this one row.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Layer
from faithscope.methods.method import layer_method

Aggregate = Literal["normalised", "product"]
"""How blocks are joined: by the product of their matrices, rows divided by their sums or not."""

GRADIENT = ("attention", "attention_gradient")


def _if_gradient(*, gradient: bool, **_: object) -> tuple[str, ...]:
    return GRADIENT if gradient else GRADIENT[:1]


def roll(row: Tensor, matrix: Tensor) -> Tensor:
    """Row vector times matrix, batched: [B, N], [B, N, N] -> [B, N]."""
    return (row[:, None] @ matrix)[:, 0]


def head_mean(attention: Tensor) -> Tensor:
    """Mean over heads: [B, heads, N, N] -> [B, N, N]."""
    return attention.mean(dim=1)


def positive(values: Tensor) -> Tensor:
    """Negative entries set to 0."""
    return values.clamp(min=0)


def normalised_roll(row: Tensor, matrix: Tensor) -> Tensor:
    """One step of rollout: the identity is added and each row divided by its sum."""
    mixed = matrix + torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    return roll(row, mixed / mixed.sum(-1, keepdim=True))


def scaled(matrix: Tensor) -> Tensor:
    """Each matrix [B, N, N] scaled to [0, 1]; a constant one becomes 0."""
    low, high = matrix.amin((1, 2), keepdim=True), matrix.amax((1, 2), keepdim=True)
    return (matrix - low) / (high - low).masked_fill(high == low, 1)


def joined_roll(row: Tensor, matrix: Tensor, aggregate: str) -> Tensor:
    """One step of a product of blocks, with the identity; "normalised", or the plain "product"."""
    return normalised_roll(row, matrix) if aggregate == "normalised" else row + roll(row, matrix)


def check_start(method: str, start_layer: int, layer: Layer) -> None:
    """Refuse a block to start from that is not there."""
    if not 0 <= start_layer < layer.depth:
        raise FaithscopeError(
            f"{method}'s start_layer must be a block from 0 to {layer.depth - 1}, got "
            f"{start_layer}."
        )


def weighted_attention(layer: Layer, clamp: str = "heads") -> Tensor:
    """Gradient times attention [B, N, N], clamped at 0 before or after the mean over heads."""
    product = layer.attention_gradient * layer.attention
    if clamp == "heads":
        return head_mean(positive(product))
    mean = head_mean(product)
    return positive(mean) if clamp == "mean" else mean


@layer_method("rollout", in_papers=True)
def rollout(
    row: Tensor,
    layer: Layer,
    *,
    start_layer: int = 0,
    aggregate: Aggregate = "normalised",
) -> Tensor:
    r"""Attention rolled out over all blocks, with the residual path (Abnar & Zuidema 2020).

    .. math:: M_l = \mathrm{rownorm}(\mathbb{E}_h A_l + I), \qquad J = M_{L-1} \cdots M_0

    With aggregate="product" rows are not divided by their sums.
    """
    check_start("rollout", start_layer, layer)
    if layer.index < start_layer:
        return row
    return joined_roll(row, head_mean(layer.attention), aggregate)


@layer_method("transformer_mm", needs=GRADIENT, in_papers=True)
def transformer_mm(row: Tensor, layer: Layer) -> Tensor:
    r"""Gradient times attention, rolled out over all blocks (Chefer et al. 2021, bi-modal).

    .. math:: B_l = \mathbb{E}_h (G_l \odot A_l)^+, \qquad R \leftarrow R + B_l R
    """
    return row + roll(row, weighted_attention(layer))


@layer_method("attcat", needs=("attention", "stream_gradient"), in_papers=True)
def attcat(
    row: Tensor,
    layer: Layer,
    *,
    stream: Literal["input", "output"] = "input",
    attention: Literal["received", "readout"] = "received",
) -> Tensor:
    r"""Tokens times their gradient, weighted by the attention they receive, summed over blocks.

    .. math:: \sum_l a_l[j] \sum_d h_l[j, d] \, \frac{\partial f_t}{\partial h_l[j, d]},
        \qquad a_l[j] = \mathrm{mean}_{h, i} \, A_l[h, i, j]

    `stream` takes the tokens at the block's "input" or "output"; `attention` is what each token
    "received" from all, or what the "readout" token paid it (Qiang et al. 2022).
    """
    mean = head_mean(layer.attention)
    weight = mean.mean(1) if attention == "received" else roll(layer.readout, mean)
    found = weight * (layer.stream(stream) * layer.stream_gradient(stream)).sum(-1)
    return found if layer.is_last else row + found


@layer_method("gradient_rollout", needs=_if_gradient)
def gradient_rollout(
    row: Tensor,
    layer: Layer,
    *,
    discard: float = 0.9,
    gradient: bool = True,
    pairing: Literal["aligned", "published"] = "aligned",
) -> Tensor:
    r"""Rollout of attention times gradient, smallest entries discarded (Gildenblat 2020).

    .. math:: M_l = \big( \mathbb{E}_h A_l \odot G_l \big)^+, \qquad
        \tfrac12 (M_l + I)_{ij} \Big/ \sum_k \tfrac12 (M_l + I)_{jk}

    As published, column j is divided by the sum of *row* j, and the map by its maximum. The
    published class pairs block l with the gradient of block L-1-l; `pairing="published"` does so,
    too. Without `gradient`, :math:`M_l = \mathbb{E}_h A_l`.
    """
    if not 0 <= discard < 1:
        raise FaithscopeError(
            f"gradient_rollout discards a share of at least 0 and below 1, got {discard}."
        )
    matrix = layer.attention
    if gradient:
        partner = layer if pairing == "aligned" else layer.other(layer.depth - 1 - layer.index)
        matrix = positive(head_mean(matrix * partner.attention_gradient))
    else:
        matrix = head_mean(matrix)
    matrix = _discard_smallest(matrix, discard, keep_first=not gradient)
    mixed = (matrix + torch.eye(matrix.shape[-1], device=row.device, dtype=row.dtype)) / 2
    row = roll(row, mixed / mixed.sum(-1)[:, None])
    if layer.index:
        return row
    top = row[:, layer.prefix_tokens :].amax(1, keepdim=True)
    return row / top.masked_fill(top == 0, 1)


def _discard_smallest(matrix: Tensor, share: float, *, keep_first: bool) -> Tensor:
    """Set the smallest entries of each matrix to 0; the published rollout spares entry 0."""
    flat = matrix.flatten(1)
    smallest = flat.topk(int(flat.shape[1] * share), dim=1, largest=False).indices
    dropped = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, smallest, True)
    if keep_first:
        dropped[:, 0] = False
    return flat.masked_fill(dropped, 0).reshape_as(matrix)


@layer_method("attention", needs=_if_gradient)
def attention(
    row: Tensor,
    layer: Layer,
    *,
    layers: Literal["all", "last"] = "all",
    gradient: bool = False,
    aggregate: Literal["auto", "normalised", "product", "sum"] = "auto",
    clamp: Literal["heads", "mean", "none"] = "heads",
) -> Tensor:
    r"""The ablation family: last block or all, without or with gradient.

    ================== ========================================= =================================
    ..                 gradient=false                            gradient=true
    ================== ========================================= =================================
    layers="last"      :math:`\mathbb{E}_h A_{L-1}` (raw          :math:`\mathbb{E}_h (G A)_{L-1}^+`
                       attention)
    layers="all"       rownorm :math:`(\mathbb{E}_h A_l + I)`     :math:`I + \mathbb{E}_h (G A)_l^+`
                       multiplied (rollout)                       multiplied (Transformer-MM)
    ================== ========================================= =================================

    `aggregate` says how blocks are joined: by the "normalised" product, the plain "product" or the
    "sum"; "auto" is the table above. `clamp` sets negative values to 0 in each of the "heads",
    after their "mean", or not at all ("none").
    """
    if layers == "last" and aggregate != "auto":
        raise FaithscopeError("attention's aggregate joins blocks: it needs layers=all.")
    if clamp != "heads" and not gradient:
        raise FaithscopeError("Attention is never negative: attention's clamp needs gradient=true.")
    if layers == "last" and not layer.is_last:
        return row
    matrix = weighted_attention(layer, clamp) if gradient else head_mean(layer.attention)
    if layers == "last":
        return roll(row, matrix)
    if aggregate == "sum":
        found = roll(layer.readout, matrix)
        return found if layer.is_last else row + found
    if aggregate == "normalised" or (aggregate == "auto" and not gradient):
        return normalised_roll(row, matrix)
    return row + roll(row, matrix)


# Of texts: the same as in named_layer.py, of the last block, as the programs for BERT have it


@layer_method("raw_attention", in_papers=True, modality="text")
def raw_attention(row: Tensor, layer: Layer) -> Tensor:
    r"""Attention that the read-out token pays in the last block, mean over heads.

    .. math:: \mathbb{E}_h A_{L-1}[\mathrm{CLS}]
    """
    return roll(row, head_mean(layer.attention)) if layer.is_last else row


@layer_method("grad_cam", needs=GRADIENT, in_papers=True, modality="text")
def grad_cam(row: Tensor, layer: Layer, *, clamp: bool = True, minmax: bool = True) -> Tensor:
    r"""Last block's attention, heads weighted by their mean gradient, scaled to [0, 1].

    .. math:: \mathrm{minmax} \Big( \mathbb{E}_h \, \overline{G}_h \, A_{L-1}[h] \Big)^+
        [\mathrm{CLS}], \qquad \overline{G}_h = \mathrm{mean}_{ij} \, G_{L-1}[h, i, j]

    The matrix of all tokens is scaled, not its row; one that is constant, as where no gradient is
    positive, becomes 0.
    """
    if not layer.is_last:
        return row
    weights = layer.attention_gradient.mean((2, 3), keepdim=True)
    matrix = head_mean(weights * layer.attention)
    matrix = positive(matrix) if clamp else matrix
    return roll(row, scaled(matrix) if minmax else matrix)
