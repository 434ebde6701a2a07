"""SaCo, the salience-guided faithfulness coefficient (Wu et al., CVPR 2024), Algorithm 1."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from faithscope.data.tensors import as_numbers, common_type
from faithscope.errors import FaithscopeError, choose, shown
from faithscope.metrics.metric import Metric, Responses, register_metric
from faithscope.models.device import placed
from faithscope.perturb import Span, groups, scaled

WEIGHTS = ("difference", "ratio")
AUTO_K = (5, 10, 20)


def saco(
    salience: Tensor, drop: Tensor, weight: str = "difference", penalty: float = 0.0
) -> Tensor:
    r"""Do groups with more salience hurt the prediction more? Algorithm 1, nothing else.

    .. math:: F = \frac{\sum_{i<j} w_{ij}}{\sum_{i<j} |w_{ij}|}, \qquad
       w_{ij} = \begin{cases} s_i - s_j & d_i \ge d_j \\ -(s_i - s_j) & \text{else} \end{cases}

    with s the salience of a group and d the drop of the prediction when it alone is removed.
    `weight="ratio"` puts s_i / s_j in the place of s_i - s_j (all s must be positive).
    `penalty` γ > 0 multiplies a pair by ((K - i) / (K - 1))^γ, i the 0-based index of its more
    salient group, so that mistakes about the most salient groups count more.

    NaN where the coefficient is undefined: no weight at all (total ≤ 1e-12 Σ|s|), a ratio with
    s ≤ 0, or a NaN among s and d.

    Shapes: salience [..., K], drop [..., K] -> [...].

    >>> s = torch.tensor([4.0, 3.0, 2.0, 1.0])
    >>> d = torch.tensor([0.4, 0.1, 0.2, 0.05])
    >>> saco(s, d)
    tensor(0.8000)
    """
    choose("SaCo weight", weight, WEIGHTS)
    check_penalty(penalty)
    given = salience, drop
    salience, drop = as_numbers(salience, "salience"), as_numbers(drop, "drop")
    if salience.shape != drop.shape:
        raise FaithscopeError(
            f"saco needs salience and drop of one shape [..., K], got {list(salience.shape)} "
            f"and {list(drop.shape)}."
        )
    k = salience.shape[-1] if salience.ndim else 0
    if k < 2:
        raise FaithscopeError(f"saco compares groups in pairs: K must be at least 2, got {k}.")
    salience = scaled(salience)
    first, second = torch.triu_indices(k, k, offset=1, device=salience.device)
    s_i, s_j = salience[..., first], salience[..., second]
    pairs = s_i - s_j if weight == "difference" else s_i / s_j
    if penalty:
        more_salient = torch.where(s_i >= s_j, first, second)
        pairs = pairs * ((k - more_salient).to(pairs.dtype) / (k - 1)) ** float(penalty)
    satisfied = drop[..., first] >= drop[..., second]
    signed = torch.where(satisfied, pairs, -pairs)
    total = pairs.abs().sum(-1)
    undefined = (total <= 1e-12 * salience.abs().sum(-1)) | drop.isnan().any(-1)
    if weight == "ratio":
        undefined = undefined | (salience <= 0).any(-1)
    return torch.where(undefined, torch.nan, signed.sum(-1) / total).to(common_type(*given))


def auto_k(sorted_maps: Tensor) -> Tensor:
    r"""Choose K per map from its distribution: the smallest K whose groups resolve the salience.

    The effective support of a map is the share of its units that carry its salience,

    .. math:: \rho = \frac{(\sum_u m_u)^2}{n \sum_u m_u^2}, \qquad m = \text{map} - \min \text{map}

    (the participation ratio: 1 if all units weigh the same, 1/n if one unit has it all). K is the
    smallest of 5, 10, 20 that puts at least two groups inside it, K ≥ 2/ρ: a flat map is judged
    coarsely, a peaked one finely. ρ ignores scale and shift, as SaCo does.

    Shapes: sorted_maps [..., n] -> int64 [...].

    >>> auto_k(torch.tensor([[1.0, 0.9, 0.8, 0.7], [1.0, 0.0, 0.0, 0.0]]))
    tensor([ 5, 10])
    """
    values = scaled(as_numbers(sorted_maps, "maps"))
    values = scaled(values - values.amin(-1, keepdim=True))
    squares = values.square().sum(-1) * values.shape[-1]
    support = torch.where(squares > 0, values.sum(-1).square() / squares, 1.0)
    choices = placed(torch.tensor(AUTO_K), values.device)
    enough = choices * support[..., None] >= 2
    return choices[torch.where(enough.any(-1), enough.int().argmax(-1), len(AUTO_K) - 1)]


@register_metric
@dataclass(frozen=True)
class SaCo(Metric):
    """Salience-guided faithfulness coefficient: order and size of the salience must be right."""

    name: ClassVar[str] = "saco"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    in_papers: ClassVar[bool] = True
    paper: ClassVar[str] = "Wu et al., On the Faithfulness of Vision Transformer Explanations, 2024"
    equation: ClassVar[str] = "Σ w_ij / Σ |w_ij| over pairs of K groups (Algorithm 1)"

    groups_units: ClassVar[bool] = True
    constant_score: ClassVar[float | None] = 0.0

    k: int | str | None = None
    weight: str = "difference"
    penalty: float = 0.0

    def __post_init__(self) -> None:
        choose("SaCo weight", self.weight, WEIGHTS)
        if self.k is not None:
            check_k(self.k)
        check_penalty(self.penalty)

    @property
    def undefined(self) -> tuple[float, str]:
        """Zero for groups that all weigh the same; a ratio of salience ≤ 0 has no value."""
        return (math.nan, "ratio_undefined") if self.weight == "ratio" else (0.0, "degenerate")

    def resolution(self, k: int | str) -> int | str:
        """SaCo's own k, or the protocol's."""
        return self.k if self.k is not None else k

    def spans(self, k: int) -> tuple[Span, ...]:
        """K disjoint groups."""
        return groups(k)

    def score(self, responses: Responses) -> Tensor:
        """Algorithm 1 on group salience and drop."""
        return saco(responses.salience, responses.drop, weight=self.weight, penalty=self.penalty)


def check_k(k: int | str) -> int | str:
    """Refuse a K that is neither "auto" nor a whole number of at least 2."""
    if (isinstance(k, str) and k == "auto") or (
        isinstance(k, int) and not isinstance(k, bool) and k >= 2
    ):
        return k
    raise FaithscopeError(f"k must be a whole number of at least 2, or 'auto', got {shown(k)}.")


def check_penalty(penalty: float) -> None:
    """Refuse a penalty that is not a number from 0 upwards."""
    numeric = isinstance(penalty, Real) and not isinstance(penalty, bool)
    if not numeric or not 0 <= penalty <= sys.float_info.max:
        raise FaithscopeError(f"SaCo's penalty must be 0 or more, got {shown(penalty)}.")
