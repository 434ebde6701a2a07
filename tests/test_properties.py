"""What must hold for every input, not only for the ones we thought of.

Salience and drops are drawn as small whole numbers: ties are common, and the arithmetic is exact.
"""

import keyword

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import faithscope as fs
from conftest import randn, toy
from faithscope.metrics import area, auto_k, metrics_of
from faithscope.perturb import (
    groups,
    least_relevant_first,
    most_relevant_first,
    order_units,
    ranks_of,
)
from faithscope.probes.perturb.plan import passes_per_image, plan_map
from faithscope.registry import format_spec, parse_spec
from faithscope.verdicts.statistics import holm, paired_p_values

whole = st.integers(-20, 20)


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def grouped(draw, distinct_drops=False):
    """Salience and drop of K groups: [K], [K]."""
    k = draw(st.integers(2, 12))
    salience = draw(st.lists(whole, min_size=k, max_size=k))
    drop = draw(st.lists(whole, min_size=k, max_size=k, unique=distinct_drops))
    return vector(salience), vector(drop)


def same(left, right):
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12, equal_nan=True)


# --- SaCo ---


@given(grouped(), st.integers(1, 1000), st.integers(-1000, 1000))
def test_saco_ignores_scale_and_shift_of_the_salience(case, scale, shift):
    salience, drop = case
    same(fs.saco(scale * salience + shift, drop), fs.saco(salience, drop))


@given(grouped())
def test_saco_reads_only_the_order_of_the_drops(case):
    salience, drop = case
    same(fs.saco(salience, drop**3 + 5), fs.saco(salience, drop))
    same(fs.saco(salience, (drop / 20).exp()), fs.saco(salience, drop))


@given(grouped(distinct_drops=True))
def test_saco_changes_sign_when_distinct_drops_are_reversed(case):
    salience, drop = case
    same(fs.saco(salience, -drop), -fs.saco(salience, drop))


@given(grouped(distinct_drops=True), st.randoms(use_true_random=False))
def test_saco_does_not_depend_on_the_numbering_of_groups_with_distinct_drops(case, random):
    salience, drop = case
    order = random.sample(range(len(drop)), len(drop))
    same(fs.saco(salience[order], drop[order]), fs.saco(salience, drop))


@given(grouped(), st.sampled_from(["difference", "ratio"]), st.floats(0, 5))
def test_saco_lies_between_minus_1_and_1_or_is_undefined(case, weight, penalty):
    value = fs.saco(*case, weight=weight, penalty=penalty)
    assert value.isnan() or -1 - 1e-12 <= value <= 1 + 1e-12


@given(grouped(distinct_drops=True))
def test_saco_is_1_exactly_if_more_salience_never_hurts_less(case):
    salience, drop = case
    value = fs.saco(salience, drop)
    assume(not value.isnan())
    apart = salience[:, None] > salience[None]
    agrees = bool((drop[:, None] > drop[None])[apart].all())
    assert (abs(value - 1) < 1e-12).item() is agrees


