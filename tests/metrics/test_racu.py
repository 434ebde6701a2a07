"""RACU and its interval against the reference; leakage on curves made for it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import faithscope as fs
from conftest import FIXTURES, randn
from faithscope.metrics.racu import Curves, absolute_area, racu_doubts
from faithscope.probes.retrain.leakage import Recovery, leaks, recoveries
from faithscope.verdicts.statistics import FEWEST_SEEDS, is_above_zero, seed_interval

REFERENCE = json.loads((FIXTURES / "roar" / "racu.json").read_text())
CASES = {case["name"]: case for case in REFERENCE["cases"]}


def curves(case):
    names = ("measure", "baseline", "k")
    measure, baseline, k = (torch.tensor(case[name], dtype=torch.float64) for name in names)
    return measure, baseline, k / 100


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_racu_of_every_seed_is_the_reference(case):
    measure, baseline, ratios = curves(case)
    for clip, name in ((True, "racu_per_seed_clipped"), (False, "racu_per_seed_unclipped")):
        got = fs.racu(measure, baseline, ratios, clip=clip)
        np.testing.assert_allclose(got, case[name], rtol=0, atol=1e-12)
    area = absolute_area(measure, baseline, ratios)
    np.testing.assert_allclose(area, case["absolute_area"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_interval_is_the_reference_to_the_last_bit(case):
    got = seed_interval(case["racu_per_seed_clipped"])
    expected = [case["mean"], case["lower"], case["upper"]]
    if case["n"] == 1:  # the reference gives one seed an interval of no width
        expected[1:] = math.nan, math.nan
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("case", REFERENCE["confidence_intervals"], ids=lambda c: len(c["x"]))
def test_the_interval_of_plain_numbers_is_the_reference_to_the_last_bit(case):
    expected = case["bootstrap_bca"]
    assert tuple(seed_interval(case["x"])) == (
        expected["mean"],
        expected["lower"],
        expected["upper"],
    )


def test_equal_seeds_have_an_interval_of_no_width():
    assert tuple(seed_interval([0.3] * 5)) == (pytest.approx(0.3),) * 3
    third = seed_interval([1 / 3, 1 / 3 + 5e-17, 1 / 3])
    assert third.low == third.high == third.mean


def test_seeds_without_a_value_are_not_averaged_away():
    assert all(math.isnan(number) for number in seed_interval([0.1, math.nan, 0.3]))
    assert seed_interval([0.1, math.inf]).mean == math.inf


def test_measures_and_seeds_are_leading_axes():
    ratios = torch.linspace(0, 1, 11, dtype=torch.float64)
    curve, baseline = randn(3, 5, 11), randn(5, 11, seed=1)
    got = fs.racu(curve, baseline, ratios, clip=False)
    assert got.shape == (3, 5)
    for m in range(3):
        for s in range(5):
            b, p = baseline[s], curve[m, s]
            above = torch.trapezoid(b - p, ratios) / torch.trapezoid(b - b[-1], ratios)
            torch.testing.assert_close(got[m, s], above, rtol=1e-9, atol=0)


def test_the_figure_that_explains_racu_in_the_paper():
    measure, baseline, ratios = curves(CASES["paper figure 5 illustration"])
    assert fs.racu(measure, baseline, ratios).item() == pytest.approx(0.5238, abs=5e-5)


def test_lists_and_percentages_will_do():
    case = CASES["sst-like moderate"]
    got = fs.racu(case["measure"], case["baseline"], case["k"])
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got, case["racu_per_seed_clipped"], rtol=0, atol=1e-12)


def test_doubts_name_the_seeds_that_cannot_be_trusted():
    for name, case in CASES.items():
        _, baseline, ratios = curves(case)
        doubts = racu_doubts(baseline, ratios)
        assert doubts.degenerate.tolist() == [name.startswith("flat baseline")] * case["n"]
        assert doubts.negative.tolist() == ["negative denominator" in name] * case["n"]


def test_a_curve_that_is_flat_up_to_rounding_is_degenerate():
    ratios = torch.linspace(0, 1, 11, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        flat = torch.full((11,), 0.3, dtype=dtype)
        flat[::2] = torch.nextafter(flat[0], torch.tensor(1.0, dtype=dtype))
        assert racu_doubts(flat, ratios.to(dtype)).degenerate


def test_metrics_of_curves_score_seed_by_seed():
    ratios = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    baseline = torch.tensor([[1.0, 0.8, 0.2], [0.5, 0.5, 0.5], [0.5, 0.5, 0.9]]).double()
    curve = torch.tensor([[1.0, 0.0, 0.2], [0.5, 0.3, 0.5], [0.5, 0.4, 0.9]]).double()
    held = Curves(curve, baseline, ratios)
    for clip in (True, False):
        values, flags = fs.metric("racu", clip=clip).score(held)
        assert flags == ["", "no_loss", "sign_turned"]
        expected = fs.racu(curve, baseline, ratios, clip=clip)
        assert values.isnan().tolist() == [False, True, False]
        assert torch.equal(values[[0, 2]], expected[[0, 2]])
    values, flags = fs.metric("racu").score(replace(held, is_relative=False))
    assert values.isnan().all() and flags == ["counted"] * 3
    torch.testing.assert_close(
        fs.metric("area").score(held).values, curve @ ratios.new([0.25, 0.5, 0.25])
    )
    for is_relative, place in ((True, 1), (False, 2)):  # all masked is no measure's own level
        found = fs.metric("end").score(replace(held, is_relative=is_relative)).values
        assert torch.equal(found, curve[:, place])
    with pytest.raises(fs.FaithscopeError, match="true or false"):
        fs.metric("racu", clip=1)


@pytest.mark.parametrize(
    ("curve", "ratios", "message"),
    [
        ([1.0, 0.5], [0.0], "at least two"),
        ([1.0, 0.5], [1.0, 0.0], "rising"),
        ([1.0, 0.5, 0.2], [0.0, 1.0], "each of the 2 ratios"),
    ],
)
def test_bad_input_is_one_sentence(curve, ratios, message):
    with pytest.raises(fs.FaithscopeError, match=message):
        fs.racu(curve, curve, ratios)


def test_no_seeds_have_no_interval():
    with pytest.raises(fs.FaithscopeError, match="one value per seed"):
        seed_interval([])


def noisy(means, *, seeds=5, deviation=0.01, seed=0):
    noise = np.random.default_rng(seed).standard_normal((seeds, len(means)))
    return np.asarray(means) + deviation * noise


def test_a_curve_that_rises_again_leaks():
    falling = noisy([0.9, 0.7, 0.5, 0.4, 0.3])
    assert leaks(falling) == ()
    rising = noisy([0.9, 0.5, 0.7, 0.8, 0.3])
    assert leaks(rising) == (2, 3)


def test_noise_alone_rarely_leaks():
    named = [leaks(noisy([0.2] * 11, seed=seed)) for seed in range(200)]
    assert sum(map(bool, named)) <= 0.05 * 200 + 2 * math.sqrt(200 * 0.05 * 0.95)


def test_one_seed_tells_of_no_leak_and_equal_seeds_do():
    assert leaks(np.array([[0.5, 0.9]])) == ()
    assert leaks(np.array([[0.5, 0.9]] * 3)) == (1,)


def test_leaks_of_other_shapes_are_refused():
    with pytest.raises(fs.FaithscopeError, match="curves"):
        leaks(np.zeros(3))


def test_a_seed_that_falls_to_guessing_and_rises_is_named():
    falling, fallen = [0.9, 0.7, 0.5, 0.3, 0.2], [0.9, 0.2, 0.5, 0.7, 0.2]
    curve = np.array([falling, fallen, falling])
    assert recoveries(curve, tested=1000) == (Recovery(seed=1, low=1, high=3),)
    assert recoveries(curve, tested=4) == ()
    above_guessing = np.array([[0.9, 0.3, 0.5, 0.7, 0.2]])
    assert recoveries(above_guessing, tested=1000) == ()
    only_all_masked = np.array([[0.9, 0.5, 0.4, 0.2, 0.6]])
    assert recoveries(only_all_masked, tested=1000) == ()
    failed_at_once = np.array([[0.2, 0.6, 0.5, 0.3, 0.2]])
    assert recoveries(failed_at_once, tested=1000) == ()
    assert recoveries(np.array([[1.0, 0.0, 1.0, 0.0]]), tested=3) == ()
    assert recoveries(np.array([[1.0, 0.0, 1.0, 0.0]]), tested=100) == ((0, 1, 2),)
    assert recoveries(np.zeros((0, 5)), tested=10) == ()
    for wrong in (np.zeros(3), np.zeros((2, 1))):
        with pytest.raises(fs.FaithscopeError, match="two points"):
            recoveries(wrong, tested=10)


def test_the_rise_must_exceed_four_standard_errors():
    low, tested = 0.2, 1000
    for errors, named in ((3.9, 0), (4.1, 1)):
        high = low
        for _ in range(50):  # the error depends on the height
            likely = [(tested * p + 1) / (tested + 2) for p in (low, high)]
            high = low + errors * math.sqrt(sum(p * (1 - p) for p in likely) / tested)
        assert len(recoveries(np.array([[0.9, low, high, low]]), tested)) == named


def test_sampling_alone_hardly_ever_recovers():
    drawn = np.random.default_rng(0).binomial(1000, 0.2, size=(2000, 11)) / 1000
    assert len(recoveries(drawn, tested=1000)) <= 4


@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=8))
def test_above_zero_is_what_both_intervals_say(values):
    found, array = is_above_zero(values), np.array(values)
    if len(array) < FEWEST_SEEDS or np.ptp(array) == 0:
        assert found == (len(array) >= FEWEST_SEEDS and array[0] > 0)
        return
    low = stats.ttest_1samp(array, 0).confidence_interval(0.95).low
    if abs(low) > 1e-9:
        assert found == (low > 0 and seed_interval(array).low > 0)


def test_the_bootstrap_alone_is_not_enough():
    values = [0.048, 0.063, 0.180, 0.023, -0.013]
    assert seed_interval(values).low > 0
    assert not is_above_zero(values)


def test_seeds_without_a_value_do_not_count():
    assert is_above_zero([0.2, 0.21, 0.22, math.nan])
    assert not is_above_zero([0.2, 0.21, math.nan])
