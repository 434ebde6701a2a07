"""Maps from anywhere: every usual shape and file; coarse ones are matched with random of theirs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import faithscope as fs
from commands import fails, run
from conftest import assert_same_scores, randn, score_cube, score_maps, single_vit, toy
from faithscope.data.maps import photo_box
from faithscope.methods import method
from faithscope.perturb import resample, to_patches, to_pixels, to_units
from faithscope.report.tables import scores_table
from families import refused, seeded, timm_vit

IMAGES = randn(3, 3, 16, 16)
METRICS = ["saco", "aopc"]


def scores(model: fs.Model, maps: object, **options: object) -> np.ndarray:
    given = {"metrics": METRICS, **options}
    return score_cube(score_maps(model, IMAGES, {"mine": maps}, **given))


# Shapes

PIXELS, PATCHES, CHANNELS = randn(3, 16, 16), randn(3, 4, 4), randn(3, 3, 16, 16)
COARSE = randn(3, 3, 7, 5)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (PIXELS[:, None], PIXELS),
        (PIXELS.numpy(), PIXELS),
        (PIXELS.permute(0, 2, 1).numpy().transpose(0, 2, 1), PIXELS),
        (PIXELS[..., None], PIXELS),
        (list(PIXELS), PIXELS),
        ([held.numpy() for held in PIXELS], PIXELS),
        (tuple(PIXELS[:, None]), PIXELS),
        ([PIXELS[0], PIXELS[1, None], PIXELS[2, None, None]], PIXELS),
        ({"0": PIXELS[0], 1: PIXELS[1].numpy(), "2": PIXELS[2], "7": "gone.npy"}, PIXELS),
        (CHANNELS, CHANNELS.sum(1)),
        (CHANNELS.movedim(1, 3), CHANNELS.sum(1)),
        (list(CHANNELS), CHANNELS.sum(1)),
        (COARSE, COARSE.sum(1)),
        (COARSE[:, :, :4, :4].repeat(1, 9, 1, 1), 9 * COARSE[:, :, :4, :4].sum(1)),
        (PATCHES[:, None], PATCHES),
        (PATCHES.flatten(1), PATCHES),
        (list(PATCHES.flatten(1)), PATCHES),
        (PATCHES.flatten(1)[:, None], PATCHES),
        (PATCHES.flatten(1)[..., None], PATCHES),
        ([PATCHES[0].flatten()[:, None], *PATCHES[1:].flatten(1)[:, None]], PATCHES),
        (COARSE.movedim(1, 3), COARSE.sum(1)),
        ([*COARSE[:2].movedim(1, 3), COARSE[2]], COARSE.sum(1)),
        (COARSE[:, :1, :, :4].movedim(1, 3), COARSE[:, 0, :, :4]),
        (COARSE[:, :, :3, :3].repeat(1, 2, 1, 1), 2 * COARSE[:, :, :3, :3].sum(1)),
        ((1e4 * PIXELS).to(torch.int64), (1e4 * PIXELS).to(torch.int64).double()),
    ],
)
@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_every_usual_shape_scores_as_the_plain_one(vit, given, same, units):
    found, plain = (scores(vit, held, units=units) for held in (given, same))
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-12)


def test_channels_are_summed_within_the_range_of_numbers(vit):
    huge = CHANNELS * (torch.finfo(torch.float64).max / 8)
    assert np.isfinite(scores(vit, huge)).all()
    np.testing.assert_allclose(scores(vit, huge), scores(vit, CHANNELS), atol=1e-9)


@pytest.mark.parametrize("given", [PIXELS[0], PATCHES[0], PIXELS[:1], PATCHES[:1].flatten(1)])
def test_one_image_needs_no_axis_for_it(vit, given):
    found = fs.evaluate(vit, IMAGES[:1], (), METRICS, maps={"mine": given}, random_draws=0)
    assert np.isfinite(found.values("mine", "aopc")).all()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 3, 5, 4), ["second or the last axis may be channels", "sum those first"]),
        ((3, 4, 4, 4), ["second or the last axis may be channels"]),
        ((3, 16, 5), ["of about the image's proportions", "features of tokens"]),
        ((3, 15, 7), ["of about the image's proportions"]),
        ((3, 1, 9), ["of about the image's proportions"]),
        ((3, 2), ["by patch ["]),
        ((3, 17, 17), ["this looks like attention"]),
        ((3, 3, 17, 17), ["this looks like attention"]),
    ],
)
def test_what_is_no_map_of_the_image_is_refused(vit, shape, words):
    given = randn(*shape)
    with refused("The maps 'mine' have shape", str(list(shape)), *words):
        scores(vit, given)
    with refused("The maps 'mine' of '0' have shape", str([1, *shape[1:]]), *words):
        scores(vit, {str(place): held for place, held in enumerate(given)})


@pytest.mark.parametrize("count", [16, 17])
def test_attention_is_no_coarse_map(count):
    """Of larger images, too, where it has fewer rows than they."""
    large = fs.wrap(seeded(timm_vit))
    attention, images = randn(2, 3, count, count), randn(2, 3, 32, 32)
    for given in (attention, attention[:, 0], attention[:, 0, :, :13]):
        with refused(f"{count}", "looks like attention or features of tokens"):
            fs.evaluate(large, images, (), "aopc", maps={"mine": given})
    with refused("The maps that the method 'mine' returned", "looks like attention"):
        fs.explain(large, images, fs.Method("mine", lambda evidence: attention))
    column = fs.explain(large, images, "random(grid=16x1)")
    assert torch.equal(column, column[..., :1].expand(2, 32, 32))
    coarse = fs.evaluate(large, images, (), "aopc", maps={"mine": attention[:, :, 1:15, 1:15]})
    assert coarse.manifest.methods["mine"].granularity == "14×14"


def test_values_of_shap_with_an_axis_of_outputs_are_refused_with_what_to_do(vit):
    with refused("expected 3 maps, [3, height, width]; of values of shap fs.from_shap makes maps"):
        scores(vit, randn(3, 3, 16, 16, 5))


def test_complex_maps_are_refused_as_such(vit):
    whole = torch.complex(PIXELS, PIXELS)
    for given, words in ((whole, "complex128"), ([*whole.numpy()], "complex128"), (None, "None")):
        with refused("The maps 'mine' must be", "real numbers", words):
            scores(vit, given)


def test_channels_of_one_image_are_not_taken_for_images(vit):
    with refused("[3, 16, 16]", "1 map, [1, height, width]"):
        fs.evaluate(vit, IMAGES[:1], (), METRICS, maps={"mine": CHANNELS[0]})


def test_maps_may_be_called_as_methods_where_none_are_run(vit):
    made = fs.explain(vit, IMAGES, ["rollout", "gradient"])
    result = fs.evaluate(vit, IMAGES, metrics=METRICS, maps=made, random_draws=0)
    own = fs.evaluate(vit, IMAGES, [*made], METRICS, random_draws=0)
    assert result.methods == ["rollout", "gradient"]
    assert [result.manifest.methods[name].granularity for name in made] == ["pixel", "pixel"]
    np.testing.assert_allclose(score_cube(result), score_cube(own), atol=1e-6)
    with refused("'rollout' names both a method and given maps"):
        fs.evaluate(vit, IMAGES, "rollout", METRICS, maps=made)
    with refused("'random' is the name of random attribution"):
        fs.evaluate(vit, IMAGES, (), METRICS, maps={"random": PIXELS}, random_draws=0)


# Coarse maps


@pytest.mark.parametrize("upsample", ["bilinear", "nearest"])
def test_a_coarse_map_is_interpolated_as_the_protocol_says(vit, upsample):
    coarse = randn(3, 7, 7)
    pixels = to_pixels(coarse, (16, 16), upsample)
    found = scores(vit, coarse, upsample=upsample)
    assert (found == scores(vit, pixels, upsample=upsample)).all()
    by_patch = scores(vit, coarse, units="patches", upsample=upsample)
    assert (by_patch == scores(vit, to_patches(pixels, (4, 4)), units="patches")).all()
    assert torch.equal(
        to_units(coarse, "patches", (16, 16), (4, 4), upsample), to_patches(pixels, (4, 4))
    )


@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_a_coarse_map_is_matched_with_random_of_its_own_grid(vit, units):
    maps = {"cam": randn(3, 7, 7), "wide": randn(3, 5, 9), "fine": PIXELS, "patches": PATCHES}
    result = fs.evaluate(vit, IMAGES, (), METRICS, maps=maps, units=units, random_draws=2)
    cards = result.manifest.methods
    assert {name: cards[name].granularity for name in maps} == {
        "cam": "7×7",
        "wide": "5×9",
        "fine": "pixel",
        "patches": "patch",
    }
    own = {"cam": "random(grid=7x7)", "wide": "random(grid=5x9)", "patches": "random_patch"}
    fine = "random" if units == "pixels" else "random_patch"
    assert {name: cards[name].matched_random for name in maps} == {**own, "fine": fine}
    assert result.methods == [*maps, "random", "random_patch", own["cam"], own["wide"]]
    assert cards[own["cam"]].is_random and cards[own["cam"]].draws == 2
    assert cards[own["cam"]].granularity == "7×7"
    rows = {(row["method"], row["metric"]): row for row in result.summary().to_pylist()}
    gap = result.values("cam", "saco") - result.values(own["cam"], "saco")
    assert rows["cam", "saco"]["difference"] == pytest.approx(gap.mean(), abs=1e-12)
    assert rows["cam", "saco"]["matched_random"] == own["cam"]
    names = [row[0].remark for row in scores_table(result).rows]
    assert names[0] == "by 7×7 grid, against random(grid=7x7)"


def test_random_of_a_grid_is_drawn_on_it_and_keyed(vit):
    made = fs.explain(vit, IMAGES, "random(grid=5x3)", units="pixels", upsample="nearest")
    assert all(len(held.unique()) == 15 for held in made)
    again = fs.explain(vit, IMAGES[1:], method("random", grid="5x3"), upsample="nearest")
    assert torch.equal(made[1:], again)
    other = fs.explain(vit, IMAGES, ["random(grid=3x5)", "random", "random_patch"], seed=1)
    assert list(other) == ["random(grid=3x5)", "random", "random_patch"]
    assert method("random(grid=5x3)").label == "random(grid=5x3)"
    for wrong in ("7", "0x3", "3x", "axb", "-1x4"):
        with refused("rows x columns, as 7x7"):
            method("random", grid=wrong)
    with refused("random(grid=40x40)", "[1, 40, 40]"):
        fs.explain(vit, IMAGES[:1], "random(grid=40x40)")


def cam(module: object, images: Tensor, target: Tensor) -> Tensor:
    """A function with coarse maps, in channels."""
    return images.unfold(2, 4, 2).unfold(3, 4, 2).mean((-1, -2))


def test_the_maps_of_a_function_may_be_coarse_too(vit):
    result = fs.evaluate(vit, IMAGES, [cam], METRICS, random_draws=1)
    card = result.manifest.methods["cam"]
    assert (card.granularity, card.matched_random) == ("7×7", "random(grid=7x7)")
    made = cam(None, IMAGES, torch.zeros(3)).sum(1)
    given = fs.evaluate(vit, IMAGES, (), METRICS, maps={"cam": made}, random_draws=1)
    assert_same_scores(result, given, 1e-12)
    assert (fs.explain(vit, IMAGES, cam) == to_pixels(made, (16, 16))).all()


def test_maps_that_change_their_resolution_are_refused():
    """Random attribution could match but one of them."""
    model = fs.wrap(toy(1, 1, classes=3), patch_size=4)
    model.module.forward = lambda x: x.mean((2, 3)) + 0 * model.module.bias[:3]  # of any size
    images = [IMAGES[0], randn(3, 20, 20)]
    maps = {"mine": [randn(16, 16), randn(20, 20)]}
    found = fs.evaluate(model, images, (), "aopc", maps=maps, random_draws=1)
    assert found.manifest.methods["mine"].granularity == "pixel"
    with refused("'mine' are 9×9", "20×20", "by 8×8"):
        fs.evaluate(model, images, (), "aopc", maps={"mine": [randn(8, 8), randn(9, 9)]})


# Files and folders


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos in a folder of folders; one more cannot be read."""
    root = tmp_path / "photos"
    (root / "cats").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.jpg", "cats/c.png"):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(root / name)
    (root / "broken.png").write_bytes(b"no image")
    return root


