"""Images given as Python objects: tensors, pictures, lists, data sets, loaders.

The rule for one image is `decoding.as_input`'s: a PIL image, a path and uint8 pixels go through the
model's preprocessing; floats [C, H, W] are normalised for the model already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from faithscope.data.decoding import Unusable, image_of, label_of
from faithscope.data.files import listed_images
from faithscope.data.hugging_face import is_rows, row_classes, row_images, row_items, rows_name
from faithscope.data.images import (
    NONE_GIVEN,
    ImageData,
    LazyImages,
    LoaderImages,
    ShuffledImages,
    TensorImages,
    choose_subset,
    given_labels,
    tensor_images,
)
from faithscope.data.labels import (
    class_numbers,
    fit_labels,
    label_by_name,
    named_labels,
    wnid_labels,
)
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, shown, warn
from faithscope.models import Model

LOOKED_AT = 100
"""Items of a data set that are tried until one can be read, to see what they are."""
BEYOND = 20
"""No normalised colour is so large, unless the normalisation itself makes it so."""

Fit = Callable[[Any], int]
"""The data's label of an image as the model's class number; raises Unusable where it is none."""


def as_image_data(
    data: Any,
    model: Model,
    labels: Any = None,
    *,
    limit: int | None = None,
    seed: int | None = None,
) -> ImageData:
    """Accept images in whatever form people have them.

    Args:
        data: float images [B, C, H, W], normalised for the model; uint8 pixels [B, H, W, C] or
            [B, C, H, W]; a PIL image; a list of images, of paths or of (image, label); a data set
            of images, (image, label) or dicts with `len` and `[i]`, as torch's and torchvision's
            are; a `datasets.Dataset`; a loader of images [B, C, H, W], (images, labels) or dicts;
            what `fs.load_data` gave. Dicts call their images as `decoding.IMAGE_KEYS` says.
        model: whose preprocessing and classes count.
        labels: class numbers, for data that is neither a loader nor loaded already.
        limit: use only so many, spread evenly.
        seed: choose those at random instead.
    """
    own: dict[str, Any] = {"limit": limit, "seed": seed}
    if isinstance(data, np.ndarray | Tensor):
        pixels = _pixels(data)
        if pixels is None:
            return _float_images(data, model, labels, **own)
        return item_images(pixels, model, labels, name="array", **own)
    if isinstance(data, Image.Image):
        name = os.path.basename(getattr(data, "filename", "") or "image")
        return item_images([data], model, labels, name=name, **own)
    if isinstance(data, list | tuple):
        return _list_images(list(data), model, labels, **own)
    if is_rows(data) and (items := row_items(data)) is not None:
        return dataset_images(items, model, labels, **own)
    if is_rows(data):
        numbers = _numbers(labels, len(data))
        return row_images(data, model, name=rows_name(data), labels=numbers, **own)
    if _is_map_style(data):
        return dataset_images(data, model, labels, **own)
    _refuse_beside(data, labels=labels, limit=limit)
    if isinstance(data, TensorImages | LazyImages | ShuffledImages | LoaderImages):
        return data
    if hasattr(data, "batches") and hasattr(data, "__len__"):
        held: ImageData = data
        return held
    if isinstance(data, Iterable) and not isinstance(data, Mapping):
        return LoaderImages(data, _loader_length(data), "tensor")  # as it always was
    raise FaithscopeError(
        f"Images are a tensor [B, C, H, W], a PIL image, a list, a path, a data set or a loader, "
        f"got {type(data).__name__}."
    )


def _refuse_beside(data: Any, *, labels: Any, limit: int | None) -> None:
    """What a loader yields, or what was loaded already, is taken as it is."""
    if labels is not None:
        raise FaithscopeError(
            f"labels go with a tensor, an array, a list or a data set, not with "
            f"{type(data).__name__}: a loader yields (images, labels), class folders name theirs."
        )
    if limit is not None:
        raise FaithscopeError(
            f"limit goes with names, lists and data sets, not with {type(data).__name__}, which is "
            "used as it is: leave it out."
        )


def _pixels(images: Any) -> Tensor | None:
    """Images of uint8 in one array; None if they are anything else."""
    kind = str(getattr(images, "dtype", "")).removeprefix("torch.")
    return as_tensor(images).detach() if kind == "uint8" and len(images.shape) == 4 else None


def _float_images(images: Any, model: Model, labels: Any, **own: Any) -> ImageData:
    held = tensor_images(images, labels, model=model, **own)
    _warn_of_raw_floats(held.images, model)
    return held


def _list_images(items: list[Any], model: Model, labels: Any, **own: Any) -> ImageData:
    if not items:
        raise FaithscopeError(NONE_GIVEN)
    if all(isinstance(item, np.ndarray | Tensor) and _is_float(item) for item in items):
        return _float_images(items, model, labels, **own)
    if all(isinstance(item, str | os.PathLike) for item in items):
        return listed_images(items, model, _numbers(labels, len(items)), **own)
    if labels is None and all(_may_have_label(item) for item in items):
        labels = _listed_labels([label_of(item) for item in items], model)
    return item_images(items, model, labels, name="images", **own)


def _may_have_label(item: Any) -> bool:
    return isinstance(item, Mapping) or (isinstance(item, tuple) and len(item) == 2)


def _listed_labels(found: Sequence[Any], model: Model) -> Sequence[int] | None:
    """Labels beside the images of a list, by name or by number; None if they are neither."""
    if all(isinstance(label, str) for label in found):
        return named_labels(found, model)
    numbers = [_whole(label) for label in found]
    for label, number in zip(found, numbers, strict=True):
        _refuse_several("The labels of a list of images", label, number)
    known = [number for number in numbers if number is not None]
    return fit_labels(known, None, model) if len(known) == len(numbers) else None


def item_images(
    items: Any,
    model: Model,
    labels: Any = None,
    *,
    name: str,
    limit: int | None = None,
    seed: int | None = None,
) -> LazyImages:
    """Images by place: those of a list or of an array."""
    numbers, chosen = _numbers(labels, len(items)), choose_subset(len(items), limit, seed)
    return LazyImages(
        lambda position: image_of(items[chosen[position]]),
        tuple(map(str, chosen)),
        model,
        None if numbers is None else [numbers[place] for place in chosen],
        name,
        named=False,
    )


# Data sets


def _is_map_style(data: Any) -> bool:
    """Whether an object is a data set whose items are had by place, and no loader."""
    if isinstance(data, IterableDataset | DataLoader) or hasattr(data, "batches"):
        return False
    if isinstance(data, Dataset):
        return True
    has_items = hasattr(type(data), "__getitem__") and isinstance(data, Sized)
    return has_items and not isinstance(data, Iterable)


def dataset_images(
    data: Any,
    model: Model,
    labels: Any = None,
    *,
    limit: int | None = None,
    seed: int | None = None,
) -> LazyImages:
    """The images of a map-style data set, with the labels it gives them.

    Class numbers are fitted to the model's by name where the data set names its `classes`; names
    are looked up among the model's; what is neither is no label. Image folders name their files.
    """
    count = _count(data)
    if not count:
        raise FaithscopeError(NONE_GIVEN)
    inner, places = data, list(range(count))
    while isinstance(inner, Subset):
        places = [int(inner.indices[place]) for place in places]
        inner = inner.dataset
    files = _file_names(inner)
    chosen = choose_subset(count, limit, seed)
    numbers = _numbers(labels, count)
    fit = None if numbers is not None else _fit(data, inner, model)

    def read(position: int) -> Any:
        item = data[chosen[position]]
        image = image_of(item)
        return image if fit is None else (image, fit(label_of(item)))

    return LazyImages(
        read,
        tuple(str(place) if files is None else files[places[place]] for place in chosen),
        model,
        None if numbers is None else [numbers[place] for place in chosen],
        _name(inner),
        named=files is not None,
    )


def _fit(data: Any, inner: Any, model: Model) -> Fit | None:
    """How the labels of a data set become the model's, seen from its first item."""
    (image, first), names = _first_item(data), _class_names(inner)
    if isinstance(image, np.ndarray | Tensor) and _is_float(image):
        _warn_of_raw_floats(as_tensor(image)[None], model, f" of {_name(inner)}")
    if isinstance(first, str):
        return label_by_name(model)
    number = _whole(first)
    _refuse_several(f"The labels of {_name(inner)}", first, number)
    if number is None or number < 0:
        return None
    table = None if names is None else _fitted(inner, names, model)
    if names is not None and table is None:
        return None

    def fit(label: Any) -> int:
        found = _whole(label)
        if found is None or found < 0 or (table is not None and found >= len(table)):
            raise Unusable(f"its label {shown(label)} is no class")
        return found if table is None else table[found]

    return fit


