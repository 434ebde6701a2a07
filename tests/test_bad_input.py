"""Bad input: every mistake is answered by one sentence: what is wrong, and what is valid."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import faithscope as fs
from faithscope.methods import METHODS
from faithscope.metrics import metrics_of
from families import images_of, refused, seeded, timm_model, timm_vit

SIZE = (32, 32)
METRICS = sorted(metrics_of("perturb"))
NORMAL = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return seeded(timm_vit)


def maps_of(*shape: int) -> dict[str, torch.Tensor]:
    return {"mine": torch.rand(*shape, generator=torch.Generator().manual_seed(0))}


# Names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": ["saco", "nonsense"]}, ["metric 'nonsense'", ", ".join(METRICS)]),
        ({"methods": [3]}, ["A method is a name", "3"]),
        ({"methods": 5}, ["A method is"]),
        ({"metrics": [3]}, ["A metric is a name", "3"]),
        ({"metrics": 1.5}, ["A metric is"]),
        ({"metrics": []}, ["No metrics", ", ".join(METRICS)]),
        ({"methods": [], "random_draws": 0}, ["nothing to evaluate", "methods=… or maps=…"]),
        ({"precision": "tf32"}, ["'tf32'", "CUDA", "fp32"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_unknown_names_are_answered_with_the_valid_ones(module, options, words):
    with refused(*words):
        fs.evaluate(module, images_of(SIZE), **{"methods": "gradient", **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "rolout"}, ["did you mean 'rollout'", ", ".join(METHODS)]),
        ({"units": "tokens"}, ["units='tokens' is not for images", "pixels or patches"]),
        ({"upsample": "cubic"}, ["'cubic'", "bilinear, nearest"]),
    ],
)
def test_explain_answers_unknown_names_too(module, options, words):
    with refused(*words):
        fs.explain(module, images_of(SIZE), **{"methods": "rollout", **options})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit_base_patch16_224", ["'source:name'", "timm:vit_base_patch16_224"]),
        (
            "tim:vit",
            [
                "model source 'tim'",
                "did you mean 'timm'",
                "bundled, file, hf, run, timm, torchvision",
            ],
        ),
        ("timm:vit_bas_patch16_224", ["did you mean 'vit_base_patch16_224'", "Valid: ", " more."]),
        ("torchvision:vit_b_15", ["torchvision model", "vit_b_16, vit_b_32"]),
        ("bundled:cifar100", ["bundled model 'cifar100'", "Valid: cifar10_vit"]),
        ("hf:/no/such/folder", ["hf:/no/such/folder", "could not be loaded", "local folder"]),
        ("timm:vit_tiny_patch16_224(dpth=2)", ["did you mean 'depth'", "fs.wrap"]),
        ("timm:vit_tiny_patch16_224(depth=2", ["name(option=value, …)"]),
    ],
)
def test_unknown_models_are_answered_with_the_valid_ones(name: str, words):
    with refused(*words):
        fs.load_model(name, pretrained=False)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta:x", 2.5])
def test_a_device_that_is_not_there_is_refused(device):
    with refused(f"'{device}'", "cpu", "auto"):
        fs.load_model("bundled:cifar10_vit", device=device)


def test_a_model_is_a_module_a_model_or_a_name():
    with refused("A model is a name", "int"):
        fs.explain(3, images_of(SIZE), "gradient")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.LazyLinear(3), ["of Sequential has no values yet", "run the module"]),
        (lambda: nn.Linear(8, 3, device="meta"), ["'1.weight'", "no values", "load its weights"]),
    ],
)
def test_weights_without_values_are_refused(layer, words):
    module = nn.Sequential(nn.Flatten(), layer())
    with refused(*words):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco")
    with refused(*words):
        fs.wrap(module)


def test_a_result_knows_its_methods_and_metrics_only(module):
    result = fs.evaluate(module, images_of(SIZE), "gradient", "saco")
    with refused("'rollout'", "gradient, random, random_patch"):
        result.values("rollout", "saco")
    with refused("'sacco'", "did you mean 'saco'"):
        result.values("gradient", "sacco")


# Shapes and types


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (images_of(SIZE)[0], ["[batch, channels, height, width]", "[3, 32, 32]", "images[None]"]),
        (images_of(SIZE).to(torch.uint8), ["no preprocessing", "fs.wrap"]),
        (images_of(SIZE)[:0], ["no images"]),
        (images_of((40, 40)), ["cannot run", "[3, 40, 40]", "32"]),
        (images_of(SIZE)[:, :1], ["cannot run", "[1, 32, 32]", "channels"]),
        (images_of(SIZE).repeat(1, 2, 1, 1), ["cannot run", "[6, 32, 32]", "channels"]),
    ],
    ids=["no_batch_axis", "uint8", "none", "another_size", "one_channel", "six_channels"],
)
def test_images_that_do_not_fit_are_refused(module, images, words):
    with refused(*words):
        fs.evaluate(module, images, "gradient", "saco")
    for target in (None, 0):
        with refused(*words):
            fs.explain(module, images, ["gradient", "integrated_gradients"], target=target)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], ["no images"]),
        ([images_of(SIZE)[0, 0]], ["[channels, height, width]", "[32, 32]"]),
        ([Image.new("RGB", SIZE)], ["no preprocessing", "fs.wrap"]),
        (["a.png", "b.png"], ["None of the 2 images", "'a.png'", "FileNotFoundError"]),
        ({"images": images_of(SIZE)}, ["dict", "a data set or a loader"]),
        (7, ["int", "a data set or a loader"]),
        (iter(["a.png"]), ["A loader must yield images", "str"]),
        (iter([{"photo": images_of(SIZE)}]), ["An item of the loader", "dict", "'photo'"]),
        (iter([]), ["no images"]),
    ],
    ids=["empty_list", "flat", "pictures", "names", "dict", "number", "words", "dicts", "nothing"],
)
def test_what_holds_no_images_is_refused(module, images, words):
    with refused(*words):
        fs.evaluate(module, images, "gradient", "saco")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": [1]}, ["labels", "2 images", "[1]"]),
        ({"labels": [[1], [2]]}, ["labels", "2 images", "[2, 1]"]),
        ({"labels": [0.5, 1.0]}, ["labels must be class numbers"]),
        ({"labels": ["cat", "dog"]}, ["labels must be class numbers"]),
        ({"labels": [-1, 2]}, ["labels must be class numbers"]),
        ({"target": "label"}, ["target='label' needs labels"]),
        ({"target": [1]}, ["target", "2 images", "[1]"]),
        ({"target": 9}, ["class 9", "0 to 4"]),
        ({"target": torch.tensor([0, 9])}, ["class 9", "0 to 4"]),
        ({"target": -1}, ["target must be class numbers"]),
        ({"target": 1.5}, ["target must be class numbers"]),
        ({"target": None}, ["target must be class numbers"]),
        ({"target": "label", "labels": [0, 9]}, ["class 9", "0 to 4"]),
    ],
    ids=str,
)
def test_labels_targets_and_numbers_that_do_not_fit_are_refused(module, options, words):
    with refused(*words):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco", **options)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (9, ["class 9", "0 to 4"]),
        (torch.tensor([1, 9]), ["class 9", "0 to 4"]),
        ([1, 2, 3], ["2 images", "[3]"]),
        (-1, ["target must be class numbers"]),
        ("predicted", ["target must be class numbers"]),
    ],
)
@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "captum:Saliency"])
def test_explain_refuses_targets_that_are_no_classes(module, method: str, target, words):
    with refused(*words):
        fs.explain(module, images_of(SIZE), method, target=target)


@pytest.mark.parametrize("images", ["folder", "loader"])
def test_labels_are_not_silently_ignored_where_the_data_brings_its_own(tmp_path, module, images):
    Image.new("RGB", SIZE).save(tmp_path / "a.png")
    model = fs.wrap(module, **NORMAL)
    held = tmp_path if images == "folder" else iter([images_of(SIZE)])
    with refused("labels go with", "class folders"):
        fs.evaluate(model, held, "gradient", labels=[1])


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (maps_of(2, 40, 40), ["'mine'", "[2, 40, 40]", "[2, 32, 32]", "coarser", "[2, 16]"]),
        (maps_of(2, 5, 32), ["'mine'", "[2, 5, 32]", "[2, 32, 32]"]),
        (maps_of(2, 17), ["'mine'", "[2, 17]", "by patch [2, 16]"]),
        (maps_of(2, 1, 3, 32, 32), ["'mine'", "[2, 1, 3, 32, 32]", "2 maps"]),
        (maps_of(3, 32, 32), ["'mine'", "[3, 32, 32]", "2 maps"]),
        (maps_of(32, 32), ["'mine'", "[32, 32]", "2 maps"]),
        ({"mine": "rollout"}, ["no file or folder of maps 'rollout'"]),
        ({"mine": object()}, ["'mine'", "tensor or array", "object"]),
        ({"mine": [torch.rand(32, 32), "a", 3]}, ["'mine'", "3", "expected 2 maps"]),
        ({"mine": [torch.rand(32, 32), object()]}, ["'mine'", "tensor or array", "object"]),
        ({"mine": [torch.rand(32, 32), None]}, ["'mine'", "none for '1'"]),
        ({"mine": {"0": torch.rand(32, 32)}}, ["'mine'", "none for '1'"]),
        ({"mine": [torch.rand(32, 32), torch.rand(7, 7)]}, ["'mine'", "32×32", "7×7"]),
        (maps_of(2, 32, 32)["mine"], ["maps={'mine': …}", "Tensor"]),
        ({"gradient": torch.rand(2, 32, 32)}, ["'gradient'", "rename"]),
        ({"rollout": torch.rand(2, 32, 32)}, ["'rollout'", "rename"]),
        ({"random": torch.rand(2, 32, 32)}, ["'random'", "rename"]),
    ],
)
def test_maps_that_do_not_fit_are_refused_by_name(module, maps, words):
    with refused(*words):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco", maps=maps)


# K


@pytest.mark.parametrize("k", [1, 0, -3, "many", True, 2.5, None])
def test_k_is_a_whole_number_from_two_or_auto(module, k):
    with refused("k must be a whole number of at least 2, or 'auto'", repr(k)):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco", k=k)


@pytest.mark.parametrize(
    ("units", "k", "most"), [("patches", 17, 16), ("pixels", 1025, 1024), ("patches", 1000, 16)]
)
def test_k_larger_than_every_samples_number_of_units_is_refused(module, units, k, most):
    with refused(f"k = {k}", f"{most} units", f"at most {most}"):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco", k=k, units=units)
    fs.evaluate(module, images_of(SIZE), "gradient", "saco", k=16, units=units, random_draws=0)


# Degenerate values


def rows_of(result: fs.Result, method: str, metric: str) -> list[dict]:
    rows = result.scores.to_pylist()
    return [row for row in rows if (row["method"], row["metric"]) == (method, metric)]


def summary_of(result: fs.Result, method: str, metric: str) -> dict:
    rows = result.summary().to_pylist()
    return next(row for row in rows if (row["method"], row["metric"]) == (method, metric))


def test_nothing_is_neither_data_nor_a_model(module):
    with refused("There is no data, got None"):
        fs.evaluate(module, None)
    with refused("There is no model, got None"):
        fs.evaluate(None, images_of(SIZE, 1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 4, 4)], ids=["pixels", "patches"])
def test_a_nan_map_is_reported_counted_and_left_out_of_the_mean(module, bad, shape):
    maps = maps_of(*shape)
    maps["mine"][1, 2, 2] = bad
    result = fs.evaluate(module, images_of(SIZE, 3), maps=maps, random_draws=1)
    fine = fs.evaluate(module, images_of(SIZE, 3), maps=maps_of(*shape), random_draws=0)
    for metric in result.metrics:
        rows = rows_of(result, "mine", metric)
        assert [row["flag"] for row in rows] == ["", "nan_map", ""]
        assert np.isnan(rows[1]["value"])
        summary = summary_of(result, "mine", metric)
        assert (summary["n"], summary["flagged"]) == (2, 1)
        assert summary_of(result, "random", metric)["n"] == 3  # the others keep their scores
        kept = fine.values("mine", metric)[[0, 2]]
        assert summary["mean"] == pytest.approx(kept.mean(), abs=1e-9)


def test_a_run_of_nothing_but_nan_maps_still_ends(module):
    maps = {"mine": torch.full((2, 32, 32), torch.nan)}
    result = fs.evaluate(module, images_of(SIZE), maps=maps, random_draws=0)
    assert summary_of(result, "mine", "saco")["n"] == 0
    assert "—" in result.table()


@pytest.mark.parametrize("value", [0.0, 0.1, -2.7])
@pytest.mark.parametrize("k", [10, 7, "auto"])
@pytest.mark.parametrize("shape", [(2, 32, 32), (2, 4, 4)], ids=["pixels", "patches"])
def test_a_constant_map_scores_zero_and_is_flagged(module, value, k, shape):
    maps = {"mine": torch.full(shape, value)}
    result = fs.evaluate(module, images_of(SIZE), maps=maps, k=k, random_draws=0)
    for row in rows_of(result, "mine", "saco"):
        assert (row["value"], row["flag"]) == (0.0, "degenerate")
    assert summary_of(result, "mine", "saco")["flagged"] == 2
    for row in rows_of(result, "mine", "aopc"):
        assert np.isfinite(row["value"])
        assert row["flag"] == "degenerate"
    line = "mine: all 2 maps are constant, so they rank nothing."
    assert result.warnings() == [line]
    assert result._repr_html_().count(line) == 1


def test_some_constant_maps_are_counted(module):
    mine = torch.rand(3, 32, 32)
    mine[0] = 1.0
    images = torch.cat([images_of(SIZE), images_of(SIZE)[:1]])
    asked = {"maps": {"mine": mine}, "random_draws": 0}
    line = "mine: 1 of 3 maps is constant, so it ranks nothing."
    assert line in fs.evaluate(module, images, **asked).warnings()
    mine[:2] = 1.0
    line = "mine: 2 of 3 maps are constant, so they rank nothing."
    assert line in fs.evaluate(module, images, **asked).warnings()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_images_with_nan_are_left_out_of_a_run_and_refused_elsewhere(module, bad):
    images = images_of(SIZE)
    images[1, 0, 0, 0] = bad
    result = fs.evaluate(module, images, "gradient", "saco")
    assert result.samples["sample"].to_pylist() == ["0"]
    [skipped] = result.manifest.data.skipped
    assert (skipped.name, skipped.why) == ("1", "it holds NaN or infinite values")
    with refused("NaN or infinite"):
        fs.explain(module, images, "gradient")
    with refused("The only image cannot be used", "'0'", "NaN or infinite"):
        fs.evaluate(module, images[1:], "gradient", "saco")


# Models that do not fit the request


def test_the_black_fill_needs_the_models_normalisation(module):
    with refused("'black'", "mean and std", "fs.wrap"):
        fs.evaluate(module, images_of(SIZE), "gradient", "saco", fill="black")
    model = fs.wrap(module, **NORMAL)
    fs.evaluate(model, images_of(SIZE), "gradient", "saco", fill="black", random_draws=0)


def test_a_method_that_needs_a_vit_is_refused_for_another_model():
    resnet, images = seeded(lambda: timm_model("resnet10t")), images_of(SIZE)
    with refused("'rollout'", "stack of attention blocks", "attention=[…]", "no attention"):
        fs.evaluate(resnet, images, ["gradient", "rollout"], "saco", strict=True)
    with refused("units='patches'", "patch_size=…"):
        fs.evaluate(resnet, images, "gradient", "saco", units="patches")
    with refused("units='patches'", "patch_size=…"):
        fs.explain(resnet, images, "gradient", units="patches")
    with refused("random_patch", "patch_size=…"):
        fs.explain(resnet, images, "random_patch")


@pytest.mark.parametrize(
    "features",
    [
        lambda: nn.Conv2d(3, 4, 3),
        lambda: timm_vit(global_pool=""),
    ],
    ids=["convolution", "vit"],
)
def test_a_model_that_gives_features_is_refused(features):
    with refused("logits of shape [batch, classes]", "feature extractor"):
        fs.evaluate(seeded(features), images_of(SIZE), "gradient", "saco")
    with refused("logits of shape [batch, classes]", "feature extractor"):
        fs.explain(seeded(features), images_of(SIZE), "gradient")


# Folders


def test_folders_that_hold_nothing_are_refused(tmp_path, module):
    model = fs.wrap(module, **NORMAL)
    with refused("holds no images", ".png"):
        fs.evaluate(model, tmp_path, "gradient")
    with refused("There is no folder or image", "nowhere"):
        fs.evaluate(model, tmp_path / "nowhere", "gradient")
    with refused("bundled data 'cifar'", "cifar10"):
        fs.evaluate(model, "bundled:cifar", "gradient")
    with refused("limit must be at least 1"):
        fs.load_data("bundled:cifar10", model, limit=0)


def test_a_model_without_preprocessing_cannot_read_files_and_says_so(tmp_path, module):
    Image.new("RGB", SIZE).save(tmp_path / "a.png")
    with refused("has no preprocessing", "input_size=…, mean=…, std=…"):
        fs.evaluate(module, tmp_path, "gradient")
