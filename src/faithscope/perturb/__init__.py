"""Ranks and spans of units, and what stands in the place of a removed unit."""

from faithscope.perturb.fills import FILLS, Fill, FillContext
from faithscope.perturb.spans import (
    TIES,
    Cut,
    Span,
    groups,
    keep_most_relevant,
    least_relevant_first,
    most_relevant_first,
    order_units,
    ranks_of,
    scaled,
    span_sums,
)
from faithscope.perturb.tokens import STRATEGIES, mask_tokens
from faithscope.perturb.units import (
    UNITS,
    UPSAMPLES,
    in_range,
    to_patches,
    to_pixels,
    unit_mask_to_pixels,
)

__all__ = [
    "FILLS",
    "STRATEGIES",
    "TIES",
    "UNITS",
    "UPSAMPLES",
    "Cut",
    "Fill",
    "FillContext",
    "Span",
    "groups",
    "in_range",
    "keep_most_relevant",
    "least_relevant_first",
    "mask_tokens",
    "most_relevant_first",
    "order_units",
    "ranks_of",
    "scaled",
    "span_sums",
    "to_patches",
    "to_pixels",
    "unit_mask_to_pixels",
]