def saved(folder: Path, maps: Tensor) -> Path:
    """One file for each of the three photos, each of another kind."""
    (folder / "cats").mkdir(parents=True, exist_ok=True)
    np.save(folder / "a.npy", maps[0].numpy())
    torch.save(maps[1], folder / "b.jpg.pt")
    np.savez(folder / "cats" / "c.npz", maps[2].numpy())
    return folder


@pytest.fixture(scope="module")
def reader() -> fs.Model:
    return single_vit()


def over(model: fs.Model, photos: Path, maps: object, **options: object) -> fs.Result:
    given = {"maps": {"mine": maps}, "metrics": METRICS, "random_draws": 0, **options}
    return fs.evaluate(model, photos, **given)


def test_a_folder_has_a_file_for_each_image_by_its_name(reader, photos, tmp_path):
    """Images that cannot be read need none, and what belongs to no image is not looked at."""
    maps = randn(3, 16, 16)
    folder = saved(tmp_path / "maps", maps)
    (folder / "other.npy").write_bytes(b"of another image")
    result = over(reader, photos, folder)
    assert [item.name for item in result.manifest.data.skipped] == ["broken.png"]
    whole = torch.stack([maps[0], maps[1], torch.zeros(16, 16), maps[2]])
    for same in (
        str(folder),
        whole,
        [maps[0], folder / "b.jpg.pt", None, maps[2]],
        {"a": maps[0], "b.jpg": maps[1], "cats/c.png": maps[2]},
    ):
        assert_same_scores(over(reader, photos, same), result, 0)
    assert_same_scores(over(reader, photos, folder, tolerance=1.9), result, 0)


