"""Numbers as people give them, in arrays and tensors of any kind, as plain tensors."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, said, shown
from faithscope.models.device import as_float64

_NOT_OF_TORCH = {
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.uint64: torch.float64,
}
"""Types that torch stores and does not compute with."""


def as_tensor(values: Any, what: str = "The values") -> Tensor:
    """A plain tensor of anything array-like: dense, on its device, of a type torch computes with.

    Numbers that are none (text, complex ones, empty shells) are refused; `what` begins the
    sentence.

    >>> as_tensor(np.arange(3.0)[::-1])
    tensor([2., 1., 0.], dtype=torch.float64)
    """
    try:
        made = _dense(values) if isinstance(values, Tensor) else _from_array(values)
    except Exception:  # of somebody's own array: whatever it does when it is read
        made = None
    if made is None:
        raise FaithscopeError(f"{what} must be an array of numbers, got {kind_of(values)}.")
    return made


def as_numbers(values: Any, what: str = "The values") -> Tensor:
    """The same in float64, in which nothing overflows that people mean; gradients pass.

    >>> as_numbers(np.array([2, 1], dtype=np.uint8)).diff()
    tensor([-1.], dtype=torch.float64)
    """
    return as_float64(as_tensor(values, what))


def common_type(*values: Any) -> torch.dtype:
    """The type of a result: that of floating-point tensors (float32 at least), or float64."""
    kind = torch.float32
    for held in values:
        own = held.dtype if isinstance(held, Tensor) else torch.float64
        kind = torch.promote_types(kind, own if own.is_floating_point else torch.float64)
    return kind


def why_unread(error: Exception) -> str:
    """Why a file of numbers cannot be read, without its library's advice to run code in it."""
    advises = any(word in str(error) for word in ("allow_pickle", "weights_only"))
    return "it holds something else than numbers" if advises else said(error)


def check_shapes(what: str, *tensors: Tensor) -> None:
    """Refuse tensors that do not go together, shape by shape."""
    try:
        np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    except ValueError:
        shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors)
        raise FaithscopeError(f"The shapes of {what} do not go together: {shapes}.") from None


def _dense(tensor: Tensor) -> Tensor | None:
    if tensor.is_nested or tensor.device.type == "meta":
        return None
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() < 2):
        return None
    if tensor.is_inference():
        tensor = tensor.clone()
    return tensor.to(_NOT_OF_TORCH.get(tensor.dtype, tensor.dtype))


def _from_array(values: Any) -> Tensor | None:
    if isinstance(values, str | bytes | bytearray | memoryview):
        return None
    if isinstance(values, list | tuple) and any(isinstance(held, Tensor) for held in values):
        return _dense(torch.stack([as_tensor(held) for held in values]))
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan) if values.mask.any() else values
    array = np.asarray(values)
    if array.dtype.kind == "O" and all(isinstance(held, Real) for held in array.flat):
        array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # longdouble
        array = array.astype(np.float64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return _dense(torch.as_tensor(np.require(native, requirements=["C", "W"])))


def kind_of(values: Any) -> str:
    """What was given, in a few words."""
    if isinstance(values, Tensor):
        layout = str(values.layout).removeprefix("torch.")
        return f"a tensor of {values.dtype} ({layout}, on {values.device.type})"
    if isinstance(values, np.ndarray):
        return f"an array of {values.dtype}, shape {list(values.shape)}"
    if isinstance(values, str | bool | int | float | None):
        return shown(values)
    return type(values).__name__