@settings(max_examples=15)
@given(st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_evaluate_ignores_scale_and_shift_of_maps_in_equal_groups(scale, shift):
    maps = randn(2, 10, 10)
    both = {"plain": maps, "moved": scale * maps + shift}
    result = fs.evaluate(toy(), randn(2, 3, 10, 10, seed=1), maps=both, random_draws=0)
    for metric in result.metrics:
        plain, moved = (result.values(name, metric) for name in both)
        np.testing.assert_allclose(moved, plain, rtol=0, atol=1e-9)


@given(st.lists(whole, min_size=2, max_size=50), st.integers(1, 1000), st.integers(-1000, 1000))
def test_auto_k_ignores_scale_and_shift(values, scale, shift):
    assert auto_k(scale * vector(values) + shift) == auto_k(vector(values))


# --- Spans and ranks ---

units, steps = st.integers(1, 3000), st.integers(1, 60)


@given(units, steps)
def test_groups_partition_the_rank_axis_into_sizes_that_differ_by_one_at_most(n, k):
    cuts = [span.cut(n) for span in groups(k)]
    assert [rank for start, stop in cuts for rank in range(start, stop)] == list(range(n))
    sizes = [stop - start for start, stop in cuts]
    assert max(sizes) - min(sizes) <= 1


@given(units, steps)
def test_curves_grow_from_nothing_to_everything_and_mirror_each_other(n, k):
    most = [span.cut(n) for span in most_relevant_first(k)]
    least = [span.cut(n) for span in least_relevant_first(k)]
    assert most[0] == least[0] == (0, 0) and most[-1] == least[-1] == (0, n)
    removed = [stop for _, stop in most]
    assert removed == sorted(removed)
    kept = [n - stop + start for start, stop in reversed(least)]
    assert kept == removed


@given(st.lists(whole, min_size=1, max_size=60), st.sampled_from(["ascending", "descending"]))
def test_the_order_is_pythons_stable_sort(values, ties):
    sign = 1 if ties == "ascending" else -1
    expected = sorted(range(len(values)), key=lambda unit: (-values[unit], sign * unit))
    assert order_units(vector(values), ties).tolist() == expected


@given(st.permutations(range(30)))
def test_ranks_invert_any_order(order):
    ranks = ranks_of(torch.tensor(order))
    assert ranks[order].tolist() == list(range(30))


# --- Plans ---

metric_lists = st.lists(st.sampled_from(sorted(metrics_of("perturb"))), min_size=1, unique=True)


@given(metric_lists, st.integers(2, 500), st.integers(2, 30), st.integers(1, 20))
def test_a_plan_holds_every_cut_once_and_costs_what_was_forecast(names, n, k, maps):
    metrics = [fs.metric(name) for name in names]
    plan = plan_map(metrics, n, k=k, auto=5)
    wanted = {
        span.cut(n)
        for metric in metrics
        for span in metric.spans(min(k, n) if metric.groups_units else metric.resolution(k))
    }
    assert len(plan.cuts) == len(set(plan.cuts))
    assert set(plan.cuts) == wanted | {(0, 0)}
    assert passes_per_image(metrics, n, maps, k=k) == plan.shared + maps * len(plan.own)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_an_area_lies_between_the_least_and_the_greatest_value(values):
    assert min(values) - 1e-12 <= area(vector(values)).item() <= max(values) + 1e-12


# --- Specs ---

names = st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
options = st.dictionaries(
    names,
    st.one_of(
        *(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        *(
            names,
            st.text(max_size=12),
            st.sampled_from(["5", "None", "True", "lambda", "a b", "x-y"]),
        ),
    ),
    max_size=3,
)


@given(names, options)
def test_a_spec_reads_back_as_it_was_written(name, options):
    assert parse_spec(format_spec(name, options)) == (name, options)


@pytest.mark.parametrize(
    "text", ["saco(", "saco(5)", "saco(k=)", "saco(**k)", "saco(k=f(1))", "a)b("]
)
def test_a_spec_that_is_none_is_refused(text):
    with pytest.raises(fs.FaithscopeError, match="not of the form"):
        parse_spec(text)


# --- Statistics ---

p_values = st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=12).map(np.array)


@given(p_values)
def test_holm_keeps_the_order_never_lowers_a_p_value_and_never_exceeds_1(p):
    adjusted = holm(p.astype(float))
    known = ~np.isnan(p)
    assert np.isnan(adjusted[~known]).all()
    assert (adjusted[known] >= p[known]).all() and (adjusted[known] <= 1).all()
    ranked = adjusted[known][np.argsort(p[known], kind="stable")]
    assert (np.diff(ranked) >= 0).all()


@given(p_values)
def test_holm_lies_between_no_correction_and_bonferronis(p):
    known = p[~np.isnan(p)].astype(float)
    assert (holm(known) <= np.minimum(1, len(known) * known) + 1e-15).all()


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8))
def test_the_exact_paired_test_counts_sign_patterns(differences):
    """p is the share of the 2ⁿ sign patterns whose sum is at least as far from zero."""
    sums = [0]
    for value in differences:
        sums = [s + sign * value for s in sums for sign in (-1, 1)]
    expected = np.mean([abs(s) >= abs(sum(differences)) for s in sums])
    assert paired_p_values(np.array(differences, dtype=float)[:, None])[0] == expected
