"""The number formats that a model can be run in, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from faithscope.errors import FaithscopeError
from faithscope.models.device import has_float64

FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""tf32 is float32 whose products a GPU makes with fewer digits."""
COARSE = ("tf32", "fp16", "bf16")
_NAMES = {dtype: name for name, dtype in reversed(FORMATS.items())}


def format_of(dtype: torch.dtype) -> str:
    """The name of a type, as a model has it.

    >>> format_of(torch.float16), format_of(torch.float32)
    ('fp16', 'fp32')
    """
    return _NAMES.get(dtype, "fp32")


def check_format(precision: str, device: torch.device, *, option: str = "precision") -> None:
    """Refuse a format that a device does not have."""
    if precision == "tf32" and device.type != "cuda":
        raise FaithscopeError(
            f"{option}='tf32' needs a CUDA GPU: use {option}='fp32' or 'auto' here."
        )
    if precision == "fp64" and not has_float64(device):
        raise FaithscopeError(
            f"The device '{device.type}' has no float64: use {option}='auto' here, or device='cpu'."
        )


@contextmanager
def kernels(precision: str) -> Iterator[None]:
    """The float32 kernels that a format asks for; those of before afterwards."""
    matmul = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    try:
        if precision in ("fp32", "tf32"):
            fast = precision == "tf32"
            torch.set_float32_matmul_precision("high" if fast else "highest")
            torch.backends.cudnn.allow_tf32 = fast
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution
