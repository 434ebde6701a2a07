"""Dropping: a ViT that nobody modified runs on some of its patches.

What enters the first block is cut down to the prefix tokens and the patches that are kept; each
brings its position embedding along. Nobody declares that a model allows this, so it is tried: the
order of the patches in the sequence must not matter to its answer, and no more may those that were
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, said
from faithscope.models.attention import deviation, tolerance
from faithscope.models.memory import is_out_of_memory
from faithscope.models.model import Model
from faithscope.models.tape import first_tensor, swapped, tensors_in

NEEDED_BY = "fill='drop'"
TRIED = 2
"""Rows of a trial, each with patches of its own."""
SLACK = 10
"""How much more than one module, recomputed, the answers of a whole model may be off."""

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Dropping:
    """How patches leave the sequence of a ViT, also of a copy of it.

    `blocks` are the names of its blocks, first block first; `prefix` tokens stand before the
    patches; `alone` tells whether it answers when those are all that is left.
    """

    model: str
    blocks: tuple[str, ...]
    prefix: int
    alone: bool = False

    @contextmanager
    def keep(self, module: nn.Module, kept: Tensor, patches: int) -> Iterator[None]:
        """Run a module inside on some of its patches; the hooks are gone afterwards.

        Positions that blocks are given beside their tokens (rotary ones, or a bias between any two
        tokens) are cut down with them.

        Shapes: kept int64 [B, m], of so many patches.
        """
        tokens = self.prefix + patches
        first = torch.arange(self.prefix, device=kept.device).expand(len(kept), -1)
        whole = torch.cat([first, kept + self.prefix], dim=1)
        index = {patches: kept, tokens: whole}
        entered: list[tuple[int, ...]] = []

        def before(is_first: bool, _: nn.Module, args: Any, kwargs: Any) -> Any:
            own = first_tensor((args, kwargs))
            known = {
                id(held): _along(held, index[held.shape[-2]])
                for held in tensors_in((args, kwargs))
                if held is not own and 2 <= held.ndim <= 4 and held.shape[-2] in index
            }
            if is_first:
                entered.append(tuple(own.shape))
                if own.ndim != 3 or own.shape[:2] != (len(kept), tokens):
                    raise self.refused(
                        f"its first block sees tokens of shape {list(own.shape)} for {len(kept)} "
                        f"images, not {self.prefix} prefix + {patches} patches of each"
                    )
                known[id(own)] = own.gather(1, whole[..., None].expand(-1, -1, own.shape[2]))
            return swapped(args, known), swapped(dict(kwargs), known)

        handles = [
            module.get_submodule(name).register_forward_pre_hook(
                partial(before, not place), with_kwargs=True
            )
            for place, name in enumerate(self.blocks)
        ]
        try:
            with torch.compiler.set_stance("force_eager"):  # what is compiled has no hooks
                yield
        finally:
            for handle in handles:
                handle.remove()
        if len(entered) != 1:
            raise self.refused(f"it calls its first block {len(entered)} times in a pass")

    def refused(self, why: str) -> FaithscopeError:
        """The error for a model whose patches cannot be dropped."""
        return _refused(self.model, why)


def find_dropping(model: Model, module: nn.Module, logits: Logits, images: Tensor) -> Dropping:
    """Find out how patches leave the sequence, and try it; a model that forbids it is refused.

    Args:
        model: the model.
        module: its own module, or a copy in another precision, which is tried.
        logits: runs that module.
        images: [B, C, H, W], of which the first is used that is answered with numbers.
    """
    if isinstance(model.vit, str):
        raise _refused(model.name, model.vit)
    if not model.vit.blocks:
        raise _refused(model.name, "its blocks were not found")
    rows, columns = model.require_grid(images, NEEDED_BY)
    patches, names = rows * columns, tuple(model.vit.blocks)
    with _entering(module.get_submodule(names[0])) as seen:
        whole = logits(images)
    if not seen:
        raise _refused(model.name, f"it does not call its first block '{names[0]}' as a module")
    shape = seen[0]
    tokens = shape[1] if len(shape) == 3 and shape[0] == len(images) else 0
    prefix = model.vit.count_prefix(tokens, patches)
    if prefix is None:
        known = "" if model.vit.prefix_tokens is None else f"{model.vit.prefix_tokens} prefix + "
        raise _refused(
            model.name,
            f"its first block sees tokens of shape {list(shape)} for {len(images)} images, not "
            f"{known}{rows}×{columns} patches of each",
        )
    found = Dropping(model.name, names, prefix)
    finite = whole.isfinite().all(1)
    chosen = int(finite.int().argmax())
    example = images[chosen : chosen + 1].expand(TRIED, -1, -1, -1)

    def answer(kept: Tensor, inputs: Tensor = example) -> Tensor:
        with found.keep(module, kept, patches):
            return logits(inputs)

    if patches > 1 and finite.any():
        orders = _orders(patches).to(images.device)
        _check(model.name, answer, example, whole[chosen], orders, (rows, columns))
    return Dropping(model.name, names, prefix, alone=_is_alone(found, module, answer))


def _orders(patches: int) -> Tensor:
    """All patches in another order for each row: [TRIED, patches]."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(patches, generator=generator) for _ in range(TRIED)])


