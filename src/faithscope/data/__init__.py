"""Images to explain: in memory, in folders, from loaders, and the bundled sample."""

from faithscope.data.images import (
    Batch,
    ImageData,
    LoaderImages,
    Skipped,
    as_image_data,
    as_tensor,
    class_numbers,
    image_digests,
    load_data,
    preprocess,
    read_image,
)

__all__ = [
    "Batch",
    "ImageData",
    "LoaderImages",
    "Skipped",
    "as_image_data",
    "as_tensor",
    "class_numbers",
    "image_digests",
    "load_data",
    "preprocess",
    "read_image",
]
