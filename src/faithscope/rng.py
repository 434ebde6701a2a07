"""Keyed randomness: a random field depends on (seed, purpose, draw, sample) and on nothing else.

Numbers come from a counter-based generator (SplitMix64) evaluated with tensor arithmetic, so a
whole batch is drawn at once on any device, global random state is never touched, and a sample
gets the same numbers whatever its batch, its position or the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def stream_keys(sample_keys: Sequence[str], *, seed: int, purpose: str, draw: int = 0) -> Tensor:
    """Hash (seed, purpose, draw, sample key) to one 64-bit stream key per sample: int64 [B]."""
    digests = (
        hashlib.blake2b(f"{seed}|{purpose}|{draw}|{key}".encode(), digest_size=8).digest()
        for key in sample_keys
    )
    return torch.tensor(
        [int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.int64
    )


def keyed_uniform(keys: Tensor, count: int) -> Tensor:
    """Draw `count` float64 uniforms in [0, 1) for each stream key.

    Shapes: keys int64 [B] -> [B, count], on the device of `keys`.

    >>> keyed_uniform(torch.tensor([7]), 3).round(decimals=4)
    tensor([[0.3898, 0.0168, 0.9008]], dtype=torch.float64)
    """
    counters = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64)
    state = keys[:, None] + counters * _GOLDEN
    state = (state ^ _logical_shift(state, 30)) * _MIX_1
    state = (state ^ _logical_shift(state, 27)) * _MIX_2
    state = state ^ _logical_shift(state, 31)
    return _logical_shift(state, 11).to(torch.float64) * 2.0**-53


def keyed_normal(keys: Tensor, count: int) -> Tensor:
    """Draw `count` float64 standard normals for each stream key (inverse of the normal CDF).

    Shapes: keys int64 [B] -> [B, count], on the device of `keys`.
    """
    uniform = keyed_uniform(keys, count).clamp_min(2.0**-54)  # the inverse of 0 is -infinity
    normal: Tensor = torch.special.ndtri(uniform)
    return normal


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)
