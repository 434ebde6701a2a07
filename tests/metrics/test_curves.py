"""Curve metrics: their arithmetic, their bounds, and that each points the way it declares."""

import math

import numpy as np
import pytest
import torch

import faithscope as fs
from conftest import SoftmaxLinear, randn
from faithscope.metrics import area, mean_drop, mean_log_odds, metrics_of, resolve_metrics

METRICS = metrics_of("perturb")
every_metric = pytest.mark.parametrize("metric", list(METRICS))


@pytest.mark.parametrize("points", [2, 11, 21])
def test_area_is_numpys_trapezoid_on_the_unit_interval(points):
    values = randn(4, points)
    expected = np.trapezoid(values.numpy(), np.linspace(0, 1, points), axis=1)
    np.testing.assert_allclose(area(values), expected, atol=1e-12)


def test_area_of_a_straight_line_is_its_middle():
    assert area(torch.linspace(1, 0, 11, dtype=torch.float64)).item() == pytest.approx(
        0.5, abs=1e-12
    )


def test_mean_drop_and_log_odds_by_hand():
    p0, p = torch.tensor(0.8), torch.tensor([0.8, 0.4, 0.2])
    assert mean_drop(p0, p).item() == pytest.approx((0.0 + 0.4 + 0.6) / 3)
    expected = (math.log(0.5) + math.log(0.25)) / 3
    assert mean_log_odds(p0.log(), p.log()).item() == pytest.approx(expected)


def test_log_odds_survive_probabilities_that_underflow():
    log_p0, log_p = torch.tensor(0.0).double(), torch.tensor([-2000.0, -4000.0]).double()
    assert mean_log_odds(log_p0, log_p) == -3000


LEVELS = {
    "aopc": [(0, j) for j in range(0, 101, 10)],
    "comprehensiveness": [(100 - j, 100) for j in range(0, 101, 10)],
    "comprehensiveness_eraser": [(0, j) for j in range(10, 101, 10)],
    "sufficiency": [(j, 100) for j in range(0, 101, 10)],
    "insertion": [(j, 100) for j in range(0, 101, 10)],
    "auc(step=5)": [(0, j) for j in range(0, 101, 5)],
    "deletion(steps=4)": [(0, j) for j in range(0, 101, 25)],
}


@pytest.mark.parametrize("name", LEVELS)
def test_each_metric_reads_the_levels_of_its_definition(name):
    metric = fs.metric(name)
    spans = metric.spans(metric.resolution(10))
    intact = {(0, 0): (0, 0), (100, 100): (0, 0)}
    assert [span.cut(100) for span in spans] == [intact.get(cut, cut) for cut in LEVELS[name]]


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 2.5}, {"steps": True}, {"step": 5}])
def test_steps_that_make_no_sense_are_refused(options):
    with pytest.raises(fs.FaithscopeError):
        fs.metric("aopc", **options)


@pytest.mark.parametrize("step", [0, 3, 101, 2.5])
def test_an_auc_step_must_divide_a_hundred(step):
    with pytest.raises(fs.FaithscopeError, match="divides 100"):
        fs.metric("auc", step=step)


def two_classes(images):
    """A model of two classes whose margin is a sum over pixels, and each pixel's part in it."""
    weight = randn(1, images[0].numel(), seed=7) * 3 / images[0].numel() ** 0.5
    module = SoftmaxLinear(torch.cat([weight, -weight]), torch.zeros(2, dtype=torch.float64))
    away = images - images.mean(dim=(2, 3), keepdim=True)
    margin = (weight.reshape(1, *images.shape[1:]) * away).sum(1)
    sign = 1 - 2 * module(images).argmax(-1).double()
    return module, margin * sign[:, None, None]


@pytest.fixture(scope="module")
def known_truth():
    """The true contributions, their opposite and random maps, scored by every metric."""
    images = randn(40, 3, 10, 10)
    module, oracle = two_classes(images)
    maps = {"oracle": oracle, "reversed": -oracle}
    return fs.evaluate(module, images, maps=maps, metrics="registered", random_draws=5)


@every_metric
def test_the_true_map_beats_random_and_random_beats_its_opposite(known_truth, metric):
    sign = 1 if METRICS[metric].higher_is_better else -1
    oracle, random, opposite = (
        sign * known_truth.values(method, metric) for method in ("oracle", "random", "reversed")
    )
    assert oracle.mean() > random.mean() > opposite.mean()
    assert (oracle >= opposite).all()


def test_the_true_map_has_saco_1_and_its_opposite_minus_1(known_truth):
    np.testing.assert_allclose(known_truth.values("oracle", "saco"), 1, atol=1e-12)
    np.testing.assert_allclose(known_truth.values("reversed", "saco"), -1, atol=1e-12)


def test_the_true_map_is_called_better_and_its_opposite_worse(known_truth):
    verdicts = {(r["method"], r["verdict"]) for r in known_truth.summary().to_pylist()}
    assert verdicts == {("oracle", "better"), ("reversed", "worse"), ("random", "")}


@every_metric
def test_scores_stay_inside_the_declared_bounds(known_truth, metric):
    low, high = METRICS[metric].bounds
    values = known_truth.scores.filter(np.array(known_truth.scores["metric"]) == metric)["value"]
    assert low <= min(values.to_pylist()) and max(values.to_pylist()) <= high


def test_insertion_reads_the_inputs_of_sufficiency_and_deletion_those_of_aopc(known_truth):
    """A linear relation that holds only if the shared responses went to the right places."""
    p0 = np.exp(known_truth.samples["log_p0"].to_numpy())
    responses = known_truth.responses.to_pylist()
    removed = {r["sample"]: np.exp(r["log_p"]) for r in responses if r["stop"] - r["start"] == 100}
    ends = (p0 + [removed[s] for s in known_truth.samples["sample"].to_pylist()]) / 2
    for drop, curve in (("aopc", "deletion"), ("sufficiency", "insertion")):
        sums = 11 * (p0 - known_truth.values("oracle", drop))
        np.testing.assert_allclose(known_truth.values("oracle", curve), (sums - ends) / 10)


def test_all_are_the_five_of_the_papers_and_registered_is_everything():
    five = ["aopc", "auc", "comprehensiveness", "log_odds", "saco"]
    assert sorted(metric.label for metric in resolve_metrics("all")) == five
    assert {metric.label for metric in resolve_metrics("registered")} == set(METRICS)


def test_a_function_of_the_responses_is_a_metric():
    def last_drop(responses):
        return responses.drop[..., -1]

    images, maps = randn(3, 3, 10, 10), {"mine": randn(3, 10, 10)}
    module, _ = two_classes(images)
    result = fs.evaluate(module, images, maps=maps, metrics=[last_drop, "aopc"], random_draws=0)
    empty = images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    intact, removed = (module(x).softmax(-1).detach() for x in (images, empty))
    drop = (intact - removed).gather(1, intact.argmax(-1, keepdim=True))[:, 0]
    np.testing.assert_allclose(result.values("mine", "last_drop"), drop, atol=1e-12)


def test_an_error_in_ones_own_metric_is_not_lost():
    def broken(responses):
        raise ZeroDivisionError("mine")

    images = randn(2, 3, 10, 10)
    with pytest.raises(fs.FaithscopeError, match=r"'broken' failed .ZeroDivisionError: mine"):
        fs.evaluate(two_classes(images)[0], images, "gradient", broken)


@every_metric
def test_every_metric_says_what_it_is(metric):
    cls = METRICS[metric]
    assert cls.paper and cls.equation and cls.__doc__
    assert cls.bounds[0] < cls.bounds[1]
