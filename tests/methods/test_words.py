"""Measures without a model against the reference: mutual information and random numbers."""

import json
import math

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from conftest import FIXTURES
from faithscope.data.text import Tokens
from faithscope.methods.words import (
    _average_information,
    _presence,
    random_scores,
    word_information,
    word_scores,
)

ROAR = FIXTURES / "roar"
SPECIAL = (0, 1, 2)


def tokens(sentences, labels=None):
    ids = pad_sequence([torch.tensor(s) for s in sentences], batch_first=True)
    lengths = torch.tensor([len(s) for s in sentences])
    labels = torch.tensor(labels if labels is not None else [0] * len(sentences))
    return Tokens(ids, lengths, ids > 2, labels)


def documents():
    reference = json.loads((ROAR / "mutual_information.json").read_text())
    found = reference["documents"]
    train = tokens([d["sentence"] for d in found], [d["label"] for d in found])
    return train, reference


def literal_information(train, size, classes):
    """The definition, cell by cell."""
    words = [set(row[:n].tolist()) for row, n in zip(train.ids, train.lengths, strict=True)]
    texts = [*zip(words, train.labels.tolist(), strict=True)]
    texts += [(set(range(size)), c) for c in range(classes)]
    total, information = len(texts), [0.0] * size
    for word in range(size):
        for c in range(classes):
            share = sum(label == c for _, label in texts) / total
            for has in (True, False):
                for is_c in (True, False):
                    p_has = sum((word in w) == has for w, _ in texts) / total
                    p_is = sum((label == c) == is_c for _, label in texts) / total
                    p = sum((word in w) == has and (y == c) == is_c for w, y in texts) / total
                    if p:
                        information[word] += share * p * math.log2(p / (p_has * p_is))
    return information


def test_word_information_is_the_reference():
    train, reference = documents()
    size, classes = reference["vocab_size"], reference["n_classes"]
    expected = torch.tensor(reference["mutual_information_per_token"], dtype=torch.float64)
    got = word_information(train, size, classes, SPECIAL)
    # The reference adds logarithms in float32: 1e-6 apart, and the same in float32.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    present = (_presence(train, size, classes) + 1).float()
    texts = (train.labels.bincount(minlength=classes) + 1).float()[:, None]
    in_float32 = _average_information(present, texts).double()
    torch.testing.assert_close(in_float32[3:], expected[3:], rtol=0, atol=1e-9)
    assert got[list(SPECIAL)].tolist() == [0, 0, 0]


def test_a_word_of_every_text_tells_nothing():
    train = tokens([[1, 5, 2], [1, 5, 6, 2]], [0, 1])
    information = word_information(train, 7, 2)
    assert information[5] == 0 < information[6]


def test_word_information_is_the_definition_for_three_classes():
    generator = torch.Generator().manual_seed(0)
    sentences = [torch.randint(0, 9, (n,), generator=generator).tolist() for n in range(1, 13)]
    train = tokens(sentences, [0, 1, 2] * 4)
    got = word_information(train, 10, 3)
    np.testing.assert_allclose(got, literal_information(train, 10, 3), rtol=0, atol=1e-12)


def test_what_lies_beyond_the_main_text_does_not_count():
    train, _ = documents()
    longer = Tokens(
        torch.cat([train.ids, torch.full((len(train), 2), 11)], dim=1),
        train.lengths,
        torch.nn.functional.pad(train.eligible, (0, 2)),
        train.labels,
    )
    assert torch.equal(word_information(longer, 12, 2), word_information(train, 12, 2))


def test_word_scores_look_the_word_up():
    train, _ = documents()
    information = word_information(train, 12, 2, SPECIAL)
    scores = word_scores(train.ids, information)
    assert scores.shape == train.ids.shape
    assert scores[0, 1] == information[train.ids[0, 1]]
    assert not scores[~train.eligible].any()


def test_random_scores_are_the_reference():
    reference = json.loads((ROAR / "random_importance.json").read_text())
    first, second = reference["batches"]
    (rows, long), (more, longer) = first["shape"], second["shape"]
    sentences = [[1, *[5] * (n - 2), 2] for n in [long, 3] + [4] * (rows - 2) + [longer] * more]
    (got,) = random_scores([tokens(sentences)], reference["seed"], batch_size=rows)
    np.testing.assert_array_equal(got[:rows, :long], first["values"])
    np.testing.assert_array_equal(got[rows:], second["values"])
    assert not got[:rows, long:].any()


def test_one_random_stream_serves_all_splits():
    sentences = [[1, 5, 2]] * 4
    once, again = random_scores([tokens(sentences)] * 2, 7, batch_size=4)
    (together,) = random_scores([tokens(sentences * 2)], 7, batch_size=4)
    assert torch.equal(torch.cat([once, again]), together)
    assert not torch.equal(once, again)


def test_random_scores_leave_global_state_alone():
    before = np.random.get_state()[1].tolist()
    random_scores([tokens([[1, 5, 2]])], 0)
    assert np.random.get_state()[1].tolist() == before
