"""Apple's GPUs: which device is chosen, and, in a process of its own, all work on an imitation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faithscope.models import choose_device
from faithscope.models import device as devices
from faithscope.runs.machine import device_name, threads_for

ROOT = Path(__file__).parents[2]


def available(patch: pytest.MonkeyPatch, *, cuda: bool, apple: bool) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: cuda)
    patch.setattr(torch.backends.mps, "is_available", lambda: apple)


@pytest.mark.parametrize(
    ("cuda", "apple", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_prefers_cuda_to_apple_to_the_cpu(monkeypatch, cuda, apple, expected):
    available(monkeypatch, cuda=cuda, apple=apple)
    assert choose_device("auto").type == expected


def test_trainings_stay_on_the_cpu_there(monkeypatch, recwarn):
    available(monkeypatch, cuda=False, apple=True)
    assert devices.device_to_train_on("auto").type == "cpu" and not recwarn.list
    available(monkeypatch, cuda=True, apple=True)
    assert devices.device_to_train_on("auto").type == "cuda"
    devices._say_once.cache_clear()
    monkeypatch.setattr(devices, "choose_device", torch.device)
    for _ in range(2):
        assert devices.device_to_train_on("mps").type == "cpu"
    assert [str(one.message) for one in recwarn.list] == [
        "Models are not trained on Apple's GPU (mps): they are trained on the CPU."
    ]


def test_its_bits_depend_on_the_threads_of_the_cpu():
    assert threads_for("mps") == threads_for("cpu") == torch.get_num_threads()
    assert threads_for("cuda") == 0 and device_name("mps") == "Apple GPU"


def test_all_work_runs_on_an_imitation():
    """What `on_apple.py` tests; it registers a device with torch for good."""
    file = Path(__file__).with_name("on_apple.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "FAITHSCOPE_ON_APPLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
