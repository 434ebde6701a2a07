"""Where images come from by name: folders, CIFAR, ImageNet, Hugging Face, arrays, the bundle.

A source is a function ``(name, model, *, limit, seed, options) -> ImageData``; other packages add
theirs through the entry points "faithscope.data".
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from faithscope.data.images import (
    EXTENSIONS,
    ImageData,
    LazyImages,
    as_rgb,
    bundled_images,
    choose_subset,
    class_numbers,
    file_images,
    folder_images,
    plain_name,
    read_image,
)
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, choose, quoted, shown
from faithscope.models import Model
from faithscope.registry import Registry, check_options, check_whole, parse_spec
from faithscope.request import as_path, existing_path

Source = Callable[..., ImageData]
SOURCES: Registry[Source] = Registry("data source", group="faithscope.data")
KIND = "data source"
MOST_BRACKETS = 100
"""More than a name with options has: each is tried as the one where the options begin."""


def load_data(
    name: str | Path, model: Model, *, limit: int | None = None, seed: int | None = None
) -> ImageData:
    """Load images for a model by name; they are read batch by batch, as they are needed.

    Args:
        name: the path of a folder (searched through, class folders label theirs) or of one image;
            ``bundled:cifar10`` or one image of it, ``bundled:cifar10:7``; ``cifar10:FOLDER`` and
            ``cifar100:FOLDER`` (options split, download); ``imagenet:FOLDER`` (split);
            ``hf:ID or folder`` (split, image, label, config); ``array:FILE`` of .npz or .npy
            (images, labels). Options follow in brackets, ``cifar10:FOLDER(split=train)``.
        model: whose preprocessing is applied, and whose class names or numbers label the images.
        limit: use only so many images, spread evenly over the data (so over its classes).
        seed: choose those at random, by this seed, instead.
    """
    if not isinstance(model, Model):
        raise FaithscopeError(f"fs.load_data takes a faithscope Model, got {shown(model)}.")
    limit, seed = check_whole("limit", limit, 1), check_whole("seed", seed, 0)
    if not isinstance(name, str):
        name = as_path(name, "data")
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
    example = f"{name}:…" if name in SOURCES and name != "bundled" else "cifar10:FOLDER"
    raise FaithscopeError(
        f"There is no folder or image {quoted(name)}: give a path, 'bundled:cifar10' or "
        f"'{example}'."
    )


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the options off a name that may itself hold brackets, as paths do.

    >>> split_options("sets (old)/cifar(split=train)")
    ('sets (old)/cifar', {'split': 'train'})
    """
    text = text.strip()
    if not text.endswith(")") or existing_path(text) is not None:
        return text, {}
    for bracket in islice(re.finditer(r"\(", text), MOST_BRACKETS):
        try:
            _, options = parse_spec(f"_{text[bracket.start() :]}")
        except FaithscopeError:
            continue
        return text[: bracket.start()].strip(), options
    return parse_spec(text)


# Labels


def fit_labels(
    numbers: Sequence[int], names: Sequence[str] | None, model: Model
) -> tuple[int, ...] | None:
    """The data's class numbers as the model's; None where they do not fit or one is missing.

    By name where both name their classes; by number where the model names none but has as many
    classes, or where the data names none.
    """
    if any(number < 0 for number in numbers):
        return None
    own = _class_names(model)
    if names is None or (own and [*map(plain_name, own)] == [*map(plain_name, names)]):
        return tuple(numbers)
    if own is None:
        return tuple(numbers) if _class_count(model) == len(names) else None
    known = _places(own)
    labels = {number: known.get(plain_name(names[number])) for number in set(numbers)}
    fitting = {number: label for number, label in labels.items() if label is not None}
    return tuple(fitting[number] for number in numbers) if len(fitting) == len(labels) else None


def _places(names: Sequence[str]) -> dict[str, int]:
    """Class names to numbers, without the names that two classes share."""
    count = Counter(map(plain_name, names))
    return {plain_name(name): at for at, name in enumerate(names) if count[plain_name(name)] == 1}


