"""Random attribution, the baseline every method must beat.

`random` is drawn per pixel, as in the papers; `random_patch` per patch, to be upsampled as the
patch methods are: the matched baseline for them.
"""

from __future__ import annotations

from torch import Tensor

from faithscope.methods.evidence import Evidence
from faithscope.methods.method import register_method
from faithscope.models.device import float64_device
from faithscope.rng import keyed_uniform, stream_keys


@register_method("random", granularity="pixel", is_random=True, in_papers=True)
def random(evidence: Evidence) -> Tensor:
    """Uniform noise per pixel."""
    return _uniform(evidence, (evidence.images.shape[-2], evidence.images.shape[-1]), "random")


@register_method("random_patch", granularity="patch", is_random=True)
def random_patch(evidence: Evidence) -> Tensor:
    """Uniform noise per patch."""
    grid = evidence.model.require_grid(evidence.images, "random_patch")
    return _uniform(evidence, grid, "random_patch")


def _uniform(evidence: Evidence, shape: tuple[int, int], purpose: str) -> Tensor:
    keys = stream_keys(evidence.keys, seed=evidence.seed, purpose=purpose, draw=evidence.draw)
    place = float64_device(evidence.images.device)
    values = keyed_uniform(keys.to(place), shape[0] * shape[1])
    return values.reshape(-1, *shape)
