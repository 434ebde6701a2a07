"""Masking units, tokens or pixels: those that matter most go first, as ROAR does."""

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
    if not ids.shape == eligible.shape:
        raise FaithscopeError(
            "Masking needs ids, eligible and scores of one shape [N, T], got "
            f"{list(ids.shape)}, {list(eligible.shape)} and {list(scores.shape)}."
        )
    masked = eligible & (ids == mask_id)
    return ids.masked_fill(units_to_mask(eligible, masked, scores, k, strategy=strategy), mask_id)


def units_to_mask(
    eligible: Tensor, masked: Tensor | None, scores: Tensor, k: int, *, strategy: str = "relative"
) -> Tensor:
    """Which units are masked at k, tokens of texts or pixels of images, as `mask_tokens` says.

    Shapes: eligible bool [N, T], masked already bool [N, T] or None, scores [N, T] -> bool [N, T].

    >>> everything = torch.tensor([[True, True, True, True]])
    >>> units_to_mask(everything, None, torch.tensor([[0.1, 0.4, 0.3, 0.4]]), 50)
    tensor([[False,  True, False,  True]])
    """
    _check(eligible, scores)
    wanted = count_to_mask(eligible.sum(-1), k, strategy)
    scores = torch.where(eligible, scores, -torch.inf)
    if masked is not None:
        scores = scores.masked_fill(masked, torch.inf)
    return ranks_of(order_units(scores)) < wanted[..., None]


def count_to_mask(n: Tensor, k: int, strategy: str = "relative") -> Tensor:
    """How many of n eligible units are masked at k, int64, same shape.

    >>> count_to_mask(torch.tensor([9, 10, 90]), 70)
    tensor([ 6,  7, 63])
    """
    relative = choose("masking strategy", strategy, STRATEGIES) == "relative"
    if k < 0 or (relative and k > 100):
        valid = "a percentage from 0 to 100" if relative else "a number of units, 0 or more"
        raise FaithscopeError(f"k must be {valid}, got {k}.")
    n = n.to(torch.int64)
    # Whole numbers: 70 / 100 * 90 is 62.99… in floating point.
    return n * k // 100 if relative else n.clamp(max=k)


def _check(eligible: Tensor, scores: Tensor) -> None:
    if not eligible.shape == scores.shape:
        raise FaithscopeError(
            "Masking needs eligible and scores of one shape [N, T], got "
            f"{list(eligible.shape)} and {list(scores.shape)}."
        )
    broken = int((eligible & ~scores.isfinite()).sum())
    if broken:
        raise FaithscopeError(
            f"{broken} scores of eligible units are NaN or infinite, so they cannot be ranked: "
            "check the training of the model that was explained."
        )