def test_images_without_a_map_are_named(reader, photos, tmp_path):
    folder = saved(tmp_path / "maps", randn(3, 16, 16))
    (folder / "b.jpg.pt").unlink()
    with refused("The maps 'mine' have none for 'b.jpg'", "b.npy' or '", "maps/b.jpg.npy'"):
        over(reader, photos, folder)
    with refused("have none for 'a.png', 'b.jpg', 'cats/c.png' …"):
        over(reader, photos, {"d": randn(16, 16)})
    (tmp_path / "empty").mkdir()
    with refused("holds no maps"):
        over(reader, photos, tmp_path / "empty")


def test_a_file_that_changed_makes_another_run(reader, photos, tmp_path):
    folder = saved(tmp_path / "maps", randn(3, 16, 16))
    first = over(reader, photos, folder, out=tmp_path / "run")
    assert "maps mine" in first.manifest.plan.given
    assert_same_scores(over(reader, photos, folder, out=tmp_path / "run"), first, 0)
    np.save(folder / "a.npy", randn(16, 16, seed=9).numpy())
    with refused("holds another run", "maps mine"):
        over(reader, photos, folder, out=tmp_path / "run")


@pytest.mark.parametrize("several", [True, False])
def test_a_map_of_a_photo_is_cut_as_the_photo_is(reader, photos, tmp_path, several):
    """30×40 photos, resized to 16×16; larger than the input, so a map of pixels."""
    maps = randn(3, 30, 40)
    box = photo_box(reader, (30, 40))
    cut = resample(maps, box, (16, 16))
    folder = saved(tmp_path / "maps", maps) if several else None
    whole = torch.stack([maps[0], maps[1], torch.zeros(30, 40), maps[2]])
    result = over(reader, photos, folder or whole, random_draws=1)
    assert result.manifest.methods["mine"].matched_random == "random"
    plain = over(reader, photos, [cut[0], cut[1], None, cut[2]], random_draws=1)
    assert_same_scores(result, plain, 0)
    with refused("[1, 31, 40]", "'a.png'", "of the photo [1, 30, 40]"):
        over(reader, photos, {"a": randn(31, 40), "b": maps[1], "cats/c": maps[2]})


