"""Confidence sequences: they cover at every sample size at once, and are not much too wide."""

import math

import numpy as np
import pytest
from scipy import optimize

from faithscope.errors import FaithscopeError
from faithscope.verdicts.sequences import (
    _narrowest_at,
    asymptotic_sequence,
    empirical_bernstein_sequence,
    sequence_width,
)

PATHS, LENGTH, ALPHA = 1000, 1000, 0.05

BOUNDED = {
    "uniform": (lambda r, shape: r.random(shape), 0.5),
    "coin": (lambda r, shape: r.integers(0, 2, shape).astype(float), 0.5),
    "rare": (lambda r, shape: (r.random(shape) < 0.02).astype(float), 0.02),
    "nearly always": (lambda r, shape: (r.random(shape) < 0.95).astype(float), 0.95),
    "skewed low": (lambda r, shape: r.beta(0.2, 5, shape), 0.2 / 5.2),
    "skewed high": (lambda r, shape: r.beta(5, 0.5, shape), 5 / 5.5),
    "narrow": (lambda r, shape: r.beta(40, 60, shape), 0.4),
}
UNBOUNDED = {
    "normal": (lambda r, shape: r.normal(size=shape), 0.0),
    "heavy tails": (lambda r, shape: r.standard_t(5, size=shape), 0.0),
    "exponential": (lambda r, shape: -r.exponential(size=shape), -1.0),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def ever_missed(lower, upper, truth):
    """Share of paths where the truth is outside the interval at some sample size."""
    return ((lower > truth) | (upper < truth)).any(-1).mean()


def clt_width(values):
    return 2 * 1.959964 * values.std(-1) / values.shape[-1] ** 0.5


# --- Coverage at all sample sizes together ---


@pytest.mark.parametrize("intersect", [False, True])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_bounded_mean_is_in_all_intervals_of_95_of_100_paths(name, intersect):
    draw, truth = BOUNDED[name]
    lower, upper = empirical_bernstein_sequence(
        draw(rng(1), (PATHS, LENGTH)), 0, 1, ALPHA, intersect=intersect
    )
    assert ever_missed(lower, upper, truth) <= ALPHA


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.5])
def test_the_level_is_kept_whatever_it_is(alpha):
    lower, upper = empirical_bernstein_sequence(rng(2).random((PATHS, LENGTH)), 0, 1, alpha)
    assert ever_missed(lower, upper, 0.5) <= alpha


def test_stopping_when_the_interval_is_narrow_does_not_cost_coverage():
    """What a study does: stop at the first shard boundary with a width below the tolerance."""
    draw, truth = BOUNDED["skewed low"]
    lower, upper = empirical_bernstein_sequence(draw(rng(3), (PATHS, 3000)), 0, 1, ALPHA)
    narrow = (upper - lower)[:, 31::32] < 0.05
    assert narrow.any(-1).all()
    stop = 31 + 32 * narrow.argmax(-1)
    missed = (lower[range(PATHS), stop] > truth) | (upper[range(PATHS), stop] < truth)
    assert missed.mean() <= ALPHA


def test_looking_at_an_ordinary_interval_all_the_time_misses_often():
    """The reason for all this, and a check that the simulation can see a fault."""
    values = rng(4).random((PATHS, LENGTH))
    n = np.arange(1, LENGTH + 1)
    mean = values.cumsum(-1) / n
    radius = 1.96 * (1 / 12 / n) ** 0.5
    assert ever_missed((mean - radius)[:, 30:], (mean + radius)[:, 30:], 0.5) > 3 * ALPHA


@pytest.mark.parametrize("name", UNBOUNDED)
def test_an_unbounded_mean_is_in_all_intervals_of_95_of_100_paths(name):
    draw, truth = UNBOUNDED[name]
    lower, upper = asymptotic_sequence(draw(rng(5), (PATHS, LENGTH)), ALPHA)
    assert ever_missed(lower, upper, truth) <= ALPHA


# --- The equations ---


def test_the_bounded_sequence_is_theorem_2_step_by_step():
    values = rng(6).beta(0.5, 2, 60)
    lower, upper = empirical_bernstein_sequence(values, 0, 1, 0.1)
    seen, bets, weighted, costs, squares = [], 0.0, 0.0, 0.0, 0.0
    for t, x in enumerate(values, start=1):
        mean, variance = (0.5 + sum(seen)) / t, (0.25 + squares) / t
        bet = min(math.sqrt(2 * math.log(2 / 0.1) / (variance * t * math.log(1 + t))), 0.5)
        bets, weighted = bets + bet, weighted + bet * x
        costs += 4 * (x - mean) ** 2 * (-math.log(1 - bet) - bet) / 4
        radius = (math.log(2 / 0.1) + costs) / bets
        assert lower[t - 1] == pytest.approx(max(weighted / bets - radius, 0), abs=1e-12)
        assert upper[t - 1] == pytest.approx(min(weighted / bets + radius, 1), abs=1e-12)
        seen.append(x)
        squares += (x - (0.5 + sum(seen)) / (t + 1)) ** 2


