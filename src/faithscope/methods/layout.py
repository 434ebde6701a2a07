"""How a model's tokens stand for what a map is over: the patches of an image, the units of a text.

A layout knows, of one batch, which tokens a model must have, which of them its head reads, and how
values of tokens become a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.methods.readout import Head, find_readout, find_token
from faithscope.models import Model, TextModel, TokenInputs, ViTView
from faithscope.models.attention import deviation, tolerance
from faithscope.models.hierarchy import in_windows
from faithscope.models.order import check_patch_order

Inputs = Tensor | TokenInputs
"""Images [B, C, H, W], or texts."""

_READ_ALIKE: WeakSet[nn.Module] = WeakSet()
"""Modules that are known to read embeddings as they read the tokens."""


class Layout(Protocol):
    """What differs between tokens of images and of texts."""

    def prefix(self, vit: ViTView, index: int, tokens: Tensor) -> int:
        """Tokens before those that a map is over, at a block; a wrong number is refused."""
        ...

    def readout(self, head: Head, vit: ViTView, prefix: int) -> Tensor:
        """The weights with which the head reads tokens, [B, N]."""
        ...

    def check(self, first: nn.Module, embedded: Tensor, logits: Tensor, prefix: int) -> None:
        """Refuse tokens that are not what they seem; `first` is where the blocks begin."""
        ...

    def to_map(self, values: Tensor, prefix: int) -> Tensor:
        """Values of tokens, [B, N], as maps [B, h, w]."""
        ...


def layout_of(model: Model, inputs: Inputs) -> Layout:
    """The layout of a batch."""
    if isinstance(model, TextModel):
        assert isinstance(inputs, TokenInputs)
        return TextLayout(model, inputs)
    assert isinstance(inputs, Tensor)
    return PatchLayout(model, inputs)


@dataclass(frozen=True, eq=False)
class PatchLayout:
    """Patches of images, from left to right and down, behind a prefix (class, registers)."""

    model: Model
    images: Tensor

    def prefix(self, vit: ViTView, index: int, tokens: Tensor) -> int:
        rows, columns = self.model.require_grid(self.images, "Attention")
        count = tokens[0, ..., 0].numel() if tokens.ndim in (3, 4) else 0
        found = vit.count_prefix(count, rows * columns)
        if found is None:
            raise self._other_tokens(vit, index, count, f"{rows}×{columns}")
        return found

    def _other_tokens(self, vit: ViTView, index: int, count: int, grid: str) -> FaithscopeError:
        """Why a block whose tokens are no grid of patches is refused."""
        attention, name = vit.attentions[index], self.model.name
        if any(map(in_windows, (attention.module, *list(vit.blocks.values())[index : index + 1]))):
            what = "attends within windows, so there is no single roll-out"
            return FaithscopeError(
                f"'{attention.name}' of {name} {what}: choose methods that read no attention.",
                reason=f"'{attention.name}' {what}",
            )
        known = "" if vit.prefix_tokens is None else f"{vit.prefix_tokens} prefix + "
        what = f"sees {count} tokens, not {known}{grid} patches"
        return FaithscopeError(
            f"'{attention.name}' of {name} {what}: give fs.wrap(module, prefix_tokens=…, "
            "patch_size=…) if the others stand before the patches.",
            reason=f"'{attention.name}' {what}",
        )

    def readout(self, head: Head, vit: ViTView, prefix: int) -> Tensor:
        return find_readout(head, vit, self.model.name, prefix)

    def check(self, first: nn.Module, embedded: Tensor, logits: Tensor, prefix: int) -> None:
        check_patch_order(self.model, first, embedded, prefix)

    def to_map(self, values: Tensor, prefix: int) -> Tensor:
        rows, columns = self.model.require_grid(self.images, "A map of patches")
        return values[:, prefix:].reshape(-1, rows, columns)


@dataclass(frozen=True, eq=False)
class TextLayout:
    """Tokens of texts in their order, of which some belong to units."""

    model: TextModel
    texts: TokenInputs

    def prefix(self, vit: ViTView, index: int, tokens: Tensor) -> int:
        expected = self.texts.ids.shape[1]
        if tokens.ndim != 3 or tokens.shape[1] != expected:
            name = vit.attentions[index].name
            count = tokens.shape[1] if tokens.ndim == 3 else 0
            what = f"'{name}' sees {count} tokens of texts of {expected}"
            raise FaithscopeError(
                f"{self.model.name} cannot be explained by its tokens, since {what}: choose "
                "methods that read only gradients.",
                reason=what,
            )
        return 0

    def readout(self, head: Head, vit: ViTView, prefix: int) -> Tensor:
        return find_token(head, self.model.name)

    def check(self, first: nn.Module, embedded: Tensor, logits: Tensor, prefix: int) -> None:
        check_reading(self.model, self.texts, logits)

    def to_map(self, values: Tensor, prefix: int) -> Tensor:
        return self.texts.by_unit(values)[:, None]


def check_reading(model: TextModel, texts: TokenInputs, logits: Tensor | None = None) -> None:
    """Make sure that a model answers to word embeddings as it does to the tokens.

    `logits` are its answers to the embeddings, if they are known. One text shows it of a model, but
    words that are padding to it, which it may look for among the tokens, are another matter.
    """
    tried = (texts.ids == model.padding).any(1)
    tried[0] |= model.module not in _READ_ALIKE
    if not tried.any():
        return
    some = texts[tried]
    with torch.no_grad():
        words = model.embed(some).to(model.dtype)
        found = model.read(some, words) if logits is None else logits[tried]
        off = deviation(found, model.logits(some))
    if not off <= tolerance(found.dtype):
        what = f"it reads word embeddings otherwise than tokens (off by {off:.1e})"
        raise FaithscopeError(
            f"{model.name} cannot be explained by gradients or attention, since {what}: give maps "
            "of your own.",
            reason=what,
        )
    _READ_ALIKE.add(model.module)
