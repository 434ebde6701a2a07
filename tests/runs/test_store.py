"""A run survives: whatever stops it, the same call goes on and ends with the same bits."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.probes.perturb import probe
from faithscope.runs import files
from families import refused

IMAGES = 24
METHODS = ["rollout", "gradient", "lrp"]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SHARD", 2)


class SlowViT(VisionTransformer):
    """Takes its time, and can be told to fail at some pass."""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.passes += len(images)
        if self.fails_at is not None and self.passes > self.fails_at:
            raise KeyboardInterrupt
        return super().forward(images)


def slow(seconds: float = 0.0, fails_at: int | None = None) -> nn.Module:
    module = tiny_vit()
    module.__class__ = SlowViT
    module.seconds, module.passes, module.fails_at = seconds, 0, fails_at
    return module


def evaluate(module: nn.Module, out: Path | None, count: int = IMAGES, **options) -> fs.Result:
    images = randn(count, 3, 16, 16)
    labels = torch.arange(count) % 5
    options = {"metrics": ["saco", "aopc"], "random_draws": 1, "batch_size": 64, **options}
    return fs.evaluate(module, images, METHODS, labels=labels, out=out, **options)


def assert_same_bits(left: fs.Result, right: fs.Result) -> None:
    for name in ("scores", "responses", "maps", "spans", "samples", "pictures"):
        one, other = left.get_table(name), right.get_table(name)
        assert one.to_pylist() == other.to_pylist()
        for column in ("value", "log_p", "log_p0", "salience"):
            if column in one.column_names:
                assert one[column].to_numpy().tobytes() == other[column].to_numpy().tobytes()
    unlike = {"cost", "created", "files"}
    manifests = [result.manifest.model_dump(exclude=unlike) for result in (left, right)]
    for manifest in manifests:  # a matter of running
        manifest["plan"]["request"].pop("out")
    assert manifests[0] == manifests[1]
    for key in ("response_passes", "explanation_passes"):
        assert getattr(left.manifest.cost, key) == getattr(right.manifest.cost, key)


@pytest.fixture(scope="module")
def whole() -> fs.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "SHARD", 2)
        return evaluate(slow(), None)


def test_a_run_with_a_folder_is_the_run_without_one(whole, tmp_path):
    result = evaluate(slow(), tmp_path / "run")
    assert_same_bits(result, whole)
    assert_same_bits(fs.load_result(tmp_path / "run"), whole)
    assert not (tmp_path / "run" / "tasks").exists()


@pytest.mark.parametrize("fails_at", [0, 1, 100, 701, 1500])
def test_a_run_that_is_stopped_goes_on_and_repeats_at_most_one_shard(whole, tmp_path, fails_at):
    module = slow()
    evaluate(module, None)
    needed, module.passes, module.fails_at = module.passes, 0, fails_at
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, tmp_path)
    module.fails_at = None
    assert_same_bits(evaluate(module, tmp_path), whole)
    a_shard = needed / (IMAGES / 2)
    assert needed <= module.passes <= needed + 2 * a_shard + 64  # one more may be in the making


def killed(out: Path, seconds: float) -> None:
    """Run in a process of its own, and kill that after so many seconds."""
    child = multiprocessing.get_context("fork").Process(target=evaluate, args=(slow(0.002), out))
    child.start()
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    child.join()


def survives_kills(whole: fs.Result, out: Path, times: int, seed: int) -> None:
    generator = random.Random(seed)
    kept = [0]
    patience = 0.5
    while len(kept) <= times or kept[-1] == 0:
        killed(out, generator.uniform(0.02, patience))
        patience *= 1.0 if kept[-1] else 1.3  # a busy machine needs longer for its first shard
        done = len(list(out.glob("tasks/*.json")))
        kept.append(IMAGES if (out / "manifest.json").exists() else done)
    assert kept == sorted(kept)
    assert_same_bits(evaluate(slow(), out), whole)


def test_a_run_that_is_killed_five_times_ends_with_the_same_bits(whole, tmp_path):
    survives_kills(whole, tmp_path, 5, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(whole, tmp_path, seed):
    survives_kills(whole, tmp_path, 20, seed)


def test_a_run_that_is_whole_is_read_and_not_run(whole, tmp_path):
    evaluate(slow(), tmp_path)
    module = slow(fails_at=IMAGES)  # the first images are run to check the request
    assert_same_bits(evaluate(module, tmp_path), whole)


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    child = multiprocessing.get_context("fork").Process(
        target=evaluate, args=(slow(0.05), tmp_path)
    )
    child.start()
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "plan.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with refused("Another run is writing", "another folder"):
            evaluate(slow(), tmp_path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 5}, ["request k is 10 there and 5 here"]),
        ({"fill": "blur"}, ['request fill is "mean" there and "blur" here']),
        ({"metrics": ["saco"]}, ["metrics is"]),
        ({"count": IMAGES - 1}, ["data samples is 24 there and 23 here"]),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path, options, words):
    module = slow(fails_at=500)
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with refused("holds another run", *words):
        evaluate(slow(), tmp_path, **options)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_other_weights_are_another_run(tmp_path):
    evaluate(slow(), tmp_path)
    other = slow()
    with torch.no_grad():
        other.head.bias += 1e-6
    with refused("model fingerprint"):
        evaluate(other, tmp_path)


def test_a_result_saved_by_hand_is_not_overwritten(whole, tmp_path):
    whole.save(tmp_path)
    with refused("holds a result already"):
        evaluate(slow(), tmp_path)


def stopped(out: Path, fails_at: int = 1200) -> list[Path]:
    module = slow(fails_at=fails_at)
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, out)
    tasks = sorted(file.with_suffix("") for file in out.glob("tasks/*.json"))
    assert len(tasks) >= 2
    return tasks


@pytest.mark.parametrize("part", ["scores.parquet", "responses.parquet", "the card"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "gone"])
def test_a_damaged_task_is_named_and_computed_again(whole, tmp_path, part, harm):
    task = stopped(tmp_path)[1]
    file = task.with_suffix(".json") if part == "the card" else task / part
    content = file.read_bytes()
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    if (part, harm) == ("the card", "gone"):
        result = evaluate(slow(), tmp_path)  # as if it had never been finished
    else:
        with pytest.warns(UserWarning, match=f"{task.name}' of .* is damaged"):
            result = evaluate(slow(), tmp_path)
    assert_same_bits(result, whole)


def test_data_that_changed_since_the_run_began_are_refused(tmp_path):
    stopped(tmp_path)
    images = randn(IMAGES, 3, 16, 16)
    images[1, 0, 0, 0] += 1e-3
    with refused("data has changed", "'0'"):
        fs.evaluate(
            slow(),
            images,
            METHODS,
            ["saco", "aopc"],
            labels=torch.arange(IMAGES) % 5,
            random_draws=1,
            batch_size=64,
            out=tmp_path,
        )


def test_no_space_left_costs_nothing_that_is_finished(whole, tmp_path, monkeypatch):
    write, room = files.write_file, [25]

    def fill_up(path: Path, content: bytes) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_file", fill_up)
        with refused("No space left", "kept"):
            evaluate(slow(), tmp_path)
    assert len(list(tmp_path.glob("tasks/*.json"))) == 3
    assert not [file for file in tmp_path.rglob(".*") if file.name != ".lock"]
    assert_same_bits(evaluate(slow(), tmp_path), whole)


def test_a_batch_size_that_was_chosen_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "choose_batch_size", lambda *_: 32)
    module = slow(fails_at=600)
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, tmp_path, batch_size="auto")
    monkeypatch.setattr(probe, "choose_batch_size", lambda *_: 16)
    result = evaluate(slow(), tmp_path, batch_size="auto")
    assert result.manifest.plan.request.batch_size == 32


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    module = slow()
    with refused("cannot be written to"):
        evaluate(module, tmp_path / "file" / "run")


def test_a_plan_that_cannot_be_read_is_refused(tmp_path):
    stopped(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with refused("is damaged"):
        evaluate(slow(), tmp_path)


def test_given_maps_are_part_of_the_plan(tmp_path):
    images, maps = randn(4, 3, 16, 16), randn(4, 16, 16, seed=1)
    fs.evaluate(tiny_vit(), images, maps={"mine": maps}, metrics="saco", out=tmp_path)
    with refused("given maps mine"):
        fs.evaluate(tiny_vit(), images, maps={"mine": -maps}, metrics="saco", out=tmp_path)


def test_the_plan_is_plain_json(tmp_path):
    evaluate(slow(), tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [card["label"] for card in plan["methods"]][:3] == ["rollout", "gradient", "lrp"]
    assert plan["request"]["k"] == 10 and "out" not in plan["request"]


def test_data_that_changed_after_the_run_was_finished_are_refused(tmp_path):
    evaluate(slow(), tmp_path)
    images, labels = randn(IMAGES, 3, 16, 16), torch.arange(IMAGES) % 5
    images[-1, 0, 0, 0] += 1e-3
    options = {"random_draws": 1, "batch_size": 64, "labels": labels, "out": tmp_path}
    with refused("data has changed"):
        fs.evaluate(slow(), images, METHODS, ["saco", "aopc"], **options)


def test_a_result_that_took_a_runs_place_is_not_taken_for_it(whole, tmp_path):
    evaluate(slow(), tmp_path)
    whole.rescore("saco").save(tmp_path)
    with refused("another result than its plan"):
        evaluate(slow(), tmp_path)


def test_what_a_kill_left_unfinished_is_cleared_away(whole, tmp_path):
    task = stopped(tmp_path)[0]
    (task / ".scores.parquet.1a2b").write_bytes(b"half")
    assert_same_bits(evaluate(slow(), tmp_path), whole)
    assert not (tmp_path / "tasks").exists()


def test_a_damaged_result_is_computed_again(whole, tmp_path):
    evaluate(slow(), tmp_path)
    file = tmp_path / "scores.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with refused("scores.parquet is not what was written"):
        fs.load_result(tmp_path)
    with pytest.warns(UserWarning, match="scores.parquet is not what was written"):
        assert_same_bits(evaluate(slow(), tmp_path), whole)


def test_a_run_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"faithscope": 1, "protocol": {}}')
    with refused("another version of faithscope", "another folder"):
        evaluate(slow(), tmp_path)
