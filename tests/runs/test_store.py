"""A run survives: whatever stops it, the same call goes on and ends with the same bits."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import bag_runs
import faithscope as fs
from bag_runs import BASES, EPOCHS, JOBS, PACKS, prepared, stopped, stopped_in, weights_in
from bags import MEASURES, BagLearner, bag_texts
from conftest import randn, tiny_vit
from disasters import (
    another_process,
    cards_in,
    content_of,
    full_disk,
    harm,
    kill_again_and_again,
    leftovers,
)
from faithscope.models.tensor_files import read_tensors, tensor_digest, tensor_file
from faithscope.probes.perturb import probe
from faithscope.probes.retrain.learner import Recipe
from faithscope.runs.files import sealed, unsealed
from faithscope.runs.run import save_run
from faithscope.runs.stages import Keeping, TaskContext
from faithscope.runs.store import Store
from faithscope.runs.task import Task
from families import refused

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
IMAGES = 24
METHODS = ["rollout", "gradient"]


@pytest.fixture(scope="module", autouse=True)
def small_shards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "SHARD", 2)
        yield


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
    images = options.pop("images", randn(count, 3, 16, 16))
    labels = torch.arange(count) % 5
    options = {"metrics": ["saco", "aopc"], "random_draws": 1, "batch_size": 64, **options}
    return fs.evaluate(module, images, METHODS, labels=labels, out=out, **options)


def assert_same_images(left: fs.Result, right: fs.Result) -> None:
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


class ImageRun:
    """A run over images; `worker` is the model of the last one."""

    same = staticmethod(assert_same_images)

    def run(self, out: Path | None, *, seconds: float = 0.0, **options: Any) -> fs.Result:
        self.worker = options.pop("worker", None) or slow(seconds)
        return evaluate(self.worker, out, **options)

    def stop(self, out: Path, **options: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            evaluate(slow(fails_at=1200), out, **options)

    @property
    def has_worked(self) -> bool:
        return self.worker.passes > IMAGES  # the first images are run to check the request

    def done(self, out: Path) -> int:
        return IMAGES if (out / "manifest.json").exists() else cards_in(out)


class Retraining:
    """A run of ROAR; `worker` is the learner of the last one."""

    same = staticmethod(bag_runs.assert_same_bits)
    done = staticmethod(cards_in)

    def run(self, out: Path | None, *, seconds: float = 0.0, **options: Any) -> fs.Result:
        self.worker = options.pop("worker", None) or BagLearner(seconds=seconds)
        return bag_runs.run(self.worker, out, **options)

    def stop(self, out: Path, **options: Any) -> None:
        stopped(out, 7, **options)

    @property
    def has_worked(self) -> bool:
        return bool(self.worker.begun or self.worker.explained)


KINDS = {"images": ImageRun, "roar": Retraining}
PACE = {"images": 0.002, "roar": 0.03}
Kind = ImageRun | Retraining


@pytest.fixture(scope="module")
def wholes(small_shards) -> dict[str, fs.Result]:
    """The runs that nothing befell."""
    return {name: kind().run(None) for name, kind in KINDS.items()}


@pytest.fixture(params=KINDS)
def name(request) -> str:
    return request.param


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]()


@pytest.fixture
def whole(name: str, wholes) -> fs.Result:
    return wholes[name]


def of_kinds(names: str, **cases: list[Any]) -> pytest.MarkDecorator:
    """Cases by kind of run."""
    rows = [(kind, *case) for kind, held in cases.items() for case in held]
    return pytest.mark.parametrize(f"name, {names}", rows)


# Every kind of run


def test_a_run_with_a_folder_is_the_run_without_one_and_is_read_the_next_time(
    kind, whole, tmp_path
):
    kind.same(kind.run(tmp_path), whole)
    kind.same(fs.load_result(tmp_path), whole)
    assert not (tmp_path / "states").exists()
    assert (tmp_path / "tasks").exists() == isinstance(kind, Retraining)
    assert cards_in(tmp_path) == (2 * PACKS if isinstance(kind, Retraining) else 0)
    kind.same(kind.run(tmp_path), whole)
    assert not kind.has_worked


@pytest.mark.parametrize(
    ("times", "seed"),
    [(5, 0), *(pytest.param(20, seed, marks=pytest.mark.slow) for seed in range(4))],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    name, kind, whole, tmp_path, times, seed
):
    work = partial(kind.run, seconds=PACE[name])
    kill_again_and_again(work, tmp_path, times=times, seed=seed, done=kind.done)
    kind.same(kind.run(tmp_path), whole)
    assert not leftovers(tmp_path)


def test_a_second_run_in_the_same_folder_is_refused(kind, tmp_path):
    with another_process(partial(kind.run, seconds=0.1), tmp_path):
        deadline = time.monotonic() + 20
        while not (tmp_path / "plan.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with refused("Another run is writing", "another folder"):
            kind.run(tmp_path)


@of_kinds(
    "options, words",
    images=[
        ({"k": 5}, "k is 10 there and 5 here"),
        ({"fill": "blur"}, 'fill is "mean" there and "blur" here'),
        ({"metrics": ["saco"]}, "metrics is"),
        (
            {"explain_precision": "fp32"},
            'run (explain_precision is "auto" there and "fp32" here',
        ),
        ({"count": IMAGES - 1}, "data samples is 24 there and 23 here"),
    ],
    roar=[
        ({"levels": [10, 50]}, "levels is [0, 20, 50, 80, 100] there"),
        ({"seeds": 3}, "seeds is [0, 1] there and [0, 1, 2] here"),
        ({"procedures": "roar"}, "procedures is"),
        ({"measures": ["gradient"]}, 'and ["gradient", "random"] here'),
        ({"metrics": "racu(clip=false)"}, "metrics is"),
        ({"specials": False}, "specials is true there and false here"),
        ({"data": bag_texts(seed=1)}, "data fingerprint is"),
        ({"worker": BagLearner(name="other")}, 'model is "bag" there and "other" here'),
        ({"worker": BagLearner(recipe=Recipe(5, 16, 1))}, "epochs is 4 there and 5 here"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(kind, tmp_path, options, words):
    kind.stop(tmp_path)
    before = content_of(tmp_path)
    with refused("holds another run", words):
        kind.run(tmp_path, **options)
    assert content_of(tmp_path) == before
    assert not kind.has_worked


def test_what_is_not_known_to_be_of_this_run_is_left_alone(kind, whole, tmp_path):
    whole.save(tmp_path / "saved")
    with refused("holds a result already"):
        kind.run(tmp_path / "saved")
    kind.stop(tmp_path / "run")
    (tmp_path / "run" / "plan.json").unlink()
    with refused("holds finished tasks but no plan.json"):
        kind.run(tmp_path / "run")
    assert not kind.has_worked


@of_kinds("room", images=[(25,)], roar=[(room,) for room in (0, 1, 5, 30, 100, 130)])
def test_no_space_left_costs_nothing_that_is_finished(kind, whole, tmp_path, room):
    with full_disk(room), refused("No space left", "make room"):
        kind.run(tmp_path)
    assert not leftovers(tmp_path)
    finished = len(list(tmp_path.glob("tasks/train*.json")))
    kept = cards_in(tmp_path)
    kind.same(kind.run(tmp_path), whole)
    if isinstance(kind, ImageRun):
        assert kept == 3
    else:
        assert kind.worker.epochs_run <= (PACKS - finished) * EPOCHS


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(kind, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with refused("cannot be written to"):
        kind.run(tmp_path / "file" / "run")
    assert not kind.has_worked


@pytest.mark.parametrize("content", ["", "{", "null", "{}"])
def test_a_damaged_plan_is_said_to_be_damaged(kind, tmp_path, content):
    kind.stop(tmp_path)
    (tmp_path / "plan.json").write_text(content)
    with refused("plan.json' is damaged"):
        kind.run(tmp_path)


@of_kinds(
    "file",
    images=[("scores.parquet",)],
    roar=[(f"{name}.parquet",) for name in ("trainings", "examples", "scores")]
    + [("manifest.json",)],
)
def test_a_damaged_result_is_made_again(kind, whole, tmp_path, file):
    kind.run(tmp_path)
    harm(tmp_path / file, "cut")
    with refused("is not a whole faithscope run", file):
        fs.load_result(tmp_path)
    with pytest.warns(UserWarning, match=f"The result in .* is damaged .*{file}"):
        kind.same(kind.run(tmp_path), whole)
    kind.same(fs.load_result(tmp_path), whole)
    assert kind.has_worked == isinstance(kind, ImageRun)  # of trainings, the tasks are kept


# Runs over images


@pytest.fixture(scope="module")
def images(wholes) -> fs.Result:
    return wholes["images"]


@pytest.mark.parametrize("fails_at", [0, 1, 100, 701, 1500])
def test_a_run_that_is_stopped_goes_on_and_repeats_at_most_one_shard(images, tmp_path, fails_at):
    module = slow()
    evaluate(module, None)
    needed, module.passes, module.fails_at = module.passes, 0, fails_at
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, tmp_path)
    module.fails_at = None
    assert_same_images(evaluate(module, tmp_path), images)
    a_shard, once = needed / (IMAGES / 2), 5  # where its tokens lie is asked once of a module
    most = needed + 2 * a_shard + 64  # one more may be in the making
    assert needed - once <= module.passes <= most


def test_other_weights_are_another_run(tmp_path):
    evaluate(slow(), tmp_path)
    other = slow()
    with torch.no_grad():
        other.head.bias += 1e-6
    with refused("model fingerprint"):
        evaluate(other, tmp_path)


def begun(out: Path) -> list[Path]:
    """The finished tasks of a run that was stopped."""
    ImageRun().stop(out)
    tasks = sorted(file.with_suffix("") for file in out.glob("tasks/*.json"))
    assert len(tasks) >= 2
    return tasks


@pytest.mark.parametrize("part", ["scores.parquet", "responses.parquet", "the card"])
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_task_is_named_and_computed_again(images, tmp_path, part, how):
    task = begun(tmp_path)[1]
    file = task.with_suffix(".json") if part == "the card" else task / part
    harm(file, how)
    if (part, how) == ("the card", "gone"):
        result = evaluate(slow(), tmp_path)  # as if it had never been finished
    else:
        with pytest.warns(UserWarning, match=f"{task.name}' of .* is damaged"):
            result = evaluate(slow(), tmp_path)
    assert_same_images(result, images)


@pytest.mark.parametrize("is_whole", [False, True])
def test_data_that_changed_since_the_run_began_are_refused(tmp_path, is_whole):
    evaluate(slow(), tmp_path) if is_whole else begun(tmp_path)
    images = randn(IMAGES, 3, 16, 16)
    images[-1 if is_whole else 1, 0, 0, 0] += 1e-3
    with refused("data has changed", *(() if is_whole else ["'0'"])):
        evaluate(slow(), tmp_path, images=images)


def test_a_batch_size_that_was_chosen_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "choose_batch_size", lambda *_: 32)
    module = slow(fails_at=600)
    with pytest.raises(KeyboardInterrupt):
        evaluate(module, tmp_path, batch_size="auto")
    monkeypatch.setattr(probe, "choose_batch_size", lambda *_: 16)
    result = evaluate(slow(), tmp_path, batch_size="auto")
    assert result.manifest.plan.request.batch_size == 32


def test_given_maps_are_part_of_the_plan(tmp_path):
    images, maps = randn(4, 3, 16, 16), randn(4, 16, 16, seed=1)
    fs.evaluate(tiny_vit(), images, maps={"mine": maps}, metrics="saco", out=tmp_path)
    with refused("given maps mine"):
        fs.evaluate(tiny_vit(), images, maps={"mine": -maps}, metrics="saco", out=tmp_path)


def test_the_plan_is_plain_json(tmp_path):
    evaluate(slow(), tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [card["label"] for card in plan["methods"]][:2] == ["rollout", "gradient"]
    assert plan["request"]["k"] == 10 and "out" not in plan["request"]


def test_a_result_that_took_a_runs_place_is_not_taken_for_it(images, tmp_path):
    evaluate(slow(), tmp_path)
    again = images.rescore("saco")
    with refused("holds another run"):
        again.save(tmp_path)
    save_run(again, tmp_path)  # as by copying files
    with refused("another result than its plan"):
        evaluate(slow(), tmp_path)


def test_what_a_kill_left_unfinished_is_cleared_away(images, tmp_path):
    task = begun(tmp_path)[0]
    (task / ".scores.parquet.1a2b").write_bytes(b"half")
    assert_same_images(evaluate(slow(), tmp_path), images)
    assert not (tmp_path / "tasks").exists()


def test_a_run_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"faithscope": 1, "protocol": {}}')
    with refused("another version of faithscope", "another folder"):
        evaluate(slow(), tmp_path)


# Runs of trainings

run, assert_same_bits = bag_runs.run, bag_runs.assert_same_bits


@pytest.fixture(scope="module")
def roar(wholes) -> fs.Result:
    return wholes["roar"]


@pytest.mark.parametrize("epochs", [1, 2, 7, 13, 24])
def test_a_run_that_is_stopped_resumes_from_its_last_epoch(roar, tmp_path, epochs):
    first = stopped(tmp_path, epochs)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), roar)
    assert first.epochs_run - 1 + learner.epochs_run == PACKS * EPOCHS  # not one twice
    assert learner.resumed == ([(epochs - 1) % EPOCHS] if (epochs - 1) % EPOCHS else [])


def test_states_are_kept_only_so_often(roar, tmp_path):
    stopped(tmp_path, 7, keep_every=1000.0)
    assert not list(tmp_path.glob("states/*"))
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path, keep_every=1000.0), roar)
    assert learner.resumed == []
    assert learner.epochs_run == (PACKS - 1) * EPOCHS  # the first pack was finished


def test_keeping_what_takes_long_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("faithscope.runs.stages.time.monotonic", lambda: clock[0])

    def state() -> dict[str, torch.Tensor]:  # from a GPU, say
        clock[0] += 2.0
        return {"a": torch.zeros(1)}

    (tmp_path / "plan.json").touch()
    store, keeping = Store(tmp_path), Keeping(every=5.0, last=0.0)
    kept = []
    for place, wait in enumerate((4.9, 0.2, 5.1, 34.8, 0.2)):  # each in another task
        clock[0] += wait
        task = Task(f"train-{place}", "train")
        TaskContext(task, store, lambda *_: None, keeping).keep(state, {})
        kept.append((tmp_path / "states" / f"{task.id}.safetensors").exists())
    assert kept == [False, True, False, False, True]


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


def test_a_label_that_changed_is_another_run(tmp_path):
    run(BagLearner(), tmp_path)
    data = bag_texts()
    labels = data.test.labels.copy()
    labels[-1] = 1 - labels[-1]
    with refused("data fingerprint"):
        run(BagLearner(), tmp_path, data=replace(data, test=replace(data.test, labels=labels)))


def test_the_pack_size_of_a_run_that_was_begun_is_kept(roar, tmp_path):
    stopped(tmp_path, 7)
    result = run(BagLearner(pack_size=50), tmp_path)
    assert_same_bits(result, roar)
    assert result.manifest.plan.pack_size == 7 and result.manifest.cost.packs == PACKS


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
def test_a_damaged_file_is_named_and_computed_again(roar, tmp_path, what, how, recwarn):
    stopped_in(tmp_path, "01-001")  # the first pack of its wave is finished, the next one begun
    file = tmp_path / FILES[what]
    harm(file, how)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path), roar)
    said = " ".join(str(one.message) for one in recwarn)
    name = FILES[what].split("/")[1].removesuffix(".json")
    named = f"The task '{name}'" if what.startswith(("a card", "a table")) else file.name
    expected = how != "gone" or what.startswith("a table")
    assert (named in said and "is damaged" in said) == expected, said
    assert learner.resumed == ([] if what == "a state" else [2])
    assert len(learner.begun) < JOBS


def test_weights_that_are_lost_are_trained_again_and_the_first_rows_stay(roar, tmp_path):
    stopped_in(tmp_path, "01-001")
    (tmp_path / FILES["a base"]).unlink()
    tables = sorted(tmp_path.glob("tasks/train-s0-1-00-*/*.parquet"))
    before = [file.read_bytes() for file in tables]  # with the seconds they took
    request = prepared(BagLearner(), tmp_path)
    found = request.forecast()
    assert found.again > 0 and "of them to be done again" in str(found)
    assert_same_bits(request.run(), roar)
    assert [file.read_bytes() for file in tables] == before
    assert weights_in(tmp_path) == BASES


def test_a_card_lost_with_what_its_pack_was_masked_by_brings_back_the_chain(roar, tmp_path):
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
        assert_same_bits(request.run(), roar)
    assert len(learner.begun) == found.cost["trainings"] < JOBS
    assert weights_in(tmp_path) == BASES  # nor do links stay that were trained again


def test_masks_damaged_while_the_run_goes_on_are_noticed(roar, tmp_path, monkeypatch):
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
        assert_same_bits(run(BagLearner(), tmp_path), roar)


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
def test_a_manifest_that_says_something_else_is_refused(roar, tmp_path, path, value, words):
    roar.save(tmp_path)
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


# Files of other runs


@of_kinds(
    "options",
    images=[({"k": 5},), ({"fill": "blur"},)],
    roar=[({"specials": False},), ({"data": bag_texts(seed=1)},)],
)
def test_tasks_of_a_run_with_other_options_are_done_again(kind, whole, tmp_path, options):
    other = type(kind)()
    other.stop(tmp_path / "other", **options)
    kind.stop(tmp_path / "run")
    for folder in ("tasks", "states"):
        shutil.rmtree(tmp_path / "run" / folder, ignore_errors=True)
        if (tmp_path / "other" / folder).exists():
            shutil.copytree(tmp_path / "other" / folder, tmp_path / "run" / folder)
    with pytest.warns(UserWarning, match="of another task or run"):
        kind.same(kind.run(tmp_path / "run"), whole)


def tensors_in(root: Path) -> dict[str, str]:
    """A hash of every artifact; the order of what is in one may be another."""
    return {
        file.name: tensor_digest(*read_tensors(file.read_bytes()))
        for file in root.glob("artifacts/*/*")
    }


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_kept_weights_that_are_damaged_are_made_again(roar, tmp_path, how):
    run(BagLearner(), tmp_path, keep_weights=True)
    before = tensors_in(tmp_path)
    for name in (FILES["a base"], FILES["a link"]):
        harm(tmp_path / name, how)
        found = prepared(BagLearner(), tmp_path, keep_weights=True).forecast()
        assert found.again > 0
        learner = BagLearner()
        with pytest.warns(UserWarning, match=f"{Path(name).stem}.* is damaged"):
            assert_same_bits(run(learner, tmp_path, keep_weights=True), roar)
        assert 0 < len(learner.begun) < JOBS
        assert tensors_in(tmp_path) == before


# How long weights are kept


def test_weights_are_kept_while_a_job_needs_them_and_of_the_intact_texts(tmp_path):
    run(BagLearner(), tmp_path)
    assert weights_in(tmp_path) == BASES
    assert not list(tmp_path.glob("artifacts/masks/*"))
    run(BagLearner(), tmp_path / "all", keep_weights=True)
    assert len(weights_in(tmp_path / "all")) == JOBS


def test_weights_go_when_it_is_decided_what_is_masked_with_them(roar, tmp_path):
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
    assert_same_bits(run(BagLearner(), tmp_path), roar)


def test_weights_that_were_dropped_are_not_brought_back_silently(roar, tmp_path):
    stopped(tmp_path, 7)
    for _ in range(2):
        with pytest.warns(UserWarning, match="weights of .* are not brought back"):
            assert_same_bits(run(BagLearner(), tmp_path, keep_weights=True), roar)


def test_kept_weights_need_no_warning(tmp_path, recwarn):
    for _ in range(2):
        run(BagLearner(), tmp_path, keep_weights=True)
    assert not [one for one in recwarn if "weights" in str(one.message)]
