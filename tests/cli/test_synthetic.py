"""The synthetic problem against the reference, small and as large as in the paper."""

import json

import numpy as np
import pytest

from conftest import FIXTURES
from faithscope import FaithscopeError
from faithscope.cli.synthetic import logistic_regression, synthetic_data, synthetic_problem

ROAR = FIXTURES / "roar"
SMALL = json.loads((ROAR / "synthetic_small.json").read_text())
PAPER = json.loads((ROAR / "synthetic_paper.json").read_text())
NAMES = {
    "roar": "ROAR",
    "recursive": "Recursive ROAR",
    "truth": "Truth",
    "worst": "Worst case",
}


def assert_curves(result, reference, tolerance):
    assert result.curves.keys() == NAMES.keys()
    for name, curve in result.curves.items():
        np.testing.assert_allclose(curve, reference[NAMES[name]], rtol=0, atol=tolerance)


def test_the_data_is_the_reference():
    data, reference = synthetic_data(2000, 1000), np.load(ROAR / "synthetic_small.npz")
    for split, rows in (("train", data.train), ("test", data.test)):
        np.testing.assert_allclose(rows.features, reference[f"{split}_x"], rtol=0, atol=1e-14)
        np.testing.assert_array_equal(rows.labels > 0, reference[f"{split}_y"])


@pytest.mark.parametrize(("model", "tolerance"), [("linear", 1e-3), ("logistic", 0.02)])
def test_curves_and_orders_are_the_reference(model, tolerance):
    got = synthetic_problem(2000, 1000, model=model)
    assert_curves(got, SMALL["curves"][f"{model}_regression"], tolerance)
    orders = SMALL["orders"][f"{model}_regression"]
    assert list(got.orders["roar"]) == orders["ROAR"]
    assert list(got.orders["recursive"][:4]) == orders["Recursive ROAR"][:4]


def test_the_figure_of_the_paper_at_its_full_size():
    got = synthetic_problem()
    assert_curves(got, PAPER["curves_logistic_regression"], 0.02)
    assert list(got.orders["roar"]) == PAPER["orders"]["ROAR"]
    assert set(got.orders["recursive"][:4]) == {0, 1, 2, 3}
    assert got.curves["roar"][9] > 0.99 and got.curves["recursive"][4] < 0.51


def test_the_coefficients_are_those_of_the_reference_whichever_way_the_features_are_kept():
    reference = np.load(ROAR / "synthetic_small.npz")
    x, y = reference["train_x"], reference["train_y"].astype(np.float64)
    expected = np.array(SMALL["orders"]["logistic_regression"]["coef_full"])
    train = synthetic_data(2000, 1000).train
    for factors, loadings in ((x, np.eye(16)), (train.factors, train.loadings)):
        got = logistic_regression(factors, loadings, y)[:-1]
        # separable data: where the optimiser stops decides the size, not the direction
        assert got @ expected / np.linalg.norm(got) / np.linalg.norm(expected) > 0.9999


def test_a_logistic_regression_that_has_a_minimum_finds_it():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 3))
    y = (x @ [1.0, -0.5, 0.0] + rng.logistic(size=500) > 0.2).astype(np.float64)
    weights = logistic_regression(x, np.eye(3), y)
    residual = 1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1]))) - y
    np.testing.assert_allclose(np.append(x.T @ residual, residual.sum()) / 500, 0, atol=1e-4)


def test_least_squares_is_that_of_numpy_on_the_features_themselves():
    for noise in ("shared", "independent"):
        data = synthetic_data(300, 400, noise=noise, seed=3)
        got = synthetic_problem(300, 400, model="linear", noise=noise, seed=3)
        for removed in (0, 1, 5, 12, 16):
            kept = np.ones(16)
            kept[list(got.orders["worst"][:removed])] = 0
            x, y = data.train.features * kept, data.train.labels
            weights = np.linalg.lstsq(x - x.mean(0), y - y.mean(), rcond=1e-10)[0]
            answer = (data.test.features * kept - x.mean(0)) @ weights + y.mean() > 0.5
            accuracy = (answer == (data.test.labels > 0)).mean()
            assert got.curves["worst"][removed] == pytest.approx(accuracy, abs=1e-12)


def test_independent_noise_has_full_rank_and_hides_the_class():
    shared, independent = (
        synthetic_data(2000, 10, noise=n).train for n in ("shared", "independent")
    )
    assert np.linalg.matrix_rank(shared.features) == 3
    assert np.linalg.matrix_rank(independent.features) == 16
    got = synthetic_problem(2000, 1000, noise="independent")
    assert got.curves["truth"][0] < 0.95
    assert got.curves["truth"][4] < 0.6 < got.curves["worst"][8]


def test_every_order_removes_every_feature_once():
    got = synthetic_problem(200, 100, model="linear", seed=1)
    for name, order in got.orders.items():
        assert sorted(order) == list(range(16)), name
        assert got.curves[name].shape == (17,)
    starts, ends = ({curve[i].item() for curve in got.curves.values()} for i in (0, -1))
    assert len(starts) == len(ends) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_size": 1}, "at least 2"),
        ({"train_size": 2, "seed": 2}, "one class"),
        ({"model": "logit"}, "Unknown synthetic model"),
        ({"noise": "none"}, "Unknown synthetic noise"),
    ],
)
def test_bad_input_is_one_sentence(options, message):
    with pytest.raises(FaithscopeError, match=message):
        synthetic_problem(**{"train_size": 50, "test_size": 50, **options})
