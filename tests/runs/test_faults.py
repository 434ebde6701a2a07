"""Faults from outside: what is said, what is kept, and that the same call goes on afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

import bag_runs
import faithscope as fs
from bags import BagLearner
from conftest import randn, tiny_vit, toy
from disasters import another_process, cards_in, content_of, failing, harm, leftovers
from faithscope.api import pack_run, unpack_run
from faithscope.data.images import LazyImages
from faithscope.probes.perturb import probe
from faithscope.probes.retrain.learner import Recipe
from faithscope.runs import files, store
from faithscope.runs.store import SCRATCH, Store
from families import refused

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
IMAGES = randn(6, 3, 4, 4)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 2)


def evaluate(out: Path | None, data: Any = IMAGES, model: Any = None, **options: Any) -> fs.Result:
    options = {"k": 4, "random_draws": 1, "batch_size": 64, **options}
    return fs.evaluate(model or toy(4, 4), data, "gradient", "saco", out=out, **options)


def retrain(out: Path | None, **options: Any) -> fs.Result:
    learner = BagLearner(pack_size=2, recipe=Recipe(2, 16, 1))
    asked = {"measures": "gradient", "seeds": 1, "levels": [50], "procedures": "roar"}
    return bag_runs.run(learner, out, **{**asked, **options})


KINDS = pytest.mark.parametrize("run", [evaluate, retrain])


def stopped(out: Path) -> None:
    """Stop with the third of many operations that put a file into place in the second task."""
    with failing(out, KeyboardInterrupt, at=14, operations=("replace",), lasts=False):
        with pytest.raises(KeyboardInterrupt):
            evaluate(out)
    assert cards_in(out) == 1


# Folders that can only be read


READ_ONLY = pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
WRITES = ("open", "fsync", "replace", "mkdir", "unlink", "lock")


@KINDS
@READ_ONLY
def test_a_finished_run_is_read_where_nothing_can_be_written(run, number, tmp_path):
    out = tmp_path / "run"
    whole = run(out)
    before = content_of(out)
    with failing(out, number, operations=WRITES):
        again = run(out)
        assert again.scores.equals(whole.scores)
        assert fs.load_result(out).scores.equals(whole.scores)
        fs.compare(out, whole)
        again.report(tmp_path / "page.html")
        pack_run(out, tmp_path / "run.tar.gz")
    assert content_of(out) == before
    unpack_run(tmp_path / "run.tar.gz", tmp_path / "other")
    assert fs.load_result(tmp_path / "other").scores.equals(whole.scores)


def test_weights_that_are_damaged_where_nothing_can_be_written_cost_no_result(tmp_path):
    whole = retrain(tmp_path)
    (weights, *_) = tmp_path.glob("artifacts/models/*.safetensors")
    harm(weights, "cut")
    with failing(tmp_path, errno.EROFS, operations=WRITES):
        assert retrain(tmp_path).scores.equals(whole.scores)


@KINDS
def test_where_nothing_can_be_written_only_what_is_finished_and_whole_is_read(run, tmp_path):
    out = tmp_path / "run"
    with failing(tmp_path, errno.EROFS, operations=WRITES), refused("cannot be written to"):
        run(out)
    run(out)
    (out / "scores.parquet").write_bytes(b"")
    with failing(out, errno.EROFS, operations=WRITES), refused("is damaged", "copy the folder"):
        run(out)
    with failing(out, errno.EROFS, operations=WRITES), refused("holds another run"):
        run(out, seeds=2) if run is retrain else run(out, k=2)


def test_a_run_that_is_not_finished_is_not_begun_where_nothing_can_be_written(tmp_path):
    out = tmp_path / "run"
    stopped(out)
    with failing(out, errno.EROFS, operations=WRITES), refused("Read-only", "is kept"):
        evaluate(out)
    with failing(out, errno.EROFS, operations=WRITES):
        pack_run(out, tmp_path / "run.tar.gz")
    assert evaluate(out).scores.equals(evaluate(None).scores)


# Disks that do not answer


@pytest.mark.parametrize(
    ("number", "operation"),
    [
        (errno.ENOSPC, "open"),
        (errno.EDQUOT, "replace"),
        (errno.EIO, "fsync"),
        (errno.EROFS, "open"),
        (errno.EMFILE, "open"),
    ],
)
def test_a_disk_that_fails_in_the_middle_costs_nothing_that_is_finished(
    number, operation, tmp_path
):
    whole, out = evaluate(None), tmp_path / "run"
    with failing(out, number, at=12, operations=(operation,)):
        with refused("cannot be written to", os.strerror(number), "is kept"):
            evaluate(out)
    kept = {file: file.read_bytes() for file in out.glob("tasks/*.json")}
    assert kept
    assert not leftovers(out)
    assert evaluate(out).scores.equals(whole.scores)


@pytest.mark.parametrize("file", ["tasks/*.json", "tasks/*/scores.parquet"])
def test_what_cannot_be_read_now_is_not_taken_for_damaged(file, tmp_path):
    out = tmp_path / "run"
    stopped(out)
    before = content_of(out)
    (there, *_) = sorted(out.glob(file))
    with failing(there, errno.EIO, operations=("read",)):
        with refused("cannot be read", "Input/output error"):
            evaluate(out)
    assert content_of(out) == before
    assert evaluate(out).scores.equals(evaluate(None).scores)


@KINDS
def test_a_result_that_cannot_be_read_now_is_not_made_again(run, tmp_path):
    run(tmp_path)
    before = content_of(tmp_path)
    for file in ("manifest.json", "scores.parquet"):
        with failing(tmp_path / file, errno.EIO, operations=("read",)):
            with refused("cannot be read", "Input/output error"):
                run(tmp_path)
    assert content_of(tmp_path) == before


def test_weights_and_states_that_cannot_be_read_now_stay(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bag_runs.run(BagLearner(stop_at=6), tmp_path)
    before = content_of(tmp_path)
    for folder in ("artifacts", "states"):
        with failing(tmp_path / folder, errno.EIO, operations=("read",)):
            with refused("cannot be read", "Input/output error"):
                bag_runs.run(BagLearner(), tmp_path)
    after = content_of(tmp_path)  # masks that nobody needs any more are gone
    assert all(after[file] == held for file, held in before.items() if "masks" not in file.parts)


# Folders that are gone, and things in the way


@KINDS
def test_a_folder_that_is_removed_during_the_run_is_said_to_be_gone(run, tmp_path, monkeypatch):
    out, write = tmp_path / "run", Store.write

    def removed(*arguments: Any) -> Any:
        card = write(*arguments)
        shutil.rmtree(out)
        return card

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", removed)
        with refused("is gone", "begin anew"):
            run(out)
    assert not out.exists()  # nor does it come to life again without its plan
    assert run(out).scores.equals(run(None).scores)


@pytest.mark.parametrize("where", ["tasks", "plan.json", ".lock", "tasks/shard-00000.json"])
@pytest.mark.parametrize("how", ["a file", "a folder", "a loop"])
def test_what_is_in_the_way_is_named_and_left_alone(where, how, tmp_path):
    file = tmp_path / "run" / where
    file.parent.mkdir(parents=True)
    if where.startswith("tasks/"):
        evaluate(tmp_path / "whole")
        shutil.copy(tmp_path / "whole" / "plan.json", tmp_path / "run")
    if how == "a file":
        file.write_text("mine")
    elif how == "a folder":
        (file / "mine").mkdir(parents=True)
    else:
        file.symlink_to(file)
    harmless = [("tasks", "a folder"), (".lock", "a file"), ("plan.json", "a loop")]
    harmless += [("tasks/shard-00000.json", "a loop")]
    if where == "tasks/shard-00000.json" and how == "a file":
        with pytest.warns(UserWarning, match="is damaged"):
            evaluate(tmp_path / "run")
        return
    if (where, how) not in harmless:
        with pytest.raises(fs.FaithscopeError, match=r"\.lock|tasks|plan\.json|shard"):
            evaluate(tmp_path / "run")
    assert how == "a loop" or file.exists()


@pytest.mark.parametrize("place", ["artifacts", "states"])
def test_a_folder_where_weights_or_states_should_be(place, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bag_runs.run(BagLearner(stop_at=6), tmp_path)
    (file, *_) = sorted(tmp_path.glob(f"{place}/**/*.safetensors"))
    file.unlink()
    (file / "mine").mkdir(parents=True)
    with refused(file.name, "directory"):
        bag_runs.run(BagLearner(), tmp_path)
    assert (file / "mine").exists()


# What kills leave behind


@KINDS
def test_what_was_half_written_goes_and_what_is_not_ours_stays(run, tmp_path):
    ours = [".plan.json.0123abcd", ".manifest.json.0123abcd", ".scores.parquet.0123abcd"]
    ours += [".report.html.0123abcd", "tasks/.a.json.0123abcd", "states/.b.0123abcd"]
    mine = [".hidden", ".mine.txt.0123abcd", ".scores.parquet.backup"]
    run(tmp_path)
    (tmp_path / "manifest.json").unlink()
    for name in (*ours, *mine):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("half")
    run(tmp_path)
    assert [name for name in ours if (tmp_path / name).exists()] == []
    assert [name for name in mine if (tmp_path / name).exists()] == mine


def test_half_a_page_goes_when_the_page_is_written_again(tmp_path):
    old, young = tmp_path / ".page.html.0123abcd", tmp_path / ".page.html.4567abcd"
    other = tmp_path / ".other.html.0123abcd"
    for file in (old, young, other):
        file.write_text("half")
    for file in (old, other):
        os.utime(file, (1, 1))
    files.write_output(tmp_path / "page.html", b"whole", "page")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [young.name, other.name, "page.html"]
    )


def hold_a_scratch_folder() -> None:
    with store.scratch() as folder:
        (folder / "large").write_text("held")
        (folder.parent / "ready").touch()
        import time

        time.sleep(60)


def test_temporary_folders_of_killed_runs_go_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "faithscope-mine").mkdir()  # somebody's run
    evaluate(tmp_path / "faithscope-run")
    with another_process(hold_a_scratch_folder):
        while not (tmp_path / "ready").exists():
            pass
        (held,) = [file.parent for file in tmp_path.glob(f"*/{SCRATCH}")]
        retrain(None)
        assert (held / "large").exists()  # it is in use
    retrain(None)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"faithscope-mine", "faithscope-run", "ready"}


def test_no_room_for_temporary_files_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with failing(tmp_path, errno.ENOSPC, at=4), refused("temporary folder", "TMPDIR"):
        retrain(None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with refused("No temporary folder", "TMPDIR"):
        retrain(None)


def test_half_an_unpacked_run_goes_the_next_time(tmp_path):
    evaluate(tmp_path / "run")
    pack_run(tmp_path / "run")
    half, busy, mine = (
        tmp_path / f".new.{token}" for token in ("0123abcd", "4567abcd", "89abcdef")
    )
    for folder in (half, busy, mine):
        folder.mkdir()
    for folder in (half, busy):
        (folder / SCRATCH).touch()
    with FileLock(busy / SCRATCH):
        unpack_run(tmp_path / "run.tar.gz", tmp_path / "new")
    assert not half.exists() and busy.exists() and mine.exists()
    assert not list((tmp_path / "new").glob(".*"))


# A first attempt that was refused


def test_a_plan_of_which_nothing_was_finished_does_not_block_another_run(tmp_path):
    labels = torch.tensor([0, 1, 2, 3, 0, 77])
    with refused("The class 77 is not a class"):
        evaluate(tmp_path, labels=labels[[5, 0, 1, 2, 3, 4]], target="label", batch_size=1)
    labels[5] = 1
    found = evaluate(tmp_path, labels=labels, target="label", batch_size="auto")
    assert found.manifest.plan.request.batch_size > 1  # nor is anything taken from there
    with refused("holds another run"):
        evaluate(tmp_path, labels=labels, target="predicted")


def test_a_plan_with_a_state_or_a_task_stays(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bag_runs.run(BagLearner(stop_at=2), tmp_path)
    with refused("holds another run"):
        bag_runs.run(BagLearner(), tmp_path, levels=[10])


# Memory


def no_memory(kind: str) -> Callable[..., Any]:
    errors = {
        "python": MemoryError(),
        "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried …"),
        "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        "system": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    }

    def raised(*_: Any, **__: Any) -> Any:
        raise errors[kind]

    return raised


MEMORY = pytest.mark.parametrize("kind", ["python", "cpu", "cuda", "system"])


@MEMORY
@pytest.mark.parametrize(
    "place",
    [
        "faithscope.probes.perturb.probe.choose_batch_size",
        "faithscope.probes.perturb.worker.shard_tables",
        "faithscope.probes.perturb.worker.PerturbWorker.load",
        "faithscope.runs.scheduler.Answers.joined",
    ],
)
def test_memory_that_runs_out_is_said_in_words(kind, place, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(place, no_memory(kind))
        with refused("Memory ran out"):
            evaluate(tmp_path, batch_size="auto")
    again = evaluate(tmp_path, batch_size="auto")
    assert again.scores.equals(evaluate(None, batch_size="auto").scores)


@MEMORY
def test_memory_that_runs_out_in_a_training_is_said_in_words(kind, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(BagLearner, "begin", no_memory(kind))
        with refused("Memory ran out", f"kept in '{tmp_path}'"):
            retrain(tmp_path)
    assert retrain(tmp_path).scores.equals(retrain(None).scores)


@MEMORY
def test_memory_that_runs_out_while_measuring_is_said_in_words(kind, monkeypatch):
    prepared = fs.prepare(tiny_vit(), randn(2, 3, 16, 16), "gradient", "saco")
    forward = prepared.planned.worker.setup.forward
    object.__setattr__(forward, "logits", no_memory(kind))
    with refused("Memory ran out"):
        prepared.forecast()


# Clocks and loaders


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, monkeypatch):
    import time

    now = [2e9]

    def earlier() -> float:
        now[0] -= 3600.0
        return now[0]

    whole = evaluate(None)
    monkeypatch.setattr(time, "time", earlier)
    stopped(tmp_path)
    prepared = fs.prepare(toy(4, 4), IMAGES, "gradient", "saco", k=4, random_draws=1, batch_size=64)
    assert prepared.at(tmp_path).forecast().seconds >= 0
    assert evaluate(tmp_path).scores.equals(whole.scores)
    assert evaluate(tmp_path).manifest.cost.seconds >= 0


def parts(*places: slice, error: Exception | None = None) -> Iterator[torch.Tensor]:
    for place in places:
        yield IMAGES[place]
    if error is not None:
        raise error


HALVES = slice(0, 2), slice(2, 4), slice(4, 6)


@pytest.mark.parametrize("error", [RuntimeError("a worker died"), KeyError("x"), OSError(5, "no")])
@pytest.mark.parametrize("count", [0, 2])
def test_a_loader_that_fails_is_named_and_the_run_resumes(error, count, tmp_path):
    with refused(f"The loader failed after {count} item", type(error).__name__):
        evaluate(tmp_path, parts(*HALVES[:count], error=error))
    assert evaluate(tmp_path, parts(*HALVES)).scores.equals(evaluate(None, parts(*HALVES)).scores)


DEADLY = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
import faithscope as fs

class Deadly(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, place):
        if place == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.rand(3, 8, 8)

module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
loader = DataLoader(Deadly(), batch_size=2, num_workers=1, multiprocessing_context="fork")
try:
    fs.evaluate(module, loader, "gradient", "saco", random_draws=0)
except fs.FaithscopeError as error:
    sys.exit(str(error))
"""


