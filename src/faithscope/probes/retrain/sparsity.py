"""Sparsity: how much of a measure's total the top tokens of a text hold."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError

COUNTS = tuple(range(1, 11))
SHARES = tuple(range(10, 100, 10))


def sparsity(
    scores: Tensor, lengths: Tensor, eligible: Tensor, *, specials: bool = True
) -> dict[str, dict[int, float]]:
    r"""The share of the scores in the top tokens, averaged over texts: how sharp a measure is.

    .. math:: c_j = \frac{\sum_{i \le j} |s_{(i)}|}{\sum_i |s_{(i)}|}, \qquad
       q_x = c_{\lfloor n x / 100 \rfloor + 1}

    with the n scores of a text in falling order: "count" holds c_j of the top j = 1, …, 10 tokens
    (1 where a text has fewer), "relative" q_x of the top x = 10, …, 90 %. As in the program that
    made the paper's figures, the position after the last is included in q.

    `specials=True`, that program's way, counts every position of the main text; the paper says
    that special tokens are left out: `False` counts eligible tokens only. Texts without any score
    (all 0, or no token left) have no shares and are left out; NaN if that holds for all.

    Shapes: scores [N, T], lengths [N], eligible bool [N, T].

    >>> scores = torch.tensor([[0.0, 3.0, 1.0, 0.0]])
    >>> found = sparsity(scores, torch.tensor([4]), torch.tensor([[False, True, True, False]]))
    >>> found["count"][1], found["relative"][50]
    (0.75, 1.0)
    """
    if not scores.shape == eligible.shape or lengths.shape != scores.shape[:1]:
        raise FaithscopeError(
            "Sparsity needs scores and eligible [N, T] and lengths [N], got "
            f"{list(scores.shape)}, {list(eligible.shape)} and {list(lengths.shape)}."
        )
    positions = torch.arange(scores.shape[1], device=scores.device)
    counted = positions < lengths[:, None] if specials else eligible
    sizes = scores.to(torch.float64).abs().masked_fill(~counted, 0.0)
    n = counted.sum(-1)
    known = sizes.sum(-1) > 0
    mass = sizes[known].sort(-1, descending=True).values.cumsum(-1)
    shares = mass / mass[:, -1:] if mass.numel() else mass
    return {
        "count": {j: _mean_share(shares, torch.full_like(n[known], j)) for j in COUNTS},
        "relative": {x: _mean_share(shares, n[known] * x // 100 + 1) for x in SHARES},
    }


def _mean_share(shares: Tensor, top: Tensor) -> float:
    """The mean over texts of the cumulative share of their top tokens: [N, T], [N]."""
    if not shares.numel():
        return float("nan")
    last = (top - 1).clamp(max=shares.shape[1] - 1)
    return shares.gather(1, last[:, None]).mean().item()
