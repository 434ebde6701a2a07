"""Masking tokens against the reference, and what must hold for any text and any scores."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conftest import FIXTURES
from faithscope import FaithscopeError
from faithscope.perturb import mask_tokens
from faithscope.perturb.tokens import count_to_mask

CASES = json.loads((FIXTURES / "roar" / "masking.json").read_text())["cases"]
ROUNDING = json.loads((FIXTURES / "roar" / "rounding.json").read_text())
NAMES = {"quantile": "relative", "count": "count"}
MASK = 3


def mask_step(case, step):
    ids = torch.tensor([step["sentence_before"]])
    eligible = ~torch.isin(ids, torch.tensor(case["ineligible_token_ids"]))
    scores = torch.tensor([step["importance"]])
    strategy, mask_id = NAMES[case["strategy"]], case["mask_token_id"]
    return mask_tokens(ids, eligible, scores, step["k"], strategy=strategy, mask_id=mask_id)[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_masks_the_tokens_of_the_reference(case):
    for step in case["steps"]:
        masked = mask_step(case, step)
        where = (masked == case["mask_token_id"]).nonzero().flatten().tolist()
        if not case["tie_break_unspecified"]:
            assert masked.tolist() == step["sentence_after"]
            assert where == step["masked_positions"]
            continue
        before, scores = np.array(step["sentence_before"]), np.array(step["importance"])
        assert len(where) == len(step["masked_positions"])
        assert not np.isin(before[where], case["ineligible_token_ids"]).any()
        scores[before == case["mask_token_id"]] = np.inf
        assert sorted(scores[where]) == sorted(scores[step["masked_positions"]])


def test_the_ties_of_the_fixtures_go_to_the_lowest_index():
    case = next(case for case in CASES if case["name"] == "all scores equal")
    for step in case["steps"]:
        where = (mask_step(case, step) == MASK).nonzero().flatten().tolist()
        assert where == list(range(1, 1 + len(step["masked_positions"])))


def test_counts_are_those_of_the_reference_for_every_tenth():
    for k, counts in ROUNDING["table_k10"].items():
        assert count_to_mask(torch.arange(101), int(k)).tolist() == counts


def test_counts_are_exact_where_float32_is_not():
    for k, n, reference, exact in ROUNDING["differs"]:
        assert count_to_mask(torch.tensor([n]), k).tolist() == [exact] != [reference]


def test_counts_are_exact_where_float64_is_not():
    assert int(70 / 100 * 90) == 62
    assert count_to_mask(torch.tensor([90]), 70).tolist() == [63]


@st.composite
def texts(draw):
    """Ids from 0 to 8 (0 to 2 are special, 3 is the mask) with scores for two steps."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(0, 24)))
    ids = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 8)))
    scores = arrays.arrays(np.float64, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 1e30]))
    ids = torch.from_numpy(ids)
    return ids, ids > 2, torch.from_numpy(draw(scores)), torch.from_numpy(draw(scores))


strategies = st.sampled_from(["relative", "count"])
levels = st.integers(0, 100)


@given(texts(), levels, strategies)
def test_the_right_number_is_masked_and_the_rest_is_left_alone(text, k, strategy):
    ids, eligible, scores, _ = text
    masked = mask_tokens(ids, eligible, scores, k, strategy=strategy, mask_id=MASK)
    n = eligible.sum(-1)
    wanted = n * k // 100 if strategy == "relative" else torch.minimum(n, torch.tensor(k))
    already = (ids == MASK).sum(-1)
    assert torch.equal((masked == MASK).sum(-1), torch.maximum(wanted, already))
    assert torch.equal(masked[~eligible], ids[~eligible])
    assert torch.equal(masked[masked != MASK], ids[masked != MASK])


@given(texts(), levels, levels, strategies)
def test_masks_of_a_recursion_are_nested(text, first, second, strategy):
    ids, eligible, scores, others = text
    low, high = sorted((first, second))
    once = mask_tokens(ids, eligible, scores, low, strategy=strategy, mask_id=MASK)
    twice = mask_tokens(once, eligible, others, high, strategy=strategy, mask_id=MASK)
    assert (twice[once == MASK] == MASK).all()


@given(texts(), levels, strategies)
def test_masking_again_at_the_same_level_changes_nothing(text, k, strategy):
    ids, eligible, scores, others = text
    once = mask_tokens(ids, eligible, scores, k, strategy=strategy, mask_id=MASK)
    again = mask_tokens(once, eligible, others, k, strategy=strategy, mask_id=MASK)
    assert torch.equal(again, once)


@given(texts(), levels, strategies)
def test_a_text_is_masked_alike_alone_and_padded(text, k, strategy):
    ids, eligible, scores, _ = text
    together = mask_tokens(ids, eligible, scores, k, strategy=strategy, mask_id=MASK)
    padded = [torch.nn.functional.pad(row, (0, 3)) for row in (ids[0], eligible[0], scores[0])]
    alone = mask_tokens(*(row[None] for row in padded), k, strategy=strategy, mask_id=MASK)
    assert torch.equal(alone[0, : ids.shape[1]], together[0])


def test_no_masked_token_outscores_one_that_is_left():
    scores = torch.rand(20, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.full((20, 50), 7)
    masked = mask_tokens(ids, ids > 2, scores, 30, mask_id=MASK) == MASK
    lowest = scores.masked_fill(~masked, 2).amin(-1)
    highest = scores.masked_fill(masked, -1).amax(-1)
    assert (lowest > highest).all() and masked.sum() == 300


def test_the_ids_given_are_not_changed():
    ids = torch.tensor([[1, 5, 6, 2]])
    mask_tokens(ids, ids > 2, torch.rand(1, 4), 100, mask_id=MASK)
    assert ids.tolist() == [[1, 5, 6, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 101}, "percentage from 0 to 100"),
        ({"k": -1, "strategy": "count"}, "0 or more"),
        ({"strategy": "quantile"}, "Unknown masking strategy 'quantile'"),
        ({"scores": torch.zeros(1, 3)}, "one shape"),
        ({"scores": torch.tensor([[0.0, torch.nan, 1.0, 0.0]])}, "1 scores of eligible units"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    ids = torch.tensor([[1, 5, 6, 2]])
    given = {"ids": ids, "eligible": ids > 2, "scores": torch.zeros(1, 4), "k": 10, "mask_id": MASK}
    with pytest.raises(FaithscopeError, match=message):
        mask_tokens(**{**given, **change})


def test_scores_that_are_nan_matter_only_where_a_token_can_be_masked():
    ids = torch.tensor([[1, 5, 6, 2]])
    scores = torch.tensor([[torch.nan, 0.1, 0.2, torch.inf]])
    assert mask_tokens(ids, ids > 2, scores, 50, mask_id=MASK).tolist() == [[1, 5, 3, 2]]
