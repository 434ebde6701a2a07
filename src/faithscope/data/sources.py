"""Where images come from by name: folders, CIFAR, ImageNet, Hugging Face, arrays, the bundle.

A source is a function ``(name, model, *, limit, seed, options) -> ImageData``; other packages add
theirs through the entry points "faithscope.data".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from faithscope.data.decoding import picture
from faithscope.data.files import (
    EXTENSIONS,
    file_images,
    folder_images,
    is_pattern,
    matching_images,
)
from faithscope.data.hugging_face import row_images, split_of
from faithscope.data.images import ImageData, LazyImages, bundled_images, choose_subset
from faithscope.data.labels import class_numbers, fit_labels, named_labels, wnid_labels
from faithscope.data.objects import as_image_data
from faithscope.data.own_texts import KINDS as TABLES
from faithscope.data.tensors import as_tensor, why_unread
from faithscope.data.text_files import kind_of
from faithscope.errors import FaithscopeError, choose, first_line, quoted, shown
from faithscope.models import BUNDLE, Model, TextModel
from faithscope.models.model import CHANNELS
from faithscope.registry import Registry, check_options, check_whole, registry
from faithscope.request import as_path, existing_path, split_options

Source = Callable[..., ImageData]
SOURCES: Registry[Source] = Registry("data source", group="faithscope.data")
KIND = "data source"


def load_data(
    data: Any,
    model: Model,
    *,
    labels: Any = None,
    limit: int | None = None,
    seed: int | None = None,
) -> ImageData:
    """Load images for a model; they are read batch by batch, as they are needed.

    Args:
        data: the path of a folder (searched through, class folders label theirs) or of one image;
            a pattern, ``photos/*.jpg``; ``bundled:cifar10`` or one image of it,
            ``bundled:cifar10:7``; ``cifar10:FOLDER`` and ``cifar100:FOLDER`` (options split,
            download); ``imagenet:FOLDER`` (split); ``hf:ID or folder`` (split, image, label,
            config); ``array:FILE`` of .npz or .npy (images, labels). Options follow in brackets,
            ``cifar10:FOLDER(split=train)``. Or an object: a PIL image, an array, a list of images
            or paths, a data set of torch, torchvision or Hugging Face, a loader
            (`data.objects.as_image_data` has the rules).
            For a text model, texts: what `data.text_samples.load_texts` takes.
        model: whose preprocessing is applied, and whose class names or numbers label the images.
        labels: class numbers of a list, an array or a data set, if it does not bring its own.
        limit: use only so many images, spread evenly over the data (so over its classes).
        seed: choose those at random, by this seed, instead.
    """
    if not isinstance(model, Model):
        raise FaithscopeError(f"fs.load_data takes a faithscope Model, got {shown(model)}.")
    limit, seed = check_whole("limit", limit, 1), check_whole("seed", seed, 0)
    if isinstance(model, TextModel):
        from faithscope.data.text_samples import load_texts

        return load_texts(data, model, labels=labels, limit=limit, seed=seed)
    if _is_of_texts(data):
        raise FaithscopeError(
            f"{model.name} reads images, and {shown(data)} is text: give images, or a model of "
            "texts."
        )
    if not isinstance(data, str | os.PathLike):
        return as_image_data(data, model, labels, limit=limit, seed=seed)
    if labels is not None:
        raise FaithscopeError(
            "labels go with a tensor, an array, a list or a data set, not with a name: class "
            "folders name theirs."
        )
    return _load_named(data if isinstance(data, str) else as_path(data, "data"), model, limit, seed)


def _is_of_texts(data: Any) -> bool:
    """Whether data can be nothing but text: tokens, a table, sentences that are no files."""
    if isinstance(data, Mapping):
        return "input_ids" in data
    if isinstance(data, str) and _names_texts(data):
        return True
    if isinstance(data, str | os.PathLike):
        return kind_of(Path(data) if isinstance(data, str) else as_path(data, "data")) in TABLES
    if not isinstance(data, list | tuple) or not data:
        return False
    texts = [held for one in data for held in (one if isinstance(one, tuple) else (one,))]
    if not all(isinstance(text, str) and not _is_path(text) for text in texts):
        return False
    return any(" " in text.strip() for text in texts)


def _names_texts(name: str) -> bool:
    """Whether a name is of a source that has texts alone, or of texts in the bundle."""
    kind, colon, rest = name.partition(":")
    if kind == "bundled":
        own = re.split(r"[:(]", rest, maxsplit=1)[0]
        files = (BUNDLE / f"{own}{ending}" for ending in (".jsonl", "_sample.txt.xz"))
        return bool(own) and any(file.is_file() for file in files)
    return bool(colon and rest) and kind not in SOURCES and kind in registry("text source")


def _is_path(text: str) -> bool:
    """Whether a text looks like the path of an image, or is one."""
    is_named = "/" in text or Path(text).suffix.lower() in EXTENSIONS
    return is_named or existing_path(text) is not None


def _load_named(name: str | Path, model: Model, limit: int | None, seed: int | None) -> ImageData:
    root = existing_path(name)
    kind, colon, rest = str(name).partition(":")
    sourced = isinstance(name, str) and colon and re.fullmatch(r"[\w-]{2,}", kind)
    if sourced and (kind in SOURCES or root is None):
        source = SOURCES[kind]
        if not rest:
            raise FaithscopeError(f"The data source '{kind}' needs to know what: '{kind}:…'.")
        identifier, options = split_options(rest)
        return source(identifier, model, limit=limit, seed=seed, options=options)
    if root is not None:
        return folder_images(root, model, limit=limit, seed=seed)
    if is_pattern(str(name)):
        return matching_images(str(name), model, limit=limit, seed=seed)
    example = f"{name}:…" if name in SOURCES and name != "bundled" else "cifar10:FOLDER"
    is_text = " " in str(name).strip()
    no_text = f", and {model.name} reads no texts" if is_text else ""
    other = "for a text choose a model of texts, such as bundled:sst_text, else " * is_text
    raise FaithscopeError(
        f"There is no folder or image {quoted(name)}{no_text}: {other}give a path, a pattern such "
        f"as 'photos/*.jpg', 'bundled:cifar10' or '{example}'."
    )


# The bundle


def _bundled(
    name: str,
    model: Model,
    *,
    limit: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> ImageData:
    check_options(KIND, "bundled", options, {})
    return bundled_images(name, model, limit=limit, seed=seed)


# CIFAR


def _cifar10(name: str, model: Model, **rest: Any) -> ImageData:
    return _cifar("CIFAR10", name, model, **rest)


def _cifar100(name: str, model: Model, **rest: Any) -> ImageData:
    return _cifar("CIFAR100", name, model, **rest)


def _cifar(
    kind: str,
    name: str,
    model: Model,
    *,
    limit: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> ImageData:
    source = kind.lower()
    defaults = {"split": "test", "download": False}
    check_options(KIND, source, options, defaults)
    given = {**defaults, **options}
    choose(f"split of {source}", given["split"], ("test", "train"))
    data = open_cifar(kind, as_path(name), given["split"] == "train", given["download"])
    chosen = choose_subset(len(data), limit, seed)
    numbers = [int(data.targets[place]) for place in chosen]
    return LazyImages(
        lambda position: Image.fromarray(data.data[chosen[position]]),
        tuple(map(str, chosen)),
        model,
        fit_labels(numbers, data.classes, model),
        f"{source}:{given['split']}",
    )


def open_cifar(kind: str, root: Path, train: bool, download: bool) -> Any:
    """Read as torchvision does: only files whose MD5 sums are the official ones are unpickled."""
    from torchvision import datasets

    reader: Any = getattr(datasets, kind)
    if root.name == reader.base_folder:  # the unpacked folder itself was given
        root = root.parent
    try:
        return reader(root, train=train, download=download)
    except Exception as error:
        how = (
            f"({first_line(error)}): download {reader.url} by other means and unpack it there"
            if download
            else f"in full: unpack {reader.url} there, so that it holds {reader.base_folder}/, or "
            f"say '{kind.lower()}:{root}(download=true)'"
        )
        raise FaithscopeError(f"The folder '{root}' does not hold {kind} {how}.") from None


# ImageNet


def _imagenet(
    name: str,
    model: Model,
    *,
    limit: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> ImageData:
    check_options(KIND, "imagenet", options, {"split": "val"})
    split = choose("split of imagenet", options.get("split", "val"), ("train", "val"))
    folder = _imagenet_folder(as_path(name), split)
    wnids = _wnids_in(folder)
    files = [file for wnid in wnids for file in _images_in(folder / wnid)]
    if not files:
        raise FaithscopeError(
            f"The class folders of '{folder}' hold no images: looked for {', '.join(EXTENSIONS)}."
        )
    chosen = [files[place] for place in choose_subset(len(files), limit, seed)]
    numbers = wnid_labels(wnids, model)
    labels = None if numbers is None else [numbers[file.parent.name] for file in chosen]
    return file_images(folder, chosen, model, labels, name=f"imagenet:{split}")


def _imagenet_folder(root: Path, split: str) -> Path:
    """The folder of class folders; torchvision unpacks its archives where only those are there."""
    if not (root / split).is_dir() and (root / f"ILSVRC2012_img_{split}.tar").is_file():
        from torchvision import datasets

        try:
            datasets.ImageNet(root, split=split)
        except Exception as error:
            raise FaithscopeError(
                f"ImageNet in '{root}' cannot be unpacked ({first_line(error)}): unpack it "
                f"yourself, so that {split}/ holds class folders such as n01440764."
            ) from None
    for folder in (root / split, root):
        if folder.is_dir() and _wnids_in(folder):
            return folder
    raise FaithscopeError(
        f"The folder '{root}' does not hold ImageNet: it needs {split}/ with class folders named "
        f"by WordNet ids (n01440764, …), or ILSVRC2012_img_{split}.tar and the devkit's archive "
        "from image-net.org."
    )


def _wnids_in(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if re.fullmatch(r"n\d{8}", entry.name) and entry.is_dir()
    )


def _images_in(folder: Path) -> list[Path]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    return [folder / name for name in names if name.lower().endswith(EXTENSIONS)]


# Hugging Face


def _hugging_face(
    name: str,
    model: Model,
    *,
    limit: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> ImageData:
    defaults = {"image": "image", "label": "label", "config": "", "split": "test"}
    check_options(KIND, "hf", options, defaults)
    label, rows = split_of(name, options.get("config", ""), options.get("split"))
    return row_images(
        rows,
        model,
        name=label,
        image=options.get("image"),
        label=options.get("label"),
        limit=limit,
        seed=seed,
    )


# Arrays


def _array(
    name: str,
    model: Model,
    *,
    limit: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> ImageData:
    check_options(KIND, "array", options, {"images": "images", "labels": "labels"})
    images, labels = _open_array(as_path(name), options)
    read = _array_reader(name, images)
    chosen = choose_subset(len(images), limit, seed)
    return LazyImages(
        lambda position: read(chosen[position]),
        tuple(map(str, chosen)),
        model,
        None if labels is None else _array_labels(name, labels, len(images), chosen, model),
        Path(name).name,
        named=False,
    )


def _open_array(
    file: Path, options: Mapping[str, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Images and labels of a file, never Python objects; .npy is mapped, .npz read into memory."""
    if not file.is_file():
        raise FaithscopeError(f"There is no array file '{file}': check the path.")
    try:
        opened = np.load(file, mmap_mode="r", allow_pickle=False)
        if isinstance(opened, np.ndarray):
            if options:
                raise FaithscopeError(f"'{file}' is one array and has no '{next(iter(options))}'.")
            return opened, None
        with opened:
            images, labels = _array_keys(file, opened.files, options)
            return opened[images], None if labels is None else opened[labels]
    except FaithscopeError:
        raise
    except Exception as error:
        raise FaithscopeError(
            f"The array file '{file}' cannot be read ({why_unread(error)}): save it with np.save "
            "or np.savez."
        ) from None


def _array_keys(
    file: Path, keys: Sequence[str], options: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Which arrays of a file are the images and the labels; the only other one will do."""
    kind, images, labels = f"array of '{file}'", options.get("images"), options.get("labels")
    if labels is None:
        labels = "labels" if "labels" in keys else "none"
    if images is None:
        others = [key for key in keys if key != labels]
        images = others[0] if len(others) == 1 else "images"
    images = choose(kind, images, keys)
    return images, None if labels == "none" else choose(kind, labels, keys)


def _array_reader(name: str, images: np.ndarray[Any, Any]) -> Callable[[int], Image.Image | Tensor]:
    """How one image is taken out: as a picture from uint8, as it is from floats."""
    if images.ndim != 4 or not images.size:
        raise FaithscopeError(
            f"The images of 'array:{name}' must have four axes, [N, H, W, C] or [N, C, H, W], got "
            f"{list(images.shape)}."
        )
    first, last = images.shape[1] in CHANNELS, images.shape[-1] in CHANNELS
    if np.issubdtype(images.dtype, np.floating) and (first or not last):
        return lambda place: as_tensor(np.array(images[place]))
    if images.dtype == np.uint8 and last:
        return lambda place: picture(images[place])
    if images.dtype == np.uint8 and first:
        return lambda place: picture(np.moveaxis(images[place], 0, -1))
    raise FaithscopeError(
        f"The images of 'array:{name}' must be uint8 pixels [N, H, W, C] or [N, C, H, W], or "
        f"floats [N, C, H, W] normalised for the model, got {images.dtype} {list(images.shape)}."
    )


def _array_labels(
    name: str, labels: np.ndarray[Any, Any], count: int, chosen: Sequence[int], model: Model
) -> tuple[int, ...] | None:
    if labels.size != count:
        raise FaithscopeError(
            f"The labels of 'array:{name}' must be one for each of the {count} images, got shape "
            f"{list(labels.shape)}."
        )
    values = labels.reshape(-1)[list(chosen)]
    if values.dtype.kind == "U":
        return named_labels(values.tolist(), model)
    return fit_labels(class_numbers(f"The labels of 'array:{name}'", values).tolist(), None, model)


for _name, _source, _summary, _example in (
    ("array", _array, "Arrays, pixels or normalised.", "array:FILE.npz(images=x, labels=y)"),
    ("bundled", _bundled, "200 test images of CIFAR-10.", "bundled:cifar10"),
    ("cifar10", _cifar10, "CIFAR-10 through torchvision.", "cifar10:FOLDER(split=train)"),
    ("cifar100", _cifar100, "CIFAR-100 through torchvision.", "cifar100:FOLDER"),
    (
        "hf",
        _hugging_face,
        "Hugging Face datasets, of the hub or saved.",
        "hf:OWNER/NAME(split=test)",
    ),
    (
        "imagenet",
        _imagenet,
        "ImageNet: val/ with class folders by WordNet id.",
        "imagenet:FOLDER",
    ),
):
    SOURCES.register(_name, _source, summary=_summary, example=_example)
