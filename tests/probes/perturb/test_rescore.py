"""Other metrics of a finished run, from what the model answered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import faithscope as fs
from commands import fails, run
from conftest import randn, tiny_vit
from families import refused

METHODS = ["rollout", "gradient", "grad_cam"]


def evaluate(metrics, **options) -> fs.Result:
    images, labels = randn(5, 3, 16, 16), torch.arange(5) % 5
    maps = {"flat": torch.ones(5, 16, 16).double(), "odd": randn(5, 16, 16, seed=3)}
    maps["odd"][2, 0, 0] = torch.nan
    return fs.evaluate(
        tiny_vit(), images, METHODS, metrics, labels=labels, maps=maps, random_draws=2, **options
    )


@pytest.fixture(scope="module")
def everything() -> fs.Result:
    return evaluate("registered")


def assert_same(left: fs.Result, right: fs.Result) -> None:
    """Equal but for the rounding of batches that were packed in another way."""
    assert left.scores.drop_columns("value").equals(right.scores.drop_columns("value"))
    values = (result.scores["value"].to_numpy() for result in (left, right))
    np.testing.assert_allclose(*values, rtol=0, atol=1e-12)
    assert left.metrics == right.metrics
    assert left.headline() == right.headline()


@pytest.mark.parametrize(
    "metrics",
    ["saco", ["auc", "aopc"], ["saco(weight=ratio)", "deletion"], "saco(penalty=1)", "registered"],
)
def test_other_metrics_are_what_a_run_of_their_own_gives(everything, metrics):
    assert_same(everything.rescore(metrics), evaluate(metrics))


def test_another_k_that_was_run_needs_no_model():
    run = evaluate(["saco(k=5)", "saco(k=10)"])
    assert_same(run.rescore("saco", k=5), evaluate("saco", k=5))


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ("saco(k=7)", ["'saco(k=7)'", "not run", "evaluate again"]),
        ("saco(k=auto)", ["give a number"]),
        ("sacco", ["did you mean 'saco'"]),
    ],
)
def test_what_was_not_run_is_refused(everything, metrics, words):
    with refused(*words):
        everything.rescore(metrics)


def test_the_command_line_takes_other_metrics_from_a_run(everything, tmp_path):
    everything.save(tmp_path / "run")
    request = ["evaluate", "--from", tmp_path / "run", "--metrics", "deletion,saco"]
    assert "deletion ↓" in run(*request, "--out", tmp_path / "other").stdout
    assert_same(fs.load_result(tmp_path / "other"), evaluate(["deletion", "saco"]))
    assert "--k has no effect" in fails(*request, "--k", 5)
    assert "holds a run already" in fails(*request, "--out", tmp_path / "run")
    fails("evaluate", "--from", tmp_path / "none")


def test_a_metric_of_one_cut_does_not_make_maps_look_constant():
    run = evaluate("aopc(steps=1)", units="patches")
    assert_same(run.rescore("aopc(steps=1)"), run)


def test_nonsense_is_refused(everything):
    with refused("k"):
        everything.rescore("saco", k=0)
