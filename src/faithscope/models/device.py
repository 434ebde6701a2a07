"""What a device can do: which one "auto" is, and what of the work an Apple GPU leaves to the CPU.

Relevance, ranks, sums and random numbers are made in float64, which Apple's GPUs (mps) do not have.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, quoted, shown, warn

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices."""
COPIES_ALONE = frozenset({"cuda"})
"""Types of devices that copy to and from the CPU's memory while it goes on."""
CPU = torch.device("cpu")


def choose_device(device: str | torch.device) -> torch.device:
    """Turn "auto" into a GPU, CUDA's or Apple's, if there is one; refuse a device that is not."""
    if isinstance(device, str) and device == "auto":
        apple = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else apple)
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (TypeError, RuntimeError, AssertionError, NotImplementedError):
        raise FaithscopeError(
            f"The device {quoted(device if isinstance(device, str) else shown(device))} is not "
            "available here: use 'cpu', or 'auto' to choose."
        ) from None
    return chosen


def device_to_train_on(device: str | torch.device) -> torch.device:
    """The same for trainings, which nobody has tried on an Apple GPU: they run on the CPU there."""
    chosen = choose_device(device)
    if chosen.type != "mps":
        return chosen
    if device != "auto":
        _say_once("Models are not trained on Apple's GPU (mps): they are trained on the CPU.")
    return CPU


def has_float64(device: torch.device) -> bool:
    """Whether a device can compute in float64."""
    return device.type not in WITHOUT_FLOAT64


def float64_device(device: torch.device) -> torch.device:
    """Where that is done which needs float64: on the device, or on the CPU if it has none."""
    return device if has_float64(device) else CPU


def device_for(dtype: torch.dtype, device: torch.device) -> torch.device:
    """The device, or the CPU for numbers of a type that the device does not have."""
    return float64_device(device) if dtype == torch.float64 else device


def as_float64(values: Tensor) -> Tensor:
    """The same numbers in float64, where that exists."""
    return values.to(float64_device(values.device)).to(torch.float64)


def placed(values: Tensor, device: torch.device) -> Tensor:
    """The same numbers on a device; in float32 if they are in float64, which it does not have.

    A CUDA GPU that still computes is not waited for: it copies them, from memory that stays in its
    place, when it comes to that.
    """
    if values.dtype == torch.float64 and not has_float64(device):
        values = values.to(torch.float32)
    if not isinstance(values, Tensor) or not _copies_alone(values.device, device):
        return values.to(device)
    held = values.contiguous().pin_memory() if device.type == "cuda" else values
    return held.to(device, non_blocking=True)


def brought(values: Tensor) -> Tensor:
    """The same numbers on the CPU, or on their way there: they are to be waited for (`Moment`).

    What cannot be on its way stays where it is.
    """
    return values.to(CPU, non_blocking=True) if _copies_alone(values.device, CPU) else values


def _copies_alone(source: torch.device, goal: torch.device) -> bool:
    there = {source.type, goal.type} - {"cpu"}
    return "cpu" in (source.type, goal.type) and bool(there) and there <= COPIES_ALONE


def say_what_the_cpu_does(device: torch.device) -> None:
    """Say once that some of the work is not done on this device."""
    if not has_float64(device):
        _say_once(
            f"The device '{device.type}' has no float64: relevance (LRP), random draws, ranks and "
            "sums are computed on the CPU."
        )


@cache
def _say_once(sentence: str) -> None:
    warn(sentence)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Let no autocast of a caller change the types of a model on this type of device."""
    known = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if known else nullcontext()


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@dataclass(eq=False)
class Moment:
    """When a device has done all that it was asked so far, its copies included."""

    device: torch.device
    _event: Any = field(init=False, default=None)
    _time: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.device))
        else:
            wait_for(self.device)
            self._time = time.perf_counter()

    def wait(self) -> None:
        """Wait for it, and not for what the device was asked later."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Moment) -> float:
        """Seconds between two moments of one device."""
        if self._event is None:
            return self._time - earlier._time
        self.wait()
        return float(earlier._event.elapsed_time(self._event)) / 1000


def free_caches() -> None:
    """Give back the memory that torch holds on GPUs for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
