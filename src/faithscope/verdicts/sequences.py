"""Confidence sequences: intervals of a mean that hold at every sample size at once.

An ordinary interval is right at one sample size fixed in advance; who looks at it after every
image and stops when it is narrow enough is wrong more often than it says. A confidence sequence
holds for all sample sizes together, so a study may stop at any time, for any reason.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from faithscope.errors import FaithscopeError

Array = NDArray[np.float64]

_LARGEST_BET = 0.5  # c of Theorem 2
_ROUNDING = 1e-6  # of the range: how far a score in single precision may lie outside


class SequenceWidth(NamedTuple):
    """Width of confidence sequences at their last point, and what the guarantee rests on."""

    width: Array
    kind: Literal["exact", "asymptotic"]


def empirical_bernstein_sequence(
    values: Array, low: float, high: float, alpha: float = 0.05, *, intersect: bool = False
) -> tuple[Array, Array]:
    r"""Confidence sequence of the mean of observations in [low, high], exact for every n.

    The predictable plug-in empirical Bernstein sequence (Waudby-Smith and Ramdas, Estimating
    means of bounded random variables by betting, 2024, Theorem 2), with observations rescaled to
    [0, 1]:

    .. math::
        \frac{\sum_{i \le t} \lambda_i x_i}{\sum_{i \le t} \lambda_i} \pm
        \frac{\log(2/\alpha) + \sum_{i \le t} 4 (x_i - \hat\mu_{i-1})^2 \psi_E(\lambda_i)}
             {\sum_{i \le t} \lambda_i}

    .. math::
        \psi_E(\lambda) = \frac{-\log(1 - \lambda) - \lambda}{4}, \quad
        \lambda_t = \min\Bigl(\sqrt{\frac{2 \log(2/\alpha)}
            {\hat\sigma^2_{t-1} t \log(1 + t)}}, \frac{1}{2}\Bigr)

    .. math::
        \hat\mu_t = \frac{1/2 + \sum_{i \le t} x_i}{t + 1}, \quad
        \hat\sigma^2_t = \frac{1/4 + \sum_{i \le t} (x_i - \hat\mu_i)^2}{t + 1}

    The true mean is in *all* intervals with probability at least 1 - alpha, if observations have
    one mean given those before them, as independent draws in random order have. `intersect` takes
    the running intersection: never wider, as likely to cover, and empty (lower > upper) should the
    observations contradict a common mean.

    Shapes: values [..., n], NaN where there is no observation (the interval stays as it was)
    -> lower [..., n], upper [..., n], within [low, high].

    >>> lower, upper = empirical_bernstein_sequence(np.tile([0.4, 0.6], 500), 0, 1)
    >>> lower[[9, 99, 999]].round(2), upper[[9, 99, 999]].round(2)
    (array([0.  , 0.42, 0.49]), array([1.  , 0.58, 0.51]))
    """
    _check_alpha(alpha)
    x, known = _rescale(values, low, high)
    t = np.cumsum(known, axis=-1)
    total = np.cumsum(x, axis=-1)
    mean = (0.5 + total) / (t + 1)
    mean_before = (0.5 + total - x) / np.maximum(t, 1)
    squares = known * (x - mean) ** 2
    variance_before = (0.25 + np.cumsum(squares, axis=-1) - squares) / np.maximum(t, 1)

    spread = variance_before * np.maximum(t, 1) * np.log1p(np.maximum(t, 1))
    free = np.sqrt(2 * math.log(2 / alpha) / spread)
    bets: Array = np.where(known, np.minimum(free, _LARGEST_BET), 0.0)
    costs = (x - mean_before) ** 2 * (-np.log1p(-bets) - bets)
    staked = np.cumsum(bets, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.cumsum(bets * x, axis=-1) / staked
        radius = (math.log(2 / alpha) + np.cumsum(costs, axis=-1)) / staked
    lower = np.where(t > 0, np.clip(centre - radius, 0, 1), 0.0)
    upper = np.where(t > 0, np.clip(centre + radius, 0, 1), 1.0)
    if intersect:
        lower = np.maximum.accumulate(lower, axis=-1)
        upper = np.minimum.accumulate(upper, axis=-1)
    return low + (high - low) * lower, low + (high - low) * upper


def asymptotic_sequence(
    values: Array, alpha: float = 0.05, *, tuned_at: int = 1000, start: int = 30
) -> tuple[Array, Array]:
    r"""Confidence sequence of the mean of unbounded observations, right in the limit only.

    What the interval of the central limit theorem is to exact intervals, this is to exact
    confidence sequences (Waudby-Smith et al., Time-uniform central limit theory and asymptotic
    confidence sequences, 2024):

    .. math::
        \hat\mu_n \pm \hat\sigma_n \sqrt{\frac{2 (n \rho^2 + 1)}{n^2 \rho^2}
        \log \frac{\sqrt{n \rho^2 + 1}}{\alpha}}

    with the rho that makes it narrowest at n = `tuned_at`, which solves

    .. math:: n \rho^2 = \log \frac{n \rho^2 + 1}{\alpha^2}.

    There is no interval (-inf, inf) before `start` observations: the standard deviation of a few
    says too little. The same holds from the first infinite observation on.

    Shapes: values [..., n], NaN where there is no observation (the interval stays as it was)
    -> lower [..., n], upper [..., n].

    >>> lower, upper = asymptotic_sequence(np.tile([-1.0, 1.0], 500))
    >>> lower[[9, 99, 999]].round(2), upper[[9, 99, 999]].round(2)
    (array([ -inf, -0.38, -0.1 ]), array([ inf, 0.38, 0.1 ]))
    """
    _check_alpha(alpha)
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    t = np.cumsum(known, axis=-1)
    n = np.maximum(t, 1)
    offset = _mean(values, known)[..., None]  # a shift costs nothing and saves digits
    x = np.where(known, values - np.where(known, offset, 0), 0.0)
    mean = np.cumsum(x, axis=-1) / n
    variance = np.maximum(np.cumsum(x**2, axis=-1) / n - mean**2, 0)
    rho2 = _narrowest_at(tuned_at, alpha)
    factor = 2 * (n * rho2 + 1) / (n**2 * rho2) * np.log(np.sqrt(n * rho2 + 1) / alpha)
    spoiled = np.logical_or.accumulate(np.isinf(values), axis=-1)
    radius = np.where((t < max(start, 2)) | spoiled, np.inf, np.sqrt(variance * factor))
    return offset + mean - radius, offset + mean + radius


def sequence_width(
    values: Array, bounds: tuple[float, float], alpha: float = 0.05, *, tuned_at: int = 1000
) -> SequenceWidth:
    """How wide the confidence sequences are after the observations so far.

    The empirical Bernstein sequence ("exact") if both bounds are finite, else the asymptotic one.
    Without an observation it is all of the range.

    Shapes: values [..., n], NaN where there is no observation -> width [...].

    >>> sequence_width(np.full((2, 1000), 0.3), (0, 1))
    SequenceWidth(width=array([0.01..., 0.01...]), kind='exact')
    >>> sequence_width(np.array([]), (-np.inf, np.inf))
    SequenceWidth(width=array(inf), kind='asymptotic')
    """
    values = np.asarray(values, dtype=np.float64)
    finite = bool(np.isfinite(bounds).all())
    kind: Literal["exact", "asymptotic"] = "exact" if finite else "asymptotic"
    if values.shape[-1] == 0:
        return SequenceWidth(np.full(values.shape[:-1], bounds[1] - bounds[0]), kind)
    if finite:
        lower, upper = empirical_bernstein_sequence(values, *bounds, alpha=alpha)
    else:
        lower, upper = asymptotic_sequence(values, alpha, tuned_at=tuned_at)
    return SequenceWidth(np.asarray(upper[..., -1] - lower[..., -1]), kind)


def _rescale(values: Array, low: float, high: float) -> tuple[Array, NDArray[np.bool_]]:
    """Observations as shares of [low, high], 0 where there is none, and where there is one."""
    if not (np.isfinite([low, high]).all() and low < high):
        raise FaithscopeError(f"Bounds must be finite and in order: got {low} and {high}.")
    scaled = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    known = ~np.isnan(scaled)
    outside = (scaled < -_ROUNDING) | (scaled > 1 + _ROUNDING)
    if outside.any():
        worst = float(np.asarray(values)[outside][0])
        raise FaithscopeError(
            f"An observation of {worst:g} is outside its bounds [{low:g}, {high:g}]: "
            "there is no confidence sequence for it."
        )
    return np.where(known, np.clip(scaled, 0, 1), 0.0), known


def _mean(values: Array, known: NDArray[np.bool_]) -> Array:
    """Mean over the last axis of what is known; 0 where nothing is."""
    mean: Array = np.where(known, values, 0.0).sum(-1) / np.maximum(known.sum(-1), 1)
    return mean


def _narrowest_at(n: int, alpha: float) -> float:
    """Give the rho² that makes the asymptotic sequence narrowest at n observations."""
    if n < 1:
        raise FaithscopeError(f"A sequence is tuned at 1 observation or more: got {n}.")
    return float(-special.lambertw(-(alpha**2) / math.e, -1).real - 1) / n


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise FaithscopeError(f"alpha must be between 0 and 1: got {alpha}.")
