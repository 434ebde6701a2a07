"""Measures that need no model: what a word says about the class, and random numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from faithscope.data.text import Tokens


def word_information(
    train: Tokens, size: int, classes: int, special_ids: Iterable[int] = ()
) -> Tensor:
    r"""Mutual information of a word's presence in a text and its class, averaged over classes.

    .. math:: I(w) = \sum_c \frac{N_c}{N} \sum_{i,j \in \{0, 1\}}
       \frac{N_{ij}}{N} \log_2 \frac{N N_{ij}}{N_{i\cdot} N_{\cdot j}}

    where N_ij counts training texts that have the word (i = 1) and are of class c (j = 1); one
    more text per class, which has every word, smooths the counts. `special_ids` (padding, start,
    end) get 0. Only the main text counts.

    Shapes: train ids [N, T] with ids < size -> float64 [size].

    >>> ids = torch.tensor([[1, 3, 2], [1, 4, 2], [1, 3, 2], [1, 4, 2]])
    >>> lengths = torch.full((4,), 3)
    >>> train = Tokens(ids, lengths, ids > 2, torch.tensor([0, 1, 0, 1]))
    >>> word_information(train, 5, 2, special_ids=(0, 1, 2)).round(decimals=4)
    tensor([0.0000, 0.0000, 0.0000, 0.4591, 0.4591], dtype=torch.float64)
    """
    texts = torch.bincount(train.labels, minlength=classes).to(torch.float64) + 1
    present = _presence(train, size, classes).to(torch.float64) + 1
    special = torch.zeros(size, dtype=torch.bool)
    special[list(special_ids)] = True
    return _average_information(present, texts[:, None]).masked_fill(special, 0.0)


def _average_information(present: Tensor, texts: Tensor) -> Tensor:
    """The equation, from N_11 [classes, V] and N_c [classes, 1], in their precision -> [V]."""
    total, having = texts.sum(), present.sum(0)
    information = torch.zeros_like(present)
    for cell, row, column in (
        (present, having, texts),
        (having - present, having, total - texts),
        (texts - present, total - having, texts),
        (total - having - texts + present, total - having, total - texts),
    ):
        logarithm = (total.log2() + cell.log2()) - (row.log2() + column.log2())
        information += torch.where(cell > 0, cell / total * logarithm, 0.0)
    return (texts / total * information).sum(0)


def _presence(train: Tokens, size: int, classes: int) -> Tensor:
    """How many texts of each class have each word: int64 [classes, size]."""
    inside = torch.arange(train.ids.shape[1]) < train.lengths[:, None]
    ordered = train.ids.masked_fill(~inside, size).sort(-1).values  # `size` is no word
    first = torch.ones_like(inside)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    cells = train.labels[:, None] * (size + 1) + ordered
    return torch.bincount(cells[first], minlength=classes * (size + 1)).view(classes, -1)[:, :size]


def word_scores(ids: Tensor, information: Tensor) -> Tensor:
    """The value of the word at each position: ids [N, T], information [V] -> [N, T].

    >>> word_scores(torch.tensor([[1, 3, 2]]), torch.tensor([0.0, 0.0, 0.0, 0.7]))
    tensor([[0.0000, 0.7000, 0.0000]])
    """
    return information[ids]


def random_scores(splits: Sequence[Tokens], seed: int, batch_size: int = 256) -> list[Tensor]:
    """Uniform random numbers for every position, the same as the paper's program draws.

    One stream serves all splits (give them as train, validation, test). It is drawn from batch by
    batch, (texts, longest text of the batch) at a time, so the numbers hang on the batch size.

    Shapes: float64 [N, T] for each split; positions beyond the longest text of a batch are 0.

    >>> ids = torch.tensor([[1, 5, 2]])
    >>> tokens = Tokens(ids, torch.tensor([3]), ids > 2, torch.tensor([0]))
    >>> random_scores([tokens, tokens], seed=0)[1].round(decimals=4)
    tensor([[0.5449, 0.4237, 0.6459]], dtype=torch.float64)
    """
    stream = np.random.RandomState(seed)  # the program's generator
    return [_draw(tokens, stream, batch_size) for tokens in splits]


def _draw(tokens: Tokens, stream: np.random.RandomState, batch_size: int) -> Tensor:
    scores = torch.zeros(tokens.ids.shape, dtype=torch.float64)
    for start in range(0, len(tokens), batch_size):
        lengths = tokens.lengths[start : start + batch_size]
        shape = (len(lengths), int(lengths.max()))
        scores[start : start + shape[0], : shape[1]] = torch.from_numpy(stream.uniform(size=shape))
    return scores
