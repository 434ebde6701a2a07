"""Images to explain: in memory, from loaders, and by name from folders and data sets."""

from faithscope.data.decoding import as_input, preprocess, read_image
from faithscope.data.images import (
    Batch,
    ImageData,
    IndexedImages,
    LazyImages,
    LoaderImages,
    Skipped,
    image_digests,
    in_random_order,
)
from faithscope.data.labels import class_numbers, fit_labels
from faithscope.data.objects import as_image_data
from faithscope.data.sources import SOURCES, Source, load_data
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
    "as_input",
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
