"""Uncertainty: bootstrap intervals, paired tests, control for many comparisons.

Every function takes scores of samples and a seed; none of them keeps state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from faithscope.errors import FaithscopeError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

FEWEST_SEEDS = 3
"""Of which an interval over seeds is shown, and a verdict given."""


class EffectSize(NamedTuple):
    """Two sizes of a paired effect, with the sign of the differences."""

    d_z: Array
    rank_biserial: Array


class Correlation(NamedTuple):
    """Mean correlations between metrics, their intervals, and how many samples they rest on."""

    mean: Array
    low: Array
    high: Array
    samples: Counts
    left_out: Counts


class Agreement(NamedTuple):
    """A mean rank correlation, its interval, and how many samples it rests on."""

    mean: float
    low: float
    high: float
    samples: int
    left_out: int


class Sensitivity(NamedTuple):
    """What another setting does to scores: how far, which way, and to the order of methods."""

    absolute: float
    signed: float
    low: float
    high: float
    flipped: float


class SeedInterval(NamedTuple):
    """A mean over seeds and its interval."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: Array, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The interval of one mean, as of `bootstrap_intervals`.

    >>> low, high = bootstrap_interval(np.arange(50.0))
    >>> low < 24.5 < high
    True
    """
    low, high = bootstrap_intervals([values], level=level, resamples=resamples, seed=seed)
    return float(low[0]), float(high[0])


def bootstrap_intervals(
    values: Sequence[Array], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[Array, Array]:
    r"""Bias-corrected and accelerated bootstrap intervals of several means.

    The same as scipy's, one by one, from the same draws; but equally many values share their draws,
    so that all means of a resample are one product of matrices: how often each value is drawn,
    times the values. The jackknife has a closed form for a mean: the acceleration is

    .. math:: a = \frac{\sum_i (x_i - \bar x)^3}{6 \left(\sum_i (x_i - \bar x)^2\right)^{3/2}}

    Shapes: one or more of [n], NaN where a value is missing -> low, high, one end each; NaN for
    fewer than 2 values.

    >>> bootstrap_intervals([np.array([0.5, 0.5, 0.5]), np.array([1.0, 2.0, np.nan])])
    (array([0.5, 1. ]), array([0.5, 2. ]))
    """
    known = [column[~np.isnan(column)] for column in values]
    counts = np.array([len(column) for column in known])
    ends = np.full((2, len(known)), np.nan)
    for count in np.unique(counts[counts > 1]):
        columns = np.flatnonzero(counts == count)
        alike = np.stack([known[column] for column in columns])
        ends[:, columns] = _intervals(alike, level, resamples, seed)
    return ends[0], ends[1]


def _intervals(values: Array, level: float, resamples: int, seed: int) -> Array:
    """The intervals of rows without gaps: [columns, n] -> [2, columns]."""
    largest = np.abs(values).max(1)
    with np.errstate(invalid="ignore", over="ignore"):  # values that are infinite, or their squares
        mean = values.mean(1)
        is_constant = np.ptp(values, axis=1) <= 1e-12 * largest
        means = _resampled_means(values, resamples, seed)
        close = 1e-12 * largest  # equal but for the order of summation, which CPUs choose
        below, upto = (means < mean - close).mean(0), (means <= mean + close).mean(0)
        shift = special.ndtri((below + upto) / 2)
        centred = values - mean[:, None]
        scale = np.where(is_constant, 1.0, (centred**2).sum(1) ** 1.5)
        acceleration = (centred**3).sum(1) / (6 * scale)
        tails = shift + special.ndtri([[(1 - level) / 2], [(1 + level) / 2]])
        places = special.ndtr(shift + tails / (1 - acceleration * tails))
    ends = np.full((2, len(values)), np.nan)
    for column in np.flatnonzero(~np.isnan(places).any(0)):
        ends[:, column] = np.percentile(means[:, column], 100 * places[:, column])
    return np.where(is_constant, mean, ends)


def _resampled_means(values: Array, resamples: int, seed: int) -> Array:
    """Means of rows over draws with replacement, the same for all rows: [resamples, columns]."""
    n = values.shape[1]
    rng = np.random.default_rng(seed)
    block = max(1, 2_000_000 // n)
    means = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        means.append(times.astype(np.float64) @ values.T / n)
    return np.concatenate(means)


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


def effect_size(differences: Array) -> EffectSize:
    r"""Size of a paired effect: Cohen's d_z and the matched-pairs rank-biserial correlation.

    .. math:: d_z = \frac{\bar d}{s_d}, \qquad r = \frac{W^+ - W^-}{W^+ + W^-}

    where s_d is the standard deviation of the differences (n - 1), and W⁺ and W⁻ are the sums of
    the ranks of the absolute differences that are above and below 0, zeros left out, as in
    Wilcoxon's signed-rank test (Kerby, The simple difference formula, 2014). d_z grows with how
    sure the sign of the mean is, r is between -1 (all differences below 0) and 1 (all above) and
    does not mind outliers. Both are 0 if all differences are 0; d_z of any other constant is
    infinite.

    Shapes: differences [n] or [n, comparisons], NaN where a pair is missing -> [] or
    [comparisons]; NaN for fewer than 2 pairs.

    >>> effect_size(np.array([-1.0, 2.0, 3.0, 4.0]))
    EffectSize(d_z=array(0.925...), rank_biserial=array(0.8))
    """
    known = ~np.isnan(differences)
    pairs = known.sum(0)
    values = np.where(known, differences, 0.0)
    mean = values.sum(0) / np.maximum(pairs, 1)
    squares = (known * (values - mean) ** 2).sum(0)
    deviation = np.sqrt(squares / np.maximum(pairs - 1, 1))
    deviation = np.where(deviation <= 1e-12 * np.abs(mean), 0.0, deviation)
    ranks = _ranks(np.where(values == 0, np.nan, np.abs(values)))
    above = np.where(values > 0, ranks, 0.0).sum(0)
    below = np.where(values < 0, ranks, 0.0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        d_z = np.where(mean == 0, 0.0, mean / deviation)
    rank_biserial = (above - below) / np.maximum(above + below, 1)
    missing = pairs < 2
    return EffectSize(np.where(missing, np.nan, d_z), np.where(missing, np.nan, rank_biserial))


def spearman(first: Array, second: Array) -> Array:
    r"""Spearman's rank correlation over methods, sample by sample, ties at their mean rank.

    .. math:: \rho = \mathrm{corr}(\mathrm{rank}(x_1, …, x_M), \mathrm{rank}(y_1, …, y_M))

    Shapes: first, second [methods, samples], NaN where a score is missing (that method is left
    out of that sample) -> [samples]; NaN where fewer than 2 methods are left, or one of the two
    is constant over them.

    >>> spearman(np.array([[1.0, 1], [2, 1], [3, 1]]), np.array([[1.0, 1], [3, 2], [2, 3]]))
    array([0.5, nan])
    """
    known = ~(np.isnan(first) | np.isnan(second))
    count = np.maximum(known.sum(0), 1)
    x, y = (_ranks(np.where(known, values, np.nan)) for values in (first, second))
    x = np.where(known, x - (count + 1) / 2, 0.0)  # the mean rank, ties or not
    y = np.where(known, y - (count + 1) / 2, 0.0)
    scale = np.sqrt((x**2).sum(0) * (y**2).sum(0))
    correlation: Array = (x * y).sum(0) / np.where(scale == 0, np.nan, scale)
    return np.clip(correlation, -1.0, 1.0)


def metric_correlation(
    cube: Array,
    higher_is_better: NDArray[np.bool_],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Do metrics agree, sample by sample, on which method is better?

    For every two metrics the mean over samples of Spearman's correlation over methods, with its
    bootstrap interval. Scores of metrics where lower is better are turned around, so + means
    that the two metrics agree. Samples where a metric is constant over methods, or fewer than 2
    methods have both scores, have no correlation: they are left out and counted.

    Shapes: cube [methods, metrics, samples], NaN where a score is missing; higher_is_better
    [metrics] -> all [metrics, metrics], symmetric; NaN where no sample is left (interval: < 2).

    >>> cube = np.array([[[1.0, 5], [3, 1]], [[2, 6], [2, 2]], [[3, 7], [1, 0]]])
    >>> metric_correlation(cube, np.array([True, False])).mean
    array([[1.  , 0.75],
           [0.75, 1.  ]])
    """
    signed = cube * np.where(higher_is_better, 1.0, -1.0)[:, None]
    metrics = cube.shape[1]
    pairs = np.triu_indices(metrics)
    each = [spearman(signed[:, i], signed[:, j]) for i, j in zip(*pairs, strict=True)]
    by_pair = np.stack(each, axis=1)
    low, high = bootstrap_intervals(each, level=level, resamples=resamples, seed=seed)

    def square(values: NDArray[Any]) -> NDArray[Any]:
        filled = np.empty((metrics, metrics), dtype=values.dtype)
        filled[pairs] = filled[pairs[::-1]] = values
        return filled

    samples = square((~np.isnan(by_pair)).sum(0))
    return Correlation(
        square(_means(by_pair)), square(low), square(high), samples, cube.shape[2] - samples
    )


