"""Is this installation fit for work? A list of checks, each of which says what to do if it is not.

A check that breaks is a failed check: the doctor must also work where torch cannot be imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GIB = 1 << 30
LEAST_DISK = 1 * GIB
LEAST_ACCURACY = 0.9
MODEL, DATA = "bundled:cifar10_vit", "bundled:cifar10"
EXTRAS = {
    "datasets": ("datasets", "hf:… data", "hf"),
    "spaCy": ("spacy", "SST, SNLI and MIMIC", "text"),
    "gensim": ("gensim", "MIMIC", "mimic"),
}
"""Libraries that some data needs: the package, for what, and the extra that brings it."""
REINSTALL = "install again: pip install --force-reinstall faithscope"
REPORT = "please report this with the output of `faithscope doctor --run --json`"


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is ("ok", "warn", "fail"), and what to do about it."""

    name: str
    status: str
    detail: str
    advice: str = ""


def examine(run: bool) -> Iterator[Check]:
    """Make all checks, quick ones first, each as soon as it is asked for.

    What needs torch, which takes longer to import than everything else, only with `run`.
    """
    probes: dict[str, Callable[[], Iterator[Check]]] = {
        "python": _python,
        "libraries": _libraries,
        "extras": _extras,
        "disk": _disk,
    }
    working: dict[str, Callable[[], Iterator[Check]]] = {
        "devices": _devices,
        "bundled model": _bundled_model,
        "attention": _attention,
    }
    for name, probe in (probes | working if run else probes).items():
        try:
            yield from probe()
        except Exception as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            yield Check(name, "fail", f"{type(error).__name__}: {reason}", REINSTALL)


def _python() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")


def _libraries() -> Iterator[Check]:
    """Compare what is installed with the bounds in our metadata."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("faithscope") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check(
            "libraries",
            "warn",
            "faithscope runs from a source tree, so its requirements are not known",
            "install it: pip install --editable .",
        )
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _library(requirement)


def _library(requirement: Requirement) -> Check:
    name, advice = requirement.name, f"pip install --upgrade '{requirement}'"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "fail", f"not installed; requires {requirement.specifier}", advice)
    if not requirement.specifier.contains(found, prereleases=True):
        return Check(name, "fail", f"{found} is too old; requires {requirement.specifier}", advice)
    return Check(name, "ok", found)


def _extras() -> Iterator[Check]:
    """What some data needs and not everybody: say which is here, and what brings the others."""
    for name, (package, use, extra) in EXTRAS.items():
        try:
            yield Check(name, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            command = f"pip install 'faithscope[{extra}]'"
            yield Check(name, "ok", f"not installed, needed only for {use}: {command}")


def _devices() -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            memory = f"{card.total_memory / GIB:.0f} GiB"
            yield Check(f"cuda:{index}", "ok", f"{card.name}, {memory}, CUDA {torch.version.cuda}")
    elif shutil.which("nvidia-smi"):
        yield Check(
            "cuda",
            "warn",
            f"there is an NVIDIA driver, but torch {torch.__version__} sees no GPU",
            "install a torch that fits the driver: https://pytorch.org/get-started",
        )
    elif torch.backends.mps.is_available():
        yield Check("mps", "ok", "Apple's GPU; what needs float64 runs on the CPU")
    else:
        yield Check("cuda", "ok", "no GPU: everything runs on the CPU")
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    detail = f"torch uses {threads} thread(s) of {cores} core(s)"
    if threads == 1 < cores:
        yield Check("cpu", "warn", detail, "set OMP_NUM_THREADS, unless that is on purpose")
    else:
        yield Check("cpu", "ok", detail)


def _disk() -> Iterator[Check]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    detail = f"{free / GIB:.1f} GiB free in {here}"
    if free < LEAST_DISK:
        yield Check("disk", "warn", detail, "make room: results and downloaded weights need some")
    else:
        yield Check("disk", "ok", detail)


def _bundled_model() -> Iterator[Check]:
    """Classify the bundled images: the weights, the preprocessing and the speed in one."""
    import torch

    from faithscope.data import load_data
    from faithscope.models import load_model

    model = load_model(MODEL)
    batch = next(load_data(DATA, model).batches(256))
    images = batch.images.to(model.device)
    with torch.inference_mode():
        model.logits(images[:8])
        started = time.perf_counter()
        predicted = model.logits(images).argmax(-1).cpu()
    rate = len(images) / (time.perf_counter() - started)
    assert batch.labels is not None
    right = float((predicted == batch.labels).double().mean())
    detail = f"{right:.1%} of {len(images)} bundled images right, {rate:,.0f} passes/s"
    if right < LEAST_ACCURACY:
        yield Check("bundled model", "fail", detail, REINSTALL)
    else:
        yield Check("bundled model", "ok", detail)


def _attention() -> Iterator[Check]:
    """Roll out the attention of a model whose fused kernels never show it."""
    import torch

    from faithscope.data import load_data
    from faithscope.explaining import explain
    from faithscope.models import load_model

    model = load_model(MODEL)
    images = next(load_data(DATA, model, limit=4).batches(4)).images
    maps = explain(model, images, "rollout")
    fused = sum(bool(getattr(part, "fused_attn", False)) for part in model.module.modules())
    if not isinstance(maps, torch.Tensor) or not bool(torch.isfinite(maps).all()):
        yield Check("attention", "fail", "the rollout of the bundled model is not finite", REPORT)
    else:
        yield Check("attention", "ok", f"read out of {fused} fused blocks and checked (rollout)")
