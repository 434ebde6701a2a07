"""The LSTM's recurrence for many models at once: the loop over time and nothing else.

What can be done for all time steps together (projecting the inputs, the weights' gradients) is done
outside the loop in large matrix products. The backward pass is written out: every factor that does
not depend on the gradient is made beforehand, which leaves one matrix product and four
multiplications per step. On a GPU the whole loop is one kernel (lstm_kernel.py).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None

GATES = "oifg"
"""The order of the gates along the last axis: three that end in a sigmoid, three that feed the
cell. PyTorch's own order is i, f, g, o."""

Counts = tuple[int, ...]
"""How many rows of a batch there are at each time; never more than at the time before."""


def recur(gates: Tensor, weight: Tensor, counts: Counts) -> Tensor:
    r"""Run G independent LSTMs over time from zero states.

    .. math::
        (o, i, f, g)_t &= x_t + W h_{t-1} \\
        c_t &= \sigma(f_t) c_{t-1} + \sigma(i_t) \tanh(g_t) \\
        h_t &= \sigma(o_t) \tanh(c_t)

    Shapes: gates [G, N, 4H] (the projected inputs :math:`x_t` with all biases), weight [G, 4H, H]
    -> hidden states [G, N, H]. N goes over time and, at each time, over the first `counts[t]` rows
    of the batch: those that are not over yet. The gates are consumed: their memory is used for what
    they become.

    >>> recur(torch.zeros(1, 5, 4), torch.zeros(1, 4, 1), (3, 2)).shape
    torch.Size([1, 5, 1])
    """
    hidden: Tensor = _Recurrence.apply(gates, weight, counts)
    return hidden


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, counts: Counts) -> Tensor:
        run = _kernel() if _fits_kernel(weight) else _loop
        hidden, *kept = run(gates.detach(), weight, counts)
        ctx.save_for_backward(weight, hidden, *kept)
        ctx.counts = counts
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        weight, hidden, *kept = ctx.saved_tensors
        run = _kernel_backward() if _fits_kernel(weight) else _loop_backward
        d_gates = run(gradients[0], weight, ctx.counts, *kept)
        d_weight = None
        if ctx.needs_input_grad[1]:
            later = d_gates[:, ctx.counts[0] :]
            d_weight = later.transpose(1, 2) @ _earlier(hidden, ctx.counts)
        return d_gates, d_weight, None


def starts_of(counts: Counts, device: torch.device) -> Tensor:
    """Where each time begins on the axis N, and where the last one ends: [T + 1].

    >>> starts_of((3, 2), torch.device("cpu"))
    tensor([0, 3, 5])
    """
    if counts[0] == counts[-1]:
        return torch.arange(len(counts) + 1, device=device) * counts[0]
    return _sent(counts, device) if device.type == "cuda" else _starts(counts)


def _starts(counts: Counts) -> Tensor:
    return torch.tensor((0, *counts)).cumsum(0)


@cache
def _sent(counts: Counts, device: torch.device) -> Tensor:
    """Kept for good: a recorded step has its address, and nothing is sent while one is recorded."""
    return _starts(counts).to(device)


def spans_of(counts: Counts, device: torch.device) -> tuple[Tensor, Tensor]:
    """The time and the row of everything on the axis N: [N], [N].

    >>> time, row = spans_of((3, 2), torch.device("cpu"))
    >>> time.tolist(), row.tolist()
    ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    """
    starts, whole = starts_of(counts, device), sum(counts)
    times = torch.arange(len(counts), device=device)
    time = torch.repeat_interleave(times, starts.diff(), output_size=whole)
    return time, torch.arange(whole, device=device) - starts[time]


def _earlier(states: Tensor, counts: Counts) -> Tensor:
    """The state before each, for all but the first time: [G, N, H] -> [G, N - counts[0], H]."""
    if counts[0] == counts[-1]:
        return states[:, : -counts[0]]
    time, row = (part[counts[0] :] for part in spans_of(counts, states.device))
    return states.index_select(1, starts_of(counts, states.device)[time - 1] + row)


