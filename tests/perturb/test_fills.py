"""Fills: what stands in the place of a removed unit."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve
from torch.nn.functional import conv2d, interpolate

from conftest import randn
from faithscope import FaithscopeError
from faithscope.perturb import FILLS, FillContext
from faithscope.perturb.inpaint import _neighbours, interpolate_missing

MEAN, STD = (0.5, 0.4, 0.45), (0.25, 0.2, 0.3)


def filled(name, images, mask, *, keys=None, seed=0):
    fill = FILLS[name]
    keys = [f"key {i}" for i in range(len(images))] if keys is None else keys
    return fill.apply(images, mask, fill.field(images, FillContext(keys, seed, MEAN, STD)))


def picture(height, width, *, batch=2, seed=0, offset=0.0):
    """Smooth shapes, some noise, unit spread: [batch, 3, height, width]."""
    smooth = interpolate(randn(batch, 3, 6, 7, seed=seed), size=(height, width), mode="bicubic")
    image = smooth + 0.3 * randn(batch, 3, height, width, seed=seed + 1)
    return image / image.std(dim=(2, 3), keepdim=True, correction=0) + offset


def mask_of(kind, share, height, width, *, batch=2, seed=0):
    """Scattered pixels or blocks, about `share` of all: bool [batch, 1, height, width]."""
    size = (height, width) if kind == "scattered" else (-(-height // 8), -(-width // 8))
    chances = torch.special.ndtr(randn(batch, 1, *size, seed=seed))
    return interpolate(chances, size=(height, width), mode="nearest") < share


every_fill = pytest.mark.parametrize("name", list(FILLS))


@every_fill
def test_what_is_not_masked_stays_bit_for_bit(name):
    images, mask = picture(16, 20), mask_of("blocks", 0.5, 16, 20)
    changed = filled(name, images, mask)
    keep = ~mask.expand_as(images)
    assert torch.equal(changed[keep], images[keep])
    assert (changed != images)[~keep].all()


@every_fill
def test_a_sample_is_filled_the_same_whatever_its_batch(name):
    images, mask = picture(16, 20, batch=5), mask_of("scattered", 0.5, 16, 20, batch=5)
    together = filled(name, images, mask)
    alone = filled(name, images[3:4], mask[3:4], keys=["key 3"])
    torch.testing.assert_close(together[3:4], alone, rtol=0, atol=1e-9)


@every_fill
def test_an_empty_mask_changes_nothing(name):
    images = picture(16, 20)
    assert torch.equal(filled(name, images, torch.zeros(2, 1, 16, 20, dtype=torch.bool)), images)


def test_mean_is_the_mean_of_each_channel_of_the_intact_image():
    images, mask = picture(8, 9, offset=2.0), mask_of("scattered", 0.5, 8, 9)
    expected = torch.where(mask, images.mean(dim=(2, 3), keepdim=True), images)
    assert torch.equal(filled("mean", images, mask), expected)


def test_black_is_zero_before_normalisation():
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(3, 1, 1) for v in (MEAN, STD))
    raw = torch.special.ndtr(picture(8, 9))
    mask = mask_of("scattered", 0.5, 8, 9)
    blackened = filled("black", (raw - mean) / std, mask) * std + mean
    torch.testing.assert_close(blackened, torch.where(mask, 0.0, raw), rtol=0, atol=1e-12)


def test_black_without_the_models_normalisation_is_refused():
    with pytest.raises(FaithscopeError, match="mean"):
        FILLS["black"].field(picture(8, 9), FillContext(["a"], 0, None, None))


def test_noise_has_the_mean_and_the_spread_of_the_image():
    images = 3 * picture(64, 64, offset=2.0)
    noise = filled("noise", images, torch.ones(2, 1, 64, 64, dtype=torch.bool))
    error = 5 * 3 / 64  # five standard errors
    assert (noise.mean((2, 3)) - images.mean((2, 3))).abs().max() < error
    assert (noise.std((2, 3)) - images.std((2, 3))).abs().max() < error


@pytest.mark.parametrize("name", ["noise", "inpaint"])
def test_random_fills_depend_on_seed_and_key_alone(name):
    images, mask = picture(8, 9, batch=1), mask_of("blocks", 0.5, 8, 9, batch=1)
    first = filled(name, images, mask, keys=["a"], seed=0)
    assert torch.equal(filled(name, images, mask, keys=["a"], seed=0), first)
    assert not torch.equal(filled(name, images, mask, keys=["b"], seed=0), first)
    assert not torch.equal(filled(name, images, mask, keys=["a"], seed=1), first)


@pytest.mark.parametrize("size", [(32, 32), (12, 40)])
def test_blur_is_a_gaussian_filter_with_a_tenth_of_the_longer_side(size):
    images = picture(*size, batch=1)
    sigma = max(size) / 10
    radius = [min(int(3 * sigma), side - 1) for side in size]
    expected = [gaussian_filter(c, sigma, mode="mirror", radius=radius) for c in images[0].numpy()]
    everything = torch.ones(1, 1, *size, dtype=torch.bool)
    np.testing.assert_allclose(filled("blur", images, everything)[0], expected, atol=1e-12)


def solved_exactly(image, mask):
    """Each masked pixel is the weighted mean of its neighbours: one sparse system, solved."""
    height, width = mask.shape
    unit = np.arange(height * width).reshape(height, width)
    entries = [(i, i, 1.0) for i in unit[~mask]]
    for y, x in np.argwhere(mask):
        near = [(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
        inside = [(v, u) for v, u in near if 0 <= v < height and 0 <= u < width]
        weights = [1 / 6 if v == y or u == x else 1 / 12 for v, u in inside]
        entries.append((unit[y, x], unit[y, x], sum(weights)))
        entries += [(unit[y, x], unit[p], -w) for p, w in zip(inside, weights, strict=True)]
    rows, columns, values = zip(*entries, strict=True)
    system = coo_matrix((values, (rows, columns))).tocsc()
    known = np.where(mask, 0.0, image).reshape(len(image), -1)
    return spsolve(system, known.T).T.reshape(image.shape)


@pytest.mark.parametrize("size", [(32, 32), (37, 50)])
@pytest.mark.parametrize("kind", ["scattered", "blocks"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_inpainting_is_the_exact_interpolation_to_a_hundredth_of_the_spread(
    size, kind, share, offset
):
    images, masks = picture(*size, offset=offset), mask_of(kind, share, *size)
    solved = interpolate_missing(images, masks)
    for got, image, mask in zip(solved, images, masks, strict=True):
        exact = solved_exactly(image.numpy(), mask[0].numpy())
        assert np.abs(got.numpy() - exact).max() < 0.01  # images have spread 1


@pytest.mark.parametrize("kind", ["scattered", "blocks"])
def test_inpainting_to_the_end_is_the_exact_solution(kind):
    images, masks = picture(37, 50), mask_of(kind, 0.7, 37, 50)
    solved = interpolate_missing(images, masks, tolerance=1e-13)
    for got, image, mask in zip(solved, images, masks, strict=True):
        exact = solved_exactly(image.numpy(), mask[0].numpy())
        np.testing.assert_allclose(got.numpy(), exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["scattered", "blocks"])
@pytest.mark.parametrize("share", [0.1, 0.9, 0.98])
def test_inpainting_takes_few_steps_however_large_the_holes_are(kind, share):
    images, masks = picture(150, 224, batch=1), mask_of(kind, share, 150, 224, batch=1)
    few = interpolate_missing(images, masks, max_iterations=9)
    exact = interpolate_missing(images, masks, tolerance=1e-12)
    assert (few - exact).abs().max() < 0.01


def test_sums_of_shifted_images_are_the_convolution():
    """What a CPU does, against what another device does."""
    values = randn(2, 3, 9, 12)
    weights = values.new_tensor([[1, 2, 1], [2, 0, 2], [1, 2, 1]]).expand(3, 1, 3, 3) / 12
    expected = conv2d(values, weights, padding=1, groups=3)
    torch.testing.assert_close(_neighbours(values), expected, rtol=0, atol=1e-14)


def test_inpainting_adds_noise_of_a_hundredth_of_the_spread():
    images, mask = 3 * picture(48, 48), mask_of("blocks", 0.5, 48, 48)
    noise = (filled("inpaint", images, mask) - interpolate_missing(images, mask))[
        mask.expand_as(images)
    ]
    assert noise.std() == pytest.approx(0.03, rel=0.1)


def test_inpainting_of_everything_is_the_mean_fill():
    images = picture(16, 20, batch=3)
    mask = mask_of("blocks", 0.5, 16, 20, batch=3)
    mask[1] = True
    changed = filled("inpaint", images, mask)
    torch.testing.assert_close(changed[1], filled("mean", images, mask)[1], rtol=0, atol=1e-12)
    assert changed[0].std() > 0.1


def test_inpainting_a_constant_image_leaves_it_constant():
    images = torch.full((1, 3, 16, 16), 2.5)
    torch.testing.assert_close(
        filled("inpaint", images, mask_of("blocks", 0.5, 16, 16)[:1]), images
    )