def test_a_loader_whose_worker_is_killed_is_named():
    # in a process of its own: torch raises from a signal, wherever the main thread happens to be
    command = [sys.executable, "-W", "ignore", "-c", DEADLY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "The loader failed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_stream_that_became_longer_or_shorter_is_noticed(tmp_path):
    evaluate(tmp_path, parts(*HALVES[:2]))
    for other in (HALVES, HALVES[:1]):
        with refused("The data has changed"):
            evaluate(tmp_path, parts(*other))
    evaluate(tmp_path, parts(*HALVES[:2]))


def test_a_stream_that_became_shorter_since_it_was_stopped_is_noticed(tmp_path):
    with refused("The loader failed"):
        evaluate(tmp_path, parts(*HALVES, error=ValueError("stop")))
    assert cards_in(tmp_path) >= 2
    with refused("The data has changed"):
        evaluate(tmp_path, parts(*HALVES[:1]))


@pytest.fixture
def lazy(vit) -> Callable[[Callable[[int], Any]], LazyImages]:
    return lambda read: LazyImages(read, [f"{i}.png" for i in range(4)], vit)


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("no"), FileNotFoundError(2, "no")])
def test_an_item_that_cannot_be_read_costs_that_item(error, lazy, vit):
    def read(place: int) -> torch.Tensor:
        if place == 1:
            raise error
        return randn(3, 16, 16, seed=place)

    found = fs.evaluate(vit, lazy(read), "gradient", "saco", random_draws=0)
    assert [item.name for item in found.manifest.data.skipped] == ["1.png"]
    assert found.samples["sample"].to_pylist() == ["0.png", "2.png", "3.png"]


def test_a_disk_that_does_not_answer_costs_no_image(lazy, vit, tmp_path):
    calls = []

    def read(place: int) -> torch.Tensor:
        calls.append(place)
        if len(calls) == 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return randn(3, 16, 16, seed=place)

    with refused("'3.png' of data cannot be read now", "Input/output error"):
        fs.evaluate(vit, lazy(read), "gradient", "saco", random_draws=0, out=tmp_path)
    found = fs.evaluate(vit, lazy(read), "gradient", "saco", random_draws=0, out=tmp_path)
    assert found.samples.num_rows == 4
    assert np.isfinite(found.scores["value"].to_numpy()).all()
