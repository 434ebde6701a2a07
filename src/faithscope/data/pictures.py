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
    pixels: Array = images.detach().cpu().double().numpy()
    channels = (1, pixels.shape[1])
    if mean is not None and std is not None and len(mean) in channels and len(std) in channels:
        pixels = pixels * np.reshape(std, (-1, 1, 1))
        pixels += np.reshape(mean, (-1, 1, 1))
    else:
        low = pixels.min(axis=(1, 2, 3), keepdims=True)
        spread = pixels.max(axis=(1, 2, 3), keepdims=True) - low
        pixels = (pixels - low) / np.where(spread > 0, spread, 1)
    if pixels.shape[1] != 3:
        pixels = pixels.mean(1, keepdims=True).repeat(3, axis=1)
    return pixels.clip(0, 1, out=pixels).transpose(0, 2, 3, 1)


def scale_map(values: Array) -> tuple[str, Array]:
    """Bring one map to the scale of its colours, which ends at its 99th percentile.

    A map with values of both signs is "signed", -1…1 around zero; any other "plain", 0…1 from its
    lowest value; one that cannot be coloured is "constant" or "nan", and 0 everywhere.

    >>> scale_map(np.array([[1.0, 3.0], [3.0, 3.0]]))
    ('plain', array([[0., 1.], [1., 1.]]))
    """
    kinds, scaled = scale_maps(values[None])
    return kinds[0], scaled[0]


def scale_maps(maps: Array) -> tuple[list[str], Array]:
    """The same of maps [B, ...], all at once: each one's kind, and its values."""
    values = maps.reshape(len(maps), -1)
    finite = np.logical_and.reduce(np.isfinite(values), axis=1)
    values = np.where(finite[:, None], values, 0.0)
    low, high = values.min(1), values.max(1)
    is_huge = np.maximum(-low, high) > 1e300  # or a difference would overflow
    if is_huge.any():
        values *= np.where(is_huge, 2.0**-64, 1.0)[:, None]
        low, high = values.min(1), values.max(1)
    constant, signed = low == high, (low < 0) & (high > 0)
    sizes = np.where(signed[:, None], np.abs(values), values - low[:, None])
    bound = np.percentile(sizes, CLIPPED, axis=1)
    bound = np.where(bound == 0, sizes.max(1), bound)  # most of the map is zero
    scaled = np.where(signed[:, None], values, sizes) / np.where(constant, 1.0, bound)[:, None]
    kinds = np.select([~finite, constant, signed], ["nan", "constant", "signed"], "plain")
    return kinds.tolist(), scaled.clip(-1, 1).reshape(maps.shape)


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
    for place in range(len(images)):  # one at a time stays in the processor's caches
        kind, small, file = thumbnail(photographs(images[place : place + 1], mean, std)[0])
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
    made = {method: _map_cells(values) for method, values in maps.items()}
    rows: list[tuple[str, str, str, int, int, bytes]] = []
    for place, itself in enumerate(shown):
        rows.append((samples[place], "", *itself))
        rows += [(samples[place], method, *cells[place]) for method, cells in made.items()]
    names = ("sample", "method", "kind", "height", "width", "content")
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return dict(zip(names, map(list, columns), strict=True))


def _map_cells(maps: Tensor) -> list[tuple[str, int, int, bytes]]:
    """Kind, height, width and bytes of each map of [S, h, w]."""
    if not len(maps):
        return []
    kinds, scaled = scale_maps(maps.cpu().double().numpy())
    signed = np.array([kind == "signed" for kind in kinds])[:, None, None]
    contents = np.where(signed, 128 + 127 * scaled, 255 * scaled).round().astype(np.uint8)
    height, width = contents.shape[1:]
    return [
        (kind, height, width, content.tobytes())
        for kind, content in zip(kinds, contents, strict=True)
    ]


def thumbnail(photograph: Array) -> tuple[str, Image.Image, bytes]:
    """A small picture of [H, W, 3] in 0…1: the format of its file, itself, and the file."""
    pixels = 255 * photograph
    image = Image.fromarray(np.rint(pixels, out=pixels).astype(np.uint8))
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.LANCZOS)
    kind, options = "jpeg", {"quality": 85}
    if max(image.size) <= CRISP_SIDE:
        kind, options = "png", {"optimize": True}
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return kind, image, buffer.getvalue()
