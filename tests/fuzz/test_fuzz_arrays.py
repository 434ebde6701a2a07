"""Arrays and tensors of every type and layout: refused, or scored as in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import faithscope as fs
import odd
from conftest import randn, score_cube, toy
from faithscope.data import as_numbers
from faithscope.metrics import absolute_area, area, auto_k, mean_drop, mean_log_odds, racu_doubts
from faithscope.perturb import mask_tokens, span_sums
from fuzzing import answered, cases

pytestmark = pytest.mark.filterwarnings("ignore")

REAL = ("f8", ">f8", "f4", ">f4", "f2", "longdouble", "i1", "u1", ">i2", "u2", "i4", "u4", "i8")
REAL += ("u8", "bool", "object")
PLAIN = sorted(set(odd.LAYOUTS) - {"meta", "float8", "nested", "conjugated"})
"""Layouts of which numbers can be read."""


def exact(values: Any) -> Tensor:
    """What was given, in float64."""
    return as_numbers(values).detach()


def close(found: Tensor, wanted: Tensor) -> None:
    """Equal up to the rounding of the result's own type."""
    assert found.is_floating_point() and found.dtype in (torch.float32, torch.float64)
    tolerance = 1e-12 if found.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(
        found.detach().double(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def real_arrays(*shapes: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return odd.arrays(list(shapes), kinds=REAL)


@given(st.data())
@cases(30)
def test_scores_of_any_numbers_are_those_of_float64(data):
    """Whatever the types of the two, in whatever layout."""
    size = data.draw(st.sampled_from([(2,), (5,), (3, 4)]))
    first, second = data.draw(real_arrays(size)), data.draw(real_arrays(size))
    for call in (fs.saco, lambda s, d: fs.saco(s, d, weight="ratio", penalty=1.5)):
        found = answered(call, first, second)
        if not isinstance(found, fs.FaithscopeError):
            close(found, call(exact(first), exact(second)))


@given(st.data())
@cases(30)
def test_curves_of_any_numbers_are_those_of_float64(data):
    """The other functional metrics."""
    points = np.array([0.0, 0.3, 0.7, 1.0])
    one, other = data.draw(real_arrays((4,), (2, 4))), data.draw(real_arrays((4,), (2, 4)))
    alone = data.draw(real_arrays((), (2,)))
    for call, given_values in (
        (fs.racu, (one, other, points)),
        (absolute_area, (one, other, points)),
        (mean_drop, (alone, one)),
        (mean_log_odds, (alone, one)),
        (area, (one,)),
    ):
        found = answered(call, *given_values)
        if not isinstance(found, fs.FaithscopeError):
            with np.errstate(all="ignore"):
                wanted = call(*map(exact, given_values))
            if wanted.isfinite().all() and wanted.abs().max() < 1e30:
                close(found, wanted)
    answered(racu_doubts, other, points)
    answered(auto_k, one)


@given(first=odd.values() | odd.arrays(), second=odd.values() | odd.arrays())
@cases(30)
def test_anything_else_is_refused(first, second):
    """Shapes that do not go together, objects, text."""
    for call in (fs.saco, mean_drop, mean_log_odds):
        answered(call, first, second)
    for third in (first, second, [0.0, 1.0]):
        answered(fs.racu, first, second, third)
        answered(absolute_area, first, second, third)
    answered(area, first)


@given(st.data())
@cases(12)
def test_maps_of_any_type_score_as_in_float64(data):
    """A run over maps that were given."""
    images = randn(2, 3, 4, 4)
    maps = data.draw(real_arrays((2, 4, 4)))
    units = {"metrics": ["saco", "aopc"], "k": data.draw(st.sampled_from([2, 5, "auto"]))}
    found = answered(fs.evaluate, toy(4, 4), images, maps={"mine": maps}, random_draws=0, **units)
    if isinstance(found, fs.FaithscopeError):
        return
    same = fs.evaluate(toy(4, 4), images, maps={"mine": exact(maps)}, random_draws=0, **units)
    np.testing.assert_allclose(score_cube(found), score_cube(same), atol=1e-9)
    flags = [result.scores["flag"].to_pylist() for result in (found, same)]
    assert flags[0] == flags[1]


@given(st.data())
@cases(30)
def test_images_labels_and_targets_of_any_type(data):
    """Pixels are floats; classes are whole numbers; whatever they are held in."""
    images = data.draw(
        odd.arrays([(2, 3, 4, 4), (2, 4, 4, 3), (3, 4, 4), (0, 3, 4, 4), (2, 3, 0, 0), (2,)])
        | st.just(randn(2, 3, 4, 4))
    )
    classes = odd.arrays([(2,), (), (1,), (2, 2)]) | odd.numbers() | st.none()
    labels, target = data.draw(classes), data.draw(classes)
    options = {"maps": {"mine": randn(2, 4, 4)}, "metrics": "auc", "random_draws": 0}
    aim = "predicted" if target is None else target
    answered(fs.evaluate, toy(4, 4), images, labels=labels, target=aim, **options)
    answered(fs.explain, toy(4, 4), images, "gradient", target=target)


@given(kind=st.sampled_from(PLAIN), images=st.sampled_from(["f8", "f4", ">f8", "longdouble"]))
@cases(15)
def test_images_in_any_layout_are_the_same_images(kind, images):
    """Explained and scored as the plain tensor is."""
    pixels = randn(2, 3, 4, 4).numpy()
    held = odd.laid_out(pixels.astype(images), kind)
    found = answered(fs.explain, toy(4, 4), held, "gradient")
    if not isinstance(found, fs.FaithscopeError):
        same = fs.explain(toy(4, 4), exact(held), "gradient")
        torch.testing.assert_close(found, same, rtol=1e-6, atol=1e-9)


@given(st.data())
@cases(10)
def test_sums_and_masks_hold_for_any_numbers(data):
    """Ranks and sums inside the package, of what methods may give."""
    maps = answered(exact, data.draw(real_arrays((2, 6))))
    if isinstance(maps, fs.FaithscopeError):
        return
    ordered = maps.sort(-1, descending=True).values
    sums = span_sums(ordered, [(0, 3), (3, 6), (0, 0)])
    assert sums.dtype == torch.float64 and sums[:, 2].eq(0).all()
    ids = torch.arange(12).reshape(2, 6) + 5
    found = answered(mask_tokens, ids, ids > 5, maps, 50, mask_id=3)
    if not isinstance(found, fs.FaithscopeError):
        assert ((found == 3).sum(-1) == ((ids > 5).sum(-1) // 2)).all()
