"""Uncertainty: intervals that cover, tests that are scipy's, control for many comparisons."""

import numpy as np
import pytest
from scipy import stats

from faithscope.results import bootstrap_interval, holm, paired_p_values


def rng(seed=0):
    return np.random.default_rng(seed)


# --- Bootstrap intervals ---


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("n", [2, 10, 200])
def test_the_interval_is_scipys_bca_interval(n, level):
    values = rng().exponential(size=n)
    expected = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=2000, rng=rng(3)
    ).confidence_interval
    got = bootstrap_interval(values, level=level, seed=3)
    np.testing.assert_allclose(got, (expected.low, expected.high), rtol=0, atol=1e-12)


def test_95_of_100_intervals_cover_the_truth():
    samples = rng().exponential(size=(400, 60))
    intervals = [bootstrap_interval(values, resamples=400) for values in samples]
    covered = np.mean([low <= 1.0 <= high for low, high in intervals])
    assert 0.91 < covered < 0.98


def test_the_interval_of_a_constant_is_that_constant():
    assert bootstrap_interval(np.full(10, 0.3)) == (pytest.approx(0.3), pytest.approx(0.3))


@pytest.mark.parametrize("values", [[], [1.0]])
def test_there_is_no_interval_for_fewer_than_two_values(values):
    assert np.isnan(bootstrap_interval(np.array(values))).all()


@pytest.mark.parametrize("values", [[0, 1], [0] * 19 + [1], [1] * 19 + [0], [-1, 1] * 5])
def test_scores_with_few_distinct_values_have_a_finite_interval(values):
    low, high = bootstrap_interval(np.array(values, dtype=float))
    assert min(values) <= low < high <= max(values)


# --- Paired tests ---


def scipys(differences, resamples=np.inf, seed=None):
    return stats.permutation_test(
        (differences,),
        lambda d, axis: d.mean(axis=axis),
        permutation_type="samples",
        n_resamples=resamples,
        rng=seed,
        vectorized=True,
    ).pvalue


@pytest.mark.parametrize("n", [2, 3, 7, 10])
def test_few_pairs_give_scipys_exact_p_value(n):
    differences = rng(n).normal(0.5, size=(n, 6))
    expected = [scipys(column) for column in differences.T]
    np.testing.assert_allclose(paired_p_values(differences), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.5])
def test_many_pairs_give_scipys_p_value_up_to_sampling(shift):
    differences = rng(1).normal(shift, size=(40, 1))
    ours, scipy = paired_p_values(differences)[0], scipys(differences[:, 0], 9999, 2)
    assert abs(ours - scipy) < 5 * (2 * scipy * (1 - scipy) / 9999) ** 0.5


def test_without_an_effect_one_test_in_twenty_rejects():
    p_values = paired_p_values(rng().normal(size=(30, 4000)))
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 4000) ** 0.5)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_a_missing_pair_is_left_out():
    differences = rng().normal(0.5, size=(10, 2))
    differences[[1, 4], 0] = np.nan
    known = np.delete(differences[:, 0], [1, 4])
    expected = [scipys(known), scipys(differences[:, 1])]
    np.testing.assert_allclose(paired_p_values(differences), expected, rtol=0, atol=1e-12)


def test_fewer_than_two_pairs_cannot_be_tested():
    differences = np.array([[np.nan, np.nan, 1.0], [np.nan, 1.0, 2.0]])
    assert np.isnan(paired_p_values(differences)).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([0.0, 0.0, 0.0], 1.0),
        ([0.1, 0.2, -0.3], 1.0),  # a sum of zero, up to rounding
        ([0.1, 0.2, 0.3, -0.6, 0.7, -0.7], 1.0),
        ([0.1, 0.1, 0.1, 0.1], 1 / 8),
    ],
)
def test_rounding_does_not_decide_ties(differences, p_value):
    for order in (differences, differences[::-1]):
        assert paired_p_values(np.array(order)[:, None])[0] == p_value


def test_no_p_value_from_sampling_is_zero():
    assert paired_p_values(np.ones((50, 1)))[0] == pytest.approx(1 / 10_000)


def test_the_sign_of_an_effect_does_not_matter():
    differences = rng().normal(0.3, size=(30, 1))
    p_values = paired_p_values(np.hstack([differences, -differences]))
    assert p_values[0] == p_values[1]


# --- Holm ---


def test_holm_by_hand():
    """Sorted 0.005, 0.011, 0.02, 0.03, times 4, 3, 2, 1, never falling."""
    adjusted = holm(np.array([0.03, 0.005, 0.02, 0.011]))
    np.testing.assert_allclose(adjusted, [0.04, 0.02, 0.04, 0.033])


def test_holm_never_exceeds_1_and_ignores_what_was_not_tested():
    adjusted = holm(np.array([0.6, np.nan, 0.7, 0.01]))
    np.testing.assert_allclose(adjusted, [1.0, np.nan, 1.0, 0.03])


def test_holm_of_nothing_is_nothing():
    assert holm(np.array([])).size == 0
    assert np.isnan(holm(np.array([np.nan]))).all()
