"""A ROAR run survives: whatever stops it, the same call resumes it and ends with the same bits."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import faithscope as fs
from bags import MEASURES, BagLearner, bag_texts
from faithscope.api import Prepared
from faithscope.errors import FaithscopeError
from faithscope.probes.retrain.learner import Recipe
from faithscope.runs import files
from faithscope.runs.files import read_tensors, sealed, tensor_file, unsealed
from faithscope.runs.scheduler import Keeping, TaskContext
from faithscope.runs.store import Store
from faithscope.runs.task import Task
from families import refused

EPOCHS, JOBS, PACKS = 4, 36, 8
SMALL = {"measures": MEASURES, "seeds": 2, "levels": [20, 50, 80], "keep_every": 0}
BASES = {"k000-s0", "k000-s1"}


def prepared(learner: BagLearner, out: Path | None, **options: Any) -> Prepared:
    data = options.pop("data", bag_texts())
    return fs.prepare_roar(data, learner, out=out, **{**SMALL, **options})


def run(learner: BagLearner, out: Path | None, **options: Any) -> fs.Result:
    return prepared(learner, out, **options).run()


def stopped(out: Path, epochs: int, **options: Any) -> BagLearner:
    """Stop in so many epochs from now."""
    learner = BagLearner(stop_at=epochs)
    with pytest.raises(KeyboardInterrupt):
        run(learner, out, **options)
    return learner


def stopped_in(out: Path, pack: str) -> None:
    """Stop in the third epoch of a pack."""
    tasks = prepared(BagLearner(), None).planned.tasks
    before = [task for task in tasks if task.kind == "train" and task.arguments["pack"] < pack]
    stopped(out, len(before) * EPOCHS + 3)


def assert_same_bits(left: fs.Result, right: fs.Result) -> None:
    """Everything but the time it took and the packs it was trained in."""
    for name in ("scores", "trainings", "sparsity", "examples"):
        columns = [c for c in left.get_table(name).column_names if c != "seconds"]
        one, other = (result.get_table(name).select(columns) for result in (left, right))
        assert one.equals(other), name
        if "value" in columns:
            assert one["value"].to_numpy().tobytes() == other["value"].to_numpy().tobytes()
    assert left.manifest.doubts == right.manifest.doubts
    assert left.manifest.data == right.manifest.data
    assert left.headline() == right.headline()


def cards_in(root: Path) -> int:
    return len(list(root.glob("tasks/[!.]*.json")))


def weights_in(root: Path) -> set[str]:
    """The trainings whose weights are there."""
    return {
        file.stem
        for file in root.glob("artifacts/models/*.safetensors")
        if any(name.startswith("weights.") for name in read_tensors(file.read_bytes())[0])
    }


def content_of(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}


def harm(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "gone":
        return file.unlink()
    if how == "cut":
        del content[len(content) // 2 :]
    else:
        content[-20] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What a killed process wrote is not lost with it; only a dead machine needs fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def whole() -> fs.Result:
    return run(BagLearner(), None)


def test_a_run_with_a_folder_is_the_run_without_one_and_is_read_the_next_time(whole, tmp_path):
    assert_same_bits(run(BagLearner(), tmp_path), whole)
    assert_same_bits(fs.load_result(tmp_path), whole)
    assert cards_in(tmp_path) == 2 * PACKS
    assert not (tmp_path / "states").exists()
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert learner.begun == [] and learner.explained == []


# Stopped and killed


@pytest.mark.parametrize("epochs", [1, 2, 7, 13, 24])
def test_a_run_that_is_stopped_resumes_from_its_last_epoch(whole, tmp_path, epochs):
    first = stopped(tmp_path, epochs)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert first.epochs_run - 1 + learner.epochs_run == PACKS * EPOCHS  # not one twice
    assert learner.resumed == ([(epochs - 1) % EPOCHS] if (epochs - 1) % EPOCHS else [])


def test_states_are_kept_only_so_often(whole, tmp_path):
    stopped(tmp_path, 7, keep_every=1000.0)
    assert not list(tmp_path.glob("states/*"))
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path, keep_every=1000.0), whole)
    assert learner.resumed == []
    assert learner.epochs_run == (PACKS - 1) * EPOCHS  # the first pack was finished


def test_keeping_what_takes_long_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("faithscope.runs.scheduler.time.monotonic", lambda: clock[0])

    def state() -> dict[str, torch.Tensor]:  # from a GPU, say
        clock[0] += 2.0
        return {"a": torch.zeros(1)}

    store, keeping = Store(tmp_path), Keeping(every=5.0, last=0.0)
    kept = []
    for place, wait in enumerate((4.9, 0.2, 5.1, 34.8, 0.2)):  # each in another task
        clock[0] += wait
        task = Task(f"train-{place}", "train")
        TaskContext(task, store, lambda *_: None, keeping).keep(state, {})
        kept.append((tmp_path / "states" / f"{task.id}.safetensors").exists())
    assert kept == [False, True, False, False, True]


def killed(out: Path, seconds: float, pace: float) -> None:
    """Run in a process of its own, and kill that after so many seconds."""
    child = multiprocessing.get_context("fork").Process(
        target=run, args=(BagLearner(seconds=pace), out)
    )
    child.start()
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    child.join()


def survives_kills(whole: fs.Result, out: Path, times: int, seed: int, pace: float) -> None:
    draw, kept, patience = random.Random(seed), [0], 0.5
    while len(kept) <= times or kept[-1] == 0:
        killed(out, draw.uniform(0.02, patience), pace)
        patience *= 1.0 if kept[-1] else 1.3
        kept.append(cards_in(out))
    assert kept == sorted(kept)
    assert_same_bits(run(BagLearner(), out), whole)
    assert not [file for file in out.rglob(".*") if file.name != ".lock"]


def test_a_run_that_is_killed_five_times_ends_with_the_same_bits(whole, tmp_path):
    survives_kills(whole, tmp_path, 5, seed=0, pace=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(whole, tmp_path, seed):
    survives_kills(whole, tmp_path, 20, seed, pace=0.1)


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    child = multiprocessing.get_context("fork").Process(
        target=run, args=(BagLearner(seconds=0.2), tmp_path)
    )
    child.start()
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "plan.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with refused("Another run is writing", "another folder"):
            run(BagLearner(), tmp_path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


def test_all_machines_and_versions_that_trained_are_named(tmp_path, monkeypatch):
    worker = "faithscope.runs.machine"
    for name, stop in (("first", True), ("second", False)):
        monkeypatch.setattr(f"{worker}.device_name", lambda _, name=name: name)
        versions = {"torch": name, "numpy": version("numpy")}
        monkeypatch.setattr(f"{worker}.package_versions", lambda _, held=versions: held)
        result = stopped(tmp_path, 7) if stop else run(BagLearner(), tmp_path)
    assert result.manifest.machine.device == "first, second"
    assert result.manifest.versions["torch"] == "first, second"
    assert result.manifest.versions["numpy"] == version("numpy")


@pytest.mark.parametrize("room", [0, 1, 5, 30, 100, 130])
def test_no_space_left_costs_nothing_that_is_finished(whole, tmp_path, monkeypatch, room):
    write, left = files.write_file, [room]

    def fill_up(path: Path, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_file", fill_up)
        with pytest.raises(FaithscopeError, match=r"No space left.*make room"):
            run(BagLearner(), tmp_path)
    finished = len(list(tmp_path.glob("tasks/train*.json")))
    assert not [file for file in tmp_path.rglob(".*") if file.name != ".lock"]
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert learner.epochs_run <= (PACKS - finished) * EPOCHS


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    learner = BagLearner()
    with refused("cannot be written to"):
        run(learner, tmp_path / "file" / "run")
    assert learner.begun == []


# Another run


@pytest.mark.parametrize(
    ("learner", "options", "words"),
    [
        (BagLearner(), {"levels": [10, 50]}, "request levels is [0, 20, 50, 80, 100] there"),
        (BagLearner(), {"seeds": 3}, "request seeds is [0, 1] there and [0, 1, 2] here"),
        (BagLearner(), {"procedures": "roar"}, "request procedures is"),
        (BagLearner(), {"measures": ["gradient"]}, 'and ["gradient", "random"] here'),
        (BagLearner(), {"metrics": "racu(clip=false)"}, "request metrics is"),
        (BagLearner(), {"specials": False}, "request specials is true there and false here"),
        (BagLearner(), {"data": bag_texts(seed=1)}, "data fingerprint is"),
        (BagLearner(name="other"), {}, 'model name is "bag" there and "other" here'),
        (BagLearner(recipe=Recipe(5, 16, 1)), {}, "epochs is 4 there and 5 here"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path, learner, options, words):
    stopped(tmp_path, 7)
    before = content_of(tmp_path)
    with refused("holds another run", words):
        run(learner, tmp_path, **options)
    assert content_of(tmp_path) == before
    assert learner.begun == []


def test_a_label_that_changed_is_another_run(tmp_path):
    run(BagLearner(), tmp_path)
    data = bag_texts()
    labels = data.test.labels.copy()
    labels[-1] = 1 - labels[-1]
    with refused("data fingerprint"):
        run(BagLearner(), tmp_path, data=replace(data, test=replace(data.test, labels=labels)))


def test_the_pack_size_of_a_run_that_was_begun_is_kept(whole, tmp_path):
    stopped(tmp_path, 7)
    result = run(BagLearner(pack_size=50), tmp_path)
    assert_same_bits(result, whole)
    assert result.manifest.plan.pack_size == 7 and result.manifest.cost.packs == PACKS


@pytest.mark.parametrize("content", ["", "{", "null", "{}"])
def test_a_damaged_plan_is_said_to_be_damaged(tmp_path, content):
    stopped(tmp_path, 7)
    (tmp_path / "plan.json").write_text(content)
    with refused("plan.json' is damaged"):
        run(BagLearner(), tmp_path)


def test_what_is_not_known_to_be_of_this_run_is_left_alone(whole, tmp_path):
    whole.save(tmp_path / "saved")
    with refused("holds a result already"):
        run(BagLearner(), tmp_path / "saved")
    stopped(tmp_path / "run", 7)
    (tmp_path / "run" / "plan.json").unlink()
    learner = BagLearner()
    with refused("holds finished tasks but no plan.json"):
        run(learner, tmp_path / "run")
    assert learner.begun == []


# Damaged and lost files

FILES = {
    "a card": "tasks/train-s0-1-01-000.json",
    "a table": "tasks/train-s0-1-01-000/trainings.parquet",
    "a table of masks": "tasks/mask-s0-1-01-001/examples.parquet",
    "a base": "artifacts/models/k000-s0.safetensors",
    "a link": "artifacts/models/input_x_gradient-roar-k020-s1.safetensors",
    "masks": "artifacts/masks/s0-1-01-001.safetensors",
    "a state": "states/train-s0-1-01-001.safetensors",
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_named_and_computed_again(whole, tmp_path, what, how, recwarn):
    stopped_in(tmp_path, "01-001")  # the first pack of its wave is finished, the next one begun
    file = tmp_path / FILES[what]
    harm(file, how)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    said = " ".join(str(one.message) for one in recwarn)
    name = FILES[what].split("/")[1].removesuffix(".json")
    named = f"The task '{name}'" if what.startswith(("a card", "a table")) else file.name
    expected = how != "gone" or what.startswith("a table")
    assert (named in said and "is damaged" in said) == expected, said
    assert learner.resumed == ([] if what == "a state" else [2])
    assert len(learner.begun) < JOBS


def test_weights_that_are_lost_are_trained_again_and_the_first_rows_stay(whole, tmp_path):
    stopped_in(tmp_path, "01-001")
    (tmp_path / FILES["a base"]).unlink()
    tables = sorted(tmp_path.glob("tasks/train-s0-1-00-*/*.parquet"))
    before = [file.read_bytes() for file in tables]  # with the seconds they took
    request = prepared(BagLearner(), tmp_path)
    found = request.forecast()
    assert found.again > 0 and "of them to be done again" in str(found)
    assert_same_bits(request.run(), whole)
    assert [file.read_bytes() for file in tables] == before
    assert weights_in(tmp_path) == BASES


def test_a_card_lost_with_what_its_pack_was_masked_by_brings_back_the_chain(whole, tmp_path):
    run(BagLearner(), tmp_path)
    for name in ("manifest.json", "tasks/train-s0-1-03-001.json"):
        (tmp_path / name).unlink()
    harm(tmp_path / FILES["a base"], "cut")
    before = content_of(tmp_path)
    learner = BagLearner()
    request = prepared(learner, tmp_path)
    found = request.forecast()
    assert content_of(tmp_path) == before  # a forecast changes nothing
    assert found.finished == 2 * PACKS - 1 and found.again > 0
    learner.begun.clear()
    with pytest.warns(UserWarning, match="k000-s0.safetensors' is damaged"):
        assert_same_bits(request.run(), whole)
    assert len(learner.begun) == found.cost["trainings"] < JOBS
    assert weights_in(tmp_path) == BASES  # nor do links stay that were trained again


def test_masks_damaged_while_the_run_goes_on_are_noticed(whole, tmp_path, monkeypatch):
    write = Store.write_artifact

    def damaged(store: Store, name: str, *held: Any) -> str:
        found = write(store, name, *held)
        if name == "masks/s0-1-02-001":
            harm(tmp_path / "artifacts" / f"{name}.safetensors", "flipped")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_artifact", damaged)
        with refused("was damaged during the run"):
            run(BagLearner(), tmp_path)
    with pytest.warns(UserWarning, match="is damaged"):
        assert_same_bits(run(BagLearner(), tmp_path), whole)


@pytest.mark.parametrize(
    "name", ["trainings.parquet", "examples.parquet", "scores.parquet", "manifest.json"]
)
def test_tables_that_are_damaged_are_made_again_from_the_trainings(whole, tmp_path, name):
    run(BagLearner(), tmp_path)
    harm(tmp_path / name, "cut")
    with refused("is not a whole faithscope run"):
        fs.load_result(tmp_path)
    learner = BagLearner()
    with pytest.warns(UserWarning, match="The result in .* is damaged"):
        assert_same_bits(run(learner, tmp_path), whole)
    assert_same_bits(fs.load_result(tmp_path), whole)
    assert learner.begun == [] and learner.explained == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["format"], 9, "format 9"),
        (["data"], None, "'data'"),
        (["data", "texts", "majority"], {}, "data.texts.majority"),
        (["plan", "request", "procedures"], "roar", "procedures"),
        (["cost", "explained"], 3, "cost.explained"),
        (["files", "../secret.parquet"], "0", "no table of a run"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(whole, tmp_path, path, value, words):
    whole.save(tmp_path)
    file = tmp_path / "manifest.json"
    content = place = unsealed(file.read_bytes())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_bytes(sealed(content))
    with refused("is not a whole faithscope run", words):
        fs.load_result(tmp_path)


def test_tensors_that_share_memory_or_have_no_size_are_kept():
    base = torch.arange(12.0).reshape(3, 4)
    held = {"a": base, "b": base[1], "c": base.T, "d": torch.tensor(3), "e": torch.zeros(0, 2)}
    tensors, about = read_tensors(tensor_file(held, {"note": "ü"}))
    assert about == {"note": "ü"}
    for name, tensor in held.items():
        assert torch.equal(tensors[name], tensor)


# How long weights are kept


def test_weights_are_kept_while_a_job_needs_them_and_of_the_intact_texts(tmp_path):
    run(BagLearner(), tmp_path)
    assert weights_in(tmp_path) == BASES
    assert not list(tmp_path.glob("artifacts/masks/*"))
    run(BagLearner(), tmp_path / "all", keep_weights=True)
    assert len(weights_in(tmp_path / "all")) == JOBS


def test_weights_go_when_it_is_decided_what_is_masked_with_them(whole, tmp_path):
    links = {f"{name}-{{}}-s{seed}" for name in MEASURES[:2] for seed in range(2)}
    stopped_in(tmp_path, "01-001")
    assert weights_in(tmp_path) == BASES | {name.format("roar-k020") for name in links}
    stopped(tmp_path, 3)  # two epochs of that pack, then in the first of the next wave
    stopped(tmp_path, 1)  # what was not dropped then is dropped now
    assert weights_in(tmp_path) == BASES
    assert {file.stem for file in tmp_path.glob("artifacts/masks/*")} == {
        "s0-1-02-000",
        "s0-1-02-001",
    }
    assert_same_bits(run(BagLearner(), tmp_path), whole)


def test_weights_that_were_dropped_are_not_brought_back_silently(whole, tmp_path):
    stopped(tmp_path, 7)
    for _ in range(2):
        with pytest.warns(UserWarning, match="weights of .* are not brought back"):
            assert_same_bits(run(BagLearner(), tmp_path, keep_weights=True), whole)


def test_kept_weights_need_no_warning(tmp_path, recwarn):
    for _ in range(2):
        run(BagLearner(), tmp_path, keep_weights=True)
    assert not [one for one in recwarn if "weights" in str(one.message)]
