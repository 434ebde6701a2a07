"""Layers by name: what one gives as a feature map, what it attends to, and which one to propose.

Any classifier has layers whose output is a grid of vectors: a stage of a convolutional network or
of a Swin, a block of a ViT. Some have attention that sees the whole of its grid, if only in the
last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, unknown
from faithscope.models.attention import AttentionView
from faithscope.models.hierarchy import attention_parts
from faithscope.models.model import Model, undisturbed
from faithscope.models.tape import Call
from faithscope.models.vit import ViTView

Size = tuple[int, int]
LOCAL = 0.7
"""The least mean rank of the change of tokens where the image was changed (`check_order`)."""
FLAT = 0.1
"""The spread of that change, relative to its mean, up to which all tokens change alike."""


class Unfit(Exception):
    """Why a layer cannot be read."""


class Calls(list[Call]):
    """The calls of a layer in a forward pass."""

    def only(self) -> Call:
        """The one call, if it is one."""
        if len(self) != 1:
            raise Unfit(f"it runs {len(self)} times in a forward pass")
        return self[0]


@contextmanager
def watching(layer: nn.Module) -> Iterator[Calls]:
    """Keep what a layer gets and gives; what comes behind gets a copy, to overwrite at will."""
    calls = Calls()

    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        given = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(given, Tensor):
            return None
        calls.append(Call(args, kwargs, given))
        return (given.clone(), *output[1:]) if isinstance(output, tuple) else given.clone()

    handle = layer.register_forward_hook(hook, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def find_layer(model: Model, name: str) -> nn.Module:
    """The module of this name, or an error that guesses which was meant."""
    layers: dict[str, nn.Module] = dict(model.module.named_modules())
    layers.pop("", None)
    if name not in layers:
        raise unknown(f"layer of {model.name}", name, layers)
    return layers[name]


# Feature maps


def as_feature_map(model: Model, given: Tensor, images: Tensor) -> Tensor:
    """What a layer gave for images [B, C, H, W], as a feature map, or `Unfit`.

    Vectors may stand first, [B, D, h, w], last, [B, h, w, D], or in a row of tokens [B, N, D], also
    of one window, [B, 1, N, D]. The first tokens may be the ViT's prefix, or one class token. The
    grid h × w is distinguished from channels by its sides, which have the image's proportions, to
    within one cell.

    Shapes: -> [B, D, h, w].
    """
    size = (images.shape[-2], images.shape[-1])
    if not given.ndim or len(given) != len(images):
        raise Unfit(f"its output, {list(given.shape)}, has no row for each image")
    if given.ndim == 4:
        first, last = _is_grid(given.shape[2:], size), _is_grid(given.shape[1:3], size)
        if first and last:
            raise Unfit(
                f"of its output, {list(given.shape)}, either the first or the last could be the "
                "channels"
            )
        if first or last:
            return given if first else given.permute(0, 3, 1, 2)
    row = in_a_row(given, images)
    if row is not None:
        for prefix, grid in layouts(model, size, row.shape[1]):
            return row[:, prefix:].transpose(1, 2).reshape(*row.shape[::2], *grid)
    raise Unfit(f"its output, {list(given.shape)}, is no grid of vectors")


def in_a_row(given: Tensor, images: Tensor) -> Tensor | None:
    """Tokens in a row [B, N, D], also those of one window [B, 1, N, D]; None if they are a grid."""
    if given.ndim == 4 and given.shape[1] == 1:
        size = (images.shape[-2], images.shape[-1])
        is_grid = _is_grid(given.shape[2:], size) or _is_grid(given.shape[1:3], size)
        return None if is_grid else given[:, 0]
    return given if given.ndim == 3 else None


def _is_grid(shape: tuple[int, ...], size: Size) -> bool:
    """Whether h × w can be the cells of an image: several, no finer, of the same proportions."""
    high, wide = shape
    if high * wide < 2 or high > size[0] or wide > size[1]:
        return False
    return abs(high * size[1] - wide * size[0]) < max(size)


def layouts(model: Model, size: Size, count: int) -> Iterator[tuple[int, Size]]:
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


def input_of(call: Call) -> Tensor:
    """What a layer got."""
    return call.tokens


def output_of(call: Call) -> Tensor:
    """What a layer gave."""
    return call.output


def check_order(
    model: Model, layer: nn.Module, images: Tensor, side: Callable[[Call], Tensor]
) -> None:
    """Refuse a layer whose rows of tokens do not follow the image from left to right and down.

    Some models (Hiera) sort their tokens otherwise. The image is changed in one of 4 × 4 places at
    a time: the tokens there must change more, relative to their size, than most others. In any
    other order they would be as likely to change less: their mean rank, from 0 to 1, over the 16
    places is 0.5 ± 0.07. Tokens that all change alike have no places. The grid of a ViT is
    checked by order.py.
    """
    if isinstance(model.vit, ViTView):
        return
    places = [(row, column) for row in range(4) for column in range(4)]
    changed = images[:1].repeat(1 + len(places), 1, 1, 1)
    for number, place in enumerate(places, 1):
        _part(changed[number], place).neg_()
    with torch.no_grad(), watching(layer) as calls:
        model.logits(changed)
    features = as_feature_map(model, side(calls.only()), changed)
    change = (features[1:] - features[:1]).norm(dim=1) / features[:1].norm(dim=1).clamp_min(1e-30)
    order = change.flatten(1).argsort(1).argsort(1).to(change.dtype)
    ranks = (order / (order.shape[1] - 1)).reshape(change.shape)
    there = [_part(rank, place).mean() for rank, place in zip(ranks, places, strict=True)]
    spread = change.flatten(1).std(1) / change.flatten(1).mean(1).clamp_min(1e-30)
    if torch.stack(there).mean() < LOCAL and spread.median() > FLAT:
        raise Unfit("its tokens do not follow the image from left to right and down")


def _part(values: Tensor, place: tuple[int, int]) -> Tensor:
    """One of 4 × 4 parts of [..., h, w], a view; of a coarser grid the cells that it touches."""
    high, wide = values.shape[-2:]
    row, column = place
    rows = slice(row * high // 4, -(-(row + 1) * high // 4))
    columns = slice(column * wide // 4, -(-(column + 1) * wide // 4))
    return values[..., rows, columns]


# Attention


def received_attention(
    model: Model, name: str, module: nn.Module, call: Call, images: Tensor
) -> Tensor:
    """What the class token, or the mean position, pays each cell of an attention module's grid.

    The attention is seen on a tape and checked against what the module gave; windows, and keys
    fewer than queries, are refused.

    Shapes: -> [B, h, w], mean over heads.
    """
    size = (images.shape[-2], images.shape[-1])
    tokens = call.tokens
    if len(tokens) != len(images):
        raise Unfit("it looks at windows, not at the whole of its grid")
    row = in_a_row(tokens, images)
    if row is None and tokens.ndim == 4:  # in a grid, of which channels may be first
        high, wide = as_feature_map(model, tokens, images).shape[2:]
        prefix, grid = 0, (high, wide)
    else:
        found = None if row is None else next(layouts(model, size, row.shape[1]), None)
        if found is None:
            raise Unfit(f"its tokens, {list(tokens.shape)}, are no grid")
        prefix, grid = found
        check_order(model, module, images, input_of)
    try:
        view = AttentionView(name, module)
        attention = view.look(call.detached(), count=prefix + grid[0] * grid[1]).attention.mean(1)
    except FaithscopeError as error:
        raise Unfit(error.reason) from None
    paid = attention[:, 0] if prefix else attention.mean(1)
    return paid[:, prefix:].reshape(-1, *grid)


# Proposals


def propose_layer(model: Model, images: Tensor) -> str | None:
    """The last module of several parts that gives, once, a feature map that the head reads.

    It takes one forward and backward pass of one image.
    """
    parts = [
        name
        for name, layer in model.module.named_modules()
        if name and any(True for _ in layer.children())
    ]
    image = images[:1].detach().to(model.device, model.dtype).clone().requires_grad_(True)
    best, calls = _watched(model, parts, image)
    if best is None:
        return None
    for name, held in reversed(calls.items()):
        try:
            given = held.only().output
            as_feature_map(model, given, image)
            (gradient,) = torch.autograd.grad(best, given, retain_graph=True, allow_unused=True)
            if gradient is None:
                continue
            if as_feature_map(model, gradient, image).any() or not gradient.any():
                if in_a_row(given, image) is not None:
                    with undisturbed(model.module):
                        check_order(model, find_layer(model, name), image.detach(), output_of)
                return name
        except (Unfit, RuntimeError):
            continue
    return None


def propose_attention(model: Model, images: Tensor) -> str | None:
    """The last attention module of the last stage that sees the whole of its grid, if one does.

    It takes a forward pass.
    """
    widths = {part.name: part.width for part in attention_parts(model.module)}
    image = images[:1].detach().to(model.device, model.dtype).clone()
    best, calls = _watched(model, list(widths), image)
    if best is None or not calls:
        return None
    last = widths[next(reversed(calls))]
    for name, held in reversed(calls.items()):
        if widths[name] != last:
            return None
        try:
            with torch.no_grad(), undisturbed(model.module):
                received_attention(model, name, find_layer(model, name), held.only(), image)
            return name
        except (Unfit, RuntimeError):
            continue
    return None


def _watched(
    model: Model, names: list[str], image: Tensor
) -> tuple[Tensor | None, dict[str, Calls]]:
    """The largest logit of one image, and the calls of the named layers in the order they ended."""
    ended: dict[str, None] = {}
    with torch.inference_mode(False), ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(image.requires_grad))
        stack.enter_context(undisturbed(model.module))
        calls = {name: stack.enter_context(watching(find_layer(model, name))) for name in names}
        for name in names:
            layer = find_layer(model, name)
            handle = layer.register_forward_hook(_noting(ended, name))
            stack.callback(handle.remove)
        try:
            best = model.logits(image).max()
        except Exception:  # the model's own, which is said where it matters
            return None, {}
    return best, {name: calls[name] for name in ended}


def _noting(ended: dict[str, None], name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        ended.pop(name, None)
        ended[name] = None

    return hook
