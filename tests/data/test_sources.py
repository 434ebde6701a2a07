"""Data by name: CIFAR, ImageNet, Hugging Face, arrays; labels, subsets, broken images, refusals."""

import hashlib
import pickle
import sys
import tracemalloc
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

import faithscope as fs
from faithscope.data import SOURCES, fit_labels
from faithscope.data.images import TensorImages
from families import images_of, refused, seeded, timm_vit
from image_data import NAMES, NORMAL, images_in, labels_of, samples_of


def wrapped(classes: tuple[str, ...] | None = NAMES, count: int = 5) -> fs.Model:
    return fs.wrap(seeded(lambda: timm_vit(num_classes=count)), classes=classes, **NORMAL)


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return wrapped()


def pixels(count: int, side: int = 32, channels: int = 3) -> np.ndarray:
    shape = (count, side, side, channels)
    return np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    stream = BytesIO()
    Image.fromarray(image).save(stream, "png")
    return stream.getvalue()


def save(path: Path, image: np.ndarray | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels(1)[0] if image is None else image))


def prepared(model: fs.Model, images: np.ndarray) -> torch.Tensor:
    return torch.stack([model.transform(Image.fromarray(image)) for image in images])


# Names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar:x", ["Unknown data source 'cifar'", "did you mean 'cifar10'", "array, bundled"]),
        ("imagnet:x", ["did you mean 'imagenet'"]),
        ("nowhere", ["There is no folder or image 'nowhere'", "'bundled:cifar10'"]),
        ("cifar10", ["There is no folder or image 'cifar10'", "'cifar10:…'"]),
        ("hf:", ["'hf' needs to know what"]),
        ("cifar10:x(spilt=train)", ["option of data source 'cifar10'", "did you mean 'split'"]),
        ("cifar10:x(split=val)", ["Unknown split of cifar10 'val'", "test, train"]),
        ("cifar10:x(download=1)", ["'download'", "true or false"]),
        ("bundled:cifar10(split=test)", ["takes no options"]),
        ("imagenet:x(split=test)", ["split of imagenet 'test'"]),
        ("cifar10:x(train)", ["not of the form name(option=value"]),
    ],
)
def test_a_name_that_is_no_data_is_refused_saying_what_was_meant(
    tmp_path, monkeypatch, model, name, words
):
    monkeypatch.chdir(tmp_path)
    with refused(*words):
        fs.load_data(name, model)


def test_a_negative_seed_is_refused(model):
    with refused("seed must be at least 0"):
        fs.load_data("bundled:cifar10", model, limit=2, seed=-1)


def test_others_can_add_sources(monkeypatch, model):
    def mine(name, model, *, limit, seed, options):
        return TensorImages(images_of((32, 32), limit), name=f"{name} {options} {seed}")

    monkeypatch.setitem(SOURCES._items, "mine", mine)
    data = fs.load_data("mine:a/b(size=(2, 3))", model, limit=2, seed=4)
    assert (data.name, len(data)) == ("a/b {'size': (2, 3)} 4", 2)


def test_a_broken_source_of_another_package_is_told_from_an_unknown_one(monkeypatch, model):
    monkeypatch.setitem(SOURCES._broken, "theirs", "ImportError: no such module")
    with refused("data source 'theirs' of another package cannot be loaded", "no such module"):
        fs.load_data("theirs:x", model)


@pytest.mark.parametrize("folder", ["plain", "set (1)", "a(x=1)", "cifar:old", "with space"])
def test_paths_may_hold_brackets_and_colons(tmp_path, monkeypatch, model, folder):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "x.npz", pixels(3))
    save(tmp_path / folder / "a.png")
    assert samples_of(fs.load_data(folder, model)) == ["a.png"]
    np.savez(tmp_path / folder / "x.npz", x=pixels(3), y=pixels(2))
    for name in (f"array:{folder}/x.npz(images=x)", f"array:{tmp_path}/{folder}/x.npz(images=x)"):
        assert len(fs.load_data(name, model)) == 3


# Labels


