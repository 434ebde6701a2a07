"""Image files: one, those of a folder, those that match a pattern, or a list of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from faithscope.data.images import LazyImages, choose_subset
from faithscope.data.labels import plain_name
from faithscope.errors import FaithscopeError, quoted
from faithscope.models import Model
from faithscope.request import as_path

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")


def folder_images(
    root: Path, model: Model, *, limit: int | None = None, seed: int | None = None
) -> LazyImages:
    """One image file, or those of a folder, searched through; class folders label theirs."""
    if root.is_file():
        return file_images(root.parent, [root], model, name=_file_name(Path(root.name)))
    try:
        files = sorted(
            file for file in root.rglob("*") if file.suffix.lower() in EXTENSIONS and file.is_file()
        )
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{root}' cannot be searched ({error.strerror}): give another."
        ) from None
    if not files:
        raise FaithscopeError(
            f"The folder '{root}' holds no images: looked for {', '.join(EXTENSIONS)}."
        )
    chosen = [files[position] for position in choose_subset(len(files), limit, seed)]
    folders = [file.relative_to(root).parts[0] if file.parent != root else "" for file in chosen]
    labels = folder_labels(folders, model)
    return file_images(root, chosen, model, labels, name=_file_name(Path(root.name)))


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern of paths, "photos/*.jpg"."""
    return has_magic(name)


def matching_images(
    pattern: str, model: Model, *, limit: int | None = None, seed: int | None = None
) -> LazyImages:
    """The image files that match a pattern (``**`` is any folders), in the order of their names."""
    found = sorted(Path(file) for file in glob(str(as_path(pattern)), recursive=True))
    files = [file for file in found if file.suffix.lower() in EXTENSIONS and file.is_file()]
    if not files:
        raise FaithscopeError(
            f"No image matches {quoted(pattern)}: looked for {', '.join(EXTENSIONS)}."
        )
    return listed_images(files, model, limit=limit, seed=seed, name=pattern)


def listed_images(
    paths: Sequence[Any],
    model: Model,
    labels: Sequence[int] | None = None,
    *,
    limit: int | None = None,
    seed: int | None = None,
    name: str = "",
) -> LazyImages:
    """Image files one by one; if every one lies in a folder named as a class, that labels it."""
    files = [as_path(path, "An image").absolute() for path in paths]
    (often, times), *_ = Counter(files).most_common(1)
    if times > 1:
        raise FaithscopeError(f"The image '{often}' is listed twice: list it once.")
    places = choose_subset(len(files), limit, seed)
    chosen = [files[place] for place in places]
    root = Path(os.path.commonpath([file.parent for file in files]))
    own = (
        folder_labels([file.parent.name for file in chosen], model)
        if labels is None
        else tuple(labels[place] for place in places)
    )
    return file_images(root, chosen, model, own, name=name or _file_name(Path(root.name)))


def file_images(
    root: Path,
    files: Sequence[Path],
    model: Model,
    labels: Sequence[int] | None = None,
    *,
    name: str,
) -> LazyImages:
    """Image files, named by their paths below `root`."""
    samples = tuple(_file_name(file.relative_to(root)) for file in files)
    return LazyImages(lambda position: files[position], samples, model, labels, name)


def _file_name(path: Path) -> str:
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def folder_labels(folders: Sequence[str], model: Model) -> tuple[int, ...] | None:
    """Label class folders by the model's class names; None if any folder is not one of them."""
    if model.classes is None:
        return None
    known = {plain_name(name): index for index, name in enumerate(model.classes)}
    labels = [known.get(plain_name(folder)) for folder in folders]
    if any(label is None for label in labels):
        return None
    return tuple(label for label in labels if label is not None)
