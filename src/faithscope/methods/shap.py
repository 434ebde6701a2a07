"""Image values of shap, in the shapes in which that package gives them, as maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from faithscope.data.labels import class_numbers
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError

WHAT = "The values of shap"


def from_shap(values: Any, target: Tensor | int | None = None) -> Tensor:
    """The values of shap for one output of each image, to be given as ``maps={"shap": …}``.

    Args:
        values: what `shap_values`, or calling an explainer, gives for images: an Explanation, an
            array [B, C, H, W, outputs] or [B, H, W, C, outputs], a list with an array for each
            output, an array of a single output without its axis, or the pair (values, indexes)
            that `ranked_outputs` gives.
        target: the output to take, an int or one for each image [B]: a place on the last axis or,
            of ranked outputs, a class among their indexes. None if there is but one.

    Returns:
        [B, C, H, W] or [B, H, W, C]; channels are summed when the maps are used.

    >>> from_shap(torch.ones(2, 3, 8, 8, 10), target=4).shape
    torch.Size([2, 3, 8, 8])
    """
    indexes = None
    if isinstance(values, tuple) and len(values) == 2:
        values, indexes = values
    if isinstance(values, list) and values:
        values = torch.stack([as_tensor(held, WHAT) for held in values], -1)
    held = getattr(values, "values", None)  # of an Explanation; of a tensor it is a method
    made = as_tensor(values if held is None or callable(held) else held, WHAT).detach()
    made = made[..., None] if made.ndim == 4 else made
    if made.ndim != 5:
        raise FaithscopeError(
            f"{WHAT} are those of images, [B, C, H, W, outputs] or [B, H, W, C, outputs], got "
            f"shape {list(made.shape)}."
        )
    places = _places(made, target, indexes).to(made.device)
    return made[torch.arange(len(made), device=made.device), ..., places]


def _places(values: Tensor, target: Any, indexes: Any) -> Tensor:
    """The place on the last axis that is taken of each image, [B]."""
    count, outputs = len(values), values.shape[-1]
    if target is None:
        if outputs > 1:
            raise FaithscopeError(
                f"{WHAT} have {outputs} outputs: give target=…, the class of each image."
            )
        return torch.zeros(count, dtype=torch.int64)
    goal = class_numbers("target", target)
    if goal.ndim and goal.shape != (count,):
        raise FaithscopeError(
            f"target must be a class or one class for each of the {count} images, got shape "
            f"{list(goal.shape)}."
        )
    classes = torch.arange(outputs).expand(count, -1)
    if indexes is not None:
        classes = as_tensor(indexes, "The indexes of shap's outputs").cpu()
    if classes.shape != (count, outputs):
        raise FaithscopeError(
            f"The indexes of shap's outputs have shape {list(classes.shape)}: expected "
            f"[{count}, {outputs}]."
        )
    goal = goal.expand(count)
    found = classes == goal[:, None]
    for place in (~found.any(1)).nonzero().flatten().tolist():
        raise FaithscopeError(
            f"{WHAT} have {outputs} outputs, and class {int(goal[place])} of image {place} is none "
            "of them: explain that class, or give another target."
        )
    return found.to(torch.int64).argmax(1)
