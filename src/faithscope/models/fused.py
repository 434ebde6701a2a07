"""Fused attention on a GPU whose gradients are the same every time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_COMPILER = "torch._inductor.config"
_IN_HALF = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_Mode = tuple[bool, bool, bool | None]
"""Whether orders are fixed, whether that only warns, and the same of torch.compile, if loaded."""


@contextmanager
def repeatable(device: torch.device, *, fused: bool = False) -> Iterator[None]:
    """Attention by the plain formula on a GPU, or `fused`; then give `exact` what it made.

    The gradients of fused attention are summed in whatever order threads come, unless torch is
    told otherwise when they are taken. In half precision the plain formula is the slower one by
    far: it runs in float32.
    """
    if device.type != "cuda":
        yield
        return
    before = _mode()
    try:
        with sdpa_kernel(_IN_HALF if fused else SDPBackend.MATH):
            yield
    finally:
        if _mode() != before:  # taking a gradient failed between the two hooks of `exact`
            _set(before)


def exact(output: Tensor) -> Tensor:
    """Let the backward pass from here take gradients of fused attention in a fixed order.

    Only these operations are told: others may have no fixed order, and would be refused.
    """
    waiting, seen = [output.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        if node.name().startswith("ScaledDotProduct"):
            kept: list[_Mode] = []
            node.register_prehook(lambda _, kept=kept: kept.append(_fixed()))
            node.register_hook(lambda *_, kept=kept: _set(kept.pop()))
    return output


def _mode() -> _Mode:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    compiling = getattr(sys.modules.get(_COMPILER), "deterministic", None)
    return torch.are_deterministic_algorithms_enabled(), warns, compiling


def _set(mode: _Mode) -> None:
    torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
    if mode[2] is not None:  # which torch has just changed, too
        sys.modules[_COMPILER].deterministic = mode[2]  # type: ignore[attr-defined]


def _fixed() -> _Mode:
    """Fixed orders from now on; what it was before."""
    before = _mode()
    torch.use_deterministic_algorithms(True)
    return before
