"""What data sets of images hold, batch by batch."""

from __future__ import annotations

import torch

from faithscope.data import ImageData

NAMES = ("cat", "dog", "tree frog", "ship", "truck")
NORMAL = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}


def samples_of(data: ImageData) -> list[str]:
    return [sample for batch in data.batches(2) for sample in batch.samples]


def labels_of(data: ImageData) -> list[int] | None:
    found = [batch.labels for batch in data.batches(2)]
    return None if found[0] is None else torch.cat(found).tolist()


def images_in(data: ImageData) -> torch.Tensor:
    return torch.cat([batch.images for batch in data.batches(3)])
