"""Texts as a model reads them: a batch of tokens, and which unit of the text each belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from faithscope.models.device import placed

NO_UNIT = -1
"""The unit of a token that is never ranked: a special one, or one of the side that is not asked."""


@dataclass(frozen=True, eq=False)
class TokenInputs:
    """B texts of T tokens and of n units each; no text is padded.

    It stands where images [B, C, H, W] stand: it has a length, is indexed by text and moved between
    devices, and its `shape` is that of maps over its units.

    Shapes: ids, attended (1 or 0), types and units int64 [B, T].
    """

    ids: Tensor
    attended: Tensor
    types: Tensor
    units: Tensor
    count: int

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, places: Any) -> TokenInputs:
        return self._each(lambda part: part[places])

    def _each(self, change: Callable[[Tensor], Tensor]) -> TokenInputs:
        """The same with every tensor changed alike."""
        return TokenInputs(
            change(self.ids),
            change(self.attended),
            change(self.types),
            change(self.units),
            self.count,
        )

    @property
    def shape(self) -> torch.Size:
        """Texts, one row, units: [B, 1, n]."""
        return torch.Size((len(self), 1, self.count))

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.ids.device

    @property
    def dtype(self) -> torch.dtype:
        """Tokens are whole numbers, whatever the model computes in."""
        return self.ids.dtype

    def to(self, place: torch.device | str | torch.dtype) -> TokenInputs:
        """The same on another device; of another type there are none."""
        if isinstance(place, torch.dtype):
            return self
        return self._each(lambda part: placed(part, torch.device(place)))

    def over_units(self, mask: Tensor) -> Tensor:
        """A mask over units, [B, n], spread over their tokens, [B, T]."""
        return mask.gather(1, self.units.clamp_min(0)) & (self.units >= 0)

    def by_unit(self, values: Tensor) -> Tensor:
        """Values of tokens, [B, T], added up unit by unit: [B, n].

        >>> ones = torch.ones(1, 4, dtype=torch.int64)
        >>> texts = TokenInputs(ones, ones, 0 * ones, torch.tensor([[-1, 0, 0, 1]]), 2)
        >>> texts.by_unit(torch.tensor([[9.0, 1.0, 2.0, 4.0]]))
        tensor([[3., 4.]])
        """
        own = values.masked_fill(self.units < 0, 0)
        return values.new_zeros(len(self), self.count).scatter_add_(1, self.units.clamp_min(0), own)

    def with_ids(self, ids: Tensor) -> TokenInputs:
        """The same with other words."""
        return replace(self, ids=ids)

    def with_attended(self, attended: Tensor) -> TokenInputs:
        """The same with other words attended to."""
        return replace(self, attended=attended)

    def keeping(self, kept: Tensor) -> TokenInputs:
        """The tokens of a mask [B, T] that has equally many of every text; the rest leaves."""
        places = kept.nonzero()[:, 1].reshape(len(self), -1)
        return self._each(lambda part: part.gather(1, places))
