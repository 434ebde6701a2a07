"""Whether the tokens of a ViT are its patches, from left to right and down, behind the prefix.

Nobody declares that, and a map of tokens in another order would be wrong without a trace. So one
patch of an image is changed at a time, up to where the first block starts: its token must change.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.models.model import Model
from faithscope.models.tape import first_tensor

ALONE = 10.0
"""How much more than any other a token must change for its patch to be its own."""

_KNOWN: WeakKeyDictionary[nn.Module, set[tuple[int, ...]]] = WeakKeyDictionary()


class _Entered(BaseException):
    """The first block was reached; no code of the model may catch this."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens


def check_patch_order(model: Model, first: nn.Module, images: Tensor, prefix: int) -> None:
    """Refuse a model whose tokens are not its patches in their order; it is asked once per size.

    Args:
        model: a ViT.
        first: its first block, or the attention of that.
        images: [B, C, H, W], of which the first is changed.
        prefix: tokens before the patches.
    """
    key = (*images.shape[1:], prefix)
    if key in _KNOWN.setdefault(model.module, set()):
        return
    rows, columns = model.require_grid(images, "Attention")
    places = sorted({(0, columns - 1), (rows - 1, 0), (rows // 2, columns // 3), (0, 0)})
    change = _change(model, first, images[:1], places, (rows, columns))
    if change is None:
        return  # a model that runs no other batch, or no part of a pass, cannot be asked
    for place, moved in zip(places, change[:, prefix:], strict=True):
        seen = _place(moved.reshape(-1)[: rows * columns].reshape(rows, columns), place)
        if seen is not None:
            what = (
                f"its tokens are not its patches from left to right and down: a change in row "
                f"{place[0] + 1}, column {place[1] + 1} is seen in row {seen[0] + 1}, column "
                f"{seen[1] + 1}"
            )
            raise FaithscopeError(
                f"{model.name} cannot be explained by its tokens, since {what}; choose methods "
                "that read only gradients.",
                reason=what,
            )
    if bool((change > 0).any(1).all()):  # what no token sees proves nothing
        _KNOWN[model.module].add(key)


def _place(moved: Tensor, place: tuple[int, int]) -> tuple[int, int] | None:
    """Where a change [rows, columns] is seen, if that is not the place of the changed patch.

    One that many tokens see, as behind a convolutional stem, must be centred near it.
    """
    top = moved.flatten().topk(min(2, moved.numel())).values
    if not top[0] > 0:
        return None
    if len(top) < 2 or top[0] > ALONE * top[1]:
        seen = divmod(int(moved.argmax()), moved.shape[1])
        return None if seen == place else seen
    weight = (moved - moved.median()).clamp(min=0) ** 2
    centre = [
        float((weight.sum(1 - axis) * torch.arange(length).to(weight)).sum() / weight.sum())
        for axis, length in enumerate(moved.shape)
    ]
    sizes = zip(centre, place, moved.shape, strict=True)
    off = max(abs(at - wanted) / length for at, wanted, length in sizes)
    return None if off <= 0.25 else (round(centre[0]), round(centre[1]))


def _change(
    model: Model,
    first: nn.Module,
    image: Tensor,
    places: list[tuple[int, int]],
    grid: tuple[int, int],
) -> Tensor | None:
    """How much each token that enters the first block changes with each patch: [places, N]."""
    high, wide = image.shape[-2] // grid[0], image.shape[-1] // grid[1]
    batch = image.detach().repeat(1 + len(places), 1, 1, 1)
    generator = torch.Generator().manual_seed(0)  # no patch of any image is left as it was
    noise = torch.randn(high, wide, generator=generator).to(batch)
    for changed, (row, column) in zip(batch[1:], places, strict=True):
        part = changed[:, row * high : (row + 1) * high, column * wide : (column + 1) * wide]
        part += noise[: part.shape[1], : part.shape[2]]

    def stop(_: nn.Module, args: Any, kwargs: Any) -> None:
        raise _Entered(first_tensor((args, kwargs)))

    handle = first.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.no_grad():
            model.module.forward(batch)  # no pass of the model: it ends where the blocks begin
    except _Entered as entered:
        tokens = entered.tokens.flatten(1, -2) if entered.tokens.ndim > 2 else entered.tokens
        if tokens.ndim == 3 and len(tokens) == len(batch):
            moved: Tensor = torch.linalg.vector_norm(tokens[1:] - tokens[:1], dim=-1)
            return moved
    except Exception:
        pass
    finally:
        handle.remove()
    return None
