"""The public calls: explain, evaluate and roar. Everything else hangs below them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithscope.data import ImageData, as_image_data, as_tensor, class_numbers, image_digests
from faithscope.data.text import TextData
from faithscope.errors import FaithscopeError, choose
from faithscope.methods import Method, MethodLike, explain_images, resolve_methods
from faithscope.methods.text import TokenMethod
from faithscope.metrics import MetricLike
from faithscope.models import Model, as_model, cannot_run, undisturbed
from faithscope.perturb import UNITS, UPSAMPLES, to_patches, to_pixels
from faithscope.probes.perturb.evaluation import (
    EXPLAIN_BATCH,
    PICTURES,
    Advance,
    ModelLike,
    prepare,
)
from faithscope.probes.perturb.respond import check_classes
from faithscope.probes.retrain.learner import Learner
from faithscope.probes.retrain.result import RoarResult
from faithscope.probes.retrain.roar import Report, prepare_roar
from faithscope.result import Result


def explain(
    model: ModelLike,
    images: Tensor | np.ndarray,
    methods: MethodLike | Iterable[MethodLike],
    *,
    target: Tensor | int | None = None,
    units: str = "pixels",
    upsample: str = "bilinear",
    seed: int = 0,
) -> Tensor | dict[str, Tensor]:
    """Explain images by one method or several, sharing the passes they need.

    Args:
        model: a Model, a torch module or a name.
        images: [B, C, H, W], float, normalised for the model.
        methods: a name, a Method or a function; a list (or "all") gives a dict by label.
        target: class to explain, an int or [B]; None is the predicted class.
        units: "pixels" -> maps [B, H, W]; "patches" -> [B, h, w].
        upsample: how patch maps become pixel maps, "bilinear" or "nearest".
        seed: of random methods.

    Returns:
        Maps in the model's type (at least float32), those of LRP and random ones in float64.
    """
    model = as_model(model)
    choose("units", units, UNITS)
    choose("upsampling", upsample, UPSAMPLES)
    if isinstance(images, np.ndarray):
        images = as_tensor(images)
    if not isinstance(images, Tensor):
        raise FaithscopeError(
            f"fs.explain takes images as one tensor [B, C, H, W], got {type(images).__name__}."
        )
    as_image_data(images)
    if not torch.isfinite(images).all():
        raise FaithscopeError(
            "The images hold NaN or infinite values: there is nothing to explain."
        )
    images = images.to(model.device)
    chosen = resolve_methods(methods)
    size = (images.shape[-2], images.shape[-1])
    goal = _explain_target(images, target)
    pairs = [(method, 0) for method in chosen]
    try:
        maps, _, _ = explain_images(
            model,
            images,
            goal,
            pairs,
            keys=image_digests(images),
            seed=seed,
            batch_size=EXPLAIN_BATCH,
        )
    except FaithscopeError:
        raise
    except (RuntimeError, AssertionError, ValueError, IndexError):
        _check_fit(model, images, goal)
        raise
    by_label = {
        method.label: to_pixels(values, size, upsample)
        if units == "pixels"
        else to_patches(values, model.require_grid(images, "units='patches'"))
        for method, values in zip(chosen, maps, strict=True)
    }
    single = isinstance(methods, Method) or callable(methods)
    if single or (isinstance(methods, str) and methods not in ("all", "registered")):
        return by_label[chosen[0].label]
    return by_label


def evaluate(
    model: ModelLike,
    images: Tensor | np.ndarray | ImageData | Iterable[Any] | str | Path,
    methods: MethodLike | Iterable[MethodLike] | None = None,
    metrics: MetricLike | Iterable[MetricLike] = "all",
    *,
    labels: Tensor | Iterable[int] | None = None,
    maps: Mapping[str, Tensor | np.ndarray] | None = None,
    target: str | int | Tensor = "predicted",
    k: int | str = 10,
    fill: str = "mean",
    units: str = "pixels",
    upsample: str = "bilinear",
    ties: str = "ascending",
    group: str = "sum",
    random_draws: int = 3,
    seed: int = 0,
    precision: str = "auto",
    batch_size: int | str = "auto",
    pictures: int = PICTURES,
    out: str | Path | None = None,
    advance: Advance | None = None,
) -> Result:
    """Measure how faithful explanations are to the model they explain.

    Every perturbed input that any metric needs of any map is run once; random attribution, matched
    in granularity, is always in the run.

    Args:
        model: a Model, a torch module or a name.
        images: [B, C, H, W] normalised for the model, a list, a loader, a data set, a folder or
            "bundled:cifar10".
        methods: names, Methods or functions (module, images, target) -> maps; "all" are the
            papers'. The default is "all", or none if `maps` are given.
        metrics: names, Metrics or functions of Responses; "all" are the papers' five.
        labels: [B], for `auc`, target="label" and accuracy.
        maps: maps from anywhere, by name: [B, H, W], or [B, h, w] in the model's patch grid.
        target: whose probability is watched: "predicted", "label", a class or [B].
        k: SaCo's number of groups, or "auto" to choose it per map.
        fill: what replaces removed units: mean, black, noise, blur, inpaint.
        units: what is ranked and removed: "pixels" or whole "patches".
        upsample: how patch maps become pixel maps: "bilinear" or "nearest".
        ties: order of equal salience: by "ascending" or "descending" index.
        group: salience of a SaCo group: "sum" (the paper's) or "mean".
        random_draws: draws of random attribution, averaged per sample; 0 leaves it out.
        seed: of everything random.
        precision: of the perturbed passes: auto, fp64, fp32, tf32, fp16, bf16.
        batch_size: inputs per model call; "auto" chooses once.
        pictures: of how many images small pictures and maps are kept for the report's gallery.
        out: a folder to keep the result in, shard by shard: the same call goes on where an earlier
            one was stopped.
        advance: called with the number of passes just made, for a progress bar.
    """
    evaluation = prepare(
        model,
        images,
        methods,
        metrics,
        labels=labels,
        maps=maps,
        target=target,
        k=k,
        fill=fill,
        units=units,
        upsample=upsample,
        ties=ties,
        group=group,
        random_draws=random_draws,
        seed=seed,
        precision=precision,
        batch_size=batch_size,
        pictures=pictures,
    )
    return evaluation.run(advance, out)


def roar(
    data: TextData | str | Path,
    model: Learner | str = "bilstm",
    *,
    measures: str | TokenMethod | Iterable[str | TokenMethod] = "all",
    seeds: int | Iterable[int] = 5,
    levels: Iterable[int] | None = None,
    procedures: str | Iterable[str] = ("roar", "recursive"),
    strategy: str = "relative",
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    limit: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    clip: bool = True,
    specials: bool = True,
    keep_weights: bool = False,
    progress: Report | None = None,
) -> RoarResult:
    """Measure how faithful measures for text are: mask what they point to, retrain, test.

    Args:
        data: the texts, or the name of a data set (as `fs.load_text` takes).
        model: what is trained on them: "bilstm", "hf:ID or folder" or a learner of one's own.
        measures: names or objects; "all" are the paper's that the model can give. `random` is
            always among them.
        seeds: which seeds, or how many from 0.
        levels: percent of tokens to mask (10, 20, …, 90), or numbers of them (1 to 10).
        procedures: "roar", "recursive" or both.
        strategy: whether levels are "relative" or a "count" of tokens.
        epochs: how long a model is trained; by default as long as the paper.
        batch_size: texts per step of a training, if not the paper's.
        learning_rate: of a training, if not the paper's.
        limit: use only so many texts of each split, where data is a name.
        device: "auto" is a GPU if there is one.
        out: a folder to keep every training in: the same call goes on where it was stopped.
        clip: whether each seed's RACU is kept within -1 and 1, as the paper's program does.
        specials: whether sparsity counts special tokens, as the paper's program does.
        keep_weights: keep the weights of every model, not only of those that are explained.
        progress: called with where the run is, for a progress bar.
    """
    request = prepare_roar(
        data,
        model,
        measures=measures,
        seeds=seeds,
        levels=levels,
        procedures=procedures,
        strategy=strategy,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        limit=limit,
        device=device,
        out=out,
        clip=clip,
        specials=specials,
        keep_weights=keep_weights,
    )
    return request.run(progress)


def _explain_target(images: Tensor, target: Tensor | int | None) -> Tensor | None:
    if target is None:
        return None
    goal = class_numbers("target", target).to(images.device)
    if goal.ndim == 0:
        goal = goal.expand(len(images))
    if goal.shape != (len(images),):
        raise FaithscopeError(
            f"target must be a class or one class for each of the {len(images)} images, got shape "
            f"{list(goal.shape)}."
        )
    return goal


def _check_fit(model: Model, images: Tensor, target: Tensor | None) -> None:
    """Say so if it is the images or the target that do not fit the model."""
    with undisturbed(model.module), torch.no_grad():
        try:
            classes = model.logits(images[:1].to(model.dtype)).shape[1]
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            raise cannot_run(model, images, error) from error
    if target is not None:
        check_classes(target, classes)
