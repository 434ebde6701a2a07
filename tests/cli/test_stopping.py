"""How a command ends: the exit codes, and the words for what is kept when it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import save_file

import faithscope as fs
from commands import csv, rows, run
from conftest import tiny_vit
from faithscope.cli import shared
from faithscope.probes.perturb import probe, resolve, worker
from faithscope.probes.retrain import bilstm

SMALL = ("--methods", "gradient", "--metrics", "saco", "--random-draws", 1)
VIT = "timm:vit_tiny_patch16_224(img_size=16,patch_size=4,embed_dim=24,depth=2,num_heads=3)"
ROAR = ("--measures", "gradient", "--seeds", 1, "--levels", "50", "--epochs", 1, "--no-recursive")
SIGNALS = {
    signal.SIGINT: ("interrupted", 130),
    signal.SIGTERM: ("terminated", 143),
    signal.SIGHUP: ("terminated", 143),
}


@pytest.fixture
def listening() -> Iterator[None]:
    """Signals are obeyed in this process as the program obeys them."""
    before = {held: signal.getsignal(held) for held in shared.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shared.listen()
    yield
    for held, handler in before.items():
        signal.signal(held, handler)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six small images."""
    root = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(root / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(tiny_vit(dtype=torch.float32).state_dict(), file)
    return file


@pytest.fixture
def command(photos: Path, weights: Path) -> tuple[object, ...]:
    """A command that measures six images in three tasks."""
    return ("evaluate", "--model", VIT, "--checkpoint", weights, "--data", photos, *SMALL)


def after(calls: int, function: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """A function before whose call, after so many, something happens."""
    seen = []

    def call(*args: Any, **options: Any) -> Any:
        seen.append(1)
        if len(seen) == calls + 1:
            act()
        return function(*args, **options)

    return call


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


# Being stopped


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_evaluate_says_what_is_kept_and_goes_on(listening, command, number, tmp_path, monkeypatch):
    word, code = SIGNALS[number]
    command = (*command, "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "ask_shard", after(2, worker.ask_shard, send(number)))
        told = run(*command, code=code)
    assert told.stderr.splitlines()[-1] in (
        f"{word}: {count} kept in {tmp_path}; run the same command to resume"
        for count in ("1 finished task is", "2 finished tasks are")
    )
    run(*command)


@pytest.mark.parametrize(("module", "place"), [(resolve, "load_model"), (probe, "prepare_forward")])
def test_a_run_that_is_stopped_while_it_loads(
    listening, command, module, place, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, place, after(0, getattr(module, place), send(signal.SIGTERM)))
    told = run(*command, "--out", tmp_path, code=143)
    assert told.stderr.splitlines()[-1] == "terminated: nothing had been begun"


def test_without_a_folder_nothing_is_kept(listening, command, monkeypatch):
    monkeypatch.setattr(worker, "ask_shard", after(1, worker.ask_shard, send(signal.SIGTERM)))
    told = run(*command, code=143)
    assert told.stderr.splitlines()[-1] == "terminated: nothing is kept without --out"


def test_a_folder_that_is_gone_keeps_nothing(listening, command, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def act() -> None:
        shutil.rmtree(out)
        send(signal.SIGTERM)()

    monkeypatch.setattr(worker, "ask_shard", after(1, worker.ask_shard, act))
    told = run(*command, "--out", out, code=143)
    assert (
        told.stderr.splitlines()[-1] == f"terminated: the folder {out} is gone, with what was in it"
    )


def test_roar_says_what_is_kept(listening, tmp_path, monkeypatch):
    texts, out = csv(tmp_path / "texts.csv", rows()), tmp_path / "run"
    begin = after(2, bilstm.BiLSTMLearner.begin, send(signal.SIGTERM))
    with monkeypatch.context() as patch:
        patch.setattr(bilstm.BiLSTMLearner, "begin", lambda *given: begin(*given))
        told = run("roar", "--data", texts, *ROAR, "--out", out, code=143)
    assert "kept in" in told.stderr.splitlines()[-1]
    run("roar", "--data", texts, *ROAR, "--out", out)


def test_a_demo_keeps_nothing(listening, tmp_path, monkeypatch):
    monkeypatch.setattr("faithscope.cli.demo.forecast_of", after(0, str, send(signal.SIGTERM)))
    told = run("demo", "--images", 2, "--out", tmp_path, code=143)
    assert told.stderr.splitlines()[-1] == "terminated: nothing is kept of a demo that is stopped"


@pytest.fixture
def study(tmp_path: Path, photos: Path, weights: Path) -> Path:
    """Three runs of three tasks each."""
    model = f"{{name: '{VIT}', checkpoint: '{weights}'}}"
    file = tmp_path / "study.yaml"
    file.write_text(
        f"models: [{model}]\ndata: ['{photos}']\nmethods: [gradient]\nmetrics: [saco]\n"
        "random_draws: 1\nfills: [mean, black, blur]\n"
    )
    return file


def test_a_study_counts_its_runs_and_tasks(listening, study, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "ask_shard", after(5, worker.ask_shard, send(signal.SIGTERM)))
    told = run("run", study, "--out", tmp_path / "runs", code=143)
    assert told.stderr.splitlines()[-1] in (
        f"terminated: 1 finished run {more} kept in {tmp_path / 'runs'}; run the same command to "
        "resume"
        for more in ("and 1 finished task are", "and 2 finished tasks are")
    )


def test_a_question_that_is_interrupted(monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr(sys, "stderr", type("Terminal", (), {"isatty": lambda _: True})())
    forecast = type("Forecast", (), {"seconds": 1e6})()

    def abort(error: type[BaseException]) -> Callable[..., Any]:
        def confirm(*_: Any, **__: Any) -> Any:
            try:
                raise error
            except error:
                raise typer.Abort from None

        return confirm

    monkeypatch.setattr(shared.typer, "echo", lambda *_, **__: None)
    monkeypatch.setattr(shared.typer, "confirm", abort(shared.Terminated))
    with pytest.raises(shared.Terminated):
        shared.ask(forecast, False, "")
    monkeypatch.setattr(shared.typer, "confirm", abort(EOFError))
    with pytest.raises(typer.Exit) as end:
        shared.ask(forecast, False, "")
    assert end.value.exit_code == 1


# Some runs of a study fail


def test_a_run_of_a_study_that_fails_costs_that_run(study, tmp_path, monkeypatch):
    ask, out = worker.ask_shard, tmp_path / "runs"

    def fails(setup: Any, *given: Any, **options: Any) -> Any:
        if setup.request.fill == "black":
            raise fs.FaithscopeError("Black cannot be done today.")
        return ask(setup, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "ask_shard", fails)
        told = run("run", study, "--out", out, code=3)
    (failed,) = [path for path in out.iterdir() if not (path / "manifest.json").exists()]
    assert "failed: Black cannot be done today." in told.stderr
    assert told.stderr.splitlines()[-1] == (
        f"1 of 3 runs failed ({failed.name}): fix the cause and run the same command to resume"
    )
    assert "Traceback" not in told.stderr
    run("run", study, "--out", out)
    assert (failed / "manifest.json").exists()


def test_a_study_of_which_every_run_fails_is_an_error(study, tmp_path, monkeypatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise fs.FaithscopeError("Nothing can be done today.")

    monkeypatch.setattr(worker, "ask_shard", fails)
    told = run("run", study, "--out", tmp_path / "runs", code=2)
    assert told.stderr.splitlines()[-1] == "error: Nothing can be done today."


def test_memory_that_runs_out_in_any_command_is_an_error(tmp_path, monkeypatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("faithscope.studies.load_results", fails)
    told = run("report", tmp_path, code=2)
    assert told.stderr == "error: Memory ran out: ask for less, or free some.\n"


# The program itself

PROGRAM = """
import sys, threading, time
from faithscope.cli import shared
from faithscope.errors import FaithscopeError

def ready():
    print("ready", flush=True)

@shared.app.command("wait")
def wait(how: str) -> None:
    if how == "import":
        import slow
    if how in ("thread", "error"):
        threading.Thread(target=time.sleep, args=(60,)).start()
    if how == "error":
        raise FaithscopeError("It went wrong.")
    try:
        ready()
        time.sleep(2 if how == "short" else 60)
    except KeyboardInterrupt:
        if how != "deaf":
            raise
        ready()
        time.sleep(60)

shared.main()
"""


def program(how: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, "wait", how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, **options)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, told = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, told


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("how", ["sleep", "thread"])
def test_a_signal_ends_the_program_even_if_a_thread_hangs(number, how):
    word, code = SIGNALS[number]
    process = program(how)
    process.stdout.readline()
    process.send_signal(number)
    assert end(process) == (code, f"{word}: before the end\n")


def test_a_second_signal_ends_the_program_at_once():
    process = program("deaf")
    for number in (signal.SIGINT, signal.SIGTERM):
        process.stdout.readline()
        process.send_signal(number)
    assert end(process) == (143, "")


def test_a_signal_during_an_import_ends_the_program_in_a_sentence(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nprint('ready', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n"
        "    pass\ntime.sleep(60)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    process = program("import", env={**os.environ, "PYTHONPATH": paths})
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert end(process) == (143, "terminated: before the end\n")


def test_an_error_ends_the_program_even_if_a_thread_hangs():
    started = time.monotonic()
    assert end(program("error")) == (2, "error: It went wrong.\n")
    assert time.monotonic() - started < 20


def test_a_signal_that_is_ignored_stays_ignored():
    process = program("short", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert end(process) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_program_that_is_killed_or_terminated_at_any_moment_resumes(seed, command, tmp_path):
    """Real signals to a real process; in the end the bits are those of a run left alone."""
    import random

    draw, out = random.Random(seed), tmp_path / "run"
    words = [sys.executable, "-m", "faithscope", *map(str, command), "--out", str(out)]
    for _ in range(4):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(draw.uniform(0.0, 20.0))
        number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        assert process.returncode in (0, -number, {2: 130, 15: 143}.get(number, -9)), told
        assert "Traceback" not in told or number == signal.SIGINT  # before it listens
    run(*command, "--out", out)
    run(*command, "--out", tmp_path / "whole")
    assert fs.load_result(out).scores.equals(fs.load_result(tmp_path / "whole").scores)
