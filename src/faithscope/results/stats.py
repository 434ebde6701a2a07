"""Uncertainty: bootstrap intervals, paired tests, control for many comparisons.

Every function takes scores of samples and a seed; none of them keeps state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def bootstrap_interval(
    values: Array, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval of the mean; NaN for fewer than 2 values.

    >>> low, high = bootstrap_interval(np.arange(50.0))
    >>> low < 24.5 < high
    True
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return float(values.mean()), float(values.mean())
    rng = np.random.default_rng(seed)
    batch = max(1, 2_000_000 // len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (values,),
            np.mean,
            confidence_level=level,
            n_resamples=resamples,
            batch=batch,
            rng=rng,
            vectorized=True,
        )
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)


def paired_p_values(differences: Array, *, resamples: int = 9999, seed: int = 0) -> Array:
    """Two-sided sign-flip permutation tests of zero mean, all comparisons on the same flips.

    The same test as scipy's `permutation_test` with one sample of paired differences, but the
    signs are drawn once for all columns and the statistics are one matrix product: for 10,000
    samples and 25 comparisons that is seconds instead of minutes. All sign patterns are tried if
    there are no more than `resamples` of them.

    Shapes: differences [n, comparisons], NaN where a pair is missing -> [comparisons]; NaN for
    comparisons with fewer than 2 pairs.

    >>> paired_p_values(np.array([[1.0], [2.0], [3.0]]))
    array([0.25])
    """
    pairs = (~np.isnan(differences)).sum(0)
    values = np.nan_to_num(differences)
    rounding = 1e-12 * np.abs(values).sum(0)  # ties count as extreme, whatever the rounding
    observed = np.abs(values.sum(0)) - rounding
    extreme = np.zeros(values.shape[1])
    tried = 0
    for signs in _sign_patterns(len(values), resamples, seed):
        extreme += (np.abs(signs @ values) >= observed).sum(0)
        tried += len(signs)
    exact = tried == 2 ** min(len(values), 62)
    p_values = extreme / tried if exact else (extreme + 1) / (tried + 1)
    return np.where(pairs < 2, np.nan, p_values)


def _sign_patterns(n: int, resamples: int, seed: int) -> Iterator[Array]:
    """Blocks of rows of ±1: all of them if there are few, else drawn at random."""
    if n < 62 and 2**n <= resamples:
        bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
        yield (2 * bits - 1).astype(np.float64)
        return
    rng = np.random.default_rng(seed)
    block = max(1, 4_000_000 // n)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        yield 2 * rng.integers(0, 2, size=(rows, n), dtype=np.int8).astype(np.float64) - 1


def holm(p_values: Array) -> Array:
    """Holm's step-down adjustment of a family of p-values; NaN stays NaN and does not count.

    >>> holm(np.array([0.01, 0.04, 0.03]))
    array([0.03, 0.06, 0.06])
    """
    adjusted = np.full_like(p_values, np.nan, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * factors))
    return adjusted
