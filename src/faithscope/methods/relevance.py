r"""Layer-wise relevance propagation: the rules as formulas, and the sweep from logit to pixels.

Two sets of rules were published (Chefer et al. 2021): "original" (their `ViT_orig_LRP`), in which
each linear layer hands its full relevance to positive and to negative contributions, and
"conserving" (their `ViT_LRP`), in which sums of relevance are kept. Norms, activations, softmax,
LayerScale and q/k norms pass relevance on unchanged, biases receive none.

Everything is batched; sums of the conserving rules run over one sample at a time. The rules divide
by sign-indefinite sums, so they are ill-conditioned: run them in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, choose
from faithscope.models.attention import join_heads, split_heads
from faithscope.models.blocks import (
    Anatomy,
    BlockSteps,
    BlockView,
    HeadSteps,
    HeadView,
    StemView,
)

Rules = Literal["original", "conserving"]
STABILISER = 1e-9


def divide(relevance: Tensor, total: Tensor) -> Tensor:
    r"""Stabilised division, 0 where the denominator is exactly 0.

    .. math:: D(r, z) = r / (z + 10^{-9})

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]))
    tensor([2., 0.])
    """
    denominator = total + STABILISER
    denominator = denominator.masked_fill(denominator == 0, STABILISER)
    return (relevance / denominator).masked_fill(total == 0, 0)


def linear_relevance(inputs: Tensor, weight: Tensor, relevance: Tensor, rules: str) -> Tensor:
    r"""Relevance of a linear layer's inputs, positive and negative contributions apart.

    .. math::
        Z_1 = w^+ x^+, \quad Z_2 = w^- x^-, \quad
        R_{in} = x^+ (w^{+\top} S_1) + x^- (w^{-\top} S_2)

    with :math:`S_1 = S_2 = D(R, Z_1 + Z_2)` (conserving) or :math:`S_i = D(R, Z_i)` (original).

    Shapes: inputs [..., in], weight [out, in], relevance [..., out] -> [..., in].
    """
    plus, minus = inputs.clamp(min=0), inputs.clamp(max=0)
    weight_plus, weight_minus = weight.clamp(min=0), weight.clamp(max=0)
    first, second = plus @ weight_plus.T, minus @ weight_minus.T
    if rules == "conserving":
        share_plus = share_minus = divide(relevance, first + second)
    else:
        share_plus, share_minus = divide(relevance, first), divide(relevance, second)
    return plus * (share_plus @ weight_plus) + minus * (share_minus @ weight_minus)


def add_relevance(a: Tensor, b: Tensor, relevance: Tensor, rules: str) -> tuple[Tensor, Tensor]:
    r"""Relevance of the operands of a sum.

    .. math:: R_a = a \, D(R, a + b), \qquad R_b = b \, D(R, a + b)

    The conserving rules rescale both so that, sample by sample, :math:`\sum R_a + \sum R_b =
    \sum R`, shared in the ratio of :math:`|\sum R_a|` and :math:`|\sum R_b|`.

    Shapes: all [B, N, D].
    """
    share = divide(relevance, a + b)
    to_a, to_b = a * share, b * share
    if rules == "original":
        return to_a, to_b
    total = _sum(relevance)
    sum_a, sum_b = _sum(to_a), _sum(to_b)
    both = sum_a.abs() + sum_b.abs()
    return (
        to_a * divide(divide(sum_a.abs(), both) * total, sum_a),
        to_b * divide(divide(sum_b.abs(), both) * total, sum_b),
    )


def clone_relevance(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    r"""Relevance of a tensor that is used twice.

    .. math:: R = x \, (D(R_1, x) + D(R_2, x))
    """
    return x * (divide(one, x) + divide(other, x))


def product_relevance(
    a: Tensor, b: Tensor, product: Tensor, relevance: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Relevance of the factors of a matrix product, half each.

    .. math::
        s = D(R, a b), \qquad R_a = \tfrac12 a \, (s b^\top), \qquad
        R_b = \tfrac12 b \, (a^\top s)

    Shapes: a [..., n, k], b [..., k, m], product and relevance [..., n, m].
    """
    share = divide(relevance, product)
    return a * (share @ b.mT) / 2, b * (a.mT @ share) / 2


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=(1, 2), keepdim=True)


def head_relevance(head: HeadView, steps: HeadSteps, target: Tensor, rules: str) -> Tensor:
    """Relevance of the last block's output [B, N, D], from 1 at the target class."""
    start = torch.zeros_like(steps.logits).scatter_(1, target[:, None], 1)
    features = linear_relevance(steps.features, head.weight(), start, rules)
    shares = divide(features.reshape_as(steps.pooled), steps.pooled)
    return steps.normed * (steps.readers.T @ shares)


