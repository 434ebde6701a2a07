"""Layers by name: what one gives as a feature map, and which one to propose.

Any classifier has layers whose output is a grid of vectors: a stage of a convolutional network or
of a Swin, a block of a ViT. Grad-CAM reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import unknown
from faithscope.models.model import Model, undisturbed
from faithscope.models.vit import ViTView

Size = tuple[int, int]


def find_layer(model: Model, name: str) -> nn.Module:
    """The module of this name, or an error that guesses which was meant."""
    layers: dict[str, nn.Module] = dict(model.module.named_modules())
    layers.pop("", None)
    if name not in layers:
        raise unknown(f"layer of {model.name}", name, layers)
    return layers[name]


def as_feature_map(model: Model, output: Any, images: Tensor) -> Tensor:
    """What a layer gave for images [B, C, H, W], as a feature map; a ValueError says why not.

    Vectors may stand first, [B, D, h, w], last, [B, h, w, D], or in a row of tokens [B, N, D],
    whose first ones may be the ViT's prefix, or one class token. The grid h × w is told from
    channels by its sides, which stand to each other as the image's do, to within one cell.

    Shapes: -> [B, D, h, w].
    """
    given = _given(output)
    if given is None or not given.ndim or len(given) != len(images):
        raise ValueError("it gives no tensor with a row for each image")
    size = (images.shape[-2], images.shape[-1])
    if given.ndim == 4:
        first, last = _is_grid(given.shape[2:], size), _is_grid(given.shape[1:3], size)
        if first and last:
            raise ValueError(
                f"of its output, {list(given.shape)}, either the first or the last could be the "
                "channels"
            )
        if first or last:
            return given if first else given.permute(0, 3, 1, 2)
    if given.ndim == 3:
        for prefix, grid in _layouts(model, size, given.shape[1]):
            return given[:, prefix:].transpose(1, 2).reshape(*given.shape[::2], *grid)
    raise ValueError(f"its output, {list(given.shape)}, is no grid of vectors")


def _is_grid(shape: tuple[int, ...], size: Size) -> bool:
    """Whether h × w can be the cells of an image: several, no finer, of the same proportions."""
    high, wide = shape
    if high * wide < 2 or high > size[0] or wide > size[1]:
        return False
    return abs(high * size[1] - wide * size[0]) < max(size)


def _layouts(model: Model, size: Size, count: int) -> Iterator[tuple[int, Size]]:
    """Prefix and grid that so many tokens can have: the ViT's own, or none or one and a grid."""
    grid = model.grid(*size)
    if isinstance(model.vit, ViTView) and grid is not None:
        known = model.vit.count_prefix(count, grid[0] * grid[1])
        if known is not None:
            yield known, grid
        return
    for prefix in (0, 1):
        for high in range(1, size[0] + 1):
            wide, rest = divmod(count - prefix, high)
            if not rest and _is_grid((high, wide), size):
                yield prefix, (high, wide)


def propose_layer(model: Model, images: Tensor) -> str | None:
    """The last module of several parts that gives, once, a feature map with a gradient.

    It takes one forward and backward pass of one image.
    """
    image = images[:1].detach().to(model.device, model.dtype).clone().requires_grad_(True)
    found: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            given = _given(output)
            found.setdefault(name, []).extend([] if given is None else [given])

        return hook

    handles = [
        layer.register_forward_hook(keep(name))
        for name, layer in model.module.named_modules()
        if name and any(True for _ in layer.children())
    ]
    try:
        with torch.inference_mode(False), torch.enable_grad(), undisturbed(model.module):
            best = model.logits(image).max()
    except Exception:  # the model's own, which is said where it matters
        return None
    finally:
        for handle in handles:
            handle.remove()
    for name, given in reversed(found.items()):
        try:
            as_feature_map(model, given[0], image)
            (gradient,) = torch.autograd.grad(best, given[:1], retain_graph=True, allow_unused=True)
            if len(given) == 1 and as_feature_map(model, gradient, image).any():
                return name
        except (ValueError, IndexError, RuntimeError):
            continue
    return None


def _given(output: Any) -> Tensor | None:
    """What a layer gave, if it is a tensor or begins with one."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, Tensor) else None


@contextmanager
def watching(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Keep every tensor that a layer gives; what comes behind gets a copy, to overwrite at will."""
    seen: list[Tensor] = []

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        given = _given(output)
        if given is None:
            return None
        seen.append(given)
        return (given.clone(), *output[1:]) if isinstance(output, tuple) else given.clone()

    handle = layer.register_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()
