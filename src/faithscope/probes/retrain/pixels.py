"""Images ready for a model: bytes, class numbers, and which units of each are masked.

A masked unit, a pixel or a whole patch, is replaced as `perturb/fills.py` says, and rounded to
bytes as a picture would be. Images are shared by all models; what is masked is each model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from faithscope.data.labelled_images import ImageSplits
from faithscope.data.text import SPLITS
from faithscope.perturb import FILLS, FillContext, unit_mask_to_pixels

CHUNK = 4096
"""Images that are filled at a time."""


@dataclass(frozen=True)
class Frame:
    """What all images of a data set have in common, and how they are masked.

    `size` are rows and columns of pixels, `units` of what is masked; `mean` and `std` are of the
    colours of the intact training images, between 0 and 1.
    """

    size: tuple[int, int]
    units: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: str = "mean"

    @property
    def count(self) -> int:
        """How many units an image has."""
        return self.units[0] * self.units[1]

    def normalised(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bytes [..., C, H, W] as a model reads them: each colour with mean 0 and spread 1."""
        mean, std = (
            torch.tensor(values, dtype=dtype, device=images.device)[:, None, None]
            for values in (self.mean, self.std)
        )
        return (images.to(dtype) / 255 - mean) / std


@dataclass(frozen=True, eq=False)
class PixelSplit:
    """One split: images uint8 [N, C, H, W], labels [N], their names, and what is masked of them.

    `places` [N] are the places in the whole split, by which random numbers are drawn; `hidden`
    bool [N, T] is None where nothing is masked.
    """

    split: str
    images: Tensor
    labels: Tensor
    places: Tensor
    frame: Frame
    hidden: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def eligible(self) -> Tensor:
        """Every unit may be masked: bool [N, T]."""
        return torch.ones(1, 1, dtype=torch.bool).expand(len(self), self.frame.count)

    @property
    def keys(self) -> list[str]:
        """A name for the random numbers of each image."""
        return [f"{self.split}/{place}" for place in self.places.tolist()]

    def at(self, rows: Any) -> PixelSplit:
        """Some of the images."""
        names = ("images", "labels", "places", "hidden")
        held = {name: part[rows] for name in names if (part := getattr(self, name)) is not None}
        return replace(self, **held)

    def chunks(self, size: int) -> Iterator[PixelSplit]:
        """All images, so many at a time."""
        for start in range(0, len(self), size):
            yield self.at(slice(start, start + size))

    def filled(self, device: str | torch.device) -> Tensor:
        """The images with what is masked replaced: uint8 [N, C, H, W] on a device."""
        if self.hidden is None:
            return self.images.to(device)
        parts = [part._filled(device) for part in self.chunks(CHUNK)]
        return torch.cat(parts)

    def _filled(self, device: str | torch.device) -> Tensor:
        assert self.hidden is not None
        images = self.images.to(device).to(torch.float32)
        mask = unit_mask_to_pixels(self.hidden.to(device), self.frame.units, self.frame.size)
        fill, colours = FILLS[self.frame.fill], images.shape[1]
        # bytes are not normalised, which changes what no fill but black looks at
        plain = FillContext(self.keys, 0, (0.0,) * colours, (1.0,) * colours)
        made = fill.apply(images, mask, fill.field(images, plain))
        return made.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class PixelData:
    """A data set of images, ready for one model."""

    name: str
    train: PixelSplit
    validation: PixelSplit
    test: PixelSplit
    classes: tuple[str, ...]
    metric: str = "accuracy"
    selection: str = "accuracy"

    @property
    def frame(self) -> Frame:
        """What all images have in common."""
        return self.train.frame

    @property
    def splits(self) -> Iterator[tuple[str, PixelSplit]]:
        """The splits by name."""
        return ((name, getattr(self, name)) for name in SPLITS)

    def hidden(self, split: str) -> Tensor | None:
        """Which units of a split are masked: bool [N, T]; None if none is."""
        part: PixelSplit = getattr(self, split)
        return part.hidden

    def masked(self, masks: Mapping[str, Tensor]) -> PixelData:
        """The same images with these units masked."""
        return self.with_splits(
            {
                name: replace(part, hidden=masks[name] if bool(masks[name].any()) else None)
                for name, part in self.splits
            }
        )

    def with_splits(self, parts: Mapping[str, PixelSplit]) -> PixelData:
        """The same data with other splits."""
        return replace(
            self, train=parts["train"], validation=parts["validation"], test=parts["test"]
        )

    def framed(self, **changes: Any) -> PixelData:
        """The same images, masked in other units or replaced by something else."""
        frame = replace(self.frame, **changes)
        return self.with_splits({name: replace(p, frame=frame) for name, p in self.splits})


def pixel_data(data: ImageSplits) -> PixelData:
    """Images as they were loaded, by pixels, with the mean as their fill."""
    bytes_per_colour = data.train.images.transpose(0, 1).flatten(1)
    counts = torch.stack([torch.bincount(colour, minlength=256) for colour in bytes_per_colour])
    shares = counts.to(torch.float64) / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    spread = (shares @ values**2 - mean**2).clamp(min=0).sqrt()
    std = torch.where(spread > 0, spread, 1.0)  # of a colour that is always the same
    frame = Frame(data.size, data.size, tuple(mean.tolist()), tuple(std.tolist()))
    parts = {
        name: PixelSplit(name, part.images, part.labels, torch.arange(len(part)), frame)
        for name, part in data.splits
    }
    return PixelData(
        data.name,
        parts["train"],
        parts["validation"],
        parts["test"],
        data.classes,
        data.metric,
        data.selection,
    )
