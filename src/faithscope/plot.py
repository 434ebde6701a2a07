"""Pictures of explanations and results, as matplotlib figures: `fs.plot`.

Every function returns a `matplotlib.figure.Figure`, which a notebook shows and `savefig` writes.
Panels can be drawn into axes of your own, `ax=`: one, or as many as there are panels. pyplot is not
used and knows of no figure made here, so nothing is shown twice.

The names are those of the files that `faithscope report --figures` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from faithscope.data import as_tensor
from faithscope.data.text_samples import TextSamples
from faithscope.errors import FaithscopeError, choose, shown
from faithscope.models import Model
from faithscope.registry import as_list
from faithscope.report import figures, lines, plots
from faithscope.report import story as stories
from faithscope.report.style import Plot
from faithscope.verdicts.findings import Findings

MOST_IMAGES = 8
"""Images that are drawn if nobody says how many."""

Panels = Axes | Sequence[Axes] | NDArray[Any]
Map = Tensor | NDArray[Any] | Sequence[Tensor]
Maps = Map | Mapping[str, Map]

__all__ = [
    "correlations",
    "curves",
    "heatmaps",
    "intervals",
    "k_choice",
    "radar",
    "sparsity",
    "story",
]


def heatmaps(
    images: Any,
    maps: Maps,
    *,
    model: Model | None = None,
    titles: Sequence[str] | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    limit: int = MOST_IMAGES,
    ax: Panels | None = None,
) -> Figure:
    """Draw images beside their maps, one row per image and one column per method.

    Texts are drawn in the colours of their maps, one line per method.

    Args:
        images: [B, C, H, W] normalised for the model, or what `fs.load_data` gives; texts as it
            gives them, by the units that were explained.
        maps: what `fs.explain` gives: [B, H, W] or [B, h, w], alone or by method; of texts a list.
        model: whose normalisation is undone; what `fs.load_data` gives knows it. Without one,
            images are stretched to 0…1.
        titles: a caption for each image.
        scores: SaCo of each image, by method; written below the maps.
        limit: draw only the first so many images.
        ax: axes to draw the maps in, one for each map of the first image, of the second, and so on.
    """
    if not isinstance(limit, int) or limit < 1:
        raise FaithscopeError(f"limit must be a whole number of at least 1, got {shown(limit)}.")
    given: dict[str, Any] = dict(maps) if isinstance(maps, Mapping) else {"": maps}
    if isinstance(images, TextSamples):
        return _texts(images, given, titles, scores, limit, ax)
    pixels, known = _pixels(images)
    by_name = {name: as_tensor(held, f"The maps '{name}'") for name, held in given.items()}
    figures.check_maps(pixels, by_name, titles, scores)
    some = slice(limit)
    left_out = len(pixels) > limit
    return figures.explanations(
        model or known,
        pixels[some],
        {name: held[some] for name, held in by_name.items()},
        titles=None if titles is None else titles[some],
        scores=None if scores is None else {name: held[some] for name, held in scores.items()},
        subtitle=f"The first {limit} of {len(pixels)} images" if left_out else None,
        axes=_axes(ax),
    )


def _texts(
    texts: TextSamples,
    maps: Mapping[str, Any],
    titles: Sequence[str] | None,
    scores: Mapping[str, Sequence[float]] | None,
    limit: int,
    ax: Panels | None,
) -> Figure:
    """Texts in the colours of their maps."""
    if ax is not None:
        raise FaithscopeError("A picture of texts is a whole page: leave ax out.")
    for name, held in maps.items():
        if len(held) != len(texts):
            raise FaithscopeError(
                f"There are {len(texts)} texts, but {len(held)} of the maps '{name}'."
            )
    by_name = {
        name: [as_tensor(one, f"The maps '{name}'") for one in held[:limit]]
        for name, held in maps.items()
    }
    return figures.explained_texts(
        texts.encoded[:limit],
        by_name,
        titles=None if titles is None else titles[:limit],
        scores=None if scores is None else {name: held[:limit] for name, held in scores.items()},
        subtitle=f"The first {limit} of {len(texts)} texts" if len(texts) > limit else None,
    )


def story(
    model: Model,
    image: Any,
    maps: Mapping[str, Any],
    result: Findings,
    *,
    sample: int = 0,
    title: str | None = None,
) -> Figure:
    """Draw how the scores of one image or text come about, one row per method, up to SaCo.

    It is a whole page and takes no axes.

    Args:
        model: whose normalisation is undone and whose classes are named.
        image: [C, H, W] or [1, C, H, W], normalised for the model; or all images or texts of the
            result, as `fs.load_data` gives them.
        maps: by method of the result, [H, W] or [1, H, W], or by patch; or those of all samples.
        result: an evaluation that holds the sample, with the metrics saco and aopc.
        sample: its place in the result.
        title: what is explained. [default: the class and its probability]
    """
    found = _result(result)
    if not isinstance(maps, Mapping):
        raise FaithscopeError(
            f"A story is of maps by method, {{'rollout': …}}, got {type(maps).__name__}."
        )
    if isinstance(image, TextSamples):
        place = _place(image, found, sample)
        of_text = {
            name: as_tensor(held[place], f"The maps '{name}'") for name, held in maps.items()
        }
        text = image.encoded[place]
        return stories.story(model, text, of_text, found, sample=sample, title=title)
    pixels, _ = _pixels(image)
    by_name = {name: as_tensor(held, f"The maps '{name}'") for name, held in maps.items()}
    count = found.samples.num_rows
    if pixels.ndim == 4 and len(pixels) == count > sample >= 0:
        one = slice(sample, sample + 1)
        pixels = pixels[one]
        by_name = {
            name: held[one] if held.ndim == 3 and len(held) == count else held
            for name, held in by_name.items()
        }
    return stories.story(model, pixels, by_name, found, sample=sample, title=title)


def _place(texts: TextSamples, found: Findings, sample: int) -> int:
    """Where a sample of a result stands among texts, which a run visits by their lengths."""
    names = found.samples["sample"].to_pylist()
    if not 0 <= sample < len(names):
        raise FaithscopeError(
            f"There is no sample {sample}: the result holds {len(names)}, from 0 on."
        )
    if names[sample] not in texts.sample_names:
        raise FaithscopeError(
            f"The text '{names[sample]}' of the result is not among these: give the texts that "
            "were evaluated."
        )
    return texts.sample_names.index(names[sample])


def intervals(
    result: Findings, *, metrics: str | Iterable[str] | None = None, ax: Panels | None = None
) -> Figure:
    """Mean and 95 % interval of every method beside random attribution, one panel per metric."""
    found = _over_images(result)
    chosen = _chosen("metric", metrics, found.metrics)
    return _figure(plots.intervals(found, chosen, _axes(ax)), ax, "")


def radar(
    result: Findings, *, methods: str | Iterable[str] | None = None, ax: Panels | None = None
) -> Figure:
    """The profile of every method over the metrics, one wheel per method, outward is better."""
    found = _over_images(result)
    chosen = _chosen("method", methods, found.methods)
    why = "a profile needs at least three metrics and three methods, random ones among them"
    return _figure(plots.radar(found, chosen, _axes(ax)), ax, why)


def curves(result: Findings, *, ax: Panels | None = None) -> Figure:
    """What removing costs: probability, or performance after training, against the share removed.

    Of an evaluation there is one panel, of ROAR one for each procedure.
    """
    found = _result(result)
    draw = lines.performance if found.trainings.num_rows else lines.removal
    why = "no metric of the run removes units step by step, as aopc does"
    return _figure(draw(found, _axes(ax)), ax, why)


def correlations(result: Findings, *, ax: Panels | None = None) -> Figure:
    """Whether metrics agree on which method is better: a triangle of rank correlations."""
    why = "that needs at least two metrics and three methods, random ones among them"
    return _figure(plots.correlations(_over_images(result), _axes(ax)), ax, why)


def k_choice(result: Findings, *, ax: Panels | None = None) -> Figure:
    """Mean SaCo of every method at each K, of a run with several: k=[5, 10, 20]."""
    why = "the run has one K: evaluate with several, as in k=[5, 10, 20]"
    return _figure(lines.k_choice(_over_images(result), _axes(ax)), ax, why)


def sparsity(result: Findings, *, ax: Panels | None = None) -> Figure:
    """How few tokens hold the importance, of a run of ROAR."""
    why = "only a run of fs.roar measures sparsity"
    return _figure(lines.sparsity(_result(result), _axes(ax)), ax, why)


def _figure(plot: Plot | None, ax: Panels | None, why: str) -> Figure:
    """The figure with its legend; where there is nothing to draw, it is said why."""
    if plot is None:
        raise FaithscopeError(f"There is nothing to draw: {why}.")
    return plot.whole(_axes(ax))


def _axes(ax: Panels | None) -> list[Axes] | None:
    """One axes or several, in any array, as a list."""
    if ax is None:
        return None
    given = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, dtype=object)))
    if not given or not all(isinstance(one, Axes) for one in given):
        raise FaithscopeError(f"ax must be axes of matplotlib, one or several, got {shown(ax)}.")
    return given


def _result(result: Any) -> Findings:
    if not isinstance(result, Findings):
        raise FaithscopeError(
            f"A plot is of a result, as fs.evaluate, fs.roar and fs.load_result give it, got "
            f"{shown(result)}."
        )
    return result


def _over_images(result: Any) -> Findings:
    found = _result(result)
    if not found.samples.num_rows:
        raise FaithscopeError(
            "This plot is of an evaluation of samples: fs.plot.curves and fs.plot.sparsity draw a "
            "run of ROAR."
        )
    return found


def _chosen(kind: str, names: Any, known: Sequence[str]) -> list[str] | None:
    if names is None:
        return None
    return [choose(f"{kind} of this result", name, known) for name in as_list(kind, names, str)]


def _pixels(images: Any) -> tuple[Tensor, Model | None]:
    """Images in one tensor, and the model that they were prepared for, where it is known."""
    if not hasattr(images, "batches"):
        several = images if isinstance(images, list | tuple) else [images]
        if any(isinstance(held, Image.Image | str | Path) for held in several):
            raise FaithscopeError(
                "The images must be tensors normalised for the model: give what "
                "fs.load_data(images, model) gives."
            )
        return as_tensor(images, "The images"), None
    parts = [batch.images for batch in images.batches(MOST_IMAGES) if len(batch.images)]
    if len({part.shape[1:] for part in parts}) != 1:
        raise FaithscopeError("Pictures are drawn of images of one size, got several or none.")
    return torch.cat(parts), getattr(images, "model", None)
