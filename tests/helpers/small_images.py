"""A tiny problem of images: 8×8 pixels, of which the colour of a bright corner is the class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SMALL: dict[str, Any] = {
    "measures": ["gradient", "raw_attention"],
    "seeds": 2,
    "levels": [30, 60],
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 5e-3,
    "keep_every": 0,
}
MODEL = "vit(dim=16, depth=1)"


def corner_images(train: int = 64, test: int = 32, classes: int = 2, seed: int = 0) -> Any:
    """Arrays by split, as `fs.roar` takes them."""
    draw = np.random.default_rng(seed)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % classes
        pixels = draw.integers(0, 120, (count, 8, 8, 3)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            top, left = 4 * draw.integers(2), 4 * draw.integers(2)
            image[top : top + 4, left : left + 4, label] += 110
        return pixels, labels

    return {"train": split(train), "test": split(test)}


def array_file(folder: Path, **options: Any) -> str:
    """The same as a file, and its name as data."""
    arrays = {
        f"{axis}_{split}": part
        for split, held in corner_images(**options).items()
        for axis, part in zip("xy", held, strict=True)
    }
    np.savez(folder / "corners.npz", **arrays)
    return f"array:{folder / 'corners.npz'}"
