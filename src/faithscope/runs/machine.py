"""Where and with what a run was made."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from faithscope.models.device import has_float64
from faithscope.runs.cards import Machine
from faithscope.runs.plan import Plan
from faithscope.runs.task import Task
from faithscope.version import __version__

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
HELD = {M_TRIM_THRESHOLD: 1 << 30, M_TOP_PAD: 1 << 26, M_MMAP_THRESHOLD: 1 << 30}
"""Bytes: see mallopt(3)."""


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of faithscope and of what its numbers depend on."""
    return {"faithscope": __version__, **{name: _version(name) for name in packages}}


@cache
def _version(package: str) -> str:
    """Looked up once: a package's description is parsed for it."""
    return version(package)


def task_row(task: Task, device: str | torch.device, packages: Iterable[str]) -> dict[str, Any]:
    """What the table of tasks says of where a task ran."""
    return {
        "task": task.id,
        "kind": task.kind,
        "device": str(device),
        "machine": device_name(device),
        "host": platform.node(),
        "versions": list(package_versions(packages).items()),
    }


def joined_versions(parts: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """Versions by package, as several tasks had them; where they differ, all of them.

    >>> joined_versions([[("torch", "2.11")], [("torch", "2.15")]])
    {'torch': '2.11, 2.15'}
    """
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, number in part:
            found.setdefault(name, {})[number] = None
    return {name: ", ".join(numbers) for name, numbers in found.items()}


def joined_names(names: Iterable[str | None]) -> str:
    """Different names, each once, in their order.

    >>> joined_names(["cpu", "H200", "cpu"])
    'cpu, H200'
    """
    return ", ".join(dict.fromkeys(name for name in names if name))


def device_name(device: str | torch.device) -> str:
    """The name of a GPU, or of the processor."""
    if str(device).startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    if str(device).startswith("mps"):
        return "Apple GPU"
    return platform.processor() or torch.device(device).type


def threads_for(device: str | torch.device) -> int:
    """On how many threads the bits of a run depend: those of a CPU; on a GPU, on none.

    An Apple GPU leaves some of the work to the CPU.
    """
    place = torch.device(device)
    is_all_on_gpu = place.type != "cpu" and has_float64(place)
    return 0 if is_all_on_gpu else torch.get_num_threads()


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads of the CPU inside; 0 leaves it as it is."""
    before = torch.get_num_threads()
    if count in (0, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def hold_memory() -> None:
    """Keep what is freed for the next batch: to get it from the system again costs a fifth.

    For a process of its own; of the GNU C library, and without effect elsewhere.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option in (M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD):
            library.mallopt(option, HELD[option])


def machine_of(plan: Plan, tasks: Sequence[Mapping[str, Any]]) -> Machine:
    """The machines that did the work, by the rows of the tasks, and what collected it."""
    return Machine(
        device=joined_names(row["machine"] for row in tasks),
        hosts=tuple(dict.fromkeys(row["host"] for row in tasks if row["host"])),
        threads=plan.threads or torch.get_num_threads(),
        platform=platform.platform(),
        python=platform.python_version(),
    )
