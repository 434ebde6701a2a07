"""Data as objects: pictures, paths, patterns, lists, data sets of torch and Hugging Face."""

from __future__ import annotations

import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchvision.datasets import CIFAR10, FakeData, ImageFolder
from torchvision.transforms import v2

import faithscope as fs
from commands import fails, run
from families import images_of, refused, seeded, timm_vit
from image_data import NAMES, NORMAL, images_in, labels_of, samples_of


def wrapped(classes: tuple[str, ...] | None = NAMES, count: int = 5) -> fs.Model:
    module = seeded(lambda: timm_vit(num_classes=count), torch.float32)
    return fs.wrap(module, classes=classes, name="tiny", **NORMAL)


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return wrapped()


def pixels(count: int, side: int = 40) -> np.ndarray:
    shape = (count, side, side, 3)
    return np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)


def pictures(count: int) -> list[Image.Image]:
    return [Image.fromarray(one) for one in pixels(count)]


def prepared(model: fs.Model, count: int) -> Tensor:
    return torch.stack([model.transform(one) for one in pictures(count)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three cats and two ships in class folders."""
    for number, picture in enumerate(pictures(5)):
        file = tmp_path / "photos" / ("cat" if number < 3 else "ship") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file)
    return tmp_path / "photos"


class Own(Dataset[Any]):
    """Somebody's data set: items as they are given, an exception raised."""

    def __init__(self, *items: Any, **attributes: Any) -> None:
        self.items = items
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        if isinstance(self.items[place], Exception):
            raise self.items[place]
        return self.items[place]


# One image, by one rule


def as_tensors(one: np.ndarray) -> dict[str, Any]:
    grey = np.asarray(Image.fromarray(one).convert("L"))
    return {
        "picture": Image.fromarray(one),
        "rows": one,
        "channels": torch.from_numpy(one).permute(2, 0, 1),
        "flipped": one[::-1][::-1],
        "grey": grey,
        "grey_channel": torch.from_numpy(grey)[None],
    }


@pytest.mark.parametrize("form", as_tensors(pixels(1)[0]))
def test_pictures_and_pixels_go_through_the_models_preprocessing(model, form: str):
    one = pixels(1)[0]
    given, expected = as_tensors(one)[form], Image.fromarray(one)
    if "grey" in form:
        expected = expected.convert("L").convert("RGB")
    for data in ([given], Own(given), Own((given, 3))):
        assert torch.equal(images_in(fs.load_data(data, model))[0], model.transform(expected))


def test_floats_are_taken_as_they_are(model):
    images = images_of((32, 32), 3)
    for data in (TensorDataset(images), Own(*images), Own(*images.numpy()), list(images), images):
        assert torch.equal(images_in(fs.load_data(data, model)), images)


def test_a_rotated_picture_is_turned_as_its_file_is(tmp_path, model):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels(1)[0][:20]).save(tmp_path / "a.png", exif=exif)
    from_file = images_in(fs.load_data(tmp_path / "a.png", model))
    with Image.open(tmp_path / "a.png") as opened:
        assert torch.equal(images_in(fs.load_data(opened, model)), from_file)
        assert torch.equal(images_in(fs.load_data([opened], model)), from_file)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "it is of type NoneType, not a PIL image"),
        ({"image": 1}, "it is of type int"),
        (
            {"photo": 1, "label": 2},
            "a dict of ['photo', 'label'], where the image is none of pixel",
        ),
        (np.zeros((8, 8, 3)), "it is float64 [8, 8, 3]"),
        (torch.zeros(2, 3, 8, 8), "it is float32 [2, 3, 8, 8]"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "it is int64 [3, 8, 8]"),
        ((), "it is empty"),
        (OSError("gone"), "it cannot be read (OSError)"),
        (torch.full((3, 32, 32), torch.nan), "NaN"),
    ],
)
def test_an_item_that_is_no_image_costs_itself(model, given: Any, words: str):
    data = fs.load_data(Own(pictures(1)[0], given), model)
    (batch,) = data.batches(2)
    assert batch.samples == ("0",)
    assert [held.sample for held in batch.skipped] == ["1"]
    assert words in batch.skipped[0].reason
    with refused("The only image", "'0'", words):
        fs.evaluate(model, Own(given), "gradient", "saco")


