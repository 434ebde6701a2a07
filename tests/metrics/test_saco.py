"""SaCo against Algorithm 1 written as two loops, its variants, and what happens at the edges."""

import math

import numpy as np
import pytest
import torch

import faithscope as fs
from conftest import randn, toy
from faithscope.metrics import AUTO_K, auto_k


def naive_saco(s, d, weight="difference", penalty=0.0):
    """Algorithm 1, pair by pair."""
    k, faithfulness, total = len(s), 0.0, 0.0
    for i in range(k):
        for j in range(i + 1, k):
            pair = s[i] - s[j] if weight == "difference" else s[i] / s[j]
            pair *= ((k - (i if s[i] >= s[j] else j)) / (k - 1)) ** penalty
            faithfulness += pair if d[i] >= d[j] else -pair
            total += abs(pair)
    return faithfulness / total


@pytest.mark.parametrize("k", [2, 3, 10, 20])
@pytest.mark.parametrize("weight", ["difference", "ratio"])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("ordered", [True, False])
def test_saco_is_algorithm_1_with_its_variants(k, weight, penalty, ordered):
    salience, drop = randn(3, 4, k), randn(3, 4, k, seed=1)
    if weight == "ratio":
        salience = salience.exp()
    if ordered:
        salience = salience.sort(dim=-1, descending=True).values
    got = fs.saco(salience, drop, weight=weight, penalty=penalty)
    expected = [
        [naive_saco(s, d, weight, penalty) for s, d in zip(rows, drops, strict=True)]
        for rows, drops in zip(salience.tolist(), drop.tolist(), strict=True)
    ]
    torch.testing.assert_close(got, got.new_tensor(expected), rtol=0, atol=1e-12)


def test_the_penalty_makes_a_mistake_about_the_most_salient_group_count_more():
    salience = torch.tensor([4.0, 3.0, 2.0, 1.0])
    early, late = torch.tensor([2.0, 3.0, 1.0, 0.0]), torch.tensor([3.0, 2.0, 0.0, 1.0])
    assert fs.saco(salience, early) == fs.saco(salience, late)
    assert fs.saco(salience, early, penalty=1.0) < fs.saco(salience, late, penalty=1.0)


def test_equal_drops_count_as_satisfied():
    assert fs.saco(torch.tensor([3.0, 2.0, 1.0]), torch.zeros(3)) == 1


@pytest.mark.parametrize("level", [0.0, 0.1, 1e6])
def test_no_weight_at_all_is_undefined(level):
    salience = torch.full((5,), level, dtype=torch.float64)
    salience[::2] *= 1 + 1e-15  # rounding, not salience
    assert fs.saco(salience, randn(5)).isnan()


def test_a_ratio_of_salience_that_is_not_positive_is_undefined():
    salience = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 0.0], [3.0, 2.0, -1.0]])
    drop = torch.tensor([3.0, 2.0, 1.0]).expand(3, 3)
    assert fs.saco(salience, drop, weight="ratio").isnan().tolist() == [False, True, True]


def test_nan_in_nan_out():
    fine, broken = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([3.0, math.nan, 1.0])
    assert fs.saco(fine, broken).isnan() and fs.saco(broken, fine).isnan()


@pytest.mark.parametrize(
    ("salience", "drop", "options"),
    [
        (torch.zeros(3), torch.zeros(4), {}),
        (torch.zeros(1), torch.zeros(1), {}),
        (torch.zeros(3), torch.zeros(3), {"weight": "product"}),
    ],
)
def test_shapes_and_weights_that_make_no_sense_are_refused(salience, drop, options):
    with pytest.raises(fs.FaithscopeError):
        fs.saco(salience, drop, **options)


@pytest.mark.parametrize("k", [1, 0, -3, 2.5, True, "many"])
def test_a_k_that_makes_no_sense_is_refused(k):
    with pytest.raises(fs.FaithscopeError, match="k must be"):
        fs.metric("saco", k=k)


def participation(values):
    shifted = [value - min(values) for value in values]
    return sum(shifted) ** 2 / (len(values) * sum(value**2 for value in shifted))


@pytest.mark.parametrize("power", [0.2, 1.0, 3.0, 6.0, 12.0, 30.0])
def test_auto_k_is_the_smallest_k_with_two_groups_inside_the_effective_support(power):
    values = torch.special.ndtr(randn(300)) ** power
    share = participation(values.tolist())
    expected = next((k for k in AUTO_K if k * share >= 2), 20)
    assert auto_k(values.sort(descending=True).values) == expected
    assert auto_k(3 * values + 7) == expected


def test_auto_k_judges_flat_maps_coarsely_and_peaked_maps_finely():
    peaked = torch.zeros(1000)
    peaked[0] = 1
    maps = torch.stack([torch.linspace(1, 0, 1000), torch.linspace(1, 0, 1000) ** 8, peaked])
    assert auto_k(maps).tolist() == [5, 10, 20]
    assert auto_k(torch.ones(10)) == 5


def evaluate(maps, **options):
    model = fs.wrap(toy(7, 9))
    return fs.evaluate(model, randn(3, 3, 7, 9), maps=maps, random_draws=0, **options)


def test_a_ratio_that_is_undefined_is_nan_with_a_flag_and_is_left_out_of_the_mean():
    maps = randn(3, 7, 9).abs() + 0.1
    maps[1] -= 5
    result = evaluate({"mine": maps}, metrics="saco(weight=ratio)")
    assert result.scores["flag"].to_pylist() == ["", "ratio_undefined", ""]
    row = result.summary().to_pylist()[0]
    assert (row["n"], row["flagged"]) == (2, 1)
    assert row["mean"] == pytest.approx(float(result.values("mine", row["metric"])[[0, 2]].mean()))


def test_the_mean_of_groups_is_shift_invariant_where_the_sum_is_not():
    """63 units make groups of 6 and 7: a shift weighs on their sums, not on their means."""
    maps = {"plain": randn(3, 7, 9, seed=5), "shifted": randn(3, 7, 9, seed=5) + 100}
    for group, same in (("mean", True), ("sum", False)):
        result = evaluate(maps, metrics="saco", group=group)
        plain, shifted = (result.values(name, "saco") for name in maps)
        assert np.allclose(plain, shifted, rtol=0, atol=1e-9) is same


def test_k_is_recorded_per_map_when_it_is_chosen_automatically():
    flat, peaked = torch.special.ndtr(randn(3, 7, 9)), (4 * randn(3, 7, 9)).exp()
    scores = evaluate({"flat": flat, "peaked": peaked}, metrics="saco", k="auto").scores
    ks = {(row["method"], row["k"]) for row in scores.to_pylist()}
    assert ks == {("flat", 5), ("peaked", 20)}
