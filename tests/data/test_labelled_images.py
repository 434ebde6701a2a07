"""Labelled images to train on: every way to give them, and what is wrong with others."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image

from faithscope.data.labelled_images import load_labelled
from families import refused
from small_images import array_file, corner_images

IMAGES, LABELS = corner_images(20)["train"]


def same(one, other):
    for (_, mine), (_, theirs) in zip(one.splits, other.splits, strict=True):
        assert torch.equal(mine.images, theirs.images)
        assert torch.equal(mine.labels, theirs.labels)


def test_arrays_files_and_layouts_are_the_same(tmp_path):
    given = corner_images()
    plain = load_labelled(given)
    assert [len(part) for _, part in plain.splits] == [58, 6, 32]
    assert plain.validation.labels.bincount().tolist() == [3, 3]
    assert plain.classes == ("0", "1") and plain.size == (8, 8) and plain.channels == 3
    assert "10 % of the training images" in plain.notes[0]
    same(plain, load_labelled(array_file(tmp_path)))
    turned = {name: (np.moveaxis(x, -1, 1), list(y)) for name, (x, y) in given.items()}
    same(plain, load_labelled(turned))
    same(plain, load_labelled(tmp_path / "corners.npz"))


def test_folders_and_mosaics(tmp_path):
    given = corner_images(16, 8)
    for split, (images, labels) in given.items():
        for place, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = tmp_path / "folder" / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{place:03d}.png")
    held = load_labelled(tmp_path / "folder")
    assert held.classes == ("class0", "class1") and len(held.test) == 8
    (tmp_path / "mosaics").mkdir()
    for split, (images, labels) in given.items():
        tiles = images.reshape(-1, 4, 8, 8, 3).swapaxes(1, 2).reshape(-1, 32, 3)
        Image.fromarray(tiles).save(tmp_path / "mosaics" / f"{split}_00.png")
        lines = "\n".join(map(str, labels))
        (tmp_path / "mosaics" / f"{split}_labels.txt").write_text(lines)
    (tmp_path / "mosaics" / "classes.txt").write_text("no\nyes\n")
    for name in (tmp_path / "mosaics", f"cifar10:{tmp_path / 'mosaics'}"):
        made = load_labelled(name)
        same(made, load_labelled(given))
        assert made.classes == ("no", "yes")


def idx(array):
    """An array of bytes as MNIST keeps it."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def save_mnist(folder, images, labels):
    folder.mkdir(exist_ok=True)
    for split in ("train", "t10k"):
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))


def test_the_files_of_mnist_packed_or_not(tmp_path):
    grey = IMAGES[..., 0]
    save_mnist(tmp_path / "mnist", grey, LABELS)
    held = load_labelled(f"mnist:{tmp_path / 'mnist'}")
    same(held, load_labelled({"train": (grey, LABELS), "test": (grey, LABELS)}))
    assert held.name == "mnist" and held.channels == 1


@pytest.mark.parametrize("broken", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\0", b"short", None])
def test_files_of_mnist_that_cannot_be_read(tmp_path, broken):
    save_mnist(tmp_path, IMAGES[..., 0], LABELS)
    whole = idx(LABELS.astype(np.uint8))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(whole[:-1] if broken is None else broken)
    with refused("t10k-labels", "cannot be read"):
        load_labelled(f"mnist:{tmp_path}")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with refused("has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"):
        load_labelled(f"mnist:{tmp_path}")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with refused("train-images", "cannot be read"):
        load_labelled(f"mnist:{tmp_path}")


def test_the_bundle_and_a_limit():
    held = load_labelled("bundled:cifar10", limit=20)
    assert [len(part) for _, part in held.splits] == [20, 16, 20]
    assert held.train.labels.bincount(minlength=10).min() >= 1
    assert "Only 20 images" in held.notes[-1]


BAD = [
    ({"test": (IMAGES, LABELS)}, ["no training split"]),
    ({"train": (IMAGES, LABELS), "dev": (IMAGES, LABELS)}, ["'dev'", "validation"]),
    ({"train": IMAGES}, ["Images and labels are needed"]),
    ({"train": (IMAGES, None)}, ["no labels"]),
    ({"train": (IMAGES, LABELS[:-1])}, ["one class number for each of its 20"]),
    ({"train": (IMAGES, LABELS * 0)}, ["all of one class"]),
    ({"train": (IMAGES, LABELS - 1)}, ["count from 0"]),
    ({"train": (IMAGES / 255, LABELS)}, ["uint8", "float64"]),
    ({"train": (IMAGES[..., :2], LABELS)}, ["one or three colours"]),
    ({"train": (IMAGES, LABELS), "test": (IMAGES[:, :4], LABELS)}, ["all must have one size"]),
    ({"train": (IMAGES[:0], LABELS[:0])}, ["no images"]),
    (3, ["got 3"]),
    ("array:nowhere.npz", ["There is no array file"]),
    ("array:", ["needs to know what"]),
    ("bundled:cifar", ["Unknown bundled data 'cifar'"]),
    ("bundled:cifar10(split=test)", ["takes no options", "split"]),
]


@pytest.mark.parametrize(("data", "words"), BAD)
def test_what_is_wrong_is_said_in_a_sentence(data, words):
    with refused(*words):
        load_labelled(data)


def test_files_that_are_none(tmp_path):
    np.savez(tmp_path / "other.npz", images=IMAGES)
    with refused("holds images", "x_train"):
        load_labelled(f"array:{tmp_path / 'other.npz'}")
    np.savez(tmp_path / "bare.npz", x_train=IMAGES)
    with refused("no labels"):
        load_labelled(f"array:{tmp_path / 'bare.npz'}")
    (tmp_path / "text.npz").write_text("no array")
    with refused("cannot be read"):
        load_labelled(f"array:{tmp_path / 'text.npz'}")
    (tmp_path / "empty").mkdir()
    with refused("holds no training images"):
        load_labelled(tmp_path / "empty")
    (tmp_path / "empty" / "train_labels.txt").write_text("0\n1\n")
    with refused("hold 0 pixels", "2 square images"):
        load_labelled(tmp_path / "empty")
