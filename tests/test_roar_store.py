"""A ROAR run survives: whatever stops it, the same call goes on and ends with the same bits."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from bags import MEASURES, BagLearner, bag_texts
from faithscope.errors import FaithscopeError
from faithscope.probes.retrain.learner import Recipe
from faithscope.probes.retrain.result import RoarResult, load_roar
from faithscope.probes.retrain.roar import prepare_roar
from faithscope.probes.retrain.store import Inputs, RoarStore, read_tensors, tensor_file
from faithscope.result import load_result
from faithscope.runs import files
from families import refused

EPOCHS = 4
JOBS = 36


def run(learner: BagLearner, out: Path | None, **options) -> RoarResult:
    data = options.pop("data", bag_texts())
    options = {
        "measures": MEASURES,
        "seeds": 2,
        "levels": [20, 50, 80],
        "keep_every": 0,
        **options,
    }
    return prepare_roar(data, learner, out=out, **options).run()


def assert_same_bits(left: RoarResult, right: RoarResult) -> None:
    names = [name for name in left.trainings.column_names if name != "seconds"]
    assert left.trainings.select(names).equals(right.trainings.select(names))
    values = [result.trainings["value"].to_numpy().tobytes() for result in (left, right)]
    assert values[0] == values[1]
    assert left.sparsity.equals(right.sparsity)
    assert left.examples == right.examples
    for key in left.manifest:
        if key not in ("cost", "created"):
            assert left.manifest[key] == right.manifest[key]


def jobs_in(root: Path) -> int:
    return len(list((root / "jobs").glob("[!.]*.json")))


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """What a killed process wrote is not lost with it; only a dead machine needs fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def whole() -> RoarResult:
    return run(BagLearner(), None)


def test_a_run_with_a_folder_is_the_run_without_one(whole, tmp_path):
    assert_same_bits(run(BagLearner(), tmp_path), whole)
    assert_same_bits(load_roar(tmp_path), whole)
    assert jobs_in(tmp_path) == JOBS
    assert not (tmp_path / "packs").exists()


def stopped(out: Path, epochs: int, **options) -> BagLearner:
    learner = BagLearner(stop_at=epochs)
    with pytest.raises(KeyboardInterrupt):
        run(learner, out, **options)
    return learner


@pytest.mark.parametrize("epochs", [1, 2, 7, 13, 24])
def test_a_run_that_is_stopped_goes_on_from_its_last_epoch(whole, tmp_path, epochs):
    first = stopped(tmp_path, epochs)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    packs = whole.manifest["cost"]["packs"]
    assert first.epochs_run - 1 + learner.epochs_run == packs * EPOCHS  # not one twice
    assert learner.resumed == ([(epochs - 1) % EPOCHS] if (epochs - 1) % EPOCHS else [])


def test_states_are_kept_only_so_often(whole, tmp_path):
    stopped(tmp_path, 7, keep_every=1000.0)
    assert not list(tmp_path.glob("packs/*/state.safetensors"))
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path, keep_every=1000.0), whole)
    assert learner.resumed == []
    packs = whole.manifest["cost"]["packs"]
    assert learner.epochs_run == (packs - 1) * EPOCHS  # the first pack was finished


def test_keeping_what_takes_long_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("faithscope.probes.retrain.store.time.monotonic", lambda: clock[0])
    real = files.replace_file

    def slow(*given):
        clock[0] += 0.5
        return real(*given)

    def state():  # from a GPU, say
        clock[0] += 1.5
        return {"a": torch.zeros(1)}

    monkeypatch.setattr("faithscope.probes.retrain.store.replace_file", slow)
    request = prepare_roar(bag_texts(), BagLearner(), measures=MEASURES, out=tmp_path)
    pack = request.packs[0]
    (tmp_path / "packs" / pack.id).mkdir(parents=True)
    store = RoarStore(tmp_path, request.jobs, keep_every=5.0)
    found = []
    for wait in (4.9, 0.2):
        clock[0] += wait
        found.append(store.is_time_to_keep())
    store.keep(pack, Inputs({}, {}), state, 0.0)
    for wait in (5.1, 34.8, 0.2):
        clock[0] += wait
        found.append(store.is_time_to_keep())
    assert found == [False, True, False, False, True]


