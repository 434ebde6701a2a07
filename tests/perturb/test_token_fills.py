"""Fills for texts, on tokens alone."""

import pytest
import torch

from faithscope.models.tokens import NO_UNIT, TokenInputs
from faithscope.perturb import FILLS, FillContext
from faithscope.perturb.fills import TEXT_FILLS
from faithscope.probes.perturb.respond import Rows, Subject, equal_runs
from families import refused

IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 9, 5, 4, 2]])
UNITS = torch.tensor([[NO_UNIT, 0, 1, 1, 2, NO_UNIT], [NO_UNIT, 0, 0, 1, 2, NO_UNIT]])
TEXTS = TokenInputs(IDS, torch.ones_like(IDS), torch.zeros_like(IDS), UNITS, 3)
SPECIALS = {"mask": 4, "unk": 3, "pad": 1}
MASK = torch.tensor([[False, True, False], [True, False, False]])


def filled(name: str, mask: torch.Tensor = MASK) -> TokenInputs:
    fill = TEXT_FILLS[name]
    field = fill.field(TEXTS, FillContext(["a", "b"], 0, specials=SPECIALS))
    return fill.replaced(TEXTS, mask, field, (1, 3))


def test_tokens_are_replaced_by_one_of_the_tokenizers():
    for name, token in (("mask", 4), ("unk", 3)):
        made = filled(name)
        assert made.ids.tolist() == [[0, 5, token, token, 8, 2], [0, token, token, 5, 4, 2]]
        assert made.attended.all() and made.count == 3
    assert filled("mask", torch.ones_like(MASK)).ids.tolist() == [[0, 4, 4, 4, 4, 2]] * 2
    assert filled("mask", torch.zeros_like(MASK)).ids.equal(IDS)


def test_nobody_attends_to_what_is_padded():
    made = filled("pad")
    assert made.ids.equal(IDS)
    assert made.attended.tolist() == [[1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1]]


def test_dropped_tokens_leave():
    made = filled("drop")
    assert made.ids.tolist() == [[0, 5, 8, 2], [0, 5, 4, 2]]
    assert made.units.tolist() == [[-1, 0, 2, -1], [-1, 1, 2, -1]]
    assert filled("drop", torch.ones_like(MASK)).ids.tolist() == [[0, 2], [0, 2]]


def test_the_given_texts_stay_as_they_are():
    for name in TEXT_FILLS:
        filled(name)
        assert TEXTS.ids.equal(IDS) and TEXTS.attended.all()


def test_texts_that_lose_as_many_tokens_are_run_together():
    """Units of one and of two tokens: how many leave is not how many units do."""
    ranks = torch.tensor([[0, 1, 2], [2, 1, 0]], dtype=torch.int32)
    subject = Subject(TEXTS, torch.zeros(2, 1), ranks, (1, 3))
    samples, stops = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 2, 3, 1, 2])
    rows = Rows(samples, samples, torch.zeros_like(samples), stops)
    assert subject.lengths(rows).tolist() == [1, 3, 4, 1, 2]
    order, runs = equal_runs(subject.lengths(rows))
    assert [order[run.start : run.stop].tolist() for run in runs] == [[0, 3], [4], [1], [2]]


@pytest.mark.parametrize(
    ("name", "specials", "others"),
    [
        ("mask", {**SPECIALS, "mask": None}, "(drop, pad, unk)"),
        ("unk", {**SPECIALS, "unk": None}, "(drop, mask, pad)"),
        ("mask", {"mask": None, "unk": None, "pad": None}, "(drop, pad)"),
    ],
)
def test_a_fill_without_its_token_is_refused(name, specials, others):
    with refused(f"The fill '{name}' needs a {name} token", others):
        TEXT_FILLS[name].field(TEXTS, FillContext(["a", "b"], 0, specials=specials))


def test_something_must_be_left_when_all_is_dropped():
    bare = TokenInputs(IDS, torch.ones_like(IDS), IDS, torch.arange(6).expand(2, 6), 6)
    with refused("'drop' would leave nothing", "(mask, pad, unk)"):
        TEXT_FILLS["drop"].field(bare, FillContext(["a", "b"], 0, specials=SPECIALS))


def test_images_and_texts_have_fills_of_their_own():
    assert [*FILLS.of("text")] == ["drop", "mask", "pad", "unk"]
    assert {*FILLS.of("image")} & {*FILLS.of("text")} == {"drop"}
