"""Ranks and spans of units, and what stands in the place of a removed unit."""

from faithscope.perturb.fills import DEFAULTS, FILLS, Fill, FillContext
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
from faithscope.perturb.token_fills import TokenFill
from faithscope.perturb.tokens import STRATEGIES, mask_tokens, units_to_mask
from faithscope.perturb.units import (
    UNITS,
    UPSAMPLES,
    granularity_of,
    in_range,
    resample,
    to_grids,
    to_patches,
    to_pixels,
    to_units,
    unit_mask_to_pixels,
)

__all__ = [
    "DEFAULTS",
    "FILLS",
    "STRATEGIES",
    "TIES",
    "UNITS",
    "UPSAMPLES",
    "Cut",
    "Fill",
    "FillContext",
    "Span",
    "TokenFill",
    "granularity_of",
    "groups",
    "in_range",
    "keep_most_relevant",
    "least_relevant_first",
    "mask_tokens",
    "most_relevant_first",
    "order_units",
    "ranks_of",
    "resample",
    "scaled",
    "span_sums",
    "to_grids",
    "to_patches",
    "to_pixels",
    "to_units",
    "unit_mask_to_pixels",
    "units_to_mask",
]