def test_all_machines_and_versions_that_trained_are_named(tmp_path, monkeypatch):
    roar = "faithscope.probes.retrain.roar"
    for name, stop in (("first", True), ("second", False)):
        monkeypatch.setattr(f"{roar}._device_name", lambda _, name=name: name)
        monkeypatch.setattr(f"{roar}.package_versions", lambda name=name: {"torch": name})
        result = stopped(tmp_path, 7) if stop else run(BagLearner(), tmp_path)
    assert result.manifest["machine"]["device"] == "first, second"
    assert result.manifest["versions"]["torch"] == "first, second"
    assert result.manifest["versions"]["numpy"] == version("numpy")


def killed(out: Path, seconds: float, pace: float) -> None:
    """Run in a process of its own, and kill that after so many seconds."""
    child = multiprocessing.get_context("fork").Process(
        target=run, args=(BagLearner(seconds=pace), out)
    )
    child.start()
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    child.join()


def survives_kills(whole: RoarResult, out: Path, times: int, seed: int, pace: float = 0.03) -> None:
    draw = random.Random(seed)
    kept = [0]
    patience = 0.5
    while len(kept) <= times or kept[-1] == 0:
        killed(out, draw.uniform(0.02, patience), pace)
        patience *= 1.0 if kept[-1] else 1.3
        kept.append(jobs_in(out))
    assert kept == sorted(kept)
    assert_same_bits(run(BagLearner(), out), whole)
    assert not list(out.glob("jobs/.*"))