def _check(
    name: str,
    answer: Callable[..., Tensor],
    example: Tensor,
    intact: Tensor,
    orders: Tensor,
    grid: tuple[int, int],
) -> None:
    """Refuse a model whose answer depends on the order of patches, or on those it has not got."""
    half = orders.shape[1] // 2
    kept, gone = orders[:, half:].sort(dim=1).values, orders[:, :half]
    intact = intact.expand(len(orders), -1)
    allowed = SLACK * tolerance(intact.dtype)
    placed = _refused(
        name,
        "it knows patches by their place in the sequence (relative positions or windows), not by "
        "what their tokens hold",
    )
    try:
        shuffled = answer(orders)
        if not deviation(shuffled, intact) <= allowed:
            raise placed
        fewer, other = answer(kept), answer(kept, _changed(example, gone, grid))
    except FaithscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _refused(name, f"it does not run on fewer patches ({said(error)})") from error
    if not deviation(shuffled, intact, fewer) <= allowed:  # relative to what dropping does
        raise placed
    if not deviation(other, fewer, intact) <= allowed:
        raise _refused(
            name,
            "it still sees patches that were dropped (they meet before the first block, go around "
            "the blocks, or stand in another order than in the image)",
        )


def _changed(images: Tensor, places: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images with other pixels in some patches [B, m]."""
    rows, columns = grid
    count, channels, height, width = images.shape
    mask = torch.zeros(count, rows * columns, dtype=torch.bool, device=images.device)
    mask = mask.scatter(1, places, True).reshape(count, 1, rows, 1, columns, 1)
    tiles = images.reshape(count, channels, rows, height // rows, columns, width // columns)
    return torch.where(mask, 1 - tiles, tiles).reshape(images.shape)


def _is_alone(found: Dropping, module: nn.Module, answer: Callable[[Tensor], Tensor]) -> bool:
    """Whether a model without any patch answers with numbers, and by its prefix tokens."""
    if not found.prefix:
        return False
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    nothing = torch.empty(TRIED, 0, dtype=torch.int64, device=device)

    def shake(_: nn.Module, args: Any, kwargs: Any) -> Any:
        own = first_tensor((args, kwargs))
        known = {id(own): own + own.roll(1, -1)}
        return swapped(args, known), swapped(dict(kwargs), known)

    block = module.get_submodule(found.blocks[0])
    try:
        plain = answer(nothing)
        handle = block.register_forward_pre_hook(shake, with_kwargs=True)
        try:
            shaken = answer(nothing)
        finally:
            handle.remove()
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, FaithscopeError):
            raise
        return False
    return bool(plain.isfinite().all()) and not torch.equal(plain, shaken)


def _along(side: Tensor, kept: Tensor) -> Tensor:
    """What blocks get beside tokens, of those kept: [N, d], [heads, N, d] or [B, heads, N, d].

    For each head, [N, N] is between tokens.
    """
    between = side.ndim > 2 and side.shape[-1] == side.shape[-2]
    side = side.reshape(*[1] * (4 - side.ndim), *side.shape)
    rows = side.take_along_dim(kept[:, None, :, None], dim=2)
    return rows.take_along_dim(kept[:, None, None, :], dim=3) if between else rows


@contextmanager
def _entering(block: nn.Module) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the tokens that enter a block."""
    seen: list[tuple[int, ...]] = []

    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(tuple(first_tensor((args, kwargs)).shape))

    handle = block.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield seen
    finally:
        handle.remove()


def _refused(model: str, why: str) -> FaithscopeError:
    return FaithscopeError(
        f"{NEEDED_BY} takes patches out of the sequence, which {model} does not allow: {why}; "
        "choose another fill, as fill='mean'.",
        reason=why,
    )
