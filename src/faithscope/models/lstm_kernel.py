"""The LSTM's recurrence as one GPU kernel, forward and backward (Triton).

A program takes the recurrent weights of one model and direction and a few rows of its batch, and
loops over time without leaving the multiprocessor. Rows do not depend on each other, so the
programs need not either; one whose rows are all over ends. Weights of up to 64 units stay in
registers, larger ones are read again at each time, from the GPU's cache. Equal to the loops of
recurrence.py (tests/models/test_recurrence.py runs both, the kernel in Triton's interpreter
where there is no GPU).
"""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from faithscope.models.recurrence import Counts, starts_of

ROWS = 16
"""Rows of a batch in one program: the smallest that a matrix product takes."""
LARGEST_KEPT = 64
"""Units of which the recurrent weights fit into the registers of a program."""
PRECISION = "tf32x3"
"""Three products of truncated numbers: float32's accuracy on tensor cores."""


def forward(gates: Tensor, weight: Tensor, counts: Counts) -> tuple[Tensor, Tensor, Tensor]:
    """As recurrence._loop, without the cells' tanh; g is kept as tanh(g), not as σ(2g)."""
    gates = gates.contiguous()
    cell = gates.new_empty(*gates.shape[:2], weight.shape[-1])
    hidden = torch.empty_like(cell)
    starts, ends, grid, options = _launch(gates, weight, counts)
    _forward[grid](
        gates, weight.contiguous(), cell, hidden, starts, ends, gates.shape[1], **options
    )
    return hidden, gates, cell


def backward(
    d_hidden: Tensor, weight: Tensor, counts: Counts, active: Tensor, cell: Tensor
) -> Tensor:
    """As recurrence._loop_backward."""
    d_gates = torch.empty_like(active)
    starts, ends, grid, options = _launch(active, weight, counts)
    given = (d_hidden.contiguous(), weight.contiguous(), active, cell, d_gates, starts, ends)
    _backward[grid](*given, active.shape[1], **options)
    return d_gates


