"""Scores of a classifier against the reference, and at the edges."""

import json
import math

import numpy as np
import pytest
import torch

from conftest import FIXTURES, randn
from faithscope import FaithscopeError
from faithscope.probes.retrain.classification import (
    CLASSIFICATION_METRICS,
    classification_scores,
    selection_score,
)

CASES = json.loads((FIXTURES / "roar" / "metrics.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_metric_is_the_reference(case):
    got = classification_scores(torch.tensor(case["logits"]), torch.tensor(case["label"]))
    assert tuple(got) == CLASSIFICATION_METRICS
    for name, reference in {
        "accuracy": "accuracy",
        "micro_f1": "f1_micro",
        "macro_f1": "f1_macro",
        "auroc": "auroc_macro",
        "cross_entropy": "ce_mean",
    }.items():
        assert got[name] == pytest.approx(case[reference], abs=3e-7), name
    assert got["macro_f1"] == pytest.approx(case["f1_macro_sklearn_present"], abs=1e-12)
    if "auroc_binary_sklearn" in case:
        assert got["auroc"] == pytest.approx(case["auroc_binary_sklearn"], abs=1e-12)


def test_auroc_counts_the_pairs_that_are_in_order():
    generator = torch.Generator().manual_seed(0)
    margin = torch.randint(0, 6, (40,), generator=generator).double()  # with ties
    labels = torch.randint(0, 2, (40,), generator=generator)
    logits = torch.stack([torch.zeros(40).double(), margin], dim=1)
    above = margin[labels == 1][:, None] - margin[labels == 0]
    expected = ((above > 0).double() + (above == 0).double() / 2).mean().item()
    assert selection_score(logits, labels, "auroc") == pytest.approx(expected, abs=1e-12)


def test_a_selection_score_is_the_metric_of_that_name():
    logits, labels = randn(50, 3), torch.arange(50) % 3
    scores = classification_scores(logits, labels)
    for name in ("accuracy", "auroc"):
        assert selection_score(logits, labels, name) == scores[name]


def test_scores_agree_with_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = randn(80, 4), torch.arange(80) % 4
    got, probabilities = classification_scores(logits, labels), logits.softmax(-1).numpy()
    predicted = logits.argmax(-1).numpy()
    expected = {
        "accuracy": sklearn.accuracy_score(labels, predicted),
        "macro_f1": sklearn.f1_score(labels, predicted, average="macro"),
        "auroc": sklearn.roc_auc_score(labels, probabilities, multi_class="ovr"),
        "cross_entropy": sklearn.log_loss(labels, probabilities),
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12)


def test_one_class_only_has_no_auroc_to_speak_of():
    assert classification_scores(randn(5, 2), torch.zeros(5, dtype=torch.int64))["auroc"] == 0


def test_a_model_that_broke_down_is_not_selected_by_chance():
    logits = randn(4, 2)
    logits[1, 0] = math.nan
    scores = classification_scores(logits, torch.tensor([0, 1, 0, 1]))
    assert all(np.isnan(score) for score in scores.values())


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0).long(), "at least one text"),
        (torch.zeros(3, 2), torch.zeros(2).long(), "at least one text"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), "from 0 to 1, got 0 to 2"),
        (torch.zeros(3, 2), torch.tensor([0, 1, -1]), "got -1 to 1"),
    ],
)
def test_bad_input_is_one_sentence(logits, labels, message):
    with pytest.raises(FaithscopeError, match=message):
        classification_scores(logits, labels)


def test_an_unknown_selection_is_refused():
    with pytest.raises(FaithscopeError, match="Unknown selection metric 'f1'"):
        selection_score(torch.zeros(2, 2), torch.tensor([0, 1]), "f1")
