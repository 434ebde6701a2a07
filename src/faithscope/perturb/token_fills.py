"""Fills for texts: what stands in the place of a removed token, if anything does."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.models.tokens import TokenInputs
from faithscope.perturb.fills import TEXT_FILLS, Fill, FillContext


class TokenFill(Fill):
    """The base: replace the ids of removed tokens by one that the tokenizer has for that."""

    special: str = ""
    """Which token of the tokenizer it puts in the place of others, if any."""

    def field(self, inputs: TokenInputs, context: FillContext) -> Tensor:  # type: ignore[override]
        """The id that replaces others, [B, 1]."""
        found = context.specials.get(self.special)
        if found is None:
            raise FaithscopeError(
                f"The fill '{self.name}' needs a {self.special} token, and the tokenizer has none, "
                f"or none but that for padding: {self._others(context)}."
            )
        return torch.full_like(inputs.ids[:, :1], found)

    def _others(self, context: FillContext) -> str:
        """Which fills may be chosen instead."""
        missing = {name for name, token in context.specials.items() if token is None}
        others = (fill for fill in TEXT_FILLS.values() if fill is not self)
        able = [fill.name for fill in others if getattr(fill, "special", "") not in missing]
        return f"choose another ({', '.join(sorted(able))})"

    def replaced(  # type: ignore[override]
        self, inputs: TokenInputs, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> TokenInputs:
        """Replace the tokens of the masked units [B, n]."""
        return inputs.with_ids(torch.where(inputs.over_units(mask), field, inputs.ids))


class MaskFill(TokenFill):
    """The tokenizer's mask token."""

    name = "mask"
    summary = "the tokenizer's mask token"
    special = "mask"


class UnknownFill(TokenFill):
    """The tokenizer's token for unknown words."""

    name = "unk"
    summary = "the tokenizer's token for unknown words"
    special = "unk"


class PadFill(TokenFill):
    """Nobody attends to a removed token; ids and positions stay."""

    name = "pad"
    summary = "the token stays in its place, but no token attends to it"

    def field(self, inputs: TokenInputs, context: FillContext) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(inputs.ids[:, :1])

    def replaced(  # type: ignore[override]
        self, inputs: TokenInputs, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> TokenInputs:
        return inputs.with_attended(torch.where(inputs.over_units(mask), field, inputs.attended))


class DropTokens(TokenFill):
    """Removed tokens leave the text, and the others close up."""

    name = "drop"
    summary = "the token leaves the text, and the others close up"
    drops = True

    def field(self, inputs: TokenInputs, context: FillContext) -> Tensor:  # type: ignore[override]
        if bool((inputs.units >= 0).all(1).any()):
            raise FaithscopeError(
                "The fill 'drop' would leave nothing of a text, since it has no special tokens: "
                f"{self._others(context)}."
            )
        return torch.zeros_like(inputs.ids[:, :1])

    def replaced(  # type: ignore[override]
        self, inputs: TokenInputs, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> TokenInputs:
        """Take out the tokens of masked units, equally many of every text."""
        return inputs.keeping(~inputs.over_units(mask))


for _fill in (MaskFill(), PadFill(), DropTokens(), UnknownFill()):
    TEXT_FILLS.register(_fill.name, _fill)
