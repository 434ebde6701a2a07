"""The choices of a protocol: precision, target and labels, units, and answers that are NaN."""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import assert_same_scores, randn, score_cube, score_maps, tiny_vit, toy

# --- Precision ---


@pytest.mark.parametrize(("precision", "error"), [("fp64", 1e-9), ("fp32", 1e-5), ("bf16", 0.05)])
def test_a_precision_is_as_exact_as_its_name_says(vit, precision, error):
    images, maps = randn(3, 3, 16, 16, dtype=torch.float32), {"mine": randn(3, 16, 16)}
    metrics = ["aopc", "deletion"]
    exact = score_maps(vit, images.double(), maps, metrics=metrics)
    module = tiny_vit(dtype=torch.float32)
    result = score_maps(module, images, maps, metrics=metrics, precision=precision)
    assert result.manifest.protocol["precision"] == precision
    assert_same_scores(result, exact, error)
    if precision != "fp64":
        assert np.abs(score_cube(result) - score_cube(exact)).max() > error / 1e4


def test_auto_is_the_models_own_precision_on_a_cpu(vit):
    images, maps = randn(2, 3, 16, 16), {"mine": randn(2, 16, 16)}
    for module, name in ((vit, "fp64"), (tiny_vit(dtype=torch.float32), "fp32")):
        assert score_maps(module, images, maps).manifest.protocol["precision"] == name


# --- Targets and labels ---

IMAGES, MAPS = randn(5, 3, 10, 10), {"mine": randn(5, 10, 10, seed=1)}
LABELS = torch.tensor([0, 1, 2, 3, 0])


def targets(result):
    return result.samples["target"].to_pylist()


def test_the_target_is_the_prediction_a_class_a_class_each_or_the_label():
    module = toy()
    predicted = module(IMAGES).argmax(-1)
    assert targets(score_maps(module, IMAGES, MAPS)) == predicted.tolist()
    assert targets(score_maps(module, IMAGES, MAPS, target=2)) == [2] * 5
    assert targets(score_maps(module, IMAGES, MAPS, target=LABELS)) == LABELS.tolist()
    by_label = score_maps(module, IMAGES, MAPS, target="label", labels=LABELS)
    assert targets(by_label) == LABELS.tolist()
    assert_same_scores(by_label, score_maps(module, IMAGES, MAPS, target=LABELS, labels=LABELS))


def test_the_probability_watched_is_that_of_the_target():
    result = score_maps(toy(), IMAGES, MAPS, target=LABELS)
    empty = IMAGES.mean(dim=(2, 3), keepdim=True).expand_as(IMAGES)
    intact, removed = (
        toy()(images).log_softmax(-1).detach()[range(5), LABELS] for images in (IMAGES, empty)
    )
    responses = result.responses.to_pylist()
    answers = [row["log_p"] for row in responses if (row["start"], row["stop"]) == (0, 100)]
    np.testing.assert_allclose(result.samples["log_p0"], intact, atol=1e-12)
    np.testing.assert_allclose(answers, removed, atol=1e-12)


def test_auc_counts_hits_of_the_label_if_there_is_one_else_of_the_prediction():
    module = toy()
    predicted = module(IMAGES).argmax(-1)
    wrong = (predicted + 1) % 4
    by_prediction, by_right, by_wrong = (
        score_maps(module, IMAGES, MAPS, metrics="auc", labels=labels)
        for labels in (None, predicted, wrong)
    )
    assert_same_scores(by_prediction, by_right, 0)
    assert (score_cube(by_wrong) < score_cube(by_right)).all()
    accuracies = [r.manifest.data.accuracy for r in (by_prediction, by_right, by_wrong)]
    assert accuracies == [None, 1.0, 0.0]


# --- Units ---


def test_patches_are_removed_whole():
    inputs = []
    module = tiny_vit()
    module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    images = randn(1, 3, 16, 16)
    result = score_maps(
        module, images, {"mine": randn(1, 4, 4)}, metrics="saco", units="patches", k=16
    )
    changed = (torch.cat(inputs)[1:] != images).any(1)
    assert changed.sum(dim=(1, 2)).tolist() == [16] * 16
    assert changed.reshape(16, 4, 4, 4, 4).any(4).any(2).sum(dim=(1, 2)).tolist() == [1] * 16
    assert result.manifest.protocol["units"] == "patches"


def test_a_pixel_map_in_units_of_patches_is_the_sum_inside_each_patch(vit):
    images, maps = randn(2, 3, 16, 16), randn(2, 16, 16)
    summed = maps.reshape(2, 4, 4, 4, 4).sum((2, 4))
    result = score_maps(vit, images, {"pixels": maps, "summed": summed}, units="patches")
    np.testing.assert_allclose(*score_cube(result), rtol=0, atol=1e-12)


@pytest.mark.parametrize("upsample", ["bilinear", "nearest"])
def test_a_patch_map_in_units_of_pixels_is_upsampled(vit, upsample):
    images, maps = randn(2, 3, 16, 16), randn(2, 4, 4)
    options = {"align_corners": False} if upsample == "bilinear" else {}
    large = nn.functional.interpolate(maps[:, None], size=(16, 16), mode=upsample, **options)[:, 0]
    result = score_maps(vit, images, {"patches": maps, "pixels": large}, upsample=upsample)
    np.testing.assert_allclose(*score_cube(result), rtol=0, atol=1e-12)
    cards = result.manifest.methods
    assert [cards[m].granularity for m in ("patches", "pixels")] == ["patch", "pixel"]


# --- Answers that are no numbers ---


class NotANumber(nn.Module):
    """Answers NaN, as an overflow in half precision does, where the first pixel was replaced."""

    def __init__(self):
        super().__init__()
        self.module = toy()

    def forward(self, x):
        first = x[:, 0, 0, 0]
        return self.module(x) * torch.where(first == 1, 1.0, torch.nan)[:, None]


def test_a_model_that_answers_nan_gives_no_score_and_a_flag():
    images, maps = randn(2, 3, 10, 10), randn(2, 10, 10)
    images[:, 0, 0, 0] = 1
    maps[0, 0, 0], maps[1] = 9, 0  # the most salient; and a constant map, also in need of an answer
    result = score_maps(NotANumber(), images, {"mine": maps}, metrics="registered")
    assert np.isnan(score_cube(result)).all()
    flags = result.scores.to_pylist()
    assert {row["flag"] for row in flags if row["sample"] == "0"} == {"nan_response"}
    assert {row["flag"] for row in flags if row["sample"] == "1"} == {"degenerate,nan_response"}
