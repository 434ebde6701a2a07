"""Relevance on its way, to be looked at wherever it passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from faithscope.methods.relevance import Descent


@dataclass(eq=False)
class Noted(Descent):
    """A descent that remembers the relevance of every tensor it passed."""

    passed: dict[int, Tensor] = field(default_factory=dict)

    def _collect(self, tensor: Tensor) -> Tensor | None:
        found = super()._collect(tensor)
        if found is not None:
            self.passed[id(tensor)] = found
        return found

    def relevance(self, tensor: Tensor) -> Tensor:
        """What arrived at a tensor of the tape."""
        return self.passed[id(tensor)]