def _fitted(inner: Any, names: Sequence[str], model: Model) -> Sequence[int] | None:
    """Every class of the data as the model's; of ImageNet by its WordNet ids."""
    wnids = getattr(inner, "wnids", None)
    if isinstance(wnids, list) and len(wnids) == len(names):
        known = wnid_labels(wnids, model)
        return None if known is None else [known[wnid] for wnid in wnids]
    return fit_labels(range(len(names)), names, model)


def _class_names(inner: Any) -> list[str] | None:
    """The names of a data set's classes, unless its labels are changed after them."""
    names = row_classes(inner) if is_rows(inner) else _attribute(inner, "classes")
    if not isinstance(names, list | tuple) or not names or _attribute(inner, "target_transform"):
        return None
    plain = [", ".join(name) if isinstance(name, tuple) else name for name in names]
    return plain if all(isinstance(name, str) for name in plain) else None


def _first_item(data: Any) -> tuple[Any, Any]:
    """The first image that can be read and its label; None if there is none among the first."""
    for place in range(min(_count(data), LOOKED_AT)):
        try:
            item = data[place]
            return image_of(item), label_of(item)
        except (FaithscopeError, MemoryError):
            raise
        except Exception:  # such an item costs itself, when its turn comes
            continue
    return None, None


def _warn_of_raw_floats(images: Sequence[Tensor] | Tensor, model: Model, whose: str = "") -> None:
    """Say that floats look as if the normalisation had been forgotten: within 0…1, or far beyond.

    One colour all over says nothing. Shapes: images [B, C, H, W], or [C, H, W] each.
    """
    fine = ((image, image.isfinite()) for image in images[:LOOKED_AT])
    finite = ((image if good.all() else image[good]).float() for image, good in fine)
    held = [image for image in finite if image.numel()]
    if not model.mean or not held:
        return
    low, high = min(float(image.min()) for image in held), max(float(image.max()) for image in held)
    std = model.std or (1.0,)
    most = max(abs(level - mean) for level in (0, 1) for mean in model.mean) / min(std)
    is_plain = {*model.mean} == {0.0} and {*std} == {1.0}
    if max(-low, high) > max(BEYOND, 2 * most):
        found = f"reach {max(low, high, key=abs):.4g}"
    elif 0 <= low < high <= 1 and not is_plain:
        found = "lie between 0 and 1"
    else:
        return
    warn(
        f"The images{whose} {found}, as if they were not normalised, but floats are used as they "
        f"are: normalise them (mean {model.mean}, std {model.std}), or give PIL images or uint8 "
        "pixels."
    )


