"""Fills for texts: what stands in the place of a removed token, if anything does."""

from __future__ import annotations

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.models.tokens import TokenInputs
from faithscope.perturb.fills import TEXT_FILLS, Fill, FillContext


class TokenFill(Fill):
    """The base of fills that read nothing of a text, unless they say what."""

    special: str = ""
    """Which token of the tokenizer it puts in the place of others, if any."""

    def field(self, inputs: TokenInputs, context: FillContext) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(inputs.ids[:, :1])

    def _others(self, context: FillContext) -> str:
        """Which fills may be chosen instead."""
        missing = {name for name, token in context.specials.items() if token is None}
        others = (fill for fill in TEXT_FILLS.values() if fill is not self)
        able = [fill.name for fill in others if getattr(fill, "special", "") not in missing]
        return f"choose another ({', '.join(sorted(able))})"


class SpecialToken(TokenFill):
    """Replace the ids of removed tokens by one that the tokenizer has for that."""

    def __init__(self, special: str, summary: str) -> None:
        self.name = self.special = special
        self.summary = summary

    def field(self, inputs: TokenInputs, context: FillContext) -> Tensor:  # type: ignore[override]
        """The id that replaces others, [B, 1]."""
        found = context.specials.get(self.special)
        if found is None:
            raise FaithscopeError(
                f"The fill '{self.name}' needs a {self.special} token, and the tokenizer has none, "
                f"or none but that for padding: {self._others(context)}."
            )
        return torch.full_like(inputs.ids[:, :1], found)

    def replaced(  # type: ignore[override]
        self, inputs: TokenInputs, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> TokenInputs:
        """Replace the tokens of the masked units [B, n]."""
        return inputs.with_ids(torch.where(inputs.over_units(mask), field, inputs.ids))


class PadFill(TokenFill):
    """Nobody attends to a removed token; ids and positions stay."""

    name = "pad"
    summary = "the token stays in its place, but no token attends to it"

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
        return super().field(inputs, context)

    def replaced(  # type: ignore[override]
        self, inputs: TokenInputs, mask: Tensor, field: Tensor, shape: tuple[int, int]
    ) -> TokenInputs:
        """Take out the tokens of masked units, equally many of every text."""
        return inputs.keeping(~inputs.over_units(mask))


MASKED = SpecialToken("mask", "the tokenizer's mask token")
UNKNOWN = SpecialToken("unk", "the tokenizer's token for unknown words")
for _fill in (MASKED, PadFill(), DropTokens(), UNKNOWN):
    TEXT_FILLS.register(_fill.name, _fill)