@pytest.mark.parametrize(
    ("numbers", "names", "classes", "count", "labels"),
    [
        ([0, 1, 1], ["Dog", "tree_frog"], NAMES, 5, (1, 2, 2)),
        ([0], ["dog", "lion"], NAMES, 5, (1,)),
        ([0, 1], ["dog", "lion"], NAMES, 5, None),
        ([0, 1], ["a", "b"], None, 2, (0, 1)),
        ([0, 1], ["a", "b"], None, 5, None),
        ([0, 1], ["a", "b"], ("LABEL_0", "LABEL_1"), 2, (0, 1)),
        ([0, 1], ["crane", "dog"], ("crane", "crane", "dog"), 3, None),
        ([0, 1], ["crane", "crane"], ("crane", "crane"), 2, (0, 1)),
        ([0, 4], None, NAMES, 5, (0, 4)),
        ([0, -1], ["cat", "dog"], NAMES, 5, None),
    ],
    ids="by_name absent_unused absent by_number too_few placeholders shared_name same_list "
    "unnamed missing".split(),
)
def test_labels_fit_the_models_classes_or_are_left_out(numbers, names, classes, count, labels):
    assert fit_labels(numbers, names, wrapped(classes, count)) == labels


def test_a_model_that_declares_no_classes_is_read_at_its_head():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.Linear(8, 2))
    assert fit_labels([1, 0], ["a", "b"], fs.wrap(module)) == (1, 0)
    assert fit_labels([1, 0], ["a", "b", "c"], fs.wrap(module)) is None


# CIFAR


