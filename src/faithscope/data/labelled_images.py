"""Labelled images in three splits, to train on: CIFAR, MNIST, arrays, files, folders.

Pixels are bytes as they are in a picture: a model that is trained brings its own normalisation.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithscope.data.decoding import read_image
from faithscope.data.files import EXTENSIONS
from faithscope.data.images import bundled_pixels, choose_subset, tiles_of
from faithscope.data.sources import KIND, open_cifar
from faithscope.data.splits import stratified_part
from faithscope.data.tensors import as_tensor, why_unread
from faithscope.data.text import SPLITS
from faithscope.errors import FaithscopeError, quoted, shown
from faithscope.models.model import CHANNELS
from faithscope.registry import check_options, check_whole
from faithscope.request import as_path, existing_path, split_options

VALIDATION_SHARE, TEST_SHARE = 0.1, 0.2
"""Of the training images, where there is no such split."""
EXAMPLE = "cifar10:FOLDER"


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """One split: pixels, uint8 [N, C, H, W], and class numbers, int64 [N]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, places: Any) -> LabelledImages:
        """Some of them."""
        return LabelledImages(self.images[places], self.labels[places])


@dataclass(frozen=True, eq=False)
class ImageSplits:
    """A data set of labelled images, all of one size."""

    name: str
    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    metric: str = "accuracy"
    selection: str = "accuracy"

    @property
    def splits(self) -> Iterator[tuple[str, LabelledImages]]:
        """The splits by name."""
        return ((name, getattr(self, name)) for name in SPLITS)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of pixels."""
        return self.train.images.shape[2], self.train.images.shape[3]

    @property
    def channels(self) -> int:
        """Colours."""
        return self.train.images.shape[1]


def load_labelled(data: Any, *, limit: int | None = None) -> ImageSplits:
    """Labelled images by name, or as arrays.

    Args:
        data: ``cifar10:FOLDER``, ``cifar100:FOLDER`` (option download); ``mnist:FOLDER`` with the
            four files of MNIST, Fashion-MNIST and others like them; ``array:FILE.npz`` with
            x_train, y_train, x_test, y_test and, if there is one, x_validation, y_validation; a
            folder with train/CLASS/… and test/CLASS/… (and validation/…), all images of one size,
            or with mosaics, train_00.png …, train_labels.txt, test_00.png …, test_labels.txt and
            classes.txt;
            ``bundled:cifar10``, 200 images to try things out; or in Python
            ``{"train": (images, labels), "test": (images, labels)}``. Pixels are uint8, [N, H, W]
            or with colours last or first. Without a validation split it is a tenth of the training
            images, each class alike.
        limit: use only so many images of each split, spread evenly over it.
    """
    limit = check_whole("limit", limit, 1)
    if isinstance(data, ImageSplits):
        made = data
    elif isinstance(data, Mapping):
        made = _of_arrays("images", data)
    else:
        made = _named(data)
    if limit is None or all(len(split) <= limit for _, split in made.splits):
        return made
    few = {name: split.at(_spread(split.labels, limit)) for name, split in made.splits}
    notes = (*made.notes, f"Only {limit} images of each split, as asked.")
    return replace(
        made, train=few["train"], validation=few["validation"], test=few["test"], notes=notes
    )


def _spread(labels: Tensor, limit: int) -> list[int]:
    """Places of so many images, each class alike as near as it goes, in their order."""
    by_class = torch.argsort(labels, stable=True)
    return sorted(by_class[choose_subset(len(labels), limit, None)].tolist())


def is_labelled(data: Any) -> bool:
    """Whether something is, or names, labelled images and no texts."""
    if isinstance(data, ImageSplits | Mapping):
        return True
    kind, colon, rest = str(data).partition(":")
    if kind == "bundled":
        return rest.startswith("cifar")
    return bool(colon) and kind in LOADERS


def _named(data: Any) -> ImageSplits:
    if not isinstance(data, str | Path):
        raise FaithscopeError(
            "Images to train on are a name, such as cifar10:FOLDER or array:FILE.npz, or "
            f"{{'train': (images, labels), 'test': (images, labels)}}, got {shown(data)}."
        )
    kind, colon, rest = str(data).partition(":")
    if isinstance(data, str) and colon and kind in LOADERS:
        if not rest:
            raise FaithscopeError(f"The data source '{kind}' needs to know what: '{kind}:…'.")
        place, options = split_options(rest)
        return LOADERS[kind](place, options)
    root = existing_path(data)
    if root is not None and root.is_dir():
        return _mosaics(root) if (root / "train_labels.txt").is_file() else _folder(root)
    if root is not None and root.suffix == ".npz":
        return _array(str(root), {})
    sourced = colon and re.fullmatch(r"[\w-]{2,}", kind)
    what = f"The data source '{kind}'" if sourced else quoted(str(data))
    raise FaithscopeError(
        f"{what} is no data set of labelled images to train on: give "
        f"{', '.join(f'{name}:…' for name in LOADERS)} or a folder with train/CLASS/ and "
        "test/CLASS/."
    )


# Sources


def _cifar(kind: str) -> Callable[[str, Mapping[str, Any]], ImageSplits]:
    def load(place: str, options: Mapping[str, Any]) -> ImageSplits:
        source = kind.lower()
        check_options(KIND, source, options, {"download": False})
        root = as_path(place)
        if (root / "train_labels.txt").is_file():
            return replace(_mosaics(root), name=source)
        found = {
            split: open_cifar(kind, root, split == "train", bool(options.get("download", False)))
            for split in ("train", "test")
        }
        arrays = {split: (held.data, held.targets) for split, held in found.items()}
        return _of_arrays(source, arrays, found["train"].classes)

    return load


def _mnist(place: str, options: Mapping[str, Any]) -> ImageSplits:
    """The four files of MNIST, or of a data set that copies them; packed by gzip or not."""
    check_options(KIND, "mnist", options, {})
    root = as_path(place)
    arrays = {
        split: (_idx(root, f"{own}-images-idx3-ubyte"), _idx(root, f"{own}-labels-idx1-ubyte"))
        for split, own in (("train", "train"), ("test", "t10k"))
    }
    return _of_arrays(root.resolve().name, arrays)


def _idx(root: Path, name: str) -> np.ndarray:
    """An array of bytes: two zeros, 8 (bytes), the number of axes, their lengths, the values."""
    file = next((f for f in (root / name, root / f"{name}.gz") if f.is_file()), None)
    if not root.is_dir():
        raise FaithscopeError(f"There is no folder '{root}': check the path.")
    if file is None:
        raise FaithscopeError(
            f"The folder '{root}' has no {name} or {name}.gz: the four files of MNIST are needed."
        )
    try:
        held = file.read_bytes()
        held = gzip.decompress(held) if file.suffix == ".gz" else held
        if held[:3] != b"\0\0\x08":
            raise ValueError("it does not begin as an IDX file of bytes")
        sizes = np.frombuffer(held, ">u4", count=held[3], offset=4)
        return np.frombuffer(held, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
    except (ValueError, IndexError, OSError, EOFError, zlib.error) as error:
        raise FaithscopeError(
            f"The file '{file}' cannot be read ({why_unread(error)}): get it again."
        ) from None


def _array(place: str, options: Mapping[str, Any]) -> ImageSplits:
    check_options(KIND, "array", options, {})
    file = as_path(place)
    if not file.is_file():
        raise FaithscopeError(f"There is no array file '{file}': check the path.")
    try:
        with np.load(file, allow_pickle=False) as opened:
            held = {name: opened[name] for name in opened.files}
    except Exception as error:
        raise FaithscopeError(
            f"The array file '{file}' cannot be read ({why_unread(error)}): save it with np.savez."
        ) from None
    arrays = {
        split: (held[f"x_{split}"], held.get(f"y_{split}"))
        for split in SPLITS
        if f"x_{split}" in held
    }
    if "train" not in arrays:
        raise FaithscopeError(
            f"The array file '{file}' holds {', '.join(held) or 'nothing'}: images to train on "
            "are x_train, y_train, x_test and y_test."
        )
    names = held["classes"].tolist() if "classes" in held else None
    return _of_arrays(file.name, arrays, names)


def _bundled(place: str, options: Mapping[str, Any]) -> ImageSplits:
    check_options(KIND, "bundled", options, {})
    pixels, card = bundled_pixels(place)
    return _of_arrays(f"bundled:{place}", {"train": (pixels, card["labels"])}, card["classes"])


def _folder(root: Path) -> ImageSplits:
    """Images in class folders, train/CLASS/… and test/CLASS/…."""
    classes = sorted(entry.name for entry in _folders(root / "train"))
    if not classes:
        raise FaithscopeError(
            f"The folder '{root}' holds no training images: it needs train/CLASS/… and "
            "test/CLASS/…."
        )
    arrays = {}
    for split in SPLITS:
        images: list[np.ndarray] = []
        labels: list[int] = []
        for folder in _folders(root / split):
            if folder.name not in classes:
                raise FaithscopeError(
                    f"The class '{folder.name}' of '{root / split}' has no training images."
                )
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in EXTENSIONS:
                    images.append(_pixels_of(file, images[0].shape if images else None))
                    labels.append(classes.index(folder.name))
        if images:
            arrays[split] = (np.stack(images), np.array(labels))
    return _of_arrays(root.resolve().name, arrays, classes)


def _mosaics(root: Path) -> ImageSplits:
    """Square images laid out in pictures, row by row; labels and classes one a line."""
    arrays = {}
    for split in SPLITS:
        if not (root / f"{split}_labels.txt").is_file():
            continue
        labels = np.array((root / f"{split}_labels.txt").read_text().split(), dtype=np.int64)
        files = sorted(file for file in root.glob(f"{split}_*") if file.suffix in EXTENSIONS)
        pictures = [np.asarray(read_image(file)) for file in files]
        area = sum(held.shape[0] * held.shape[1] for held in pictures)
        side = math.isqrt(area // max(len(labels), 1))
        if not side or side**2 * len(labels) != area:
            raise FaithscopeError(
                f"The mosaics {split}_… of '{root}' hold {area:,} pixels, which are not "
                f"{len(labels):,} square images, one for each line of {split}_labels.txt."
            )
        arrays[split] = (np.concatenate([tiles_of(held, side) for held in pictures]), labels)
    file = root / "classes.txt"
    name = root.resolve().name
    return _of_arrays(name, arrays, file.read_text().split() if file.is_file() else None)


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []


def _pixels_of(file: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    try:
        pixels = np.asarray(read_image(file.read_bytes()).convert("RGB"))
    except Exception as error:
        raise FaithscopeError(
            f"The image '{file}' cannot be read ({why_unread(error)}): take it out."
        ) from None
    if shape is not None and pixels.shape != shape:
        sizes = [f"{size[1]}×{size[0]}" for size in (pixels.shape, shape)]
        raise FaithscopeError(
            f"The image '{file}' has {sizes[0]} pixels and others have {sizes[1]}: images to "
            "train on are all of one size."
        )
    return pixels


LOADERS: Mapping[str, Callable[[str, Mapping[str, Any]], ImageSplits]] = {
    "cifar10": _cifar("CIFAR10"),
    "cifar100": _cifar("CIFAR100"),
    "mnist": _mnist,
    "array": _array,
    "bundled": _bundled,
}
"""Sources of images that have labels and a split to train on, named as everywhere."""


# Arrays


def _of_arrays(
    name: str, arrays: Mapping[str, Any], classes: list[str] | None = None
) -> ImageSplits:
    """Splits from (images, labels) by name; those that are missing are cut off the training one."""
    for split in arrays:
        if split not in SPLITS:
            raise FaithscopeError(
                f"The images of '{name}' have the split {shown(split)}: {', '.join(SPLITS)} are "
                "known."
            )
    if "train" not in arrays:
        raise FaithscopeError(f"The images of '{name}' have no training split: give 'train'.")
    parts = {split: _split(name, split, held) for split, held in arrays.items()}
    for split, part in parts.items():
        if not len(part):
            raise FaithscopeError(f"The {split} split of '{name}' has no images: give some.")
    shapes = {split: list(part.images.shape[1:]) for split, part in parts.items()}
    for split, shape in shapes.items():
        if shape != shapes["train"]:
            raise FaithscopeError(
                f"The {split} images of '{name}' are {shape} and the training images "
                f"{shapes['train']}: all must have one size."
            )
    highest = max(int(part.labels.max()) for part in parts.values())
    names = tuple(map(str, range(highest + 1) if classes is None else classes))
    if highest >= len(names):
        raise FaithscopeError(
            f"The labels of '{name}' go up to {highest}, but it names only {len(names)} classes."
        )
    notes = []
    for split, share, words in (
        ("test", TEST_SHARE, "20 % of the images are set apart to test on"),
        ("validation", VALIDATION_SHARE, "10 % of the training images serve as validation"),
    ):
        if split not in parts:
            rng = np.random.RandomState(0)
            kept, taken = stratified_part(parts["train"].labels.numpy(), share, rng)
            parts |= {"train": parts["train"].at(kept), split: parts["train"].at(taken)}
            notes.append(f"{words}, each class alike.")
    if int(parts["train"].labels.min()) == int(parts["train"].labels.max()):
        raise FaithscopeError(
            f"The training images of '{name}' are all of one class: at least two are needed."
        )
    return ImageSplits(
        name, parts["train"], parts["validation"], parts["test"], names, tuple(notes)
    )


def _split(name: str, split: str, held: Any) -> LabelledImages:
    where = f"the {split} split of '{name}'"
    if not isinstance(held, tuple | list) or len(held) != 2:
        raise FaithscopeError(f"Images and labels are needed for {where}, got {shown(held)}.")
    images, labels = held
    if labels is None:
        raise FaithscopeError(
            f"There are no labels for {where}: models are trained on them, so give one class "
            "number for each image."
        )
    pixels = as_tensor(images, f"What is given for {where}").detach().cpu()
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise FaithscopeError(
            f"Images to train on are uint8 pixels [N, H, W, C] or [N, C, H, W], got "
            f"{str(pixels.dtype).removeprefix('torch.')} {list(pixels.shape)} for {where}."
        )
    if pixels.shape[-1] in CHANNELS:
        pixels = pixels.permute(0, 3, 1, 2)
    elif pixels.shape[1] not in CHANNELS:
        raise FaithscopeError(
            f"The images of {where} have no axis of one or three colours, {list(pixels.shape)}."
        )
    numbers = as_tensor(np.asarray(labels), f"The labels of {where}").reshape(-1)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or len(numbers) != len(pixels):
        raise FaithscopeError(
            f"The labels of {where} are one class number for each of its {len(pixels)} images, "
            f"got {shown(labels)}."
        )
    numbers = numbers.to(torch.int64)
    if len(numbers) and int(numbers.min()) < 0:
        raise FaithscopeError(f"The labels of {where} count from 0, got {int(numbers.min())}.")
    return LabelledImages(pixels.contiguous(), numbers)
