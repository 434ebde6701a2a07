"""Images to explain: in memory, in folders, from loaders, and the bundled sample."""

from faithscope.data.images import (
    Batch,
    ImageData,
    Skipped,
    as_image_data,
    class_numbers,
    image_digests,
    load_data,
    preprocess,
    read_image,
)

__all__ = [
    "Batch",
    "ImageData",
    "Skipped",
    "as_image_data",
    "class_numbers",
    "image_digests",
    "load_data",
    "preprocess",
    "read_image",
]
