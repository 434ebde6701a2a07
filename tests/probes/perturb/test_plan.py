"""Planning: what several metrics need is run once."""

import pytest

import faithscope as fs
from faithscope.metrics import resolve_metrics
from faithscope.probes.perturb.plan import check_resolution, passes_per_image, plan_map

PAPERS = resolve_metrics("all")
EVERY = resolve_metrics(["registered", "saco(k=7)", "auc(step=5)", "aopc(steps=3)"])
units = pytest.mark.parametrize("n", [63, 100, 196, 1024, 224 * 224])


@units
def test_the_five_paper_metrics_share_28_inputs_instead_of_55(n):
    plan = plan_map(PAPERS, n, k=10, auto=10)
    assert len(plan.cuts) == len(set(plan.cuts)) == 28
    assert 1 + sum(len(cuts) for cuts in plan.index.values()) == 55


@units
def test_eleven_maps_cost_288_passes(n):
    assert passes_per_image(PAPERS, n, 11, k=10) == 288


@units
def test_every_metric_finds_its_own_cuts_in_the_union(n):
    plan = plan_map(EVERY, n, k=10, auto=10)
    for metric in EVERY:
        wanted = [span.cut(n) for span in metric.spans(metric.resolution(10))]
        assert [plan.cuts[place] for place in plan.index[metric.label]] == wanted


@units
def test_the_intact_and_the_empty_input_come_first_and_are_shared_by_all_maps(n):
    plan = plan_map(EVERY, n, k=10, auto=10)
    assert plan.cuts[: plan.shared] == ((0, 0), (0, n))
    assert not set(plan.own) & {(0, 0), (0, n)}


def test_a_metric_that_never_removes_everything_does_not_pay_for_it():
    plan = plan_map(resolve_metrics("saco"), 100, k=10, auto=10)
    assert (plan.shared, len(plan.own)) == (1, 10)


def test_spans_that_become_equal_on_few_units_are_merged():
    plan = plan_map(PAPERS, 5, k=10, auto=10)
    assert plan.k["saco"] == 5
    prefixes, suffixes = [(0, j) for j in range(1, 5)], [(j, 5) for j in range(1, 5)]
    inner = [(1, 2), (2, 3), (3, 4)]
    assert set(plan.own) == {*prefixes, *suffixes, *inner}
    assert passes_per_image(PAPERS, 5, 11, k=10) == 2 + 11 * 11


def test_another_k_and_finer_steps_only_add_what_is_new():
    both = plan_map(resolve_metrics(["saco(k=5)", "saco(k=10)", "saco(k=20)"]), 100, k=10, auto=10)
    assert len(both.own) == 5 + 10 + 20
    finer = plan_map(resolve_metrics(["auc", "auc(step=5)"]), 100, k=10, auto=10)
    assert len(finer.own) == 19


@units
def test_the_forecast_of_k_auto_is_an_upper_bound(n):
    most = passes_per_image(PAPERS, n, 11, k="auto")
    for auto in (5, 10, 20):
        plan = plan_map(PAPERS, n, k="auto", auto=auto)
        assert plan.shared + 11 * len(plan.own) <= most


def test_more_groups_than_any_sample_has_units_are_refused():
    check_resolution(PAPERS, 16, 16)
    with pytest.raises(fs.FaithscopeError, match="17 groups cannot be made of 16 units"):
        check_resolution(PAPERS, 17, 16)
