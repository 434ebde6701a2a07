"""Class leakage: masking more and knowing more, a sign that the masks give the class away.

A measure looks at the gold label. Where it masks can therefore tell a retrained model the class,
and its curve then no longer says how important the masked tokens were.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from faithscope.errors import FaithscopeError
from faithscope.verdicts.statistics import FEWEST_SEEDS

Array = NDArray[np.float64]


def leaks(curve: Array, *, level: float = 0.95) -> tuple[int, ...]:
    r"""Find the points of a curve (their indices) where performance rises beyond chance.

    Point i is rising if for some j < i the paired differences over the S seeds have an interval
    above 0:

    .. math:: \bar\delta - t_{S-1,\,1-\alpha/m} \frac{s_\delta}{\sqrt S} > 0, \qquad
       \delta_s = p_{si} - p_{sj}

    with Student's t, α = 1 − level shared by all m = I(I−1)/2 pairs (Bonferroni), so that about
    one curve in twenty at most is named by chance. With fewer than 3 seeds nothing is named.

    Shapes: curve [S, I] for levels of masking that rise.

    >>> leaks(np.array([[0.9, 0.5, 0.8], [0.9, 0.52, 0.81], [0.89, 0.51, 0.8]]))
    (2,)
    """
    curve = np.asarray(curve, dtype=np.float64)
    if curve.ndim != 2:
        raise FaithscopeError("Leakage needs curves [S, I] of all seeds.")
    later, earlier = np.tril_indices(curve.shape[1], -1)
    rises = _above_zero(curve[:, later] - curve[:, earlier], level)
    return tuple(int(i) for i in np.unique(later[rises]))


class Recovery(NamedTuple):
    """A seed (its index) that knows nothing at one point of its curve, and more at a later one."""

    seed: int
    low: int
    high: int


def recoveries(curve: Array, tested: int) -> tuple[Recovery, ...]:
    r"""Find seeds that fall to what all tokens masked leave, and then rise with more masked.

    With the first point 0, nothing masked, and the last I, all masked, a seed is named if for some
    0 < i < j < I

    .. math:: p_i \le p_I + 2 \sigma_I, \qquad p_j - p_i > 4 \sqrt{\sigma_i^2 + \sigma_j^2},
       \qquad \sigma_i^2 = q_i (1 - q_i) / N, \quad q_i = (N p_i + 1) / (N + 2)

    over the N test texts: the pair with the largest rise. More masked cannot leave more to know,
    so either the training at i failed or the masks at j give the class away; one seed is enough to
    see it, as N texts are behind it.

    Shapes: curve [S, I], accuracy or what varies like it, for levels of masking that rise.

    >>> recoveries(np.array([[0.9, 0.7, 0.6, 0.5], [0.9, 0.5, 0.8, 0.5]]), tested=1000)
    (Recovery(seed=1, low=1, high=2),)
    """
    share = np.asarray(curve, dtype=np.float64).clip(0, 1)
    if share.ndim != 2 or share.shape[1] < 2:
        raise FaithscopeError("Recoveries need curves [S, I] of all seeds, two points at least.")
    count = max(tested, 1)
    likely = (count * share + 1) / (count + 2)
    variance = likely * (1 - likely) / count
    found = []
    for seed, (own, noise) in enumerate(zip(share, variance, strict=True)):
        rises = own[None, :] - own[:, None]
        rising = rises > 4 * np.sqrt(noise[None, :] + noise[:, None])
        rising &= (own <= own[-1] + 2 * np.sqrt(noise[-1]))[:, None]
        rising &= np.triu(np.ones_like(rising), 1)
        rising[0], rising[:, -1] = False, False
        if rising.any():
            low, high = np.unravel_index(np.where(rising, rises, -1).argmax(), rising.shape)
            found.append(Recovery(seed, int(low), int(high)))
    return tuple(found)


def _above_zero(differences: Array, level: float) -> NDArray[np.bool_]:
    """Whether the interval of each column's mean lies above 0: [S, comparisons]."""
    seeds, comparisons = differences.shape
    if seeds < FEWEST_SEEDS or not comparisons:
        return np.zeros(comparisons, dtype=bool)
    mean = differences.mean(0)
    error = differences.std(0, ddof=1) / np.sqrt(seeds)
    width = special.stdtrit(seeds - 1, 1 - (1 - level) / comparisons) * error
    # A rise of the size of rounding is none, however steady.
    above: NDArray[np.bool_] = mean - width > 1e-9
    return above