def rank_agreement(first: Array, second: Array, *, seed: int = 0) -> Agreement:
    """Do two settings (two K's, two fills, two rules for ties) rank the methods alike?

    Mean over samples of Spearman's correlation over methods, with its bootstrap interval. Samples
    without a correlation (a constant, fewer than 2 methods) are left out and counted.

    Shapes: first, second [methods, samples], NaN where a score is missing.

    >>> rank_agreement(np.array([[1.0, 1], [2, 2], [3, 3]]), np.array([[1.0, 3], [2, 2], [3, 1]]))
    Agreement(mean=0.0, low=-1.0, high=1.0, samples=2, left_out=0)
    """
    return rank_agreements([(first, second)], seed=seed)[0]


def rank_agreements(pairs: Sequence[tuple[Array, Array]], *, seed: int = 0) -> list[Agreement]:
    """The same of several pairs of settings, whose intervals come from the same draws."""
    correlations = [spearman(first, second) for first, second in pairs]
    lows, highs = bootstrap_intervals(correlations, seed=seed)
    found = []
    for each, low, high in zip(correlations, lows, highs, strict=True):
        known = each[~np.isnan(each)]
        mean = float(known.mean()) if len(known) else float("nan")
        counts = len(known), len(each) - len(known)
        found.append(Agreement(mean, float(low), float(high), *counts))
    return found