def test_without_preprocessing_pictures_are_refused():
    bare = fs.wrap(seeded(timm_vit))
    for data in (pictures(1)[0], pixels(2), Own(*pictures(1))):
        with refused("has no preprocessing", "fs.wrap"):
            fs.evaluate(bare, data, "gradient", "saco")


# Pictures, lists and arrays


def test_a_picture_is_one_image(tmp_path, model):
    data = fs.load_data(pictures(1)[0], model)
    assert (len(data), data.name) == (1, "image")
    pictures(1)[0].save(tmp_path / "cat.png")
    with Image.open(tmp_path / "cat.png") as opened:
        assert fs.load_data(opened, model).name == "cat.png"


def test_lists_and_arrays_of_pictures_give_the_same_images(model):
    expected = prepared(model, 3)
    for data in (pictures(3), tuple(pictures(3)), pixels(3), torch.from_numpy(pixels(3))):
        held = fs.load_data(data, model, labels=[2, 0, 1])
        assert torch.equal(images_in(held), expected)
        assert (samples_of(held), labels_of(held)) == (["0", "1", "2"], [2, 0, 1])


def test_a_list_of_pairs_has_labels(model):
    for labels, expected in (([3, 0], [3, 0]), (["ship", "Cat"], [3, 0]), (["lion", "cat"], None)):
        pairs = list(zip(pictures(2), labels, strict=True))
        assert labels_of(fs.load_data(pairs, model)) == expected
        assert torch.equal(images_in(fs.load_data(pairs, model)), prepared(model, 2))


def test_limits_choose_from_anything_that_has_places(model):
    images = images_of((32, 32), 6)
    for data in (pictures(6), pixels(6), images, list(images), TensorDataset(images)):
        assert samples_of(fs.load_data(data, model, limit=3)) == ["0", "2", "4"]
        assert len(fs.load_data(data, model, limit=2, seed=1)) == 2
    result = fs.evaluate(model, images, "gradient", "saco", limit=3, labels=[*range(5), 0])
    assert result.samples["label"].to_pylist() == [0, 2, 4]
    with refused("limit goes with", "DataLoader"):
        fs.evaluate(model, DataLoader(TensorDataset(images)), "gradient", "saco", limit=3)


# Paths and patterns


def test_paths_and_patterns_are_the_files_of_a_folder(folder, model, monkeypatch):
    whole = fs.load_data(folder, model)
    files = sorted(folder.rglob("*.png"))
    for data in (files, list(map(str, files)), f"{folder}/*/*.png", f"{folder}/**/*.png"):
        held = fs.load_data(data, model)
        assert torch.equal(images_in(held), images_in(whole))
        assert (samples_of(held), labels_of(held)) == (samples_of(whole), [0, 0, 0, 3, 3])
    monkeypatch.chdir(folder.parent)
    held = fs.load_data("photos/cat/*", model)
    assert (samples_of(held), labels_of(held)) == (["0.png", "1.png", "2.png"], [0, 0, 0])
    assert held.name == "photos/cat/*"
    assert samples_of(fs.load_data("photos/*/[13].png", model)) == ["cat/1.png", "ship/3.png"]
    assert len(fs.load_data("photos/*/*.png", model, limit=2)) == 2
    assert fs.load_data(files, model).name == "photos"


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder, model):
    odd = folder / "a[1].png"
    pictures(1)[0].save(odd)
    assert samples_of(fs.load_data(str(odd), model)) == ["a[1].png"]


def test_a_missing_file_of_a_list_costs_itself(folder, model):
    data = [folder / "cat" / "0.png", folder / "cat" / "none.png", folder / "cat"]
    result = fs.evaluate(model, data, "gradient", "saco", random_draws=1)
    assert result.samples["sample"].to_pylist() == ["cat/0.png"]
    assert [item.name for item in result.manifest.data.skipped] == ["cat/none.png", "cat"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], ["no images"]),
        ("nowhere/*.jpg", ["No image matches 'nowhere/*.jpg'", ".jpeg"]),
        (["a.png", "./a.png"], ["listed twice"]),
        ({"a": 1}, ["Images are", "dict"]),
        (Own(), ["no images"]),
        ([3, 4], ["None of the 2 images", "type int"]),
    ],
)
def test_what_holds_no_images_is_refused(tmp_path, monkeypatch, model, data, words):
    monkeypatch.chdir(tmp_path)
    with refused(*words):
        fs.evaluate(model, data, "gradient", "saco")


