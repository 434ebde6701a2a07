"""Image values of shap, in the shapes in which that package gives them, as maps."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from faithscope.data.images import class_numbers
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, choose


def from_shap(
    values: Any,
    target: Tensor | int | None = None,
    *,
    channels: Literal["auto", "first", "last"] = "auto",
) -> Tensor:
    """Image values of shap as maps [B, H, W] for ``maps={"shap": …}``: signed sum over channels.

    Args:
        values: what `shap_values` or calling an explainer gives: an Explanation, an array
            [B, C, H, W, outputs] or [B, H, W, C, outputs], a list of one array for each output, an
            array of one output without its axis, or a pair (values, indexes) of ranked outputs.
        target: the output that each image is to be explained for, an int or [B]: a place on the
            last axis or, of ranked outputs, a class among their indexes. None if there is one
            output.
        channels: the axis of the channels; "auto" is the one of 1 or 3.

    >>> from_shap(torch.ones(2, 3, 8, 8, 10), target=4).shape
    torch.Size([2, 8, 8])
    """
    choose("place of the channels", channels, ("auto", "first", "last"))
    indexes = None
    if isinstance(values, tuple) and len(values) == 2:
        values, indexes = values
    if isinstance(values, list):
        values = [as_tensor(held, "The values of shap") for held in values]
        values = torch.stack(values, -1) if values else values
    made = as_tensor(getattr(values, "values", values), "The values of shap").detach()
    if made.ndim == 4:
        made = made[..., None]
    if made.ndim != 5:
        raise FaithscopeError(
            "The values of shap are those of images, [B, C, H, W, outputs] or [B, H, W, C, "
            f"outputs], got shape {list(made.shape)}."
        )
    chosen = made[torch.arange(len(made)), ..., _outputs(made, target, indexes)]
    return chosen.sum(1 if _channels_first(chosen, channels) else 3)


def _outputs(values: Tensor, target: Any, indexes: Any) -> Tensor:
    """Which place of the last axis each image is explained at, [B]."""
    count, outputs = len(values), values.shape[-1]
    if target is None:
        if outputs > 1:
            raise FaithscopeError(
                f"The values of shap have {outputs} outputs: give target=…, the class of each "
                "image."
            )
        return torch.zeros(count, dtype=torch.int64)
    goal = class_numbers("target", target)
    goal = goal.expand(count) if goal.ndim == 0 else goal
    if goal.shape != (count,):
        raise FaithscopeError(
            f"target must be a class or one class for each of the {count} images, got shape "
            f"{list(goal.shape)}."
        )
    ranked = torch.arange(outputs).expand(count, -1)
    if indexes is not None:
        ranked = as_tensor(indexes, "The indexes of shap's outputs").cpu()
        if ranked.shape != (count, outputs):
            raise FaithscopeError(
                f"The indexes of shap's outputs have shape {list(ranked.shape)}: expected "
                f"[{count}, {outputs}]."
            )
    found = ranked == goal[:, None]
    if not found.any(1).all():
        place = int((~found.any(1)).nonzero()[0])
        raise FaithscopeError(
            f"shap did not explain class {int(goal[place])} of image {place}: it has {outputs} "
            "outputs; explain that class, or give another target."
        )
    return found.to(torch.int64).argmax(1)


def _channels_first(values: Tensor, channels: str) -> bool:
    """Whether [B, C, H, W] or [B, H, W, C]."""
    if channels != "auto":
        return channels == "first"
    first, last = (values.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        raise FaithscopeError(
            f"Which axis of shap's values, {list(values.shape)} without outputs, are the channels? "
            "Give channels='first' or 'last'."
        )
    return first
