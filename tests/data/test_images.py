"""Data: folders and their oddities, subsets, the bundled sample, images of several sizes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import faithscope as fs
from faithscope.data import read_image
from faithscope.data.images import choose_subset
from families import images_of, refused, seeded, timm_vit
from image_data import NAMES, NORMAL, labels_of, samples_of


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return fs.wrap(seeded(timm_vit, torch.float32), classes=NAMES, **NORMAL)


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth RGB picture, width × height, that survives compression."""
    pixels = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)


def save(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)


# Folders


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["cat/1.png", "dog/1.png", "dog/2.jpg"], [0, 1, 1]),
        (["Cat/1.png", "tree_frog/1.png"], [0, 2]),
        (["dog/a/1.png", "dog/b/c/2.png"], [1, 1]),
        (["1.png", "2.png"], None),
        (["cat/1.png", "lion/1.png"], None),
        (["cat/1.png", "2.png"], None),
    ],
    ids=["class_folders", "loosely_named", "nested", "no_folders", "unknown_class", "mixed"],
)
def test_class_folders_label_their_images_by_the_models_class_names(tmp_path, model, files, labels):
    for file in files:
        save(tmp_path / file)
    data = fs.load_data(tmp_path, model)
    assert sorted(samples_of(data)) == sorted(files)
    assert labels_of(data) == labels


def test_a_model_without_class_names_gives_no_labels(tmp_path):
    save(tmp_path / "cat" / "1.png")
    data = fs.load_data(tmp_path, fs.wrap(seeded(timm_vit), **NORMAL))
    assert next(data.batches(1)).labels is None


def test_files_that_are_no_images_are_passed_over(tmp_path, model):
    for file in ("a.PNG", "sub/b.jpeg"):
        save(tmp_path / file)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.png").mkdir()
    assert samples_of(fs.load_data(tmp_path, model)) == ["a.PNG", "sub/b.jpeg"]


def test_images_are_prepared_by_the_models_transform(tmp_path, model):
    save(tmp_path / "a.png", seed=3)
    batch = next(fs.load_data(tmp_path / "a.png", model).batches(4))
    assert torch.equal(batch.images[0], model.transform(picture(3)))
    assert batch.images.shape == (1, 3, 32, 32)
    assert batch.samples == ("a.png",)


# Kinds of image


def read(path: Path) -> np.ndarray:
    image = read_image(path)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGB", "RGBA", "CMYK"])
def test_an_opaque_image_of_any_mode_is_read_as_its_rgb(tmp_path, mode: str):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image = picture().convert(mode)
    image.save(path)
    np.testing.assert_array_equal(read(path), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("top", [65535, 255], ids=["bright", "dark"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, top: int):
    values = np.linspace(0, top, 48).round().astype(np.uint16).reshape(6, 8)
    Image.fromarray(values).save(tmp_path / "a.png")
    expected = np.repeat((values / 257).astype(int)[..., None], 3, axis=2)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), expected)


@pytest.mark.parametrize("top", [1, 0.5, 255, 65535])
def test_grey_floats_are_shares_levels_or_of_sixteen_bits(tmp_path, top: float):
    values = np.linspace(0, top, 48, dtype=np.float32).reshape(6, 8)
    Image.fromarray(values).save(tmp_path / "a.tif")
    most = {0.5: 127}.get(top, 255)
    assert (read(tmp_path / "a.tif").min(), read(tmp_path / "a.tif").max()) == (0, most)


def test_transparency_is_seen_over_white(tmp_path):
    image = Image.new("RGBA", (3, 1), (200, 100, 0, 255))
    image.putpixel((1, 0), (200, 100, 0, 0))
    image.putpixel((2, 0), (200, 100, 0, 128))
    image.save(tmp_path / "a.png")
    solid, clear, half = read(tmp_path / "a.png")[0]
    assert solid.tolist() == [200, 100, 0]
    assert clear.tolist() == [255, 255, 255]
    np.testing.assert_allclose(half, [227, 177, 127], atol=1)


