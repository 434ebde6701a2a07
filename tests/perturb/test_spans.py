"""Ranks, spans and units: what is removed, exactly."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import interpolate

from conftest import randn
from faithscope import FaithscopeError
from faithscope.perturb import (
    Span,
    groups,
    keep_most_relevant,
    least_relevant_first,
    most_relevant_first,
    order_units,
    ranks_of,
    span_sums,
    to_patches,
    to_pixels,
    unit_mask_to_pixels,
)


def test_edges_are_exact_where_floating_point_is_not():
    assert int(0.29 * 100) == 28  # what float edges would give
    assert Span(Fraction(0), Fraction(29, 100)).cut(100) == (0, 29)


def test_an_empty_span_is_the_intact_input():
    assert Span(Fraction(3, 10), Fraction(3, 10)).cut(100) == (0, 0)
    assert Span(Fraction(1, 10), Fraction(2, 10)).cut(5) == (0, 1)
    assert Span(Fraction(2, 10), Fraction(3, 10)).cut(5) == (0, 0)


@pytest.mark.parametrize("n", [63, 100, 1024])
def test_the_spans_of_the_metrics_are_those_of_the_papers(n):
    edges = [j * n // 10 for j in range(11)]
    assert [span.cut(n) for span in groups(10)] == list(pairwise(edges))
    assert [span.cut(n) for span in most_relevant_first(10)[1:]] == [(0, e) for e in edges[1:]]
    assert [span.cut(n) for span in least_relevant_first(10)[1:]] == [
        (e, n) for e in reversed(edges[:-1])
    ]
    assert keep_most_relevant(10) == tuple(reversed(least_relevant_first(10)))


def test_equal_spans_of_different_metrics_are_equal_values():
    assert groups(10)[0] == most_relevant_first(10)[1] == most_relevant_first(20)[2]
    assert groups(10)[-1] == least_relevant_first(10)[1] == keep_most_relevant(10)[9]


@pytest.mark.parametrize(
    ("ties", "expected"), [("ascending", [4, 1, 2, 0, 3]), ("descending", [4, 2, 1, 3, 0])]
)
def test_ties_are_broken_by_index(ties, expected):
    assert order_units(torch.tensor([0.0, 3.0, 3.0, -0.0, 4.0]), ties).tolist() == expected


def test_an_unknown_tie_order_is_refused():
    with pytest.raises(FaithscopeError, match="ascending"):
        order_units(torch.zeros(3), "sideways")


def test_every_map_of_a_batch_is_ordered_by_itself():
    maps = randn(4, 3, 20)
    for got, values in zip(order_units(maps).flatten(0, 1), maps.flatten(0, 1), strict=True):
        assert got.tolist() == sorted(range(20), key=lambda unit: -values[unit].item())


def test_ranks_invert_the_order():
    order = order_units(randn(5, 37))
    assert torch.equal(ranks_of(order).gather(1, order), torch.arange(37).int().expand(5, 37))


def test_span_sums_of_float32_maps_are_float64_and_bit_equal_for_equal_groups():
    constant = torch.full((2, 100), 0.1)
    sums = span_sums(constant, [span.cut(100) for span in groups(10)])
    assert sums.dtype == torch.float64
    assert (sums == sums[0, 0]).all()


def test_upsampling_by_hand():
    row = torch.tensor([[[0.0, 1.0]]])
    assert to_pixels(row, (1, 4))[0, 0].tolist() == [0.0, 0.25, 0.75, 1.0]
    assert to_pixels(row, (1, 4), "nearest")[0, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("grid", [(4, 4), (14, 14), (3, 5), (1, 1)])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (21, 40)])
def test_bilinear_upsampling_is_torchs_without_aligned_corners(grid, size):
    maps = randn(2, *grid)
    expected = interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(to_pixels(maps, size), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_border_of_an_upsampled_map_is_tied_exactly(dtype):
    maps = to_pixels(randn(20, 14, 14).to(dtype), (224, 224))
    corner = maps[:, :8, :8]
    assert (corner == corner[:, :1, :1]).all()
    assert (maps[:, :8] == maps[:, :1]).all()


def test_a_pixel_map_becomes_the_sum_inside_each_patch():
    maps = torch.arange(24.0).reshape(1, 4, 6)
    assert to_patches(maps, (2, 2))[0].tolist() == [[24.0, 42.0], [96.0, 114.0]]
    assert torch.equal(to_patches(maps, (4, 6)), maps)


def test_patches_that_do_not_fit_are_refused():
    with pytest.raises(FaithscopeError, match="units='pixels'"):
        to_patches(torch.zeros(1, 5, 6), (2, 3))


def test_a_mask_over_patches_covers_their_pixels():
    mask = torch.tensor([[True, False, False, False, False, True]])
    pixels = unit_mask_to_pixels(mask, (2, 3), (4, 9))[0, 0]
    assert pixels.sum() == 12
    assert pixels[:2, :3].all() and pixels[2:, 6:].all()
