"""One image, however it is given, as the model's input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, shown
from faithscope.models import Model
from faithscope.models.model import CHANNELS

KINDS = (
    "a PIL image, a path, uint8 pixels [H, W, C] or [C, H, W], or floats [C, H, W] normalised for "
    "the model"
)
IMAGE_KEYS, LABEL_KEYS = ("pixel_values", "image", "img", "x"), ("labels", "label")
"""What a dict calls its image, or images, and their label; the first that is there counts."""


class Unusable(ValueError):
    """Why one image, and no other, cannot be used."""


def image_of(item: Any) -> Any:
    """The image of an item: the item itself, the first of (image, label, …), or that of a dict."""
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise Unusable(
                f"it is a dict of {shown(list(item))}, where the image is none of "
                f"{', '.join(IMAGE_KEYS)}: call it so"
            )
        return item[key]
    if not isinstance(item, tuple | list):
        return item
    if not item:
        raise Unusable("it is empty")
    return item[0]


def label_of(item: Any) -> Any:
    """The label of an item; None if it has none."""
    if isinstance(item, Mapping):
        return next((item[key] for key in LABEL_KEYS if key in item), None)
    return item[1] if isinstance(item, tuple | list) and len(item) > 1 else None


def as_input(found: Any, model: Model) -> tuple[Tensor, tuple[int, int] | None]:
    """One image as the model's input [C, H, W], and the photo's rows and columns, if it was one.

    A PIL image, the path of a file and uint8 pixels ([H, W], [H, W, C] or [C, H, W]) go through the
    model's preprocessing; floats [C, H, W] are taken as they are, normalised already.
    """
    photo = _decoded(found)
    if isinstance(photo, Tensor):
        return photo, None
    return preprocess(model, photo), (photo.height, photo.width)


def _decoded(found: Any) -> Image.Image | Tensor:
    if isinstance(found, str | os.PathLike):
        path = Path(found).expanduser() if isinstance(found, str) else Path(found)
        return read_image(path)
    if isinstance(found, np.ndarray | Tensor):
        values = as_tensor(found).detach().as_subclass(Tensor)
        if values.is_floating_point():
            return _normalised(values)
        found = _as_picture(values)
    if not isinstance(found, Image.Image):
        raise Unusable(f"it is of type {type(found).__name__}, not {KINDS}")
    return upright(found)


def _normalised(values: Tensor) -> Tensor:
    first, last = (values.ndim == 3 and values.shape[axis] in CHANNELS for axis in (0, -1))
    if values.ndim != 3 or (last and not first):
        raise Unusable(f"it is {str(values.dtype)[6:]} {list(values.shape)}, not {KINDS}")
    return values


def _as_picture(values: Tensor) -> Image.Image:
    if values.dtype == torch.uint8:
        if values.ndim == 2:
            values = values[..., None]
        if values.ndim == 3 and values.shape[-1] in CHANNELS:
            return picture(values.cpu().numpy())
        if values.ndim == 3 and values.shape[0] in CHANNELS:
            return picture(values.movedim(0, -1).cpu().numpy())
    raise Unusable(f"it is {str(values.dtype)[6:]} {list(values.shape)}, not {KINDS}")


def picture(pixels: np.ndarray[Any, Any]) -> Image.Image:
    """Pixels [H, W, C] in uint8 as a picture."""
    grey = pixels.shape[-1] == 1
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if grey else pixels))


def preprocess(model: Model, image: Image.Image) -> Tensor:
    """Turn a PIL image into the model's input [C, H, W]."""
    if model.transform is None:
        raise FaithscopeError(
            f"{model.name} has no preprocessing: give fs.wrap(module, input_size=…, mean=…, std=…) "
            "or transform=…, in the function of a file that makes the model, too."
        )
    return model.transform(image)


def read_image(source: Path | bytes) -> Image.Image:
    """Read an image as RGB: upright, grey repeated over channels, transparency over white."""
    with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as opened:
        return upright(opened)


def upright(image: Image.Image) -> Image.Image:
    """A picture of any mode as RGB, turned as its camera says."""
    try:
        turned = ImageOps.exif_transpose(image)
    except Exception:  # of what else the file says of itself; bad pixels fail below once more
        turned = image
    return as_rgb(turned)


def as_rgb(image: Image.Image) -> Image.Image:
    """A picture of any mode as RGB: grey repeated over channels, transparency over white."""
    if image.mode.startswith("I") or image.mode == "F":  # 16- or 32-bit grey: scale, do not clip
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode.startswith("I;16") or values.max() > 255 else 255.0
        top = 1.0 if image.mode == "F" and values.max() <= 1 else top
        image = Image.fromarray((values.clip(0, top) * (255.0 / top)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image)
    return image.convert("RGB")