def sensitivity(first: Array, second: Array, *, seed: int = 0) -> Sensitivity:
    r"""How a metric changes from one setting to another: its scores and its order of methods.

    .. math::
        \frac{1}{n} \sum_i \frac{1}{M} \sum_m |y_{mi} - x_{mi}|, \qquad
        \frac{1}{n} \sum_i \frac{1}{M} \sum_m y_{mi} - x_{mi}

    The interval is that of the signed change and resamples samples, with all their methods. A
    pair of methods is flipped if the one with the higher mean in the first setting has the lower
    mean in the second, both over the samples that the pair has in both; a tie is no flip.

    Shapes: first, second [methods, samples], NaN where a score is missing. NaN if there is
    nothing to compare.

    >>> sensitivity(np.array([[1.0, 3.0], [2.0, 2.5]]), np.array([[2.0, 2.0], [1.0, 2.5]]))
    Sensitivity(absolute=0.75, signed=-0.25, low=-0.5, high=0.0, flipped=1.0)
    """
    return sensitivities([(first, second)], seed=seed)[0]


def sensitivities(pairs: Sequence[tuple[Array, Array]], *, seed: int = 0) -> list[Sensitivity]:
    """The same of several pairs of settings, whose intervals come from the same draws."""
    changes = [second - first for first, second in pairs]
    signed, absolute = [list(map(_means, held)) for held in (changes, map(np.abs, changes))]
    lows, highs = bootstrap_intervals(signed, seed=seed)
    return [
        Sensitivity(
            absolute=float(_means(absolute[i])),
            signed=float(_means(signed[i])),
            low=float(lows[i]),
            high=float(highs[i]),
            flipped=share_flipped(first, second),
        )
        for i, (first, second) in enumerate(pairs)
    ]


def share_flipped(first: Array, second: Array) -> float:
    """Share of method pairs whose means are ordered one way in `first`, the other in `second`."""
    flips = []
    for i, j in zip(*np.triu_indices(len(first), 1), strict=True):
        before, after = first[i] - first[j], second[i] - second[j]
        known = ~(np.isnan(before) | np.isnan(after))
        if known.any():
            flips.append(_direction(before[known]) * _direction(after[known]) < 0)
    return float(np.mean(flips)) if flips else float("nan")


