"""An imitation of Apple's GPU on any machine: a device of its own that has no float64.

Tensors on it say `device.type == "apple"`, and hold an ordinary tensor that does the arithmetic. As
on the real device ("mps"), making a float64 tensor there is a TypeError, an operation on tensors of
two devices is a RuntimeError, `numpy()` needs `cpu()` first, and some operations do not exist. More
strictly than there, a tensor may not change its device and become float64 in one step. Memory,
speed, rounding and every other operation that Apple's does not have are not imitated.

Importing this registers the device with torch, for good: do it in a process of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "apple"
HAS_LIMITS = True
"""Without them it is a GPU that has float64, and every operation."""
WAITS: list[str] = []
"""What the CPU had to wait for the device for, operation by operation."""
ANSWERS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal")
"""Operations of which the CPU needs the answer before it can go on."""
MISSING = ("special_ndtri", "frexp", "linalg_svd", "linalg_eigh")
ACROSS = ("copy_", "_to_copy", "index", "index_put", "index_put_")
"""Operations that take tensors of two devices, too: copies, and indices on the CPU."""


class Backend(_DummyBackendModule):
    """What torch asks a kind of device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """For autocast."""
        return [torch.float16, torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, Backend())


class OnDevice(Tensor):
    """A tensor on the imitated device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        if HAS_LIMITS and inner.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
                "float64. Please use float32 instead."
            )
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        """Made already."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, *args, **(kwargs or {}))

    # What torch cannot do with tensors of another class:

    def tolist(self) -> Any:
        WAITS.append("tolist")
        return self.inner.tolist()

    def new_tensor(self, values: Any) -> Tensor:
        WAITS.append("new_tensor")
        return torch.tensor(values, dtype=self.dtype).to(self.device)


def _call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Do it on the CPU; what it gives is on the device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [held for held in tensors if isinstance(held, OnDevice)]
    name, wanted = func.overloadpacket.__name__, kwargs.get("device")
    stays = bool(here) if wanted is None else wanted.type == NAME
    _note_waits(name, here, tensors, args, kwargs)
    if HAS_LIMITS and name in MISSING:
        raise NotImplementedError(f"The operator 'aten::{name}' is not implemented for {NAME}.")
    if here and name not in ACROSS and any(held.ndim for held in {*tensors} - {*here}):
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, {NAME} and cpu")
    if HAS_LIMITS and here and name == "_to_copy" and kwargs.get("dtype") == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
    if wanted is not None:
        kwargs["device"] = torch.device("cpu") if stays else wanted
    plain_args, plain = tree_map(_inner, (args, kwargs))
    made = func(*plain_args, **plain)
    same = {id(held.inner): held for held in here}

    def outer(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return same[id(value)] if id(value) in same else OnDevice(value) if stays else value

    return tree_map(outer, made)


def _note_waits(name: str, here: list[Any], tensors: list[Any], args: Any, kwargs: Any) -> None:
    """Note what the CPU waits for: copies, unless they may take their time, and answers."""
    wanted = kwargs.get("device")
    across = len(tensors) > len(here) > 0 if name == "copy_" else False
    if name == "_to_copy" and wanted is not None:
        across = (wanted.type == NAME) != bool(here)
    masks = [held for held in here if held.dtype in (torch.bool, torch.uint8)]
    by_mask = name in ("index", "index_put", "index_put_") and bool(masks)
    alone = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
    if (across and not alone) or by_mask or (here and name.startswith(ANSWERS)):
        WAITS.append(name)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def inference_mode(mode: bool = True) -> AbstractContextManager[object]:
    """In place of torch's, in which tensors of another class cannot be sliced."""
    return torch.no_grad() if mode else nullcontext()


torch.__future__.set_overwrite_module_params_on_conversion(True)  # `p.data = …` misses `inner`
_library = torch.library.Library("_", "IMPL")
_library.fallback(_call, "PrivateUse1")
