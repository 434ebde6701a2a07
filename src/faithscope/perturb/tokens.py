"""Masking tokens: replace those that matter most by the mask token, as ROAR does."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, choose
from faithscope.perturb.spans import order_units, ranks_of

STRATEGIES = ("relative", "count")


def mask_tokens(
    ids: Tensor,
    eligible: Tensor,
    scores: Tensor,
    k: int,
    *,
    strategy: str = "relative",
    mask_id: int,
) -> Tensor:
    r"""Mask the k % (or the k) eligible tokens of each text that score highest.

    The tokens whose rank lies in [0, m) are replaced, with n eligible tokens and in whole numbers

    .. math:: m_\text{relative} = \lfloor k n / 100 \rfloor, \qquad m_\text{count} = \min(k, n)

    Tokens that are masked already count among the n and rank first, so masking
    builds on what an earlier step masked; ties go to the lower index; a token that is not
    eligible is never touched. 10 % of fewer than 10 tokens is none.

    Shapes: ids [N, T], eligible bool [N, T], scores [N, T] -> ids [N, T], a new tensor.

    >>> ids = torch.tensor([[1, 5, 6, 7, 8, 2]])
    >>> scores = torch.tensor([[9.0, 0.1, 0.4, 0.3, 0.4, 9.0]])
    >>> mask_tokens(ids, ids > 2, scores, 50, mask_id=3)
    tensor([[1, 5, 3, 7, 3, 2]])
    >>> mask_tokens(ids, ids > 2, scores, 1, strategy="count", mask_id=3)
    tensor([[1, 5, 3, 7, 8, 2]])
    """
    _check(ids, eligible, scores)
    wanted = tokens_to_mask(eligible.sum(-1), k, strategy)
    scores = torch.where(eligible, scores, -torch.inf)
    scores = scores.masked_fill(eligible & (ids == mask_id), torch.inf)
    return ids.masked_fill(ranks_of(order_units(scores)) < wanted[..., None], mask_id)


def tokens_to_mask(n: Tensor, k: int, strategy: str = "relative") -> Tensor:
    """How many of n eligible tokens are masked at k, int64, same shape.

    >>> tokens_to_mask(torch.tensor([9, 10, 90]), 70)
    tensor([ 6,  7, 63])
    """
    relative = choose("masking strategy", strategy, STRATEGIES) == "relative"
    if k < 0 or (relative and k > 100):
        valid = "a percentage from 0 to 100" if relative else "a number of tokens, 0 or more"
        raise FaithscopeError(f"k must be {valid}, got {k}.")
    n = n.to(torch.int64)
    # Whole numbers: 70 / 100 * 90 is 62.99… in floating point.
    return n * k // 100 if relative else n.clamp(max=k)


def _check(ids: Tensor, eligible: Tensor, scores: Tensor) -> None:
    if not ids.shape == eligible.shape == scores.shape:
        raise FaithscopeError(
            "Masking needs ids, eligible and scores of one shape [N, T], got "
            f"{list(ids.shape)}, {list(eligible.shape)} and {list(scores.shape)}."
        )
    broken = int((eligible & ~scores.isfinite()).sum())
    if broken:
        raise FaithscopeError(
            f"{broken} scores of eligible tokens are NaN or infinite, so they cannot be ranked: "
            "check the training of the model that was explained."
        )
