"""What befalls runs on Ray: nothing finished is lost, nothing counts twice, the same tables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("ray")

import clusters
import faithscope as fs
from bags import BagLearner
from clusters import (
    FatedLearner,
    assert_same_tables,
    evaluate,
    is_alive,
    kill,
    meanwhile,
    retrain,
    wait_for,
)
from faithscope.runs.scheduler import TasksFailed
from families import refused

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def fated(tmp_path):
    """Makes learners whose fate is written in a folder."""
    folder = tmp_path / "fate"
    folder.mkdir()

    def make(fate=lambda _: None, **options) -> FatedLearner:
        return FatedLearner(folder=folder, fate=fate, pack_size=1, **options)

    return make


@pytest.fixture(scope="module")
def whole() -> fs.Result:
    """What comes of a run that nothing befalls."""
    return retrain(learner=BagLearner(pack_size=1))


# Workers and machines


def test_a_worker_that_is_killed_in_the_middle_of_a_task(machines, fated, tmp_path, whole):
    learner = fated(seconds=0.1)
    with meanwhile(lambda: kill(wait_for(lambda: learner.pids)[0])):
        result = retrain(tmp_path / "run", learner, **machines.on())
    assert len(learner.pids) >= 2 and not is_alive(learner.pids[0])
    assert_same_tables(result, whole)


def test_a_worker_that_leaves_by_itself(machines, fated, tmp_path, whole):
    learner = fated(clusters.leaves)
    assert_same_tables(retrain(tmp_path / "run", learner, **machines.on()), whole)
    assert (learner.folder / "left").exists()


@pytest.mark.slow
def test_a_machine_goes_and_another_comes(machines, fated, tmp_path, whole):
    learner, places = fated(seconds=0.2), list(range(clusters.NODES))

    def change(_: object) -> None:
        while learner.pids and places:
            machines.replace(places.pop())

    result = retrain(tmp_path / "run", learner, progress=change, **machines.on(4))
    assert not places
    assert len(learner.pids) > 1 and not is_alive(learner.pids[0])
    assert_same_tables(result, whole)


def test_the_batch_is_halved_where_memory_runs_out(machines):
    here = evaluate(batch_size=64)
    there = evaluate(model=clusters.Greedy(20, os.getpid()), batch_size=64, **machines.on())
    assert there.manifest.cost.batch_halvings > 0 == here.manifest.cost.batch_halvings
    assert there.scores["value"].equals(here.scores["value"])


# Tasks that fail


@pytest.mark.parametrize(
    "fate, why",
    [
        (clusters.raises, r"'train-.*' failed again and again \(ValueError: this is cursed, in cl"),
        pytest.param(
            clusters.kills,
            r"'train-.*' failed again and again \(its worker died: The actor",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["raises", "kills"],
)
def test_a_task_that_always_fails_is_named_and_the_others_finish(
    fate, why, machines, fated, tmp_path, whole
):
    learner, out = fated(fate), tmp_path / "run"
    (learner.folder / "curse").touch()
    with pytest.raises(TasksFailed, match=why) as caught:
        retrain(out, learner, **machines.on())
    assert "the others are finished" in str(caught.value) and len(str(caught.value)) < 500
    tries = len(list(learner.folder.glob("*.try")))
    assert 2 <= tries <= 4  # perhaps once in the company of others, and three times alone
    kept = {file: file.stat().st_mtime_ns for file in out.glob("tasks/*.json")}
    assert len(kept) > 5
    (learner.folder / "curse").unlink()
    assert_same_tables(retrain(out, learner, **machines.on()), whole)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


# Disks


def test_a_disk_that_is_full_where_a_worker_writes(machines, fated, tmp_path, whole):
    learner, out = fated(clusters.disk_is_full), tmp_path / "run"
    (learner.folder / "full").touch()
    with refused("No space left on device", "run the same command"):
        retrain(out, learner, **machines.on())
    (learner.folder / "full").unlink()
    assert_same_tables(retrain(out, learner, **machines.on()), whole)


def test_a_disk_that_is_full_where_the_driver_writes(machines, fated, tmp_path, whole):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        options = {"methods": ["gradient", "input_x_gradient"], "k": 16, "metrics": "all"}
        with refused("No space left on device", "is kept"):
            evaluate(folder / "run", **options, data=clusters.images(400), **machines.on())
        kept = {file.stem for file in (folder / "run").glob("tasks/*.json")}
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        result = evaluate(folder / "run", **options, data=clusters.images(400), **machines.on())
        assert kept is not None
        assert_same_tables(result, evaluate(**options, data=clusters.images(400)))
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_file_system_that_fails_now_and_then(machines, fated, tmp_path, whole):
    learner = fated(clusters.disk_is_flaky)
    assert_same_tables(retrain(tmp_path / "run", learner, **machines.on()), whole)


# The driver

ROAR = ("roar", "--data", "bundled:babi1", "--limit", 60, "--epochs", 4, "--seeds", 2)
ROAR = (*ROAR, "--measures", "gradient", "--levels", "30,60", "--keep-every", 0)


def begun(machines, out: Path, *, tasks: int = 2) -> subprocess.Popen[str]:
    """A command that has finished some tasks, and is at work."""
    machines.free()
    where = ("--on", "ray", "--address", machines.address, "--workers", 2)
    process = clusters.start(*ROAR, *where, "--out", out)
    wait_for(lambda: len(list(out.glob("tasks/*.json"))) >= tasks or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def resumed(machines, out: Path) -> None:
    """The same command ends the run, and does nothing twice."""
    kept = {file: file.stat().st_mtime_ns for file in out.glob("tasks/*.json")}
    options = {"limit": 60, "epochs": 4, "seeds": 2, "measures": "gradient", "levels": [30, 60]}
    there = fs.roar("bundled:babi1", **options, keep_every=0, out=out, **machines.on())
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert_same_tables(there, fs.roar("bundled:babi1", **options))


def test_a_driver_that_is_killed_is_resumed(machines, tmp_path):
    process = begun(machines, tmp_path)
    process.kill()
    process.communicate()
    resumed(machines, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, code, word",
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_driver_that_is_stopped_says_what_is_kept_and_leaves_no_worker(
    number, code, word, machines, tmp_path
):
    process = begun(machines, tmp_path)
    workers = wait_for(machines.workers)
    process.send_signal(number)
    _, said = clusters.ended(process, code)
    assert re.search(rf"{word}: .* kept in .*; run the same command to resume\n$", said), said
    assert "Traceback" not in said
    wait_for(lambda: not any(map(is_alive, workers)), 20)
    if number == signal.SIGTERM:
        resumed(machines, tmp_path)


@pytest.mark.slow
def test_a_command_whose_task_always_fails_ends_with_3_and_says_how_to_resume(machines, tmp_path):
    machines.free()
    curse = tmp_path / "cursed"
    curse.touch()
    out = tmp_path / "run"
    where = ("--on", "ray", "--address", machines.address, "--workers", 2)
    asked = ("evaluate", "--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")
    asked = (*asked, "--limit", 75, "--methods", f"deadly(file='{curse}')", "--metrics", "saco")
    asked = (*asked, "--k", 2, "--random-draws", 0, "--out", out, *where)
    code = "import clusters; clusters.register_deadly()"
    _, said = clusters.ended(clusters.start(*asked, code=code), 3)
    *_, error, resume = said.splitlines()
    assert error.startswith("error: '") and "its worker died" in error
    assert resume.startswith("resume: faithscope evaluate --model")
    assert "Traceback" not in said
    assert len(list(out.glob("tasks/*.json"))) == 1
    curse.unlink()
    clusters.ended(clusters.start(*asked, code=code))
    assert fs.load_result(out).samples.num_rows == 75
