"""Images to explain: in memory, read as they are needed, or from a loader.

`objects` has what may be given as an object, `sources` where images come from by name.

A data set yields batches of one shape. An image that cannot be used costs that image: it is left
out, named and counted, and the run continues.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from faithscope.data.decoding import (
    Unusable,
    as_input,
    image_of,
    label_of,
    preprocess,
    read_image,
)
from faithscope.data.labels import class_numbers
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, said, unknown
from faithscope.models import BUNDLE, Model

THE_FILES_OWN = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.EINVAL),
)
"""Why a file cannot be opened, today or tomorrow; of anything else the disk is to blame."""
NOT_FINITE = "it holds NaN or infinite values"

Photo = tuple[int, int]
"""Rows and columns of a picture before it was made the model's input."""
NONE_GIVEN = "There are no images: give at least one."


@dataclass(frozen=True)
class Skipped:
    """An image that was left out, and why."""

    sample: str
    reason: str


@dataclass(frozen=True, eq=False)
class Batch:
    """A few images of one shape, normalised for the model.

    `keys` name a sample for its random draws: its name, or else its `digests` entry, the hash of
    its pixels. `photos` are rows and columns of the pictures that the images were made of, none
    where nobody knows. Of a text model `images` are texts, `words` what their units are called, and
    `seconds` where those of the second text of a pair begin.
    Shapes: images [B, C, H, W]; labels int64 [B] or None.
    """

    images: Any
    labels: Tensor | None
    samples: tuple[str, ...]
    keys: tuple[str, ...]
    digests: tuple[str, ...]
    positions: tuple[int, ...]
    skipped: tuple[Skipped, ...] = ()
    photos: tuple[tuple[int, int] | None, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    seconds: tuple[int | None, ...] = ()

    def split(self, size: int) -> Iterator[Batch]:
        """Cut into batches of at most `size` images; none for a batch without images."""
        for start in range(0, len(self.images), size):
            part = slice(start, start + size)
            labels = None if self.labels is None else self.labels[part]
            names = (self.samples[part], self.keys[part], self.digests[part])
            places = self.positions[part]
            texts = (self.words[part], self.seconds[part])
            yield Batch(self.images[part], labels, *names, places, (), self.photos[part], *texts)


class ImageData(Protocol):
    """A data set: what is asked of one that can only be read from its beginning to its end."""

    @property
    def name(self) -> str:
        """What the data is called in tables."""
        ...

    def __len__(self) -> int:
        """How many images there are, the unusable ones included; 0 if nobody knows."""
        ...

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of at most `size` images of one shape."""
        ...


class Shown:
    """Data sets that say what they are in a line, or on a card in a notebook."""

    def __repr__(self: ImageData) -> str:
        noun = getattr(self, "noun", "images")
        count = f"{len(self):,} {noun}" if len(self) else noun
        return f"{type(self).__name__}({self.name}: {count})"

    def _repr_html_(self: ImageData) -> str:
        from faithscope.data.card import images_html

        return images_html(self)


class IndexedImages(Shown):
    """The base of data sets whose images can be read in any order, by position."""

    noun = "images"

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def sample_names(self) -> Sequence[str]:
        """What the images are called, by position."""
        return [str(position) for position in range(len(self))]

    def parts(self, size: int) -> list[list[int]]:
        """All positions in the order they are used, at most `size` together."""
        return [
            list(range(start, min(start + size, len(self)))) for start in range(0, len(self), size)
        ]

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """The images at some positions, those of one shape together."""
        raise NotImplementedError

    def typical(self, example: Batch) -> Batch:
        """What stands for all of them when time is measured: `example`, if all are alike."""
        return example

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of at most `size` images of one shape."""
        for positions in self.parts(size):
            yield from self.read_batches(positions)


@dataclass(frozen=True, eq=False, repr=False)
class TensorImages(IndexedImages):
    """Images in memory, normalised for the model: one tensor, or a list of several shapes."""

    images: Tensor | Sequence[Tensor]
    labels: Tensor | None = None
    name: str = "tensor"
    names: Sequence[str] | None = None
    model: Model | None = None
    """Whose colours and classes they are shown in; it does not travel with them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "model": None}

    def __len__(self) -> int:
        return len(self.images)

    @property
    def sample_names(self) -> Sequence[str]:
        """What the images are called, by position."""
        return [str(name) for name in self.names or range(len(self))]

    def parts(self, size: int) -> list[list[int]]:
        """Positions of images of one shape together, in order."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for position, image in enumerate(self.images):
            shapes.setdefault(tuple(image.shape), []).append(position)
        return [
            positions[start : start + size]
            for positions in shapes.values()
            for start in range(0, len(positions), size)
        ]

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """Images of one shape together; those with NaN or infinity left out."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for position in positions:
            shapes.setdefault(tuple(self.images[position].shape), []).append(position)
        return [self._batch(alike) for alike in shapes.values()]

    def _batch(self, positions: list[int]) -> Batch:
        images = torch.stack([self.images[position].detach() for position in positions])
        fine = torch.isfinite(images).flatten(1).all(1).tolist()
        kept = [position for position, good in zip(positions, fine, strict=True) if good]
        images = images if all(fine) else images[torch.tensor(fine)]
        digests = image_digests(images)
        names = self.sample_names
        return Batch(
            images=images,
            labels=None if self.labels is None else self.labels[kept],
            samples=tuple(names[position] for position in kept),
            keys=digests,
            digests=digests,
            positions=tuple(kept),
            skipped=tuple(
                Skipped(names[position], NOT_FINITE)
                for position, good in zip(positions, fine, strict=True)
                if not good
            ),
        )


@dataclass(frozen=True, eq=False, repr=False)
class LazyImages(IndexedImages):
    """Images of a data set, read and preprocessed for the model as they are needed.

    `read` takes a position and gives an image as `as_input` takes it, or a pair of that and its
    class number where `labels` does not have those; `samples` names the images; `named` is False
    where those names are mere places in an array.
    """

    read: Callable[[int], Any]
    samples: Sequence[str]
    model: Model
    labels: Sequence[int] | None = None
    name: str = "data"
    named: bool = True

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sample_names(self) -> Sequence[str]:
        """What the images are called, by position."""
        return self.samples

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """Images of one shape together; one that cannot be read is left out and named."""
        by_shape: dict[tuple[int, ...], list[tuple[int, Tensor, Photo | None, int | None]]] = {}
        skipped = []
        for position in positions:
            found = self._image(position)
            if isinstance(found, Skipped):
                skipped.append(found)
                continue
            by_shape.setdefault(tuple(found[0].shape), []).append((position, *found))
        batches = []
        for items in by_shape.values() or [[]]:
            places = [position for position, *_ in items]
            samples = tuple(self.samples[position] for position in places)
            known = [label for *_, label in items if label is not None]
            labels = None
            if len(known) == len(items) and (items or self.labels is not None):
                labels = torch.tensor(known, dtype=torch.int64)
            images = torch.stack([item[1] for item in items]) if items else torch.empty(0, 3, 1, 1)
            digests = image_digests(images)
            names = (samples, samples if self.named else digests, digests)
            photos = tuple(photo for *_, photo, _ in items)
            batches.append(Batch(images, labels, *names, tuple(places), tuple(skipped), photos))
            skipped = []
        return batches

    def _image(self, position: int) -> tuple[Tensor, Photo | None, int | None] | Skipped:
        """An image, rows and columns of the picture it was made of, and its label, if any."""
        label = None if self.labels is None else self.labels[position]
        try:
            found = self.read(position)
            if isinstance(found, tuple):
                found, label = found
            image, photo = as_input(found, self.model)
        except (FaithscopeError, MemoryError):  # not this image's fault
            raise
        except Unusable as error:
            return Skipped(self.samples[position], str(error))
        except Exception as error:
            if isinstance(error, OSError) and error.errno not in (None, *THE_FILES_OWN):
                raise FaithscopeError(
                    f"'{self.samples[position]}' of {self.name} cannot be read now "
                    f"({error.strerror}): run the same command again when the disk answers."
                ) from error
            reason = f"it cannot be read ({type(error).__name__})"
            return Skipped(self.samples[position], reason)
        if not torch.isfinite(image).all():
            return Skipped(self.samples[position], NOT_FINITE)
        return image, photo, label


@dataclass(frozen=True, eq=False, repr=False)
class ShuffledImages(IndexedImages):
    """Another data set in random order, by seed."""

    data: Any
    seed: int

    @property
    def noun(self) -> str:  # type: ignore[override]
        """What the samples are."""
        return str(self.data.noun)

    @property
    def model(self) -> Model | None:
        """Whose input the images are."""
        model: Model | None = self.data.model
        return model

    @property
    def most_units(self) -> int:
        """Of texts, the most units that one has."""
        return int(self.data.most_units)

    @property
    def name(self) -> str:
        """What the data is called in tables."""
        return str(self.data.name)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sample_names(self) -> Sequence[str]:
        """What the images are called, by position."""
        names: Sequence[str] = self.data.sample_names
        return names

    def typical(self, example: Batch) -> Batch:
        """What stands for all of them when time is measured."""
        found: Batch = self.data.typical(example)
        return found

    def parts(self, size: int) -> list[list[int]]:
        """Positions in random order."""
        order = np.random.default_rng(self.seed).permutation(len(self)).tolist()
        return [order[start : start + size] for start in range(0, len(self), size)]

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """The images at some positions."""
        found: list[Batch] = self.data.read_batches(positions)
        return found


def in_random_order(data: ImageData, seed: int) -> ImageData:
    """The same images in an order drawn by seed."""
    if isinstance(data, IndexedImages):
        return ShuffledImages(data, seed)
    raise FaithscopeError(
        f"The data '{data.name}' can only be read in its own order, but images must be visited at "
        "random here: leave out the tolerance."
    )


@dataclass(frozen=True, eq=False, repr=False)
class LoaderImages(Shown):
    """Batches from a DataLoader or any iterable of images, (images, labels) or dicts."""

    loader: Iterable[Any]
    length: int
    name: str = "loader"

    def __len__(self) -> int:
        return self.length

    def batches(self, size: int) -> Iterator[Batch]:
        """The loader's batches, cut to `size`."""
        done = 0
        for item in self._items():
            try:
                images = image_of(item)
            except Unusable as error:
                raise FaithscopeError(f"An item of the loader has no images: {error}.") from None
            if not isinstance(images, Tensor | np.ndarray):
                raise FaithscopeError(
                    f"A loader must yield images [B, C, H, W], (images, labels) or a dict of "
                    f"them, got {type(images).__name__}."
                )
            part = tensor_images(images, label_of(item), name=self.name)
            for batch in part.batches(size):
                shifted = tuple(done + position for position in batch.positions)
                yield Batch(
                    batch.images,
                    batch.labels,
                    tuple(map(str, shifted)),
                    batch.keys,
                    batch.digests,
                    shifted,
                    tuple(Skipped(str(done + int(s.sample)), s.reason) for s in batch.skipped),
                )
            done += len(part)

    def _items(self) -> Iterator[Any]:
        """What the loader yields; where it fails, it is said after how many items."""
        count = 0
        try:
            for item in self.loader:
                count += 1
                yield item
        except (FaithscopeError, MemoryError):
            raise
        except Exception as error:
            raise loader_failed(error, f" after {count} item{'s' * (count != 1)}") from error
        expected = _length(self.loader)
        if count < expected:  # torch takes a StopIteration of a data set for the end
            raise FaithscopeError(
                f"The loader ended after {count} of its {expected} items: fix it, and run the "
                "same again."
            )


def _length(loader: Any) -> int:
    """How many batches a loader of torch has; 0 of one that cannot know, or of any other."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return 0
    try:
        return len(loader)
    except Exception:  # of somebody's data set
        return 0


@contextmanager
def loaders_named() -> Iterator[None]:
    """Say in a sentence that a worker of a DataLoader died.

    torch tells that to the main thread by a signal, wherever that thread is.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise loader_failed(error) from error


def loader_failed(error: Exception, when: str = "") -> FaithscopeError:
    """The sentence for a loader that cannot go on."""
    return FaithscopeError(
        f"The loader failed{when} ({said(error)}): fix it, and run the same again."
    )


def tensor_images(
    images: Any,
    labels: Any = None,
    *,
    model: Model | None = None,
    name: str = "tensor",
    limit: int | None = None,
    seed: int | None = None,
) -> TensorImages:
    """Images in memory, normalised for the model: [B, C, H, W], or a list of [C, H, W]."""
    images = [_as_image(one) for one in images] if isinstance(images, list) else _as_image(images)
    if isinstance(images, Tensor) and images.ndim != 4:
        raise FaithscopeError(
            f"Images must have the shape [batch, channels, height, width], got "
            f"{list(images.shape)}: for a single image add the batch axis, images[None]."
        )
    if len(images) == 0:
        raise FaithscopeError(NONE_GIVEN)
    for image in images[:1] if isinstance(images, Tensor) else images:
        if image.ndim != 3 or not image.is_floating_point():
            raise FaithscopeError(
                f"Images must be float tensors [channels, height, width] normalised for the model, "
                f"got {image.dtype} {list(image.shape)}: use model.transform on a PIL image."
            )
    numbers = given_labels(labels, len(images))
    chosen = choose_subset(len(images), limit, seed)
    if len(chosen) == len(images):
        return TensorImages(images, numbers, name, model=model)
    some = images[chosen] if isinstance(images, Tensor) else [images[place] for place in chosen]
    numbers = None if numbers is None else numbers[chosen]
    return TensorImages(some, numbers, name, [str(place) for place in chosen], model)


def given_labels(labels: Any, count: int) -> Tensor | None:
    """Labels that were given beside `count` images, one class number for each."""
    if labels is None:
        return None
    numbers = class_numbers("labels", labels)
    if numbers.shape != (count,):
        raise FaithscopeError(
            f"labels must hold one class number for each of the {count} images, got shape "
            f"{list(numbers.shape)}: where several are true, give the one to judge by."
        )
    return numbers


def _as_image(image: Any) -> Tensor:
    try:
        return as_tensor(image).detach()
    except FaithscopeError:
        raise FaithscopeError(
            f"Images must be float tensors [channels, height, width] normalised for the model, got "
            f"{type(image).__name__}: use model.transform on a PIL image, or give a folder."
        ) from None


def image_digests(images: Tensor) -> tuple[str, ...]:
    """Hash each image by its float32 pixels: the key of a sample that has no name."""
    pixels = images.detach().to("cpu", torch.float32).contiguous().numpy()
    return tuple(hashlib.blake2b(image.data, digest_size=16).hexdigest() for image in pixels)


def choose_subset(count: int, limit: int | None, seed: int | None) -> list[int]:
    """Choose `limit` of `count` places: evenly spread, or at random by seed; always sorted.

    >>> choose_subset(10, 3, None)
    [0, 3, 6]
    """
    if limit is None or limit >= count:
        return list(range(count))
    if seed is None:
        return [index * count // limit for index in range(limit)]
    return sorted(np.random.default_rng(seed).choice(count, limit, replace=False).tolist())


def bundled_images(
    name: str, model: Model, *, limit: int | None = None, seed: int | None = None
) -> TensorImages:
    """The sample that comes with the package, or one image of it (``cifar10:7``)."""
    name, colon, place = name.partition(":")
    tiles, card = bundled_pixels(name)
    labels = torch.tensor(card["labels"])
    chosen = (
        one_of(len(tiles), place, f"bundled:{name}")
        if colon
        else choose_subset(len(tiles), limit, seed)
    )
    images = torch.stack([preprocess(model, Image.fromarray(tiles[place])) for place in chosen])
    fits = model.classes is not None and list(model.classes) == card["classes"]
    names = [str(place) for place in chosen]  # in the whole: a subset keeps its images' names
    return TensorImages(images, labels[chosen] if fits else None, f"bundled:{name}", names, model)


def bundled_pixels(name: str) -> tuple[np.ndarray, dict[str, Any]]:
    """The sample's pixels, uint8 [N, H, W, C], and its card: classes and labels."""
    names = [f.name[: -len("_sample.json")] for f in BUNDLE.iterdir() if "_sample.json" in f.name]
    if name not in names:
        raise unknown("bundled data", name, names)
    card: dict[str, Any] = json.loads((BUNDLE / f"{name}_sample.json").read_text())
    mosaic = np.asarray(read_image((BUNDLE / f"{name}_sample.png").read_bytes()))
    return tiles_of(mosaic, 32), card


def tiles_of(mosaic: np.ndarray, side: int) -> np.ndarray:
    """The square images that a picture is laid out of, row by row: [H, W, C] -> [N, s, s, C]."""
    rows, columns = mosaic.shape[0] // side, mosaic.shape[1] // side
    tiles = mosaic.reshape(rows, side, columns, side, -1).swapaxes(1, 2)
    return tiles.reshape(rows * columns, side, side, -1)


def one_of(count: int, place: str, name: str) -> list[int]:
    """The one sample of the bundled data that was asked for by its number."""
    if not place.isdecimal() or int(place) >= count:
        raise FaithscopeError(
            f"The samples of {name} are numbered 0 to {count - 1}, got '{place}': for example "
            f"'{name}:7'."
        )
    return [int(place)]