def write(folder: Path, name: str, content: object) -> list[str]:
    data = pickle.dumps(content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return [name, hashlib.md5(data).hexdigest()]


@pytest.fixture(params=[CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
def cifar(request, tmp_path, monkeypatch) -> tuple[str, np.ndarray]:
    """A tiny archive in torchvision's format: five classes, 20 test and 10 training images."""
    kind, images = request.param, pixels(20)
    hundred = kind is CIFAR100
    folder, key = tmp_path / kind.base_folder, "fine_labels" if hundred else "labels"
    for split, count in (("test", 20), ("train", 10)):
        rows = images[:count].transpose(0, 3, 1, 2).reshape(count, -1)
        entry = write(folder, split, {"data": rows, key: [i % 5 for i in range(count)]})
        monkeypatch.setattr(kind, f"{split}_list", [entry])
    names = ["dog", "cat", "tree_frog", "ship", "truck"]
    meta = write(folder, "meta", {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": meta[0], "md5": meta[1]})
    return f"{kind.__name__.lower()}:{tmp_path}", images


def test_cifar_is_read_as_torchvision_stores_it(cifar, model):
    name, images = cifar
    data = fs.load_data(name, model)
    assert torch.equal(images_in(data), prepared(model, images))
    assert samples_of(data) == [str(i) for i in range(20)]
    assert labels_of(data) == [(1, 0, 2, 3, 4)[i % 5] for i in range(20)]
    assert data.name == name.partition(":")[0] + ":test"
    train = fs.load_data(f"{name}(split=train)", model)
    assert (len(train), train.name[-5:]) == (10, "train")


def test_an_image_of_cifar_keeps_its_name_in_a_subset(cifar, model):
    name, images = cifar
    data = fs.load_data(name, model, limit=4)
    assert samples_of(data) == ["0", "5", "10", "15"]
    assert torch.equal(images_in(data), prepared(model, images[::5]))
    assert [place for batch in data.batches(3) for place in batch.positions] == [0, 1, 2, 3]
    assert [key for batch in data.batches(3) for key in batch.keys] == samples_of(data)
    by_seed = [samples_of(fs.load_data(name, model, limit=4, seed=seed)) for seed in (1, 1, 2)]
    assert by_seed[0] == by_seed[1] != by_seed[2]


def test_the_unpacked_folder_of_cifar_itself_will_do(cifar, model):
    kind = CIFAR10 if cifar[0].startswith("cifar10:") else CIFAR100
    assert len(fs.load_data(f"{cifar[0]}/{kind.base_folder}", model)) == 20


def test_a_missing_or_changed_cifar_says_what_to_download_and_unpickles_nothing(
    cifar, tmp_path, model, monkeypatch
):
    name = cifar[0]
    source = name.partition(":")[0]
    words = ["does not hold CIFAR", "https://", "-python.tar.gz", "(download=true)'"]
    with refused(*words):
        fs.load_data(f"{source}:{tmp_path}/elsewhere", model)
    next(tmp_path.glob("*/train")).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with refused(*words):
        fs.load_data(name, model)


def test_a_download_of_cifar_that_fails_is_told_in_a_sentence(tmp_path, model, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise OSError("no route to host\nat all")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fails)
    with refused("does not hold CIFAR10 (no route to host)", "by other means"):
        fs.load_data(f"cifar10:{tmp_path}(download=true)", model)


def test_cifar_is_evaluated_by_name(cifar, model, monkeypatch):
    monkeypatch.setattr("faithscope.data.sources.choose_subset", lambda *_: [3, 7])
    result = fs.evaluate(model, cifar[0], "gradient", "saco", random_draws=1)
    assert result.samples["sample"].to_pylist() == ["3", "7"]
    assert result.samples["label"].to_pylist() == [3, 2]
    assert result.manifest.data.name.endswith(":test")


# ImageNet


def imagenet(root: Path, *wnids: str, each: int = 2) -> Path:
    for wnid in wnids:
        for index in range(each):
            save(root / wnid / f"{wnid}_{index}.JPEG")
    return root


TENCH, GOLDFISH, GOOSE = "n01440764", "n01443537", "n01855672"  # 0, 1 and 99 of ImageNet-1k


@pytest.mark.parametrize(
    ("classes", "count", "labels"),
    [
        (None, 1000, [0, 0, 1, 1, 99, 99]),
        (None, 3, [0, 0, 1, 1, 2, 2]),
        (None, 5, None),
        (("goose", "tench", "goldfish"), 3, [1, 1, 2, 2, 0, 0]),
        (("goose", "tench, Tinca tinca", "goldfish, Carassius auratus"), 3, [1, 1, 2, 2, 0, 0]),
        ((GOOSE, GOLDFISH, TENCH), 3, [2, 2, 1, 1, 0, 0]),
        (("cat", "dog", "goose"), 3, None),
    ],
    ids="of_1000 sorted another_count first_names full_names wnids other_names".split(),
)
def test_imagenets_class_folders_are_numbered_as_the_model_does(tmp_path, classes, count, labels):
    imagenet(tmp_path / "val", GOOSE, TENCH, GOLDFISH)
    (tmp_path / "val" / "lists").mkdir()
    data = fs.load_data(f"imagenet:{tmp_path}", wrapped(classes, count))
    assert labels_of(data) == labels
    assert samples_of(data)[0] == f"{TENCH}/{TENCH}_0.JPEG"
    assert data.name == "imagenet:val"


def test_imagenet_takes_its_val_folder_itself_another_split_and_a_subset(tmp_path, model):
    imagenet(tmp_path / "val", TENCH, GOLDFISH)
    imagenet(tmp_path / "train", TENCH, each=5)
    assert len(fs.load_data(f"imagenet:{tmp_path}/val", model)) == 4
    assert len(fs.load_data(f"imagenet:{tmp_path}(split=train)", model)) == 5
    some = samples_of(fs.load_data(f"imagenet:{tmp_path}", model, limit=2))
    assert [name.partition("/")[0] for name in some] == [TENCH, GOLDFISH]


def test_a_broken_image_of_imagenet_costs_itself(tmp_path):
    imagenet(tmp_path / "val", TENCH, GOLDFISH)
    broken = tmp_path / "val" / TENCH / f"{TENCH}_1.JPEG"
    broken.write_bytes(broken.read_bytes()[:200])
    result = fs.evaluate(
        wrapped(None, 2), f"imagenet:{tmp_path}", "gradient", "saco", random_draws=1
    )
    assert result.samples["label"].to_pylist() == [0, 1, 1]
    (skipped,) = result.manifest.data.skipped
    assert skipped.name == f"{TENCH}/{TENCH}_1.JPEG"
    assert "cannot be read" in skipped.why


def test_what_is_not_imagenet_says_what_it_needs(tmp_path, model):
    words = ["does not hold ImageNet", "val/", "n01440764", "ILSVRC2012_img_val.tar"]
    with refused(*words):
        fs.load_data(f"imagenet:{tmp_path}/nowhere", model)
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    with refused(*words):
        fs.load_data(f"imagenet:{tmp_path}", model)
    (tmp_path / "train" / TENCH).mkdir(parents=True)
    with refused("hold no images"):
        fs.load_data(f"imagenet:{tmp_path}(split=train)", model)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "ILSVRC2012_img_val.tar").touch()
    with refused("cannot be unpacked", "ILSVRC2012_devkit_t12.tar.gz"):
        fs.load_data(f"imagenet:{tmp_path}/packed", model)


# Arrays


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_pixels_of_an_array_are_preprocessed(tmp_path, model, suffix, layout):
    images, file = pixels(5), tmp_path / f"x.{suffix}"
    stored = images if layout == "NHWC" else images.transpose(0, 3, 1, 2)
    np.save(file, stored) if suffix == "npy" else np.savez_compressed(file, stored)
    data = fs.load_data(f"array:{file}", model)
    assert torch.equal(images_in(data), prepared(model, images))
    assert (samples_of(data), labels_of(data), data.name) == (list("01234"), None, f"x.{suffix}")
    assert samples_of(fs.load_data(f"array:{file}", model, limit=2)) == ["0", "2"]


def test_grey_and_transparent_pixels_are_seen_as_rgb(tmp_path, model):
    grey, clear = pixels(2, channels=1), pixels(2, channels=4)
    clear[..., 3] = 0
    np.save(tmp_path / "grey.npy", grey)
    np.save(tmp_path / "clear.npy", clear)
    expected = prepared(model, np.repeat(grey, 3, axis=-1))
    assert torch.equal(images_in(fs.load_data(f"array:{tmp_path}/grey.npy", model)), expected)
    white = prepared(model, np.full((2, 32, 32, 3), 255, np.uint8))
    assert torch.equal(images_in(fs.load_data(f"array:{tmp_path}/clear.npy", model)), white)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8"])
def test_floats_of_an_array_are_taken_as_they_are(tmp_path, kind):
    images = images_of((32, 32), 4).numpy().astype(kind)
    images[2, 0, 0, 0] = np.nan
    np.savez(tmp_path / "x.npz", images=images, labels=np.array([[0], [1], [2], [3]]))
    module = seeded(timm_vit)
    stored = fs.load_data(f"array:{tmp_path}/x.npz", fs.wrap(module))
    results = [
        fs.evaluate(module, data, "gradient", random_draws=1, **labels)
        for data, labels in ((stored, {}), (images, {"labels": [0, 1, 2, 3]}))
    ]
    assert results[0].samples["sample"].to_pylist() == ["0", "1", "3"]
    assert results[0].samples["label"].to_pylist() == [0, 1, 3]
    assert results[0].manifest.data.skipped == results[1].manifest.data.skipped
    for column in ("method", "metric", "value"):
        assert results[0].scores[column].to_pylist() == results[1].scores[column].to_pylist()


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        (np.array([4, 0, 1]), "", [4, 0, 1]),
        (np.array(["dog", "Cat", "tree_frog"]), "", [1, 0, 2]),
        (np.array(["dog", "cat", "lion"]), "", None),
        (np.array([4, 0, 1]), "(labels=none, images=images)", None),
    ],
    ids=["numbers", "names", "unknown_name", "none"],
)
def test_labels_of_an_array_are_optional(tmp_path, model, labels, options, expected):
    np.savez(tmp_path / "x.npz", images=pixels(3), labels=labels)
    assert labels_of(fs.load_data(f"array:{tmp_path}/x.npz{options}", model)) == expected


def test_arrays_of_other_names_are_chosen_by_option(tmp_path, model):
    np.savez(tmp_path / "x.npz", x_test=pixels(3), y_test=np.array([2, 1, 0]), x_train=pixels(4))
    data = fs.load_data(f"array:{tmp_path}/x.npz(images=x_test, labels=y_test)", model)
    assert (len(data), labels_of(data)) == (3, [2, 1, 0])
    with refused("Unknown array of", "'images'", "x_test, x_train, y_test"):
        fs.load_data(f"array:{tmp_path}/x.npz", model)


def test_a_large_npy_is_mapped_not_read(tmp_path, model):
    file, shape = tmp_path / "x.npy", (20_000, 64, 64, 3)
    np.lib.format.open_memmap(file, "w+", np.uint8, shape).flush()  # sparse: 246 MB
    tracemalloc.start()
    try:
        batch = next(fs.load_data(f"array:{file}", model, limit=2).batches(2))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert batch.samples == ("0", "10000")


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": pixels(2)[0]}, ["four axes", "[32, 32, 3]"]),
        ({"images": pixels(2)[:0]}, ["four axes", "[0, 32, 32, 3]"]),
        ({"images": pixels(2).astype(np.int64)}, ["uint8", "got int64"]),
        ({"images": pixels(2) / 255}, ["[N, C, H, W]", "float64 [2, 32, 32, 3]"]),
        ({"images": pixels(2), "labels": np.zeros((2, 5), int)}, ["each of the 2", "[2, 5]"]),
        ({"images": pixels(2), "labels": np.array([0, -1])}, ["class numbers"]),
        ({"images": np.array([Runs()], dtype=object)}, ["cannot be read", "np.save"]),
    ],
    ids="one_image no_image integers channels_last one_hot negative objects".split(),
)
def test_arrays_that_are_no_images_are_refused(tmp_path, model, arrays, words):
    np.savez(tmp_path / "x.npz", **arrays)
    with refused(*words):
        fs.load_data(f"array:{tmp_path}/x.npz", model)