def test_the_asymptotic_sequence_by_its_equation():
    values, alpha = rng(7).normal(3, 2, size=200), 0.1
    lower, upper = asymptotic_sequence(values, alpha, tuned_at=100)
    rho2 = _narrowest_at(100, alpha)
    for n in (30, 77, 200):
        a = n * rho2 + 1
        radius = values[:n].std() * (2 * a / (n**2 * rho2) * math.log(a**0.5 / alpha)) ** 0.5
        assert lower[n - 1] == pytest.approx(values[:n].mean() - radius)
        assert upper[n - 1] == pytest.approx(values[:n].mean() + radius)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("n", [1, 50, 5000])
def test_the_asymptotic_sequence_is_narrowest_where_it_is_tuned(n, alpha):
    def squared_width(log_x):
        x = math.exp(log_x)
        return (x + 1) / x * math.log((x + 1) / alpha**2)

    best = optimize.minimize_scalar(squared_width, bounds=(-5, 10), method="bounded").x
    assert n * _narrowest_at(n, alpha) == pytest.approx(math.exp(best), rel=1e-3)


# --- Widths ---


@pytest.mark.parametrize("name", ["uniform", "coin", "rare", "skewed low", "skewed high"])
def test_the_bounded_sequence_is_about_twice_as_wide_as_one_interval(name):
    values = BOUNDED[name][0](rng(8), (100, LENGTH))
    ratio = (sequence_width(values, (0, 1)).width / clt_width(values)).mean()
    assert 1 < ratio < 2.3


def test_the_asymptotic_sequence_is_about_half_as_wide_again_as_one_interval():
    values = rng(9).normal(size=(100, LENGTH))
    ratio = sequence_width(values, (-np.inf, np.inf)).width / clt_width(values)
    np.testing.assert_allclose(ratio, 1.55, atol=0.01)


def test_widths_shrink_with_the_root_of_the_sample_size():
    values = rng(10).random((20, 16_000))
    lower, upper = empirical_bernstein_sequence(values, 0, 1)
    widths = (upper - lower)[:, [999, 3999, 15_999]].mean(0)
    assert (1.6 < widths[:-1] / widths[1:]).all()
    assert (widths[:-1] / widths[1:] < 2.1).all()


def test_less_spread_and_less_confidence_are_narrower():
    wide, narrow = BOUNDED["coin"][0](rng(), 1000), BOUNDED["narrow"][0](rng(), 1000)
    assert sequence_width(narrow, (0, 1)).width < sequence_width(wide, (0, 1)).width / 2
    assert sequence_width(wide, (0, 1), 0.2).width < sequence_width(wide, (0, 1), 0.01).width


def test_the_running_intersection_only_narrows():
    values = rng(11).random(500)
    lower, upper = empirical_bernstein_sequence(values, 0, 1)
    inner, outer = empirical_bernstein_sequence(values, 0, 1, intersect=True)
    assert (inner >= lower).all()
    assert (outer <= upper).all()
    assert (np.diff(outer - inner) <= 0).all()


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [((-1, 1), "exact"), ((0, np.inf), "asymptotic"), ((-np.inf, np.inf), "asymptotic")],
)
def test_the_width_is_that_of_the_last_interval_of_the_kind_the_bounds_allow(bounds, kind):
    values = rng(12).random((2, 3, 200))
    found = sequence_width(values, bounds, 0.1)
    if kind == "exact":
        lower, upper = empirical_bernstein_sequence(values, *bounds, alpha=0.1)
    else:
        lower, upper = asymptotic_sequence(values, 0.1)
    assert found.kind == kind
    np.testing.assert_array_equal(found.width, (upper - lower)[..., -1])


# --- Invariance ---


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 100), (-7.5, -7.25)])
def test_other_bounds_only_move_and_stretch_the_bounded_sequence(low, high):
    values = rng(13).beta(2, 5, (3, 300))
    expected = np.array(empirical_bernstein_sequence(values, 0, 1))
    found = empirical_bernstein_sequence(low + (high - low) * values, low, high)
    np.testing.assert_allclose(found, low + (high - low) * expected, rtol=1e-9)


def test_the_bounded_sequence_of_turned_values_is_turned():
    values = rng(14).beta(2, 5, 300)
    lower, upper = empirical_bernstein_sequence(values, 0, 1)
    np.testing.assert_allclose(empirical_bernstein_sequence(-values, -1, 0), (-upper, -lower))


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_the_asymptotic_sequence_moves_and_stretches_with_the_values(shift):
    values = rng(15).normal(size=(2, 300))
    expected = np.array(asymptotic_sequence(values))
    found = asymptotic_sequence(shift + 3 * values)
    np.testing.assert_allclose(np.array(found) - shift, 3 * expected, atol=1e-8)