def test_a_run_that_is_killed_five_times_ends_with_the_same_bits(whole, tmp_path):
    survives_kills(whole, tmp_path, 5, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(whole, tmp_path, seed):
    survives_kills(whole, tmp_path, 20, seed, pace=0.1)


def test_a_run_that_is_whole_is_read_and_not_run(whole, tmp_path):
    run(BagLearner(), tmp_path)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert learner.begun == [] and learner.explained == []


@pytest.mark.parametrize(
    "name", ["trainings.parquet", "sparsity.parquet", "examples.json", "manifest.json"]
)
def test_a_whole_run_that_is_damaged_is_made_again_from_its_trainings(whole, tmp_path, name):
    run(BagLearner(), tmp_path)
    harm(tmp_path / name, "cut")
    learner = BagLearner()
    request = prepare_roar(
        *(bag_texts(), learner), measures=MEASURES, seeds=2, levels=[20, 50, 80], out=tmp_path
    )
    assert not request.is_finished
    with pytest.warns(UserWarning, match="is damaged: its tables are made again"):
        assert_same_bits(request.run(), whole)
    assert request.is_finished
    assert_same_bits(load_roar(tmp_path), whole)
    assert learner.begun == [] and learner.explained == []


def test_trainings_without_a_plan_are_not_used(tmp_path):
    run(BagLearner(), tmp_path)
    for name in ("plan.json", "manifest.json"):
        (tmp_path / name).unlink()
    learner = BagLearner()
    with refused("holds trainings but no plan.json"):
        run(learner, tmp_path, data=bag_texts(seed=1))
    assert learner.begun == []


@pytest.mark.parametrize("content", ["", "{", "null", "{}"])
def test_a_damaged_plan_is_said_to_be_damaged(tmp_path, content):
    stopped(tmp_path, 7)
    (tmp_path / "plan.json").write_text(content)
    with refused("plan.json' is damaged"):
        run(BagLearner(), tmp_path)


def test_clip_is_as_asked_for_in_a_run_that_is_whole(tmp_path):
    run(BagLearner(), tmp_path)
    learner = BagLearner()
    result = run(learner, tmp_path, clip=False)
    assert result.manifest["protocol"]["clip"] is False and learner.begun == []
    assert load_roar(tmp_path).manifest == result.manifest
    assert run(learner, tmp_path).manifest["protocol"]["clip"] is True


def test_weights_that_were_dropped_are_not_brought_back_silently(whole, tmp_path):
    stopped(tmp_path, 7)
    with pytest.warns(UserWarning, match="weights of .* are not brought back"):
        assert_same_bits(run(BagLearner(), tmp_path, keep_weights=True), whole)
    with pytest.warns(UserWarning, match="weights of .* are not brought back"):
        run(BagLearner(), tmp_path, keep_weights=True)


def test_kept_weights_need_no_warning(tmp_path, recwarn):
    for _ in range(2):
        run(BagLearner(), tmp_path, keep_weights=True)
    assert not [one for one in recwarn if "weights" in str(one.message)]


def test_names_that_are_no_text_are_written_and_read(whole, tmp_path):
    """No source gives them, but one's own data may."""
    examples = [{**whole.examples[0], "words": ["\ud800"] * 20}]
    replace(whole, examples=examples).save(tmp_path)
    assert load_roar(tmp_path).examples == examples


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


@pytest.mark.parametrize(
    ("learner", "options", "words"),
    [
        (BagLearner(), {"levels": [10, 50]}, "protocol levels is [0, 20, 50, 80, 100] there"),
        (BagLearner(), {"seeds": 3}, "protocol seeds is [0, 1] there and [0, 1, 2] here"),
        (BagLearner(), {"procedures": "roar"}, "protocol procedures is"),
        (BagLearner(), {"measures": ["gradient"]}, "protocol measures is"),
        (BagLearner(), {"data": bag_texts(seed=1)}, "data fingerprint is"),
        (BagLearner(name="other"), {}, 'model name is "bag" there and "other" here'),
        (BagLearner(recipe=Recipe(5, 16, 1)), {}, "model recipe epochs is 4 there and 5 here"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path, learner, options, words):
    stopped(tmp_path, 7)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with refused("holds another run", words):
        run(learner, tmp_path, **options)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_a_label_that_changed_is_another_run(tmp_path):
    run(BagLearner(), tmp_path)
    data = bag_texts()
    labels = data.test.labels.copy()
    labels[-1] = 1 - labels[-1]
    with refused("data fingerprint"):
        run(BagLearner(), tmp_path, data=replace(data, test=replace(data.test, labels=labels)))


def test_the_pack_size_of_a_run_that_was_begun_is_kept(whole, tmp_path):
    stopped(tmp_path, 7)
    other = BagLearner(pack_size=50)
    assert_same_bits(run(other, tmp_path), whole)
    assert json.loads((tmp_path / "plan.json").read_text())["pack_size"] == 7


def test_a_result_saved_by_hand_is_not_overwritten(whole, tmp_path):
    whole.save(tmp_path)
    with refused("holds a result already"):
        run(BagLearner(), tmp_path)


def harm(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        place = len(content) - 20
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def stopped_in(out: Path, pack: str) -> None:
    """Stop in the third epoch of a pack."""
    request = prepare_roar(
        bag_texts(), BagLearner(), measures=MEASURES, seeds=2, levels=[20, 50, 80]
    )
    stopped(out, sum(one.id < pack for one in request.packs) * EPOCHS + 3)


FILES = {
    "a card": "jobs/gradient-roar-k020-s0.json",
    "a base": "jobs/k000-s0.safetensors",
    "a link": "jobs/input_x_gradient-roar-k020-s1.safetensors",
    "inputs": "packs/*/inputs.safetensors",
    "a state": "packs/*/state.safetensors",
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_named_and_computed_again(whole, tmp_path, what, how):
    stopped_in(tmp_path, "01-001")  # the first pack of its wave is finished, the next not begun
    (file,) = tmp_path.glob(FILES[what])
    harm(file, how)
    if what in ("a base", "a link"):  # what was masked with them is kept, and would do
        for kept in tmp_path.glob("packs/*/inputs.safetensors"):
            kept.unlink()
    learner = BagLearner()
    if how == "gone":
        result = run(learner, tmp_path)
    else:
        with pytest.warns(UserWarning, match=f"{file.name}' is damaged"):
            result = run(learner, tmp_path)
    assert_same_bits(result, whole)
    assert learner.resumed == ([] if what == "a state" else [2])


def test_a_link_lost_together_with_what_hangs_on_it_is_computed_again(whole, tmp_path):
    run(BagLearner(), tmp_path)
    for name in ("manifest.json", "jobs/gradient-recursive-k080-s1.json"):
        (tmp_path / name).unlink()
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert 0 < len(learner.begun) < JOBS
    assert weights_in(tmp_path) == BASES  # nor do the links stay that were trained again with it


def test_a_forecast_counts_what_will_be_trained_again_and_changes_nothing(tmp_path, recwarn):
    run(BagLearner(), tmp_path)
    for name in ("manifest.json", "jobs/gradient-recursive-k080-s1.json"):
        (tmp_path / name).unlink()
    harm(tmp_path / "jobs" / "k000-s0.safetensors", "cut")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    learner = BagLearner()
    request = prepare_roar(
        bag_texts(), learner, measures=MEASURES, seeds=2, levels=[20, 50, 80], out=tmp_path
    )
    told = request.forecast()
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before
    assert not recwarn.list
    assert told.finished == JOBS - 1
    assert f"({JOBS - 1} are finished, {told.again} of them to be trained again)" in str(told)
    learner.begun.clear()
    with pytest.warns(UserWarning, match="is damaged"):
        request.run()
    assert len(learner.begun) == told.again + 1


def test_tables_made_again_cost_no_weights_that_were_kept(tmp_path):
    run(BagLearner(), tmp_path, keep_weights=True)
    (tmp_path / "manifest.json").unlink()
    run(BagLearner(), tmp_path)
    assert len(weights_in(tmp_path)) == JOBS


def test_weights_are_kept_while_a_job_needs_them_and_of_the_intact_texts(tmp_path):
    run(BagLearner(), tmp_path)
    assert weights_in(tmp_path) == BASES
    run(BagLearner(), tmp_path / "all", keep_weights=True)
    files_ = list((tmp_path / "all").glob("jobs/*.safetensors"))
    assert len(files_) == JOBS
    assert all("weights.weight" in read_tensors(file)[0] for file in files_)


def weights_in(root: Path) -> set[str]:
    return {
        file.stem
        for file in root.glob("jobs/*.safetensors")
        if any(name.startswith("weights.") for name in read_tensors(file)[0])
    }


BASES = {"k000-s0", "k000-s1"}
LINKS = {f"{name}-{{}}-s{seed}" for name in MEASURES[:2] for seed in range(2)}


def test_weights_are_dropped_before_the_wave_that_needs_them_is_trained(whole, tmp_path):
    """Then what its packs mask is kept, for all of them."""
    stopped_in(tmp_path, "01-001")
    assert weights_in(tmp_path) == BASES | {name.format("roar-k020") for name in LINKS}
    stopped(tmp_path, 3)  # two epochs of that pack, then in the first of the next
    assert weights_in(tmp_path) == BASES
    assert {path.parent.name for path in tmp_path.glob("packs/*/inputs.*")} == {"02-000", "02-001"}
    assert_same_bits(run(BagLearner(), tmp_path), whole)


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_inputs_lost_after_the_weights_they_came_from_are_computed_again(whole, tmp_path, how):
    stopped_in(tmp_path, "02-000")
    harm(tmp_path / "packs" / "02-001" / "inputs.safetensors", how)
    learner = BagLearner()
    if how == "gone":
        result = run(learner, tmp_path)
    else:
        with pytest.warns(UserWarning, match="inputs.safetensors' is damaged"):
            result = run(learner, tmp_path)
    assert_same_bits(result, whole)
    assert learner.resumed == [2]


def test_inputs_damaged_while_the_run_goes_on_are_said(whole, tmp_path, monkeypatch):
    write = RoarStore.write_inputs

    def damaged(store, pack, inputs):
        write(store, pack, inputs)
        if pack.id == "02-001":
            harm(tmp_path / "packs" / pack.id / "inputs.safetensors", "flipped")

    with monkeypatch.context() as patch:
        patch.setattr(RoarStore, "write_inputs", damaged)
        with pytest.warns(UserWarning, match="is damaged"), refused("give the same command"):
            run(BagLearner(), tmp_path)
    assert_same_bits(run(BagLearner(), tmp_path), whole)


@pytest.mark.parametrize("room", [0, 1, 5, 30, 100, 115])
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
        try:
            run(BagLearner(), tmp_path)
        except FaithscopeError as error:
            assert "No space left" in str(error) and "make room" in str(error)
        else:
            raise AssertionError("there was room for everything")
    finished = jobs_in(tmp_path)
    assert not list(tmp_path.rglob(".*.json.*"))
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), whole)
    assert len(learner.begun) <= JOBS - finished + learner.pack_size


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    learner = BagLearner()
    with refused("cannot be written to"):
        run(learner, tmp_path / "file" / "run")
    assert learner.begun == []


def test_what_a_kill_left_unfinished_is_cleared_away(whole, tmp_path):
    stopped(tmp_path, 7)
    (tmp_path / "jobs" / ".k000-s0.json.0a1b2c3d").write_text("half")
    assert_same_bits(run(BagLearner(), tmp_path), whole)
    assert not list(tmp_path.glob("jobs/.*"))


def test_tensors_that_share_memory_or_have_no_size_are_kept(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    held = {"a": base, "b": base[1], "c": base.T, "d": torch.tensor(3), "e": torch.zeros(0, 2)}
    (tmp_path / "file").write_bytes(tensor_file(held, {"note": "ü"}))
    tensors, about = read_tensors(tmp_path / "file")
    assert about["note"] == "ü"
    for name, tensor in held.items():
        assert torch.equal(tensors[name], tensor)


# What is read back is checked


def test_a_run_of_another_kind_is_refused(tmp_path, whole):
    with refused("is not a whole ROAR run", "FileNotFoundError"):
        load_roar(tmp_path)
    whole.save(tmp_path)
    with refused("is a ROAR run"):
        load_result(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["kind"], "saco", "another kind"),
        (["format"], 9, "format 9"),
        (["data"], None, "lacks 'data'"),
        (["data", "majority"], {}, "data.majority"),
        (["protocol", "seeds"], [0, 1, 2], "different runs"),
        (["protocol", "levels"], [0], "protocol.levels"),
        (["protocol", "measures"], ["gradient"], "protocol.measures"),
        (["protocol", "procedures"], "roar", "wrong kind"),
        (["cost", "explained"], 3, "cost.explained"),
        (["created"], "yesterday", "isoformat"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(whole, tmp_path, path, value, words):
    whole.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with refused("is not a whole ROAR run", words):
        load_roar(tmp_path)


def test_tables_that_are_not_whole_are_refused(whole, tmp_path):
    whole.save(tmp_path)
    file = tmp_path / "trainings.parquet"
    pq.write_table(whole.trainings.slice(1), file)
    with refused("trainings.parquet is not whole"):
        load_roar(tmp_path)
    pq.write_table(whole.trainings.drop_columns(["epoch"]), file)
    with refused("other columns"):
        load_roar(tmp_path)
    harm(file, "cut")
    with refused("is not a whole ROAR run"):
        load_roar(tmp_path)