def _means(values: Array) -> Array:
    """Means along the first axis of what is there; NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: Array = np.where(known, values, 0.0).sum(0) / known.sum(0)
    return means


def _direction(differences: Array) -> int:
    """Sign of the mean, 0 if it is 0 up to rounding.

    >>> _direction(np.array([0.1, 0.2, -0.3]))
    0
    """
    total = float(differences.sum())
    return 0 if abs(total) <= 1e-12 * np.abs(differences).sum() else int(np.sign(total))


def _ranks(values: Array) -> Array:
    """Ranks along the first axis from 1, ties at their mean rank, NaN where there is no value.

    scipy's `rankdata`, which takes columns with gaps one by one.
    """
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    places = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    is_new = np.ones(values.shape, dtype=bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    first = np.maximum.accumulate(np.where(is_new, places, 0), axis=0)
    is_last = np.roll(is_new, -1, axis=0)
    last = np.minimum.accumulate(np.where(is_last, places, len(values))[::-1], axis=0)[::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=0)
    return np.where(np.isnan(values), np.nan, ranks)


def seed_interval(values: ArrayLike) -> SeedInterval:
    """Mean over seeds with its 95 % bootstrap interval (BCa, 9999 resamples), as in the paper.

    The ends are scipy's own to the last bit. They hang on the last bit of the values, too: of
    five seeds, resamples that hold each once tie with the mean, or not. Equal values have an
    interval of no width; one value has none, nor have values that are not finite (NaN).

    >>> seed_interval([0.5, 0.5, 0.5])
    SeedInterval(mean=0.5, low=0.5, high=0.5)
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise FaithscopeError("An interval over seeds needs a list of one value per seed.")
    with np.errstate(invalid="ignore"):  # the mean of ±infinity is NaN
        mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(mean):
        return SeedInterval(mean, float("nan"), float("nan"))
    if np.ptp(array) <= 1e-12 * np.abs(array).max():
        return SeedInterval(mean, mean, mean)
    return SeedInterval(mean, *_bootstrapped(array.tobytes()))


@lru_cache(maxsize=1 << 14)
def _bootstrapped(values: bytes) -> tuple[float, float]:
    """The ends of scipy's interval: milliseconds, and a page asks for the same ones many times."""
    from scipy import stats  # here, since it takes as long to import as everything else together

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap((np.frombuffer(values),), np.mean, rng=np.random.default_rng(0))
    low, high = found.confidence_interval
    return float(low), float(high)


def interval_or_nan(values: ArrayLike) -> SeedInterval:
    """The same, but the ends are NaN for fewer than three seeds, of which an interval says nothing.

    >>> interval_or_nan([0.25, 0.75])
    SeedInterval(mean=0.5, low=nan, high=nan)
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 1 and 0 < len(array) < FEWEST_SEEDS:
        return SeedInterval(float(array.mean()), float("nan"), float("nan"))
    return seed_interval(array)


def student_interval(values: ArrayLike, comparisons: int = 1) -> SeedInterval:
    r"""Mean over seeds with Student's interval, :math:`\bar x \pm t_{S-1,\,0.975}\, s/\sqrt S`.

    Its ends are NaN for fewer than three seeds. Of several comparisons it covers all together with
    95 % (Bonferroni).

    >>> [round(end, 3) for end in student_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < FEWEST_SEEDS:
        return SeedInterval(mean, float("nan"), float("nan"))
    error = array.std(ddof=1) / np.sqrt(len(array))
    width = float(special.stdtrit(len(array) - 1, 1 - 0.025 / comparisons) * error)
    return SeedInterval(mean, mean - width, mean + width)


def is_above_zero(values: ArrayLike) -> bool:
    """Whether a mean over seeds is significantly above zero, by bootstrap and Student's t alike.

    The bootstrap's alone is too narrow for so few numbers: of normal ones around zero it leaves out
    zero in about one case of six with five seeds, in more than one of four with three.

    >>> is_above_zero([0.1, 0.2, 0.3]), is_above_zero([0.1, 0.15, 0.2])
    (False, True)
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    if len(array) < FEWEST_SEEDS:
        return False
    return interval_or_nan(array).low > 0 and student_interval(array).low > 0
