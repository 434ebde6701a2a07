"""Ranks and spans: every perturbation is "replace the units whose rank lies in [start, stop)".

Edges are exact fractions of the rank axis, cut at floor(edge · n). After cutting, equal spans are
equal values, so what several metrics need is a set union.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from faithscope.errors import choose
from faithscope.models.device import as_float64

TIES = ("ascending", "descending")

Cut = tuple[int, int]
"""A span in whole units of one sample: ranks start (included) to stop (excluded)."""


@dataclass(frozen=True)
class Span:
    """A piece of the rank axis, most salient unit at 0, least salient at 1."""

    start: Fraction
    stop: Fraction

    def cut(self, n: int) -> Cut:
        """Give the ranks this span covers in a sample of `n` units; an empty span is (0, 0).

        >>> Span(Fraction(1, 10), Fraction(2, 10)).cut(63)
        (6, 12)
        """
        start, stop = int(self.start * n), int(self.stop * n)
        return (start, stop) if start < stop else (0, 0)


def groups(k: int) -> tuple[Span, ...]:
    """K equal groups, most salient first: [(i-1)/K, i/K)."""
    return tuple(Span(Fraction(i, k), Fraction(i + 1, k)) for i in range(k))


def most_relevant_first(steps: int) -> tuple[Span, ...]:
    """The intact input, then the most salient j/steps removed, up to everything: [0, j/steps)."""
    return tuple(Span(Fraction(0), Fraction(j, steps)) for j in range(steps + 1))


def least_relevant_first(steps: int) -> tuple[Span, ...]:
    """The intact input, then the least salient j/steps removed: [1 - j/steps, 1)."""
    return tuple(Span(Fraction(steps - j, steps), Fraction(1)) for j in range(steps + 1))


def keep_most_relevant(steps: int) -> tuple[Span, ...]:
    """Everything removed, then all but the most salient j/steps: [j/steps, 1)."""
    return tuple(Span(Fraction(j, steps), Fraction(1)) for j in range(steps + 1))


def order_units(maps: Tensor, ties: str = "ascending") -> Tensor:
    """Order the units of each map by falling salience; ties by ascending (or descending) index.

    Shapes: maps [..., n] -> unit indices [..., n].

    >>> order_units(torch.tensor([1.0, 3.0, 3.0, 0.0]))
    tensor([1, 2, 0, 3])
    >>> order_units(torch.tensor([1.0, 3.0, 3.0, 0.0]), ties="descending")
    tensor([2, 1, 0, 3])
    """
    if choose("tie order", ties, TIES) == "ascending":
        return maps.argsort(dim=-1, descending=True, stable=True)
    last = maps.shape[-1] - 1
    return last - maps.flip(-1).argsort(dim=-1, descending=True, stable=True)


def ranks_of(order: Tensor) -> Tensor:
    """Invert an order: the rank of each unit, int32, same shape.

    >>> ranks_of(torch.tensor([1, 2, 0, 3]))
    tensor([2, 0, 1, 3], dtype=torch.int32)
    """
    positions = torch.arange(order.shape[-1], device=order.device, dtype=torch.int32)
    ranks = torch.empty(order.shape, device=order.device, dtype=torch.int32)
    return ranks.scatter_(-1, order, positions.expand(order.shape))


def scaled(values: Tensor) -> Tensor:
    """Rows of float64 brought near 1 by a power of two, so that no sum or square overflows.

    It changes no ratio and not one bit of it.

    >>> scaled(torch.tensor([6.0, -2.0], dtype=torch.float64))
    tensor([ 0.7500, -0.2500], dtype=torch.float64)
    """
    if values.shape[-1] == 0:
        return values
    largest = torch.maximum(values.amax(-1, keepdim=True), -values.amin(-1, keepdim=True))
    exponent = torch.frexp(largest.detach()).exponent.clamp(-1000, 1000)  # 2^1000 is a number still
    return values * torch.exp2(-exponent.to(values.dtype))


def span_sums(sorted_maps: Tensor, cuts: list[Cut]) -> Tensor:
    """Sum the salience in each span, in float64 and in a fixed order (same bits every time).

    Shapes: sorted_maps [..., n] (falling salience), S cuts -> [..., S].

    >>> span_sums(torch.tensor([4.0, 2.0, 1.0]), [(0, 2), (2, 3), (0, 0)])
    tensor([6., 1., 0.], dtype=torch.float64)
    """
    values = as_float64(sorted_maps)
    return torch.stack([values[..., start:stop].sum(-1) for start, stop in cuts], dim=-1)