def _loop(gates: Tensor, weight: Tensor, counts: Counts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward: hidden states, σ of all gates (in place), cells and their tanh [G, N, H].

    tanh(x) = 2 σ(2x) - 1, and σ is several times faster on a CPU: with g and cells doubled and
    states halved the loop needs nothing but sigmoids. So g is left as σ(2g).
    """
    size = weight.shape[-1]
    cell = gates.new_empty(*gates.shape[:2], size)
    tanh_cell, hidden = torch.empty_like(cell), torch.empty_like(cell)
    doubled = 2 * weight.transpose(1, 2)
    doubled[..., 3 * size :] *= 2
    gates[..., 3 * size :] *= 2
    sliced = (gates, *gates.chunk(4, dim=-1), cell, tanh_cell, hidden)
    parts = (torch.split(tensor, list(counts), dim=1) for tensor in sliced)
    rows, c_before, h_before = 0, cell, hidden
    for n, a, o, i, f, g, c, tanh_c, h in zip(counts, *parts, strict=True):
        if not rows:
            a.sigmoid_()
            torch.mul(i, g, out=c).mul_(4)
        else:
            if n < rows:  # some texts are over
                c_before, h_before = c_before[:, :n], h_before[:, :n]
            a.baddbmm_(h_before, doubled).sigmoid_()
            torch.mul(f, c_before, out=c).addcmul_(i, g, value=4)
        c.sub_(i, alpha=2)
        torch.sigmoid(c, out=tanh_c)
        torch.mul(o, tanh_c, out=h).sub_(o, alpha=0.5)
        rows, c_before, h_before = n, c, h
    return hidden.mul_(2), gates, cell.mul_(0.5), tanh_cell.mul_(2).sub_(1)


def _loop_backward(
    d_hidden: Tensor,
    weight: Tensor,
    counts: Counts,
    active: Tensor,
    cell: Tensor,
    tanh_cell: Tensor,
) -> Tensor:
    """Backward: the gradient with respect to the gates before their activation."""
    size = weight.shape[-1]
    o, i, f, g = active.chunk(4, dim=-1)
    d_gates = torch.empty_like(active)
    d_o, d_i, d_f, d_g = d_gates.chunk(4, dim=-1)
    d_o.copy_(tanh_cell)
    torch.mul(g, 2, out=d_i).sub_(1)
    d_f[:, : counts[0]] = 0
    d_f[:, counts[0] :] = _earlier(cell, counts)
    torch.mul(i, 4, out=d_g)
    torch.ops.aten.sigmoid_backward.grad_input(d_gates, active, grad_input=d_gates)
    into_cell = torch.ops.aten.tanh_backward(o, tanh_cell)
    d_hidden = d_hidden.clone(memory_format=torch.contiguous_format)
    into_gates = d_gates.view(*d_gates.shape[:2], 4, size)[:, :, 1:]
    sliced = (d_hidden, into_cell, f, d_gates, d_o, into_gates)
    parts = (torch.split(tensor, list(counts), dim=1) for tensor in sliced)
    steps = list(zip(counts, *parts, strict=True))
    d_cell = cell.new_zeros(cell.shape[0], counts[0], 1, size)
    rows, later = 0, d_gates
    for n, d_h, into, forget, d_all, d_out, d_rest in reversed(steps):
        if n > rows:  # texts that were over at the next time
            wide = d_cell[:, :n]
            narrow = wide[:, :, 0]
        if rows:
            # what flows back from the next time reaches the rows that continue
            (d_h if n == rows else d_h[:, :rows]).baddbmm_(later, weight)
        narrow.addcmul_(d_h, into)
        d_out.mul_(d_h)
        d_rest.mul_(wide)
        narrow.mul_(forget)
        rows, later = n, d_all
    return d_gates


def _fits_kernel(weight: Tensor) -> bool:
    """The kernel takes sizes that are powers of two, as matrix products on the GPU do."""
    fits = weight.dtype == torch.float32 and weight.shape[-1] in (16, 32, 64, 128)
    return weight.is_cuda and fits and _HAS_TRITON


def _kernel() -> Any:
    from faithscope.models.lstm_kernel import forward

    return forward


def _kernel_backward() -> Any:
    from faithscope.models.lstm_kernel import backward

    return backward
