"""Images to explain: in memory, from loaders, and by name from folders and data sets."""

from faithscope.data.images import (
    Batch,
    ImageData,
    IndexedImages,
    LazyImages,
    LoaderImages,
    Skipped,
    as_image_data,
    class_numbers,
    image_digests,
    in_random_order,
    preprocess,
    read_image,
)
from faithscope.data.sources import SOURCES, Source, fit_labels, load_data
from faithscope.data.tensors import as_numbers, as_tensor

__all__ = [
    "SOURCES",
    "Batch",
    "ImageData",
    "IndexedImages",
    "LazyImages",
    "LoaderImages",
    "Skipped",
    "Source",
    "as_image_data",
    "as_numbers",
    "as_tensor",
    "class_numbers",
    "fit_labels",
    "image_digests",
    "in_random_order",
    "load_data",
    "preprocess",
    "read_image",
]