def test_a_transparent_palette_colour_is_seen_as_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=1)
    assert read(tmp_path / "a.png")[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_a_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    picture().save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(picture().transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_array_equal(read(tmp_path / "a.png"), upright)


def test_an_animation_is_read_as_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read(tmp_path / "a.gif")[0, 0].tolist() == [255, 0, 0]


# Images that cannot be used cost themselves, not the run


def broken_folder(root: Path) -> Path:
    for index in range(3):
        save(root / f"good{index}.png", seed=index)
    (root / "a_text.png").write_text("this is no image")
    (root / "empty.jpg").touch()
    whole = (root / "good0.png").read_bytes()
    (root / "z_cut.png").write_bytes(whole[: len(whole) // 2])
    return root


def test_unreadable_images_are_skipped_named_and_counted(tmp_path, model):
    result = fs.evaluate(model, broken_folder(tmp_path), "gradient", "saco", random_draws=1)
    assert result.samples["sample"].to_pylist() == ["good0.png", "good1.png", "good2.png"]
    data = result.manifest.data
    assert data.samples == 3
    assert {item.name for item in data.skipped} == {"a_text.png", "empty.jpg", "z_cut.png"}
    assert all("cannot be read" in item.why for item in data.skipped)


def test_a_folder_of_unreadable_images_is_refused_naming_one(tmp_path, model):
    (tmp_path / "a.png").write_text("this is no image")
    (tmp_path / "b.png").write_text("nor is this")
    with refused("None of the 2 images", "'a.png'", "cannot be read"):
        fs.evaluate(model, tmp_path, "gradient")


def test_images_with_nan_or_infinity_are_left_out_by_name():
    images = images_of((32, 32), 4)
    images[1, 0, 3, 3] = torch.nan
    images[2, 2, 0, 0] = torch.inf
    result = fs.evaluate(seeded(timm_vit), images, "gradient", "saco", labels=[1, 2, 3, 4])
    assert result.samples["sample"].to_pylist() == ["0", "3"]
    assert result.samples["label"].to_pylist() == [1, 4]
    assert [item.name for item in result.manifest.data.skipped] == ["1", "2"]


def test_maps_targets_and_labels_stay_with_their_images_when_some_are_left_out():
    images, module = images_of((32, 32), 4), seeded(timm_vit)
    maps, target = images.abs().sum(1), torch.tensor([0, 1, 2, 3])
    fine = fs.evaluate(module, images[2:], maps={"mine": maps[2:]}, target=target[2:])
    images[0, 0, 0, 0] = images[1, 0, 0, 0] = torch.nan
    some = fs.evaluate(module, images, maps={"mine": maps}, target=target)
    for metric in fine.metrics:
        np.testing.assert_allclose(
            some.values("mine", metric), fine.values("mine", metric), rtol=0, atol=1e-9
        )


# Subsets and the bundled sample


def test_a_limit_spreads_over_the_data_or_follows_a_seed(tmp_path, model):
    for index in range(10):
        save(tmp_path / f"{index}.png")
    chosen = {
        seed: samples_of(fs.load_data(tmp_path, model, limit=5, seed=seed)) for seed in (1, 2)
    }
    assert samples_of(fs.load_data(tmp_path, model, limit=5)) == [
        f"{i}.png" for i in range(0, 10, 2)
    ]
    assert chosen[1] == samples_of(fs.load_data(tmp_path, model, limit=5, seed=1))
    assert chosen[1] != chosen[2]
    assert chosen[1] == sorted(set(chosen[1]))
    assert len(chosen[1]) == 5
    assert len(samples_of(fs.load_data(tmp_path, model, limit=50))) == 10


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize(("count", "limit"), [(200, 37), (5, 5), (3, 9), (1000, 1)])
def test_a_subset_has_the_size_asked_for_and_no_image_twice(count: int, limit: int, seed):
    places = choose_subset(count, limit, seed)
    assert len(places) == len(set(places)) == min(count, limit)
    assert 0 <= min(places) <= max(places) < count


def test_the_bundled_sample_labels_only_models_of_its_classes(model):
    own = fs.load_model("bundled:cifar10_vit", device="cpu")
    data = fs.load_data("bundled:cifar10", own, limit=20)
    assert data.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert fs.load_data("bundled:cifar10", model, limit=20).labels is None


def test_an_evaluation_takes_the_bundled_sample_by_name(monkeypatch):
    monkeypatch.setattr("faithscope.data.images.choose_subset", lambda *_: [0, 100])
    own = fs.load_model("bundled:cifar10_vit", device="cpu")
    result = fs.evaluate(own, "bundled:cifar10", "rollout", "saco", random_draws=1)
    assert result.samples["label"].to_pylist() == [0, 5]
    assert result.manifest.data.name == "bundled:cifar10"
    assert result.manifest.data.accuracy in (0.0, 0.5, 1.0)


# Whatever holds the images, the scores are the same


class Unlabelled(Dataset):
    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def generator(images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(images.split(2), labels.split(2), strict=True)


@pytest.mark.parametrize(
    "hold",
    [
        lambda images, labels: {"images": list(images), "labels": labels.tolist()},
        lambda images, labels: {"images": images.numpy(), "labels": labels.numpy()},
        lambda images, labels: {"images": [image.numpy() for image in images], "labels": labels},
        lambda images, labels: {"images": DataLoader(TensorDataset(images, labels), batch_size=3)},
        lambda images, labels: {"images": generator(images, labels)},
    ],
    ids=["list", "array", "list_of_arrays", "data_loader", "generator"],
)
def test_the_scores_do_not_depend_on_what_holds_the_images(hold):
    module, images = seeded(timm_vit), images_of((32, 32), 5)
    labels = torch.tensor([0, 1, 2, 3, 4])
    expected = fs.evaluate(module, images, "rollout", labels=labels, random_draws=1)
    result = fs.evaluate(module, methods="rollout", random_draws=1, **hold(images, labels))
    assert result.samples["sample"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert result.samples["label"].to_pylist() == labels.tolist()
    for method in expected.methods:
        for metric in expected.metrics:
            np.testing.assert_allclose(
                result.values(method, metric), expected.values(method, metric), rtol=0, atol=1e-9
            )


def test_a_loader_without_labels_and_a_length_will_do():
    module, images = seeded(timm_vit), images_of((32, 32), 5)
    loader = DataLoader(Unlabelled(images), batch_size=2)
    result = fs.evaluate(module, loader, "gradient", "saco", random_draws=1)
    assert result.samples["label"].to_pylist() == [-1] * 5
    assert result.manifest.data.accuracy is None


def test_a_loader_names_the_images_it_loses():
    images = images_of((32, 32), 5)
    images[3, 0, 0, 0] = torch.nan
    loader = DataLoader(TensorDataset(images, torch.arange(5)), batch_size=2)
    result = fs.evaluate(seeded(timm_vit), loader, "gradient", "saco", random_draws=1)
    assert result.samples["sample"].to_pylist() == ["0", "1", "2", "4"]
    assert [item.name for item in result.manifest.data.skipped] == ["3"]


# Images of several sizes


@pytest.fixture(scope="module")
def any_size() -> fs.Model:
    return fs.wrap(seeded(lambda: timm_vit(dynamic_img_size=True)))


def test_images_of_several_sizes_are_evaluated_together(any_size):
    sizes = [(32, 32), (32, 48), (32, 32), (40, 32)]
    images = [images_of(size, 1)[0] for size in sizes]
    together = fs.evaluate(any_size, images, ["rollout", "gradient"], random_draws=1)
    assert sorted(together.samples["sample"].to_pylist()) == ["0", "1", "2", "3"]
    place = {name: at for at, name in enumerate(together.samples["sample"].to_pylist())}
    for index, image in enumerate(images):
        alone = fs.evaluate(any_size, image[None], ["rollout", "gradient"], random_draws=1)
        for method in alone.methods:
            for metric in alone.metrics:
                one = together.values(method, metric)[place[str(index)]]
                np.testing.assert_allclose(one, alone.values(method, metric)[0], rtol=0, atol=1e-9)


def test_an_image_with_fewer_patches_than_groups_uses_what_it_has(any_size):
    images = [images_of(size, 1)[0] for size in ((32, 32), (16, 16))]
    result = fs.evaluate(
        any_size, images, ["rollout"], ["saco", "aopc"], k=10, units="patches", random_draws=0
    )
    rows = {(row["sample"], row["metric"]): row for row in result.scores.to_pylist()}
    assert (rows["0", "saco"]["k"], rows["0", "saco"]["flag"]) == (10, "")
    assert (rows["1", "saco"]["k"], rows["1", "saco"]["flag"]) == (4, "few_units")
    assert rows["1", "aopc"]["flag"] == ""
    assert np.isfinite(rows["1", "saco"]["value"])
    with refused("k = 10", "4 units", "at most 4"):
        fs.evaluate(any_size, images[1:], ["rollout"], "saco", k=10, units="patches")


def test_a_folder_of_several_sizes_is_evaluated_together(tmp_path, any_size):
    def transform(image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image) / 127.5 - 1).permute(2, 0, 1)

    for index, size in enumerate([(32, 32), (48, 32), (32, 32)]):
        picture(index, size).save(tmp_path / f"{index}.png")
    model = fs.wrap(any_size.module, transform=transform)
    result = fs.evaluate(model, tmp_path, ["rollout"], "saco", random_draws=1)
    assert sorted(result.samples["sample"].to_pylist()) == ["0.png", "1.png", "2.png"]
    assert np.isfinite(result.scores["value"].to_numpy()).all()