@pytest.mark.parametrize(
    "sequence", [lambda x: empirical_bernstein_sequence(x, 0, 1), asymptotic_sequence]
)
def test_rows_do_not_know_each_other(sequence):
    values = rng(16).random((2, 3, 80))
    lower, upper = sequence(values)
    assert lower.shape == upper.shape == values.shape
    alone = sequence(values[1, 2])
    np.testing.assert_allclose((lower[1, 2], upper[1, 2]), alone, rtol=1e-12)


@pytest.mark.parametrize(
    "sequence", [lambda x: empirical_bernstein_sequence(x, 0, 1), asymptotic_sequence]
)
def test_later_values_do_not_change_earlier_intervals(sequence):
    values = rng(17).random(120)
    whole, start = np.array(sequence(values)), np.array(sequence(values[:60]))
    np.testing.assert_allclose(whole[:, :60], start, rtol=1e-12)


# --- Missing and degenerate values ---


@pytest.mark.parametrize(
    ("sequence", "before"),
    [
        (lambda x: empirical_bernstein_sequence(x, 0, 1), (0.0, 1.0)),
        (asymptotic_sequence, (-np.inf, np.inf)),
    ],
)
def test_a_missing_value_leaves_the_interval_as_it_was(sequence, before):
    values = rng(18).random(100)
    missing = rng(19).random(100) < 0.3
    missing[0], missing[-1] = True, True
    found = np.array(sequence(np.where(missing, np.nan, values)))
    expected = np.array(sequence(values[~missing]))
    np.testing.assert_allclose(found[:, ~missing], expected, rtol=1e-12)
    assert tuple(found[:, 0]) == before
    np.testing.assert_allclose(found[:, -1], expected[:, -1], rtol=1e-12)


def test_without_values_the_width_is_that_of_the_range():
    for values in (np.empty((3, 0)), np.full((3, 5), np.nan)):
        assert sequence_width(values, (-1, 1)).width.tolist() == [2.0] * 3
        assert sequence_width(values, (-np.inf, np.inf)).width.tolist() == [np.inf] * 3
    for found in (
        empirical_bernstein_sequence(np.empty((3, 0)), 0, 1),
        asymptotic_sequence(np.empty((3, 0))),
    ):
        assert found[0].shape == found[1].shape == (3, 0)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_one_value_says_nothing(value):
    assert empirical_bernstein_sequence(np.array([value]), 0, 1) == ([0.0], [1.0])
    assert asymptotic_sequence(np.array([value])) == ([-np.inf], [np.inf])


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_is_covered_and_narrows_like_1_over_n(value):
    lower, upper = empirical_bernstein_sequence(np.full(4000, value), 0, 1)
    assert (lower <= value).all()
    assert (upper >= value).all()
    width = upper - lower
    assert 0 < width[3999] < 0.01
    assert width[1999] / width[3999] == pytest.approx(2, abs=0.1)
    assert sequence_width(np.full(100, value), (0, np.inf)).width == pytest.approx(0, abs=1e-9)


def test_an_infinite_value_ends_the_asymptotic_sequence():
    values = rng(20).normal(size=60)
    values[50] = -np.inf
    lower, upper = asymptotic_sequence(values)
    assert np.isfinite(lower[30:50]).all()
    assert (lower[50:] == -np.inf).all()
    assert (upper[50:] == np.inf).all()


def test_rounding_at_the_bounds_is_forgiven():
    values = np.float32([1.0000001, -0.0000001, 0.5])
    lower, upper = empirical_bernstein_sequence(values, 0, 1)
    assert (lower >= 0).all()
    assert (upper <= 1).all()


def test_values_outside_their_bounds_are_refused():
    with pytest.raises(FaithscopeError, match=r"1\.5 is outside its bounds \[0, 1\]"):
        empirical_bernstein_sequence(np.array([0.5, 1.5]), 0, 1)
    with pytest.raises(FaithscopeError, match="inf is outside"):
        empirical_bernstein_sequence(np.array([0.5, np.inf]), 0, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: empirical_bernstein_sequence(np.ones(3), 1, 1),
        lambda: empirical_bernstein_sequence(np.ones(3), 0, np.inf),
        lambda: empirical_bernstein_sequence(np.ones(3), 0, 1, alpha=0),
        lambda: asymptotic_sequence(np.ones(3), alpha=1),
        lambda: asymptotic_sequence(np.ones(3), tuned_at=0),
    ],
)
def test_settings_without_a_meaning_are_refused(call):
    with pytest.raises(FaithscopeError):
        call()
