"""Uncertainty: intervals that cover, tests that are scipy's, control for many comparisons."""

import numpy as np
import pytest
from scipy import stats

from faithscope.verdicts.statistics import (
    bootstrap_interval,
    effect_size,
    holm,
    metric_correlation,
    paired_p_values,
    rank_agreement,
    sensitivity,
    spearman,
)


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


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda r, shape: r.normal(size=shape), 0.0),
        (lambda r, shape: r.exponential(size=shape), 1.0),
        (lambda r, shape: r.beta(0.5, 3, size=shape), 0.5 / 3.5),
    ],
    ids=["normal", "exponential", "beta"],
)
def test_the_interval_covers_the_mean_of_symmetric_and_skewed_scores(draw, truth, n):
    samples = draw(rng(n), (400, n))
    intervals = [bootstrap_interval(x, seed=i) for i, x in enumerate(samples)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert 0.88 <= covered <= 0.98


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


# --- Effect sizes ---


def wilcoxons(differences):
    """W⁻ is what is left of the sum of all ranks, n(n + 1)/2."""
    differences = differences[differences != 0]
    above = stats.wilcoxon(differences, alternative="greater").statistic
    total = len(differences) * (len(differences) + 1) / 2
    return (above - (total - above)) / total


@pytest.mark.parametrize("digits", [0, 1, 8])  # with many ties and zeros, a few, none
def test_effect_sizes_are_those_of_the_t_and_the_wilcoxon_test(digits):
    differences = rng(2).normal(0.4, size=(25, 5)).round(digits)
    found = effect_size(differences)
    t = stats.ttest_1samp(differences, 0).statistic
    np.testing.assert_allclose(found.d_z, t / 25**0.5)
    np.testing.assert_allclose(found.rank_biserial, [wilcoxons(d) for d in differences.T])


def test_effect_sizes_by_hand():
    """Ranks of 1, 2, 3, 4: the fall has rank 1, the rises 9; (9 - 1)/10."""
    found = effect_size(np.array([-1.0, 2, 3, 4, 0, np.nan]))
    assert found.rank_biserial == pytest.approx(0.8)
    assert found.d_z == pytest.approx(1.6 / 4.3**0.5)
    assert found.d_z.shape == found.rank_biserial.shape == ()


def test_effect_sizes_change_sign_and_ignore_scale():
    differences = rng().normal(0.3, size=30)
    found = np.array(effect_size(differences))
    np.testing.assert_allclose(effect_size(-7 * differences), -found)


@pytest.mark.parametrize(
    ("differences", "d_z", "rank_biserial"),
    [
        ([0.0, 0.0, 0.0], 0, 0),
        ([0.1] * 7, np.inf, 1),
        ([-0.1] * 7, -np.inf, -1),
        ([1.0, np.nan], np.nan, np.nan),
        ([], np.nan, np.nan),
    ],
)
def test_effect_sizes_of_degenerate_differences(differences, d_z, rank_biserial):
    np.testing.assert_array_equal(effect_size(np.array(differences)), [d_z, rank_biserial])


# --- Rank correlations ---


@pytest.mark.parametrize("digits", [0, 1, 8])
def test_the_rank_correlation_is_scipys_with_ties_and_missing_methods(digits):
    first, second = rng(5).normal(size=(2, 6, 40)).round(digits)
    first[rng(6).random(first.shape) < 0.1] = np.nan
    second[rng(7).random(second.shape) < 0.1] = np.nan
    for x, y, found in zip(first.T, second.T, spearman(first, second), strict=True):
        known = ~np.isnan(x + y)
        if min(len(set(x[known])), len(set(y[known]))) < 2:
            assert np.isnan(found)
        else:
            expected = stats.spearmanr(x[known], y[known]).statistic
            assert found == pytest.approx(expected, abs=1e-12)


def test_metrics_that_agree_correlate_positively_whatever_their_direction():
    quality = rng().normal(size=(5, 12))
    cube = np.stack([quality, -np.exp(quality), rng(1).normal(size=(5, 12))], axis=1)
    found = metric_correlation(cube, np.array([True, False, True]), seed=2)
    assert found.mean[0, 1] == found.low[0, 1] == found.high[0, 1] == pytest.approx(1)
    turned = metric_correlation(cube, np.array([True, True, True]), seed=2)
    assert turned.mean[0, 1] == pytest.approx(-1)
    each = [stats.spearmanr(quality[:, i], cube[:, 2, i]).statistic for i in range(12)]
    assert found.mean[0, 2] == pytest.approx(np.mean(each))
    expected = bootstrap_interval(np.array(each), seed=2)
    assert (found.low[0, 2], found.high[0, 2]) == pytest.approx(expected)
    for array in found:
        np.testing.assert_array_equal(array, array.T)


def test_samples_without_a_correlation_are_left_out_and_counted():
    cube = rng(3).normal(size=(4, 2, 10))
    cube[:, 0, 3] = 0.5  # a metric that does not tell the methods apart
    cube[1:, 1, 7] = np.nan  # one method left
    found = metric_correlation(cube, np.array([True, True]))
    assert found.samples.tolist() == [[9, 8], [8, 9]]
    assert found.left_out.tolist() == [[1, 2], [2, 1]]
    kept = np.delete(cube, [3, 7], axis=2)
    each = [stats.spearmanr(kept[:, 0, i], kept[:, 1, i]).statistic for i in range(8)]
    assert found.mean[0, 1] == pytest.approx(np.mean(each))


def test_independent_rankings_do_not_agree_and_equal_ones_do():
    first, second = rng(8).normal(size=(2, 6, 300))
    found = rank_agreement(first, second)
    assert found.low < 0 < found.high
    assert found.mean == pytest.approx(0, abs=4 / (300 * 5) ** 0.5)
    assert rank_agreement(first, 2 * first + 1) == (1.0, 1.0, 1.0, 300, 0)


@pytest.mark.parametrize("shape", [(3, 0), (1, 4)])
def test_without_rankings_there_is_no_agreement(shape):
    found = rank_agreement(np.ones(shape), np.ones(shape))
    assert np.isnan(found[:3]).all()
    assert found[3:] == (0, shape[1])


# --- Sensitivity to a setting ---


def test_sensitivity_by_hand():
    first = np.array([[1.0, 3.0], [2.0, 2.5], [9.0, 9.0]])
    second = np.array([[1.0, 2.0], [2.0, 2.5], [9.5, 9.5]])
    found = sensitivity(first, second)  # means 2, 2.25, 9 and 1.5, 2.25, 9.5
    assert found.absolute == pytest.approx(2 / 6)
    assert found.signed == pytest.approx(0)
    assert found.flipped == 0
    assert sensitivity(first, second[[1, 0, 2]]).flipped == pytest.approx(1 / 3)
    assert sensitivity(first, -first).flipped == 1


def test_the_interval_of_a_change_resamples_samples():
    first, second = rng(9).normal(size=(2, 5, 40))
    found = sensitivity(first, second, seed=1)
    change = (second - first).mean(0)
    assert (found.low, found.high) == bootstrap_interval(change, seed=1)
    assert found.signed == pytest.approx(change.mean())
    assert found.absolute == pytest.approx(np.abs(second - first).mean())


def test_the_same_setting_changes_nothing():
    values = rng().normal(size=(4, 20))
    assert sensitivity(values, values.copy()) == (0, 0, 0, 0, 0)


def test_a_tie_is_no_flip_whatever_the_rounding():
    first = np.array([[0.1, 0.2, -0.3], [0.0, 0.0, 0.0]])
    for shift in (1.0, -1.0):
        second = first + np.array([[shift], [0.0]])
        assert sensitivity(first, second).flipped == 0


def test_sensitivity_leaves_out_what_is_missing():
    first, second = rng(3).normal(size=(2, 3, 8))
    first[:, 2] = np.nan
    kept = np.delete(first, 2, axis=1), np.delete(second, 2, axis=1)
    assert sensitivity(first, second) == sensitivity(*kept)
    second[0, 5] = np.nan
    second[1, 5] = 1000.0  # the pair 0, 1 has no such sample; the pair 1, 2 has
    known = [0, 1, 3, 4, 6, 7]
    expected = [
        (first[i, s] - first[j, s]).mean() * (second[i, s] - second[j, s]).mean() < 0
        for i, j, s in [(0, 1, known), (0, 2, known), (1, 2, [*known, 5])]
    ]
    assert sensitivity(first, second).flipped == pytest.approx(np.mean(expected))


def test_nothing_to_compare_is_nan():
    assert np.isnan(sensitivity(np.ones((3, 0)), np.ones((3, 0)))).all()
    assert np.isnan(sensitivity(np.full((2, 3), np.nan), np.ones((2, 3)))).all()
    assert np.isnan(sensitivity(np.zeros((1, 3)), np.ones((1, 3))).flipped)
