"""A trial: which methods a model allows, and how fine their maps are, seen on one image.

A method says what it needs, but only a pass shows whether the model's inside is what it seems:
views check themselves while they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.explain import explain_batch
from faithscope.methods.layout import Inputs
from faithscope.methods.method import METHODS, OF_INPUT, Method
from faithscope.models import Model, undisturbed


@dataclass(frozen=True, eq=False)
class Trial:
    """What was found, by label: why a method is refused, and the shape [h, w] of its maps.

    `failed` is what a method last raised that raises on every image, though the model does not.
    """

    refused: Mapping[str, FaithscopeError]
    shapes: Mapping[str, tuple[int, int]]
    failed: Mapping[str, Exception]


def check_methods(
    model: Model, images: Inputs, methods: Sequence[Method]
) -> dict[str, FaithscopeError]:
    """The methods that lack, by what they declare, something they need to see, and what it is.

    A layer that is not there is a wrong name, and an error.
    """
    refused = {}
    for method in methods:
        method.check_layer(model)
        try:
            method.check(model, images)
        except FaithscopeError as error:
            refused[method.label] = method.advised(model, images, error)
    return refused


def try_methods(
    model: Model, images: Inputs, methods: Sequence[Method], *, keys: Sequence[str], seed: int = 0
) -> Trial:
    """Explain one image [1, C, H, W] of `images` by the methods that may be refused doing so.

    All are tried in one pass, and one by one only if that fails, so that none spoils the trial of
    another. What somebody's own code raises is no refusal: it is tried on the next image, and has
    failed if it raises on all.
    """
    refused = check_methods(model, images, methods)
    shapes: dict[str, tuple[int, int]] = {}
    allowed = [held for held in methods if held.label not in refused]
    by_gradient = [held for held in allowed if held.needs and not needs_trial(held)]
    gradient = METHODS.of(model.modality)["gradient"]  # the cheapest stands for all of them
    waiting = [held for held in allowed if needs_trial(held)] + ([gradient] if by_gradient else [])
    raised = dict[str, Exception]()
    for place in range(len(images)):
        if not waiting:
            break
        part = slice(place, place + 1)
        found = _explained(model, images[part], waiting, keys[part], seed)
        waiting, raised = [], {}
        for method, made in found:
            if isinstance(made, Tensor):
                shapes[method.label] = (made.shape[-2], made.shape[-1])
            elif isinstance(made, FaithscopeError):
                refused[method.label] = method.advised(model, images[part], made)
            else:
                waiting.append(method)
                raised[method.label] = made
    raised.pop(gradient.label, None)  # of ours it is the model that raises
    cut = refused.pop(gradient.label, None)
    shapes.pop(gradient.label, None)
    refused |= {held.label: cut for held in by_gradient if cut is not None}
    return Trial(refused, shapes, raised if raised and _runs_any(model, images) else {})


def needs_trial(method: Method) -> bool:
    """Whether a method reads the model's inside, its maps can be of any size, or it is others'."""
    is_foreign = not (method.needs or method.is_random)
    is_fine = method.granularity in ("pixel", "token")
    return bool(method.needs - OF_INPUT) or not is_fine or is_foreign


def _runs_any(model: Model, images: Inputs) -> bool:
    """Whether the model answers any image at all."""
    for place in range(len(images)):
        try:
            with torch.inference_mode(), undisturbed(model.module):
                model.logits(images[place : place + 1].to(model.dtype))
            return True
        except Exception:  # of the model, on this image
            continue
    return False


def _explained(
    model: Model, image: Inputs, methods: Sequence[Method], keys: Sequence[str], seed: int
) -> list[tuple[Method, Tensor | Exception]]:
    """The map of each method, or what it raised."""
    try:
        pairs = [(method, 0) for method in methods]
        maps = explain_batch(model, image, None, pairs, keys=keys, seed=seed)
        return list(zip(methods, maps, strict=True))
    except Exception as error:
        if len(methods) == 1:
            return [(methods[0], error)]
    return [found for method in methods for found in _explained(model, image, [method], keys, seed)]