def test_patterns_on_the_command_line(folder, tmp_path):
    options = ["--model", "bundled:cifar10_vit", "--methods", "gradient", "--metrics", "saco"]
    out = tmp_path / "run"
    few = ["--limit", 2, "--k", 2, "--random-draws", 0]
    run("evaluate", "--data", f"{folder}/*/*.png", *options, *few, "--out", out)
    assert fs.load_result(out).samples["sample"].to_pylist() == ["cat/0.png", "cat/2.png"]
    assert "No image matches" in fails("evaluate", "--data", f"{folder}/*.jpg", *options)
    assert "quotes" in fails("evaluate", *options, "--data", *sorted(folder.rglob("*.png")))


# Data sets of torch


def test_an_image_folder_is_its_folder(folder, model):
    whole, held = fs.load_data(folder, model), fs.load_data(ImageFolder(folder), model)
    assert (held.name, samples_of(held), labels_of(held)) == (
        *("photos", samples_of(whole)),
        [0, 0, 0, 3, 3],
    )
    for one, other in zip(whole.batches(3), held.batches(3), strict=True):
        assert torch.equal(one.images, other.images)
        assert one.keys == other.keys
    some = fs.load_data(Subset(Subset(ImageFolder(folder), [4, 0, 1]), [0, 2]), model)
    assert (some.name, samples_of(some), labels_of(some)) == (
        *("photos", ["ship/4.png", "cat/1.png"]),
        [3, 0],
    )


def test_a_transform_of_the_data_set_counts(folder, model):
    steps = [v2.Resize((32, 32)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    steps.append(v2.Normalize(**NORMAL))
    data = ImageFolder(folder, transform=v2.Compose(steps))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(images_in(fs.load_data(data, model))[0], data[0][0])


def test_floats_that_were_not_normalised_are_warned_of(model):
    data = FakeData(
        2,
        (3, 32, 32),
        5,
        transform=v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    )
    with pytest.warns(UserWarning, match="FakeData lie between 0 and 1, as if"):
        fs.load_data(data, model)


RAW = torch.from_numpy(pixels(3, 32)).movedim(3, 1).float()


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (RAW / 255, "The images lie between 0 and 1"),
        ((RAW / 255).double().numpy(), "The images lie between 0 and 1"),
        (list(RAW / 255), "The images lie between 0 and 1"),
        (RAW, "The images reach 255"),
        (torch.where(RAW > 250, torch.inf, RAW), "The images reach 250"),
    ],
    ids=["share", "array", "list", "levels", "infinite"],
)
def test_arrays_that_were_not_normalised_are_warned_of(model, images, words):
    with pytest.warns(UserWarning, match=f"{words}, as if they were not normalised"):
        fs.load_data(images, model)