def block_relevance(
    block: BlockView, steps: BlockSteps, relevance: Tensor, rules: str
) -> tuple[Tensor, Tensor]:
    """Take relevance from a block's output [B, N, D] to its input.

    Returns:
        The relevance of the input [B, N, D] and of the attention probabilities [B, heads, N, N].
    """
    to_x1, branch = add_relevance(steps.x1, steps.branch2, relevance, rules)
    branch = linear_relevance(steps.fc2_in, block.fc2.weight, branch, rules)
    branch = linear_relevance(steps.normed2, block.fc1.weight, branch, rules)
    relevance = clone_relevance(steps.x1, to_x1, branch)

    to_x, branch = add_relevance(steps.x, steps.branch1, relevance, rules)
    branch = linear_relevance(steps.output_in, block.output.weight, branch, rules)
    mixed = split_heads(branch, steps.value.shape[1])
    to_attention, to_value = product_relevance(steps.attention, steps.value, steps.mixed, mixed)
    to_query, to_key = product_relevance(steps.query, steps.key.mT, steps.product, to_attention)
    joint = torch.cat([join_heads(part) for part in (to_query, to_key.mT, to_value)], dim=-1)
    assert block.attention.weight is not None
    branch = linear_relevance(steps.normed1, block.attention.weight(), joint, rules)
    return clone_relevance(steps.x, to_x, branch), to_attention


def patch_relevance(
    stem: StemView, tokens: Tensor, positions: Tensor, relevance: Tensor, rules: str
) -> Tensor:
    """Relevance of the patch tokens in "tokens + positions"; what the others get is lost.

    Shapes: both operands [B, k + P, D], relevance of the embedded tokens [B, N, D] -> [B, P, D].
    """
    patches = tokens.shape[1] - stem.prefix_count
    tokens, _ = add_relevance(tokens, positions, stem.summed(relevance, patches), rules)
    return tokens[:, -patches:]


def pixel_relevance(stem: StemView, images: Tensor, relevance: Tensor) -> Tensor:
    r"""Relevance of pixels by the z^B rule, with the bounds of each image.

    .. math::
        Z = W x - W^+ l - W^- h + 10^{-9}, \qquad
        R_{pix} = x (W^\top \tfrac{R}{Z}) - l (W^{+\top} \tfrac{R}{Z}) - h (W^{-\top} \tfrac{R}{Z})

    Shapes: images [B, C, H, W], relevance of the patches [B, P, D] -> [B, H, W].
    """
    weight = stem.projection.weight
    low = images.amin((1, 2, 3), keepdim=True).expand_as(images)
    high = images.amax((1, 2, 3), keepdim=True).expand_as(images)
    terms = ((images, weight), (-low, weight.clamp(min=0)), (-high, weight.clamp(max=0)))
    parts = torch.stack([stem.project(values, kernel) for values, kernel in terms])
    total = parts.sum(0) + STABILISER
    share = relevance.mT.reshape_as(total) / total
    pixels = [values * stem.project_back(share, kernel, images) for values, kernel in terms]
    return torch.stack(pixels).sum((0, 2))


@dataclass(eq=False)
class Sweep:
    """Relevance on its way down through the blocks, one block at a time.

    `stream` is what enters each block, and what leaves the last, each [B, N, D]. `relevance` is
    that of `stream[reached]`; `cam` is the relevance of the attention of block `reached`.
    """

    anatomy: Anatomy
    stream: Sequence[Tensor]
    logits: Tensor
    target: Tensor
    rules: str

    def __post_init__(self) -> None:
        choose("LRP rules", self.rules, get_args(Rules))
        head = self.anatomy.head
        steps = head.run(self.stream[-1])
        head.check(steps.logits, self.logits)
        self.reached = len(self.anatomy.blocks)
        self.relevance = head_relevance(head, steps, self.target, self.rules)
        self.cam = self.relevance[:0]

    def attention(self, index: int) -> Tensor:
        """Relevance of a block's attention [B, heads, N, N]; blocks come last first."""
        self.descend(index)
        if self.reached < index:
            raise FaithscopeError("Relevance is made block by block, last first, and not kept.")
        return self.cam

    def descend(self, index: int) -> Tensor:
        """Relevance of what enters this block, [B, N, D]."""
        while self.reached > index:
            block = self.anatomy.blocks[self.reached - 1]
            steps = block.run(self.stream[self.reached - 1])
            block.check(steps, self.stream[self.reached])
            self.relevance, self.cam = block_relevance(block, steps, self.relevance, self.rules)
            self.reached -= 1
        return self.relevance