def _launch(
    gates: Tensor, weight: Tensor, counts: Counts
) -> tuple[Tensor, Tensor, tuple[int, int], dict[str, Any]]:
    """Where each time begins, when each program's rows are over, the grid and its options."""
    starts = starts_of(counts, gates.device)
    tiles = triton.cdiv(counts[0], ROWS)
    first = torch.arange(tiles, device=gates.device)[:, None] * ROWS
    ends = (starts.diff() > first).sum(1)
    size = weight.shape[-1]
    is_kept = size <= LARGEST_KEPT
    options = {"H": size, "R": ROWS, "P": PRECISION, "KEPT": is_kept}
    # stages would hold the weights of several times at once
    options |= {"num_warps": 4} if is_kept else {"num_warps": 8, "num_stages": 1}
    return starts, ends, (len(gates), tiles), options


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _forward(
    gates,
    weight,
    cell,
    hidden,
    starts,
    ends,
    whole,
    H: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    KEPT: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * R + tl.arange(0, R)
    unit = tl.arange(0, H)
    steps = tl.load(ends + tl.program_id(1))
    # transposed: [in, out]
    square = group * 4 * H * H + unit[None, :] * H + unit[:, None]
    if KEPT:
        w_o = tl.load(weight + square)
        w_i = tl.load(weight + square + H * H)
        w_f = tl.load(weight + square + 2 * H * H)
        w_g = tl.load(weight + square + 3 * H * H)
    h = tl.zeros([R, H], dtype=tl.float32)
    c = tl.zeros([R, H], dtype=tl.float32)
    for t in range(steps):
        start = tl.load(starts + t)
        at = group * whole + start + row
        there = (row < tl.load(starts + t + 1) - start)[:, None] & (unit >= 0)[None, :]
        wide = at[:, None] * (4 * H) + unit[None, :]
        narrow = at[:, None] * H + unit[None, :]
        x_o = tl.load(gates + wide, mask=there, other=0.0)
        x_i = tl.load(gates + wide + H, mask=there, other=0.0)
        x_f = tl.load(gates + wide + 2 * H, mask=there, other=0.0)
        x_g = tl.load(gates + wide + 3 * H, mask=there, other=0.0)
        if not KEPT:
            w_o = tl.load(weight + square)
        o = tl.sigmoid(x_o + tl.dot(h, w_o, input_precision=P))
        if not KEPT:
            w_i = tl.load(weight + square + H * H)
        i = tl.sigmoid(x_i + tl.dot(h, w_i, input_precision=P))
        if not KEPT:
            w_f = tl.load(weight + square + 2 * H * H)
        f = tl.sigmoid(x_f + tl.dot(h, w_f, input_precision=P))
        if not KEPT:
            w_g = tl.load(weight + square + 3 * H * H)
        g = _tanh(x_g + tl.dot(h, w_g, input_precision=P))
        c = f * c + i * g
        h = o * _tanh(c)
        tl.store(gates + wide, o, mask=there)
        tl.store(gates + wide + H, i, mask=there)
        tl.store(gates + wide + 2 * H, f, mask=there)
        tl.store(gates + wide + 3 * H, g, mask=there)
        tl.store(cell + narrow, c, mask=there)
        tl.store(hidden + narrow, h, mask=there)


@triton.jit
def _backward(
    d_hidden,
    weight,
    active,
    cell,
    d_gates,
    starts,
    ends,
    whole,
    H: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    KEPT: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * R + tl.arange(0, R)
    unit = tl.arange(0, H)
    steps = tl.load(ends + tl.program_id(1))
    # as stored: [out, in]
    square = group * 4 * H * H + unit[:, None] * H + unit[None, :]
    if KEPT:
        w_o = tl.load(weight + square)
        w_i = tl.load(weight + square + H * H)
        w_f = tl.load(weight + square + 2 * H * H)
        w_g = tl.load(weight + square + 3 * H * H)
    d_back = tl.zeros([R, H], dtype=tl.float32)
    d_c = tl.zeros([R, H], dtype=tl.float32)
    for step in range(steps):
        t = steps - 1 - step
        start = tl.load(starts + t)
        at = group * whole + start + row
        there = (row < tl.load(starts + t + 1) - start)[:, None] & (unit >= 0)[None, :]
        wide = at[:, None] * (4 * H) + unit[None, :]
        narrow = at[:, None] * H + unit[None, :]
        o = tl.load(active + wide, mask=there, other=0.0)
        i = tl.load(active + wide + H, mask=there, other=0.0)
        f = tl.load(active + wide + 2 * H, mask=there, other=0.0)
        g = tl.load(active + wide + 3 * H, mask=there, other=0.0)
        tanh_c = _tanh(tl.load(cell + narrow, mask=there, other=0.0))
        earlier = there & (row + t > row)[:, None]
        back = (start - tl.load(starts + tl.maximum(t, 1) - 1)) * H
        c_before = tl.load(cell + narrow - back, mask=earlier, other=0.0)
        d_h = tl.load(d_hidden + narrow, mask=there, other=0.0) + d_back
        d_c += d_h * o * (1 - tanh_c * tanh_c)
        d_o = d_h * tanh_c * o * (1 - o)
        d_i = d_c * g * i * (1 - i)
        d_f = d_c * c_before * f * (1 - f)
        d_g = d_c * i * (1 - g * g)
        d_c *= f
        tl.store(d_gates + wide, d_o, mask=there)
        tl.store(d_gates + wide + H, d_i, mask=there)
        tl.store(d_gates + wide + 2 * H, d_f, mask=there)
        tl.store(d_gates + wide + 3 * H, d_g, mask=there)
        if not KEPT:
            w_o = tl.load(weight + square)
        d_back = tl.dot(d_o, w_o, input_precision=P)
        if not KEPT:
            w_i = tl.load(weight + square + H * H)
        d_back += tl.dot(d_i, w_i, input_precision=P)
        if not KEPT:
            w_f = tl.load(weight + square + 2 * H * H)
        d_back += tl.dot(d_f, w_f, input_precision=P)
        if not KEPT:
            w_g = tl.load(weight + square + 3 * H * H)
        d_back += tl.dot(d_g, w_g, input_precision=P)