def test_normalised_arrays_are_not_warned_of(model):
    own = model.transform(pictures(1)[0])[None]
    odd = torch.full((1, 3, 32, 32), torch.nan)
    narrow = fs.wrap(model.module, mean=(0.5,), std=(0.01,))
    plain = fs.wrap(model.module, mean=(0.0,), std=(1.0,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in (own, own.half(), torch.zeros(2, 3, 32, 32), images_of((32, 32), 2), odd):
            fs.load_data(images, model)
        fs.load_data((RAW / 255 - 0.5) / 0.01, narrow)
        fs.load_data(RAW / 255, plain)
        fs.load_data(RAW / 255, fs.wrap(model.module))


@pytest.mark.parametrize(
    ("labels", "attributes", "classes", "count", "expected"),
    [
        ((0, 2, 1), {}, NAMES, 5, [0, 2, 1]),
        ((torch.tensor(3), np.int64(1), 0), {}, NAMES, 5, [3, 1, 0]),
        ((0, 2, 1), {"classes": ["ship", "dog", "cat"]}, NAMES, 5, [3, 0, 1]),
        ((0, 2, 1), {"classes": ["ship", "dog", "lion"]}, NAMES, 5, None),
        ((0, 2, 1), {"classes": ["x", "y", "z"]}, None, 3, [0, 2, 1]),
        ((0, 2, 1), {"classes": ["x", "y", "z"]}, None, 5, None),
        (
            (0, 2, 1),
            {"classes": ["ship", "dog", "cat"], "target_transform": abs},
            NAMES,
            5,
            [0, 2, 1],
        ),
        (("Ship", "cat", "tree_frog"), {}, NAMES, 5, [3, 0, 2]),
        (("ship", "cat", "dog"), {}, None, 5, None),
        (({"boxes": []}, {}, {}), {}, NAMES, 5, None),
        ((-1, -1, -1), {}, NAMES, 5, None),
    ],
    ids=[
        *("numbers", "scalars", "names", "unknown", "counted", "uncounted", "changed"),
        *("words", "wordless", "boxes", "minus"),
    ],
)
def test_labels_of_a_data_set_fit_the_model(labels, attributes, classes, count, expected):
    items = zip(pictures(3), labels, strict=True)
    data = fs.load_data(Own(*items, **attributes), wrapped(classes, count))
    assert labels_of(data) == expected
    assert data.name == "Own"


@pytest.mark.parametrize(
    "label",
    [torch.tensor([0, 1, 1]), np.array([0.0, 1.0]), [1, 0, 0], True, 0.5, torch.tensor(True)],
    ids=["multi-hot", "one-hot", "list", "bool", "share", "tensor"],
)
def test_labels_that_are_not_one_class_number_are_refused(model, label):
    items = [(picture, label) for picture in pictures(2)]
    for data in (Own(*items), items):
        with refused("must be one class number for each image", "labels=…"):
            fs.load_data(data, model)
        assert labels_of(fs.load_data(data, model, labels=[2, 3])) == [2, 3]


def batch_of(images: Tensor, numbers: list[int]) -> dict[str, Tensor]:
    return {"pixel_values": images, "labels": torch.tensor(numbers)}


@pytest.mark.parametrize("keys", [("image", "label"), ("img", "labels"), ("pixel_values", "label")])
def test_items_may_be_dicts(model, keys):
    rows = [dict(zip(keys, pair, strict=True)) for pair in zip(pictures(3), (3, 0, 1), strict=True)]
    for data in (Own(*rows), rows):
        held = fs.load_data(data, model)
        assert torch.equal(images_in(held), prepared(model, 3))
        assert labels_of(held) == [3, 0, 1]
    assert labels_of(fs.load_data([{"x": one} for one in pictures(2)], model)) is None


def test_batches_of_a_loader_may_be_dicts(model):
    images = images_of((32, 32), 3)
    rows = [{"x": image, "label": number} for number, image in enumerate(images)]
    for loader in (DataLoader(Own(*rows), batch_size=2), [batch_of(images, [0, 1, 2])].__iter__()):
        (*batches,) = fs.load_data(loader, model).batches(2)
        assert torch.equal(torch.cat([batch.images for batch in batches]), images)
        assert torch.cat([batch.labels for batch in batches]).tolist() == [0, 1, 2]
    with refused("a dict of ['photo']", "none of pixel_values, image, img, x: call it so"):
        fs.evaluate(model, DataLoader(Own({"photo": images[0]})), "gradient", "saco")


def test_labels_that_are_no_class_cost_their_image(model):
    data = Own(*zip(pictures(3), ["cat", "lion", "dog"], strict=True))
    (batch,) = fs.load_data(data, model).batches(3)
    assert (batch.labels.tolist(), batch.skipped[0].reason) == (
        *([0, 1],),
        "its label 'lion' is no class of tiny",
    )
    numbers = Own(*zip(pictures(2), [0, 7], strict=True), classes=list(NAMES))
    (batch,) = fs.load_data(numbers, model).batches(3)
    assert "its label 7 is no class" in batch.skipped[0].reason


def test_labels_may_be_given_beside_a_data_set(model):
    data = fs.load_data(Own(*pictures(3)), model, labels=[1, 2, 3])
    assert labels_of(data) == [1, 2, 3]
    with refused("one class number for each of the 3 images"):
        fs.load_data(Own(*pictures(3)), model, labels=[1])


class Bare:
    """No Dataset of torch, but items by place and a length."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Image.Image:
        return pictures(2)[place]


def test_anything_with_places_and_a_length_is_a_data_set(model):
    assert torch.equal(images_in(fs.load_data(Bare(), model)), prepared(model, 2))
    both = ConcatDataset([Own(*pictures(2)), Own(*pictures(3))])
    assert len(fs.load_data(both, model)) == 5


class Stream(IterableDataset[Tensor]):
    def __iter__(self):
        return iter(images_of((32, 32), 4))


def test_streams_come_through_loaders(model):
    result = fs.evaluate(model, DataLoader(Stream(), batch_size=2), "gradient", "saco")
    assert len(result.samples) == 4


def test_a_data_set_without_a_length_is_refused(model):
    class Endless(Dataset[Tensor]):
        def __getitem__(self, place: int) -> Tensor:
            return torch.zeros(3, 32, 32)

    with refused("does not say how many images", "a loader of it"):
        fs.load_data(Endless(), model)


# Runs of data sets


class Photos(Dataset[Any]):
    """Pictures with labels, one of them broken; counts what was read."""

    reads = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        Photos.reads += 1
        if place == 2:
            raise OSError("broken")
        return pictures(6)[place], place % 5


def scored(model: fs.Model, data: Any, **options: Any) -> fs.Result:
    return fs.evaluate(model, data, "gradient", "saco", random_draws=1, **options)


def test_a_run_of_a_data_set_is_resumed_and_gives_the_same(tmp_path, model, monkeypatch):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 2)
    whole = scored(model, Photos())
    assert (whole.manifest.data.name, whole.manifest.data.samples) == ("Photos", 5)
    assert [item.name for item in whole.manifest.data.skipped] == ["2"]
    assert whole.samples["label"].to_pylist() == [0, 1, 3, 4, 0]

    def stop(state: Any) -> None:
        if state.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(model, Photos(), out=tmp_path / "run", progress=stop)
    resumed = scored(model, Photos(), out=tmp_path / "run")
    assert resumed.scores.equals(whole.scores)
    assert scored(model, Photos(), tolerance=0.5).manifest.stopping is not None


def test_the_data_that_is_loaded_can_be_sent_to_workers(folder, model):
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    for data in (ImageFolder(folder), Photos(), pictures(2), f"{folder}/*/*.png"):
        held = fs.load_data(data, model)
        sent = pickle.loads(cloudpickle.dumps(held.read))
        assert type(sent(0)) is type(held.read(0))


# Hugging Face


@pytest.fixture
def rows(tmp_path) -> Any:
    if find_spec("datasets") is None:
        pytest.skip("the optional library datasets is not installed")
    import datasets

    kinds = {"img": datasets.Image(), "fine": datasets.ClassLabel(names=["ship", "cat"])}
    content = {"img": pictures(3), "fine": [0, 1, 0]}
    return datasets.Dataset.from_dict(content, features=datasets.Features(kinds))


def test_rows_of_hugging_face_are_data(rows, model):
    data = fs.load_data(rows, model)
    assert (data.name, samples_of(data), labels_of(data)) == (
        *("Dataset", ["0", "1", "2"]),
        [3, 0, 3],
    )
    assert torch.equal(images_in(data), prepared(model, 3))
    usual = rows.rename_columns({"img": "image", "fine": "label"}).select([2, 0])
    assert labels_of(fs.load_data(usual, model)) == [3, 3]
    assert labels_of(fs.load_data(rows, model, labels=[1, 1, 2])) == [1, 1, 2]
    assert len(fs.load_data(rows, model, limit=2)) == 2
    changed = rows.with_transform(lambda batch: {"pixel_values": batch["img"]})
    assert torch.equal(images_in(fs.load_data(changed, model)), prepared(model, 3))
    assert fs.load_data(changed, model).name == "Dataset"
    assert scored(model, rows).manifest.data.name == "Dataset"


def test_a_transform_of_rows_counts(rows, model):
    usual = rows.rename_columns({"img": "image", "fine": "label"})
    values = images_of((32, 32), 3)

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**batch, "pixel_values": [values[len(batch["image"])]] * len(batch["image"])}

    data = fs.load_data(usual.with_transform(transform), model)
    assert torch.equal(images_in(data), values[1].expand(3, -1, -1, -1))
    assert labels_of(data) == [3, 0, 3]


def test_rows_may_hold_arrays(model, rows):
    import datasets

    values = images_of((32, 32), 2).float()
    data = fs.load_data(
        datasets.Dataset.from_dict({"pixel_values": values.tolist(), "label": [4, 1]}), model
    )
    assert torch.equal(images_in(data), values)
    assert labels_of(data) == [4, 1]


def test_rows_without_images_and_dicts_of_rows_are_refused(rows, model):
    import datasets

    with refused("Unknown column 'image'", "fine"):
        fs.load_data(rows.remove_columns("img"), model)
    with refused("several data sets (train, test)", "data['train']"):
        fs.load_data(datasets.DatasetDict({"train": rows, "test": rows}), model)
    with refused("holds no images"):
        fs.load_data(rows.select([]), model)


def test_torchvisions_sets_are_named_by_their_class(model, tmp_path, monkeypatch):
    held = CIFAR10.__new__(CIFAR10)
    held.data, held.targets = pixels(2, 32), [1, 0]
    held.classes = ["cat", "ship"]
    held.transform = held.target_transform = held.transforms = None
    data = fs.load_data(held, model)
    assert (data.name, labels_of(data)) == ("CIFAR10", [3, 0])


# fs.explain takes what fs.evaluate takes


def test_explain_takes_every_kind_of_data(folder, model):
    expected = fs.explain(model, images_in(fs.load_data(folder, model)), "gradient")
    loader = DataLoader(TensorDataset(images_in(fs.load_data(folder, model))), batch_size=2)
    files = sorted(folder.rglob("*.png"))
    kinds = (folder, str(folder), f"{folder}/*/*.png", files, ImageFolder(folder), pictures(5))
    for data in (*kinds, pixels(5), loader, fs.load_data(folder, model)):
        maps = fs.explain(model, data, "gradient")
        torch.testing.assert_close(maps, expected, rtol=1e-6, atol=1e-9)
    one = fs.explain(model, Image.open(files[0]), ["gradient", "rollout"], units="patches")
    assert {name: tuple(maps.shape) for name, maps in one.items()} == {
        "gradient": (1, 4, 4),
        "rollout": (1, 4, 4),
    }


def test_explaining_by_nothing_is_refused():
    images = torch.zeros(1, 3, 4, 4)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).eval()
    with refused("There are no methods"):
        fs.explain(module, images, [])


def test_explain_goes_batch_by_batch(model, monkeypatch):
    images, target = images_of((32, 32), 5), torch.tensor([0, 1, 2, 3, 4])
    whole = fs.explain(model, images, "gradient", target=target)
    sizes = []
    real = fs.explain.__wrapped__.__globals__["explain_images"]

    def seen(model: Any, images: Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(images))
        return real(model, images, *rest, **options)

    monkeypatch.setattr("faithscope.explaining.explain_images", seen)
    monkeypatch.setattr("faithscope.explaining.EXPLAIN_BATCH", 2)
    parts = fs.explain(model, DataLoader(TensorDataset(images)), "gradient", target=target)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-8)
    assert sizes == [1] * 5
    fs.explain(model, images, "gradient")
    assert sizes[5:] == [2, 2, 1]
    loader = iter([images[:2], images[2:]])
    with refused("target must be", "images"):
        fs.explain(model, loader, "gradient", target=target[:4])


def test_random_maps_of_explain_are_those_of_evaluate(folder, model):
    """Their draws go by the names of the files."""
    maps = fs.explain(model, folder, "random")
    result = fs.evaluate(model, folder, "random", "saco", random_draws=1)
    given = fs.evaluate(model, folder, maps={"mine": maps}, metrics="saco")
    np.testing.assert_allclose(given.values("mine", "saco"), result.values("random", "saco"))


def test_what_cannot_be_explained_is_an_error(folder, model):
    (folder / "cat" / "1.png").write_text("no image")
    with refused("'cat/1.png' cannot be explained", "cannot be read", "fs.evaluate"):
        fs.explain(model, folder, "gradient")
    sizes = [images_of((32, 32), 1)[0], images_of((40, 40), 1)[0]]
    with refused("several shapes, [3, 32, 32] and [3, 40, 40]", "one shape at a time"):
        fs.explain(model, sizes, "random")
    with refused("no images"):
        fs.explain(model, iter([]), "gradient")
    with refused("no folder or image 'nowhere'"):
        fs.explain(model, "nowhere", "gradient")