def test_a_map_of_a_small_photo_keeps_its_own_grid(tmp_path):
    """It is not made finer than it is: 10×10 cells in an input of 16×16."""
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(rng.integers(0, 256, (10, 10, 3), dtype=np.uint8)).save(tmp_path / name)
    maps = randn(2, 10, 10)
    model = single_vit()
    result = over(model, tmp_path, maps, random_draws=1)
    assert result.manifest.methods["mine"].matched_random == "random(grid=10x10)"
    assert_same_scores(result, over(model, tmp_path, list(maps), random_draws=1), 1e-12)


def test_maps_of_files_on_the_command_line(photos, tmp_path):
    folder = saved(tmp_path / "maps", randn(3, 7, 7))
    np.save(tmp_path / "all.npy", randn(4, 16, 16).numpy())
    command = ("evaluate", "--model", "bundled:cifar10_vit", "--data", photos, "--metrics", "saco")
    given = ("--maps", f"mine={folder}", "--maps", f"all={tmp_path / 'all.npy'}")
    told = run(*command, *given, "--random-draws", 1, "--json", "--out", tmp_path / "run")
    manifest = json.loads(told.stdout)["manifest"]
    assert manifest["methods"]["mine"]["matched_random"] == "random(grid=7x7)"
    assert {"maps mine", "maps all"} <= manifest["plan"]["given"].keys()
    assert "no file or folder" in fails(*command, "--maps", f"mine={tmp_path / 'gone'}")
    assert "NAME=PATH" in fails(*command, "--maps", "mine")
    assert "given twice" in fails(*command, *given, "--maps", f"mine={folder}")
    (folder / "a.npy").unlink()
    assert "none for 'a.png'" in fails(*command, *given)