def _class_names(model: Model) -> tuple[str, ...] | None:
    """The model's class names; Hugging Face's LABEL_0, LABEL_1, … are none."""
    if model.classes is None or all(re.fullmatch(r"LABEL_\d+", name) for name in model.classes):
        return None
    return model.classes


def _class_count(model: Model) -> int | None:
    """How many classes the model has, as it declares or as its last linear layer shows."""
    if model.classes is not None:
        return len(model.classes)
    declared = getattr(model.module, "num_classes", None)
    if isinstance(declared, int):
        return declared
    heads = [part for part in model.module.modules() if isinstance(part, nn.Linear)]
    return heads[-1].out_features if heads else None


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
    data = _open_cifar(kind, as_path(name), given["split"] == "train", given["download"])
    chosen = choose_subset(len(data), limit, seed)
    numbers = [int(data.targets[place]) for place in chosen]
    return LazyImages(
        lambda position: Image.fromarray(data.data[chosen[position]]),
        tuple(map(str, chosen)),
        model,
        fit_labels(numbers, data.classes, model),
        f"{source}:{given['split']}",
    )


def _open_cifar(kind: str, root: Path, train: bool, download: bool) -> Any:
    """Read as torchvision does: only files whose MD5 sums are the official ones are unpickled."""
    from torchvision import datasets

    reader: Any = getattr(datasets, kind)
    if root.name == reader.base_folder:  # the unpacked folder itself was given
        root = root.parent
    try:
        return reader(root, train=train, download=download)
    except Exception as error:
        how = (
            f"({_first_line(error)}): download {reader.url} by other means and unpack it there"
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
    numbers = _wnid_labels(wnids, model)
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
                f"ImageNet in '{root}' cannot be unpacked ({_first_line(error)}): unpack it "
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


def _wnid_labels(wnids: Sequence[str], model: Model) -> dict[str, int] | None:
    """Number WordNet ids as the model does: ImageNet-1k's order, by name, or in sorted order."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    standard = {wnid: place for place, wnid in enumerate(info.label_names())}
    count = _class_count(model)
    if count == len(standard) and all(wnid in standard for wnid in wnids):
        return {wnid: standard[wnid] for wnid in wnids}
    own = _class_names(model)
    if own is None:
        return {wnid: place for place, wnid in enumerate(wnids)} if count == len(wnids) else None
    known, labels = _places(own), dict[str, int]()
    for wnid in wnids:
        text = info.label_name_to_description(wnid) if wnid in standard else wnid
        names = [plain_name(name) for name in (wnid, text, text.partition(",")[0])]
        found = {known[name] for name in names if name in known}
        if len(found) != 1:
            return None
        labels[wnid] = found.pop()
    return labels if len(set(labels.values())) == len(labels) else None


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
    given = {**defaults, **options}
    found, split = open_hugging_face(name, given["config"]), options.get("split")
    if not isinstance(found, Mapping):  # one split, saved alone
        found = {str(found.split or split or "rows"): found}
        split = split or next(iter(found))
    split = choose(f"split of 'hf:{name}'", split or "test", map(str, found))
    rows = found[split]
    images = _image_column(_datasets_library(), rows, given["image"])
    if not len(rows):
        raise FaithscopeError(f"The data set 'hf:{name}' holds no images in its {split}.")
    chosen = choose_subset(len(rows), limit, seed)
    labels = None
    if given["label"] != "none" and ("label" in options or "label" in rows.column_names):
        labels = _label_column(rows.select(chosen), given["label"], model)
    return LazyImages(
        lambda position: _stored_image(images[chosen[position]][given["image"]]),
        tuple(map(str, chosen)),
        model,
        labels,
        f"hf:{Path(name).name if existing_path(name) else name}:{split}",
    )


def _datasets_library() -> Any:
    """Hugging Face's `datasets`, of a version that never runs code of a data set."""
    try:
        library: Any = import_module("datasets")
        if int(library.__version__.partition(".")[0]) >= 4:
            return library
    except (ImportError, AttributeError):
        pass
    raise FaithscopeError(
        "Data named 'hf:…' needs the library datasets, version 4 or newer: "
        "pip install 'datasets>=4'."
    )


def open_hugging_face(name: str, config: str) -> Any:
    """Rows by split, or the rows of one saved alone, from a folder or the hub.

    A folder is one that was saved with the library, or of images or Parquet files.
    """
    library = _datasets_library()
    folder = existing_path(name)
    if folder is not None and not folder.is_dir():
        folder = None
    if folder is None and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise FaithscopeError(
            f"There is no data set 'hf:{name}': give a folder, or the hub's 'hf:owner/name'."
        )
    try:
        saved = ("dataset_dict.json", "state.json")
        if folder is not None and any((folder / file).is_file() for file in saved):
            return library.load_from_disk(str(folder))
        return library.load_dataset(str(folder or name), config or None)
    except Exception as error:
        raise FaithscopeError(
            f"'hf:{name}' could not be loaded ({type(error).__name__}: {_first_line(error)}): "
            "without a network give a folder."
        ) from None


def _image_column(library: Any, rows: Any, column: str) -> Any:
    """The rows with only their images, as stored: they are decoded one by one."""
    kind = rows.features[choose("column", column, rows.column_names)]
    rows = rows.select_columns([column]).with_format(None)
    if isinstance(kind, library.Image):
        return rows.cast_column(column, library.Image(decode=False))
    stored = kind.get("bytes") if isinstance(kind, Mapping) else kind
    if getattr(stored, "dtype", None) not in ("binary", "large_binary"):
        raise FaithscopeError(f"The column '{column}' holds no images: name another, image=….")
    return rows


def _stored_image(value: Any) -> Image.Image:
    stored = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
    if not stored:
        raise ValueError("no image")
    return read_image(stored if isinstance(stored, bytes) else Path(stored))


def _label_column(rows: Any, column: str, model: Model) -> tuple[int, ...] | None:
    kind = rows.features[choose("column", column, rows.column_names)]
    if not re.fullmatch(r"u?int\d+|(large_)?string", str(getattr(kind, "dtype", ""))):
        raise FaithscopeError(
            f"The column '{column}' holds neither class numbers nor names: name another, label=…, "
            "or label=none."
        )
    values = list(rows.select_columns([column]).with_format(None)[column])
    if any(value is None for value in values):
        return None
    if isinstance(values[0], str):
        return _named_labels(values, model)
    return fit_labels(values, getattr(kind, "names", None), model)


def _named_labels(values: Sequence[str], model: Model) -> tuple[int, ...] | None:
    """Labels from class names, where the model has names too."""
    if _class_names(model) is None:
        return None
    names = sorted(set(values))
    place = {name: at for at, name in enumerate(names)}
    return fit_labels([place[value] for value in values], names, model)


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
            f"The array file '{file}' cannot be read ({_first_line(error)}): save it with np.save "
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
    first, last = images.shape[1] in (1, 3, 4), images.shape[-1] in (1, 3, 4)
    if np.issubdtype(images.dtype, np.floating) and (first or not last):
        return lambda place: as_tensor(np.array(images[place]))
    if images.dtype == np.uint8 and last:
        return lambda place: _picture(images[place])
    if images.dtype == np.uint8 and first:
        return lambda place: _picture(np.moveaxis(images[place], 0, -1))
    raise FaithscopeError(
        f"The images of 'array:{name}' must be uint8 pixels [N, H, W, C] or [N, C, H, W], or "
        f"floats [N, C, H, W] normalised for the model, got {images.dtype} {list(images.shape)}."
    )


def _picture(pixels: np.ndarray[Any, Any]) -> Image.Image:
    grey = pixels.shape[-1] == 1
    return as_rgb(Image.fromarray(np.ascontiguousarray(pixels[..., 0] if grey else pixels)))


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
        return _named_labels(values.tolist(), model)
    return fit_labels(class_numbers(f"The labels of 'array:{name}'", values).tolist(), None, model)


def _first_line(error: Exception) -> str:
    """What an error says first, short enough for a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")[:200]


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
