"""Cutting texts into splits, the same cut every time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def train_test_split(
    items: Sequence[T], share: float, rng: np.random.RandomState
) -> tuple[list[T], list[T]]:
    """Cut at random into two parts, the first with `share` of the items (rounded down).

    Item for item what scikit-learn's function of this name gives for ``train_size=share`` and the
    same generator: the second part is the head of a permutation, the first part what follows.

    >>> train_test_split("abcdef", 0.5, np.random.RandomState(0))
    (['d', 'a', 'e'], ['f', 'c', 'b'])
    """
    first = math.floor(share * len(items))
    order = rng.permutation(len(items)).tolist()
    rest = len(items) - first
    return [items[place] for place in order[rest:]], [items[place] for place in order[:rest]]


def stratified_part(
    labels: np.ndarray, share: float, rng: np.random.RandomState
) -> tuple[list[int], list[int]]:
    """Places to keep and places to take out: `share` of every class, as near as it goes.

    The places are put in random order within each class, class after class, and every so many-th
    is taken; both lists are sorted.

    >>> stratified_part(np.array([0, 1, 0, 1, 0, 1, 0, 1]), 0.25, np.random.RandomState(0))
    ([1, 2, 4, 5, 6, 7], [0, 3])
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    count = round(share * len(labels))
    chosen = (np.arange(count) * len(labels) + len(labels) // 2) // max(count, 1)
    taken = order[chosen]
    return np.setdiff1d(order, taken).tolist(), np.sort(taken).tolist()