def _file_names(inner: Any) -> list[str] | None:
    """The files of an image folder, below its root; None of any other data set."""
    root, items = _attribute(inner, "root"), _attribute(inner, "samples")
    if not isinstance(root, str | os.PathLike) or not isinstance(items, list) or not items:
        return None
    try:
        return [Path(file).relative_to(root).as_posix() for file, _ in items]
    except (TypeError, ValueError):
        return None


def _name(inner: Any) -> str:
    """What a data set is called: its own name, its folder's, or what it is."""
    if is_rows(inner):
        return rows_name(inner)
    root = _attribute(inner, "root")
    own = _attribute(inner, "name")
    if isinstance(own, str) and own:
        return own
    return Path(root).name if _file_names(inner) and root else type(inner).__name__


def _attribute(data: Any, name: str) -> Any:
    try:
        return getattr(data, name, None)
    except Exception:  # a property of somebody's own
        return None


def _count(data: Any) -> int:
    try:
        return len(data)
    except Exception as error:
        raise FaithscopeError(
            f"The data set {type(data).__name__} does not say how many images it has "
            f"({type(error).__name__}): give it a length, or give a loader of it."
        ) from None


def _numbers(labels: Any, count: int) -> list[int] | None:
    given = given_labels(labels, count)
    return None if given is None else given.tolist()


def _whole(label: Any) -> int | None:
    """A class number, however it is given; None of anything else."""
    if label is None or isinstance(label, str | bytes | bool):
        return None
    if isinstance(label, int):
        return label
    try:
        number = class_numbers("", label)
    except FaithscopeError:
        return None
    return int(number) if number.numel() == 1 else None


def _refuse_several(what: str, label: Any, number: int | None) -> None:
    """Refuse numbers that are not one class: several at once, a share, or yes and no."""
    kinds = (bool, float, list, tuple, np.ndarray, np.generic, Tensor)
    if number is None and isinstance(label, kinds) and _is_numeric(label):
        raise FaithscopeError(
            f"{what} must be one class number for each image, got {shown(label)}: give the one to "
            "judge by, labels=…, or images without labels."
        )


def _is_numeric(label: Any) -> bool:
    try:
        return as_tensor(label).numel() > 0
    except FaithscopeError:
        return False


def _is_float(image: Any) -> bool:
    if isinstance(image, Tensor):
        return image.is_floating_point()
    return bool(np.issubdtype(image.dtype, np.floating))


def _loader_length(loader: Any) -> int:
    for owner in (getattr(loader, "dataset", None), loader):
        if isinstance(owner, Sized):
            try:
                return len(owner)
            except Exception:  # of somebody's own, which need not know
                return 0
    return 0
