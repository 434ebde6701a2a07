"""Where and with what a run was made."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch

from faithscope.runs.cards import Machine
from faithscope.runs.task import Task
from faithscope.version import __version__


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of faithscope and of what its numbers depend on."""
    return {"faithscope": __version__, **{name: version(name) for name in packages}}


def task_row(task: Task, device: str | torch.device, packages: Iterable[str]) -> dict[str, Any]:
    """What the table of tasks says of where a task ran."""
    return {
        "task": task.id,
        "kind": task.kind,
        "device": str(device),
        "machine": device_name(device),
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
    return platform.processor() or torch.device(device).type


def this_machine(device: str) -> Machine:
    """The machine this runs on, with the devices that did the work."""
    return Machine(
        device=device,
        threads=torch.get_num_threads(),
        platform=platform.platform(),
        python=platform.python_version(),
    )
