"""Images in data sets of Hugging Face: by name, from a folder, or given as rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from faithscope.data.decoding import IMAGE_KEYS, LABEL_KEYS, read_image
from faithscope.data.images import LazyImages, choose_subset
from faithscope.data.labels import fit_labels, named_labels
from faithscope.errors import FaithscopeError, choose, first_line
from faithscope.models import Model
from faithscope.request import existing_path

COLUMN, LABEL = "image", "label"
"""What the columns are called if nobody says otherwise."""


def row_images(
    rows: Any,
    model: Model,
    *,
    name: str,
    image: str | None = None,
    label: str | None = None,
    labels: Sequence[int] | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> LazyImages:
    """The images of a `datasets.Dataset`, decoded one by one.

    Without a word about it, they are in the column "image" or the only one of images, and their
    labels in "label" or the only column of classes; label "none" leaves labels out.
    """
    library = datasets_library()
    column = image or _column(rows, COLUMN, library.Image) or COLUMN
    images = _image_column(library, rows, column)
    if not len(rows):
        raise FaithscopeError(f"The data set '{name}' holds no images.")
    chosen = choose_subset(len(rows), limit, seed)
    of_labels = label or _column(rows, LABEL, library.ClassLabel)
    if labels is not None:
        own: Sequence[int] | None = tuple(labels[place] for place in chosen)
    elif of_labels in (None, "none"):
        own = None
    else:
        own = _label_column(rows.select(chosen), str(of_labels), model)
    return LazyImages(
        lambda position: _stored_image(images[chosen[position]][column]),
        tuple(map(str, chosen)),
        model,
        own,
        name,
    )


def is_rows(data: Any) -> bool:
    """Whether an object is a `datasets.Dataset`; a dict of several is refused."""
    library = sys.modules.get("datasets")
    several = getattr(library, "DatasetDict", None)
    if several is not None and isinstance(data, several):
        raise FaithscopeError(
            f"This is a dict of several data sets ({', '.join(map(str, data))}): give one of them, "
            f"data['{next(iter(data), 'test')}']."
        )
    one = getattr(library, "Dataset", None)
    return one is not None and isinstance(data, one)


def row_items(rows: Any) -> Any:
    """Rows to be taken as they are given, dicts: those of a transform, or arrays; None if stored.

    A column of pictures is decoded here instead, and goes through the model's preprocessing.
    """
    if rows.format["type"] == "custom":
        return rows
    library = datasets_library()
    key = _column(rows, COLUMN, library.Image)
    key = key or next((key for key in IMAGE_KEYS if key in rows.column_names), None)
    stored = (library.Image, library.Value, Mapping)
    if key is None or isinstance(rows.features[key], stored):
        return None
    return rows.with_format("numpy")


def row_classes(rows: Any) -> list[str] | None:
    """The names of the classes in the column of labels, if that names them."""
    columns = (rows.features[key] for key in LABEL_KEYS if key in rows.column_names)
    return getattr(next(columns, None), "names", None)


def rows_name(rows: Any) -> str:
    """What rows are called in tables: their data set and split, as far as they say."""
    named = getattr(getattr(rows, "info", None), "dataset_name", None) or "Dataset"
    split = getattr(rows, "split", None)
    return f"{named}:{split}" if split else str(named)


def _column(rows: Any, usual: str, kind: type) -> str | None:
    """The usual column, or the only one of a kind."""
    if usual in rows.column_names:
        return usual
    found = [str(name) for name, held in rows.features.items() if isinstance(held, kind)]
    return found[0] if len(found) == 1 else None


def datasets_library() -> Any:
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
    library = datasets_library()
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
            f"'hf:{name}' could not be loaded ({type(error).__name__}: {first_line(error)}): "
            "without a network give a folder."
        ) from None


def split_of(name: str, config: str, split: str | None) -> tuple[str, Any]:
    """One split of a data set, and what it is called: "test", or the one that was saved alone."""
    found = open_hugging_face(name, config)
    if not isinstance(found, Mapping):
        found = {str(found.split or split or "rows"): found}
        split = split or next(iter(found))
    split = choose(f"split of 'hf:{name}'", split or "test", map(str, found))
    label = Path(name).name if existing_path(name) else name
    return f"hf:{label}:{split}", found[split]


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
        return named_labels(values, model)
    return fit_labels(values, getattr(kind, "names", None), model)