def test_files_that_are_no_arrays_are_refused(tmp_path, model):
    file = tmp_path / "x.npy"
    with refused("There is no array file"):
        fs.load_data(f"array:{file}", model)
    for content in (b"", b"this is no array", pickle.dumps(Runs())):
        file.write_bytes(content)
        with refused("cannot be read", "np.save"):
            fs.load_data(f"array:{file}", model)
    np.save(file, pixels(2))
    with refused("is one array", "'labels'"):
        fs.load_data(f"array:{file}(labels=y)", model)


# Hugging Face

needs_datasets = pytest.mark.skipif(
    find_spec("datasets") is None, reason="the optional library datasets is not installed"
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The library, with its cache in a folder of the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


def saved(hub, folder: Path, labels: list, kind=None, **columns: list):
    """Rows with images, one of them broken, as a DatasetDict with the split "test"."""
    images = [{"bytes": png(image), "path": None} for image in pixels(len(labels))]
    images[1] = {"bytes": images[1]["bytes"][:100], "path": None}
    features = {"image": hub.Image(), "label": kind or hub.Value("int64")}
    rows = hub.Dataset.from_dict(
        {"image": images, "label": labels}, features=hub.Features(features)
    )
    for name, values in columns.items():
        rows = rows.add_column(name, values)
    hub.DatasetDict({"test": rows, "validation": rows.select([0])}).save_to_disk(folder)
    return rows


@needs_datasets
def test_a_saved_data_set_is_read_lazily_and_a_broken_image_costs_itself(tmp_path, model, hub):
    kind = hub.ClassLabel(names=["dog", "cat"])
    saved(hub, tmp_path / "set", [0, 1, 1, 0], kind)
    data = fs.load_data(f"hf:{tmp_path}/set", model)
    assert (len(data), data.name) == (4, "hf:set:test")
    batches = list(data.batches(4))
    assert batches[0].samples == ("0", "2", "3")
    assert batches[0].labels.tolist() == [1, 0, 1]
    assert batches[0].skipped[0].sample == "1"
    assert "cannot be read" in batches[0].skipped[0].reason
    assert torch.equal(batches[0].images, prepared(model, pixels(4)[[0, 2, 3]]))
    assert samples_of(fs.load_data(f"hf:{tmp_path}/set", model, limit=2)) == ["0", "2"]
    assert len(fs.load_data(f"hf:{tmp_path}/set(split=validation)", model)) == 1


@needs_datasets
@pytest.mark.parametrize(
    ("labels", "kind", "options", "expected"),
    [
        ([3, 0, 2], "int64", "", [3, 2]),
        (["ship", "cat", "tree frog"], "string", "", [3, 2]),
        (["ship", "cat", "lion"], "string", "", None),
        ([3, 0, None], "int64", "", None),
        ([3, 0, -1], "int64", "", None),
        ([3, 0, 2], "int64", "(label=none)", None),
        ([3, 0, 2], "int64", "(label=other)", [1, 1]),
    ],
    ids="numbers names unknown_name null minus_one none other_column".split(),
)
def test_labels_of_a_data_set_are_optional(tmp_path, model, hub, labels, kind, options, expected):
    saved(hub, tmp_path / "set", labels, hub.Value(kind), other=[1, 1, 1])
    assert labels_of(fs.load_data(f"hf:{tmp_path}/set{options}", model)) == expected


@needs_datasets
def test_names_in_a_data_set_do_not_number_the_classes_of_a_nameless_model(tmp_path, hub):
    saved(hub, tmp_path / "set", ["a", "b"], hub.Value("string"))
    assert labels_of(fs.load_data(f"hf:{tmp_path}/set", wrapped(None, 2))) is None


@needs_datasets
def test_one_split_saved_alone_will_do(tmp_path, model, hub):
    rows = saved(hub, tmp_path / "set", [0, 1, 2])
    rows.rename_column("image", "photo").remove_columns("label").save_to_disk(tmp_path / "alone")
    data = fs.load_data(f"hf:{tmp_path}/alone(image=photo)", model)
    assert (samples_of(data), labels_of(data), data.name) == (["0", "2"], None, "hf:alone:rows")


@needs_datasets
@pytest.mark.filterwarnings("ignore")
def test_folders_of_images_and_of_parquet_files_are_read(tmp_path, model, hub):
    for name in ("cat", "ship"):
        for index in range(2):
            save(tmp_path / "folder" / "test" / name / f"{index}.png", pixels(4)[index])
    data = fs.load_data(f"hf:{tmp_path}/folder", model)
    assert (len(data), labels_of(data)) == (4, [0, 0, 3, 3])
    assert torch.equal(images_in(data)[:2], prepared(model, pixels(4)[:2]))
    (tmp_path / "parquet").mkdir()
    saved(hub, tmp_path / "set", [0, 1, 2]).to_parquet(tmp_path / "parquet" / "test.parquet")
    assert labels_of(fs.load_data(f"hf:{tmp_path}/parquet", model)) == [0, 2]


@needs_datasets
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("(split=train)", ["Unknown split of", "'train'", "test, validation"]),
        ("(image=imago)", ["Unknown column 'imago'", "did you mean 'image'"]),
        ("(image=label)", ["The column 'label' holds no images"]),
        ("(label=lable)", ["Unknown column 'lable'", "did you mean 'label'"]),
        ("(label=image)", ["The column 'image' holds neither class numbers nor names"]),
        ("(colour=red)", ["option of data source 'hf' 'colour'"]),
    ],
)
def test_what_a_data_set_does_not_have_is_refused(tmp_path, model, hub, options, words):
    saved(hub, tmp_path / "set", [0, 1])
    with refused(*words):
        fs.load_data(f"hf:{tmp_path}/set{options}", model)


@needs_datasets
def test_a_data_set_that_cannot_be_had_is_told_in_a_sentence(tmp_path, model, hub, monkeypatch):
    def offline(name: str, config: str | None) -> None:
        raise ConnectionError(f"cannot reach the hub for {name} {config}.\nand more")

    monkeypatch.setattr(hub, "load_dataset", offline)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # where ../x is nothing
    with refused("'hf:a/b' could not be loaded", "ConnectionError: cannot reach", "a/b c)"):
        fs.load_data("hf:a/b(config=c)", model)
    for name in (f"{tmp_path}/nowhere", "pandas", "../x", "~/nowhere/at/all"):
        with refused("There is no data set", "'hf:owner/name'"):
            fs.load_data(f"hf:{name}", model)
    (tmp_path / "state.json").write_text("{}")
    with refused("could not be loaded"):
        fs.load_data(f"hf:{tmp_path}", model)


def test_without_the_library_or_with_an_old_one_the_user_is_told(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("needs the library datasets", "pip install"):
        fs.load_data("hf:a/b", model)
    old = type(sys)("datasets")
    old.__version__ = "3.6.0"
    monkeypatch.setitem(sys.modules, "datasets", old)
    with refused("version 4 or newer"):
        fs.load_data("hf:a/b", model)
