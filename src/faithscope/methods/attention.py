"""Methods that read attention probabilities: steps over the blocks, last first."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.method import Layer, layer_method


def _times(row: Tensor, matrix: Tensor) -> Tensor:
    """Row vector times matrix, batched: [B, N], [B, N, N] -> [B, N]."""
    return (row[:, None] @ matrix)[:, 0]


@layer_method("raw_attention", in_papers=True)
def raw_attention(row: Tensor, layer: Layer) -> Tensor:
    r"""Attention that the read-out token pays in the last block, mean over heads.

    .. math:: \mathbb{E}_h A_{L-1}[\mathrm{CLS}]
    """
    if layer.index < layer.depth - 1:
        return row
    return _times(row, layer.attention.mean(1))


@layer_method("rollout", in_papers=True)
def rollout(row: Tensor, layer: Layer, *, start_layer: int = 0) -> Tensor:
    r"""Attention rolled out over all blocks, with the residual path (Abnar & Zuidema 2020).

    .. math:: M_l = \mathrm{rownorm}(\mathbb{E}_h A_l + I), \qquad J = M_{L-1} \cdots M_0
    """
    if not isinstance(start_layer, int) or not 0 <= start_layer < layer.depth:
        raise FaithscopeError(
            f"rollout's start_layer must be a block from 0 to {layer.depth - 1}, got {start_layer}."
        )
    if layer.index < start_layer:
        return row
    mixed = layer.attention.mean(1)
    mixed = mixed + torch.eye(mixed.shape[-1], device=mixed.device, dtype=mixed.dtype)
    return _times(row, mixed / mixed.sum(-1, keepdim=True))
