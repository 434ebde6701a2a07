"""Sparsity against the reference, in both of its definitions."""

import json
import math

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from conftest import FIXTURES, randn
from faithscope import FaithscopeError
from faithscope.probes.retrain.sparsity import sparsity

REFERENCE = json.loads((FIXTURES / "roar" / "sparsity.json").read_text())
LETTERS = {"count": "c", "relative": "q"}


def measured(importances, **options):
    scores = pad_sequence([torch.tensor(s) for s in importances], batch_first=True)
    lengths = torch.tensor([len(s) for s in importances])
    positions = torch.arange(scores.shape[1])
    eligible = (positions > 0) & (positions < lengths[:, None] - 1)
    return sparsity(scores, lengths, eligible, **options)


def assert_is(got, reference):
    names = {f"{LETTERS[kind]}{x}": v for kind, rows in got.items() for x, v in rows.items()}
    assert names.keys() == reference.keys() - {"length"}
    for name, value in names.items():
        assert value == pytest.approx(reference[name], abs=5e-7), name


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: case["name"])
def test_sparsity_is_the_reference(case):
    assert_is(measured([case["importance"]]), case["result"])


def test_the_mean_over_texts_is_the_reference():
    got = measured([case["importance"] for case in REFERENCE["cases"]])
    assert_is(got, REFERENCE["mean_over_cases"])


def test_without_specials_only_eligible_tokens_count():
    scores = [9.0, 3.0, 1.0, 4.0, 2.0, 9.0]
    assert measured([scores])["count"][1] == pytest.approx(9 / 28)
    without = measured([scores], specials=False)
    assert without["count"] == pytest.approx(
        {1: 0.4, 2: 0.7, 3: 0.9, **dict.fromkeys(range(4, 11), 1)}
    )
    assert without["relative"][50] == pytest.approx(0.9)  # 3 of 4: one more than the name says
    assert without["relative"][20] == pytest.approx(0.4)


def test_what_lies_beyond_the_text_does_not_count():
    scores = randn(1, 8).abs()
    eligible = torch.ones(1, 8, dtype=torch.bool)
    got = sparsity(scores, torch.tensor([5]), eligible)
    assert got == sparsity(scores[:, :5], torch.tensor([5]), eligible[:, :5])


def test_texts_without_any_score_are_left_out():
    with_scores = measured([[1.0, 2.0, 1.0]])
    assert measured([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]) == with_scores
    nothing = measured([[0.0, 0.0, 0.0]])
    assert all(math.isnan(value) for rows in nothing.values() for value in rows.values())


def test_the_sign_of_a_score_does_not_matter():
    scores = randn(1, 12)
    same = (torch.tensor([12]), torch.ones(1, 12, dtype=torch.bool))
    assert sparsity(scores, *same) == sparsity(scores.abs(), *same)


def test_other_shapes_are_refused():
    with pytest.raises(FaithscopeError, match="Sparsity needs"):
        sparsity(torch.zeros(2, 3), torch.tensor([3]), torch.ones(2, 3, dtype=torch.bool))
