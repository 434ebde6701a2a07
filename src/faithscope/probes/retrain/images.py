"""Images in ROAR: pixels or whole patches are masked, and replaced by a fill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from faithscope.data.labelled_images import ImageSplits, load_labelled
from faithscope.data.pictures import photographs, thumbnail
from faithscope.data.text import TextData
from faithscope.data.text_sources import TEXT_SOURCES, constant_score
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import Method, resolve_methods
from faithscope.models.tensor_files import tensor_digest
from faithscope.perturb import DEFAULTS, FILLS
from faithscope.probes.retrain.jobs import Jobs
from faithscope.probes.retrain.learner import Learner, Masks, Scores
from faithscope.probes.retrain.modality import Modality
from faithscope.probes.retrain.pixels import PixelData
from faithscope.request import Given, Retrain
from faithscope.runs.cards import DataCard, ImageCard, Majority

PRESET = (
    *("raw_attention", "rollout", "grad_cam", "transformer_mm", "transformer_attribution"),
    *("attcat", "gradient", "input_x_gradient", "integrated_gradients(steps=20)", "random"),
)
"""What measures="all" stands for: one of every kind, none that takes hundreds of passes."""


class ImageModality(Modality):
    """Images: what is masked is replaced by a fill, in all splits."""

    name: Literal["text", "image"] = "image"
    sample, keeps_masks, shows_intact = "image", False, True

    def __init__(self, request: Retrain) -> None:
        self.unit = "patch" if request.units == "patches" else "pixel"

    def open_options(self, request: Retrain) -> dict[str, Any]:
        if not request.specials:
            raise FaithscopeError(
                f"specials is of texts, and '{request.model}' is trained on images, which have no "
                "special tokens: leave it out."
            )
        fill = request.fill or DEFAULTS["image"]
        if FILLS[fill].drops:
            others = ", ".join(name for name in FILLS if not FILLS[name].drops)
            raise FaithscopeError(
                f"fill='{fill}' takes units out of a model's sequence, and ROAR trains models on "
                f"whole images: choose another of {others}."
            )
        return {"fill": fill, "units": request.units or "pixels"}

    def measures(self, request: Retrain, given: Given) -> list[Method]:
        asked: list[Any] = []
        for name in request.methods:
            asked += PRESET if name == "all" else [given.methods.get(name, name)]
        return resolve_methods(asked, "image")

    def load(self, request: Retrain, given: Given) -> ImageSplits:
        held = request.data if given.data is None else given.data
        is_text = isinstance(held, TextData)
        if isinstance(held, str):
            kind = held.partition(":")[0]
            is_text = kind in TEXT_SOURCES and kind not in ("hf", "bundled", "file")
            is_text |= held.startswith("bundled:babi")
            is_text |= held.rpartition(".")[2] in ("csv", "tsv", "jsonl")
        if is_text:
            raise FaithscopeError(
                f"'{request.data}' are texts, and '{request.model}' is trained on images: give "
                "images, or the model 'bilstm'."
            )
        return load_labelled(held, limit=request.limit)

    def encode(self, learner: Learner, source: ImageSplits, request: Retrain) -> PixelData:
        data = learner.encode(source)
        if not isinstance(data, PixelData):
            raise FaithscopeError(
                f"What the learner '{learner.name}' encodes is PixelData, got {shown(data)}."
            )
        chosen = self.open_options(request)
        units = data.frame.size
        if chosen["units"] == "patches":
            patch = getattr(getattr(learner, "options", None), "patch", None)
            if patch is None:
                raise FaithscopeError(
                    f"The learner '{learner.name}' has no patches: mask pixels, units='pixels'."
                )
            units = units[0] // patch, units[1] // patch
        return data.framed(fill=chosen["fill"], units=units)

    def granularity(self, method: Method, request: Retrain) -> str:
        is_by_patch = self.open_options(request)["units"] == "patches"
        return "patch" if is_by_patch else method.granularity

    def fingerprint(self, data: PixelData) -> str:
        """A hash of every pixel and label."""
        tensors = {
            f"{name} {part}": getattr(split, part)
            for name, split in data.splits
            for part in ("images", "labels")
        }
        return tensor_digest(tensors, {"names": json.dumps(list(data.classes))})

    def card(self, source: ImageSplits, data: PixelData, jobs: Jobs) -> DataCard:
        labels = {name: part.labels.numpy() for name, part in source.splits}
        majority = int(np.bincount(labels["train"], minlength=len(source.classes)).argmax())
        digest = hashlib.sha256()
        for _, part in source.splits:
            digest.update(part.images.numpy().data)
            digest.update(part.labels.numpy().astype("<i8").tobytes())
        score = constant_score(source.metric, labels["test"], majority)
        return DataCard(
            name=source.name,
            samples=len(source.test),
            fingerprint=digest.hexdigest()[:16],
            images=ImageCard(
                classes=source.classes,
                metric=source.metric,
                selection=source.selection,
                sizes={name: len(part) for name, part in source.splits},
                majority=Majority(label=source.classes[majority], score=score),
                notes=source.notes,
                height=source.size[0],
                width=source.size[1],
                channels=source.channels,
                masked="pixel" if data.frame.units == data.frame.size else "patch",
            ),
        )

    def statistics(self, data: PixelData) -> None:
        return None

    def model_free(
        self, learner: Learner, data: PixelData, statistics: None, item: Method, seed: int
    ) -> dict[str, Any]:
        return {name: learner.explain([{}], [part], item, [seed])[0] for name, part in data.splits}

    def sparsity(
        self, data: PixelData, scores: Scores, request: Retrain
    ) -> Mapping[str, Mapping[int, float]]:
        return {}

    def examples(
        self, data: PixelData, masks: Masks, scores: Scores | None
    ) -> list[dict[str, Any]]:
        """The first test image, as a model is trained on such images."""
        part = replace(data.test, hidden=masks["test"]).at(slice(0, 1))
        (photograph,) = photographs(part.filled("cpu") / 255, (0.0,), (1.0,))
        kind, small, file = thumbnail(photograph)
        picture = {"kind": kind, "height": small.height, "width": small.width, "content": file}
        nothing: dict[str, list[Any]] = {"words": [], "eligible": [], "masked": [], "scores": []}
        label = data.classes[int(part.labels[0])]
        return [{"split": "test", "index": 0, "label": label, **nothing, "picture": picture}]
