"""Small pictures of a run: every image and its maps, no larger than a person looks at them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

Array = NDArray[np.float64]

IMAGE_SIDE = 128
"""Longest side of a kept image."""
CRISP_SIDE = 64
"""Images up to this side are kept without loss."""
CLIPPED = 99.0
"""Percentile at which colours saturate: a single hot pixel must not hide the rest of a map."""


def photographs(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Array:
    """Undo the normalisation; without a known one, stretch each image to 0…1.

    Shapes: [B, C, H, W] -> [B, H, W, 3] in 0…1.
    """
    pixels = images.detach().cpu().double().numpy()
    channels = (1, pixels.shape[1])
    if mean is not None and std is not None and len(mean) in channels and len(std) in channels:
        pixels = pixels * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))
    else:
        low = pixels.min(axis=(1, 2, 3), keepdims=True)
        spread = pixels.max(axis=(1, 2, 3), keepdims=True) - low
        pixels = (pixels - low) / np.where(spread > 0, spread, 1)
    if pixels.shape[1] != 3:
        pixels = pixels.mean(1, keepdims=True).repeat(3, axis=1)
    colours: Array = pixels.clip(0, 1).transpose(0, 2, 3, 1)
    return colours


def scale_map(values: Array) -> tuple[str, Array]:
    """Bring one map to the scale of its colours, which ends at its 99th percentile.

    A map with values of both signs is "signed", -1…1 around zero; any other "plain", 0…1 from its
    lowest value; one that cannot be coloured is "constant" or "nan", and 0 everywhere.

    >>> scale_map(np.array([[1.0, 3.0], [3.0, 3.0]]))
    ('plain', array([[0., 1.], [1., 1.]]))
    """
    if not np.isfinite(values).all():
        return "nan", np.zeros(values.shape)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return "constant", np.zeros(values.shape)
    if max(-low, high) > 1e300:  # or a difference would overflow
        values, low, high = values * 2.0**-64, low * 2.0**-64, high * 2.0**-64
    if low < 0 < high:
        return "signed", (values / _bound(np.abs(values))).clip(-1, 1)
    return "plain", ((values - low) / _bound(values - low)).clip(0, 1)


def _bound(sizes: Array) -> float:
    """The value at which colours saturate; the largest if most of the map is zero."""
    return float(np.percentile(sizes, CLIPPED)) or float(sizes.max())


def picture_rows(
    samples: Sequence[str],
    images: Tensor,
    maps: Mapping[str, Tensor],
    *,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> dict[str, list[Any]]:
    """Columns of the table of pictures: an image as a file, a map as bytes of its scale.

    A byte of a map is 255 × its value on a "plain" scale and 128 + 127 × it on a "signed" one. The
    image itself has no method.

    Shapes: images [S, C, H, W], maps [S, h, w] by method.
    """
    shown = []
    for photograph in photographs(images, mean, std):
        kind, small, file = thumbnail(photograph)
        shown.append((kind, small.height, small.width, file))
    return _with_maps(samples, shown, maps)


def example_name(example: Mapping[str, Any]) -> str:
    """What the picture of an example of a run that trains is called, by its row.

    >>> example_name({"index": 0, "measure": "rollout", "procedure": "roar", "k": 30, "seed": 2})
    '0 rollout roar 30 2'
    """
    return " ".join(str(example[key]) for key in ("index", "measure", "procedure", "k", "seed"))


def text_rows(
    samples: Sequence[str],
    words: Sequence[Sequence[str]],
    seconds: Sequence[int | None],
    maps: Mapping[str, Tensor],
) -> dict[str, list[Any]]:
    """The same of texts: what their units are called, in JSON, and the maps [S, 1, n] by method.

    `seconds` says where the units of the second text of a pair begin.
    """
    shown = []
    for held, second in zip(words, seconds, strict=True):
        content = json.dumps({"words": list(held), "second": second})
        shown.append(("text", 1, len(held), content.encode()))
    return _with_maps(samples, shown, maps)


def _with_maps(
    samples: Sequence[str],
    shown: Sequence[tuple[str, int, int, bytes]],
    maps: Mapping[str, Tensor],
) -> dict[str, list[Any]]:
    rows: list[tuple[str, str, str, int, int, bytes]] = []
    for place, itself in enumerate(shown):
        rows.append((samples[place], "", *itself))
        for method, values in maps.items():
            kind, scaled = scale_map(values[place].cpu().double().numpy())
            signed = kind == "signed"
            content = (128 + 127 * scaled if signed else 255 * scaled).round().astype(np.uint8)
            rows.append((samples[place], method, kind, *content.shape, content.tobytes()))
    names = ("sample", "method", "kind", "height", "width", "content")
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return dict(zip(names, map(list, columns), strict=True))


def thumbnail(photograph: Array) -> tuple[str, Image.Image, bytes]:
    """A small picture of [H, W, 3] in 0…1: the format of its file, itself, and the file."""
    image = Image.fromarray((255 * photograph).round().astype(np.uint8))
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.LANCZOS)
    kind, options = "jpeg", {"quality": 85}
    if max(image.size) <= CRISP_SIDE:
        kind, options = "png", {"optimize": True}
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return kind, image, buffer.getvalue()
