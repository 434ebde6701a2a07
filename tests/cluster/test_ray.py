"""Runs on Ray are the runs that they are without it: the same tables, words and refusals."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

pytest.importorskip("ray")

import bags
import clusters
import faithscope as fs
from clusters import assert_same_tables, evaluate, images, linear, retrain, wait_for
from commands import fails
from faithscope.perturb import FILLS, Fill
from faithscope.registry import registry
from families import refused

pytestmark = pytest.mark.xdist_group("ray")
FEW = {"methods": "gradient", "metrics": "saco", "k": 4, "random_draws": 1}


# The same tables


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_evaluation_is_that_of_this_process(machines, workers):
    options = {"metrics": ["saco", "aopc"], "labels": torch.arange(150) % 4, "k": [2, 4]}
    assert_same_tables(evaluate(**options, **machines.on(workers)), evaluate(**options))


@pytest.mark.slow
def test_a_compiled_model_is_compiled_where_it_runs(machines):
    assert_same_tables(evaluate(compile=True, **machines.on(2)), evaluate(compile=True))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_retraining_is_that_of_this_process(machines, workers):
    assert_same_tables(retrain(**machines.on(workers)), retrain())


def test_retraining_by_name_is_that_of_this_process(machines):
    few = {"limit": 20, "epochs": 1, "measures": "gradient", "seeds": 2, "levels": [50]}
    assert_same_tables(
        fs.roar("bundled:babi1", **few, **machines.on()), fs.roar("bundled:babi1", **few)
    )


def test_a_transformer_of_one_block_in_single_precision(machines):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = VisionTransformer(
            img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=2, num_classes=3
        ).eval()
    pixels = torch.randn(70, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    options = {**FEW, "methods": ["rollout", "raw_attention"], "batch_size": 32}
    assert_same_tables(
        fs.evaluate(module, pixels, **options, **machines.on()),
        fs.evaluate(module, pixels, **options),
    )


@pytest.mark.parametrize("run", [evaluate, retrain])
@pytest.mark.parametrize("first", ["here", "there"])
def test_a_run_is_begun_in_one_place_and_ended_in_the_other(run, first, machines, tmp_path):
    here, there = {}, machines.on()
    begun, ended = (here, there) if first == "here" else (there, here)
    done = []

    def stop(progress: object) -> None:
        done.append(len(list(tmp_path.glob("tasks/*.json"))))
        if done[-1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=stop, **begun)
    cards = {file: file.stat().st_mtime_ns for file in tmp_path.glob("tasks/*.json")}
    assert cards
    assert_same_tables(run(tmp_path, **ended), run())
    if run is retrain:  # whose cards stay
        assert {file: file.stat().st_mtime_ns for file in cards} == cards


def test_a_finished_run_is_read_and_its_data_looked_at(machines, tmp_path):
    whole = evaluate(tmp_path, **machines.on())
    assert_same_tables(evaluate(tmp_path, **machines.on()), whole)
    with refused("The data has changed"):
        evaluate(tmp_path, data=images(seed=1), **machines.on())


@pytest.mark.slow
def test_data_that_changed_is_refused_when_a_run_is_resumed(machines, tmp_path):
    def stop(_: object) -> None:
        if list(tmp_path.glob("tasks/*.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path, progress=stop)
    with refused("The data has changed"):
        evaluate(tmp_path, data=images(seed=1), **machines.on())
    assert_same_tables(evaluate(tmp_path, **machines.on()), evaluate())


def test_the_stopping_rule_sees_tasks_in_order_whenever_they_end(machines, tmp_path):
    options = {"data": images(640), "tolerance": 0.3}
    here = evaluate(tmp_path / "here", **options)
    assert 0 < here.samples.num_rows < 640
    there = evaluate(tmp_path / "there", **options, **machines.on(3))
    assert_same_tables(there, here)
    for on in ({}, machines.on()):
        assert_same_tables(evaluate(tmp_path / "there", **options, **on), here)


# What is given


def gradient_of(module, pixels, target):
    """Somebody's own method."""
    held = pixels.detach().requires_grad_()
    chosen = module(held).gather(1, target[:, None]).sum()
    return torch.autograd.grad(chosen, held)[0].abs().sum(1)


def test_maps_and_functions_and_classes_that_were_given(machines):
    options = {
        "methods": [gradient_of, lambda module, pixels, target: pixels.square().sum(1)],
        "maps": {"mine": images(seed=3).sum(1)},
        "labels": torch.arange(150) % 4,
        "target": torch.arange(150) % 3,
    }
    assert_same_tables(evaluate(**options, **machines.on()), evaluate(**options))


def test_what_this_process_has_registered_is_known_to_all_workers(machines, monkeypatch):
    for kind in ("method", "fill"):
        monkeypatch.setattr(registry(kind), "_items", dict(registry(kind)._items))

    @fs.register_method("cubed", granularity="pixel", needs=("gradient",))
    def cubed(evidence, *, power=3):
        """Gradient to a power."""
        return evidence.input_gradient().abs().sum(dim=1) ** power

    class Grey(Fill):
        name, summary = "greyish", "nothing"

        def field(self, pixels, context):
            return pixels.new_full((len(pixels), pixels.shape[1], 1, 1), 0.1)

    FILLS.register("greyish", Grey())
    options = {"methods": "cubed(power=2)", "fill": "greyish"}
    assert_same_tables(evaluate(**options, **machines.on(3)), evaluate(**options))


def test_a_folder_by_a_relative_path_and_a_file_by_name(machines, tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for number in range(4):
        (tmp_path / "photos" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / str(number % 2) / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    few = {**FEW, "batch_size": 32}
    assert_same_tables(
        fs.evaluate("bundled:cifar10_vit", "photos", **few, **machines.on(), out="there"),
        fs.evaluate("bundled:cifar10_vit", "photos", **few, out="here"),
    )
    assert (tmp_path / "there" / "manifest.json").exists()


# What is refused


def test_what_cannot_be_sent_is_refused_by_its_name(machines):
    module = linear()
    module.lock = threading.Lock()
    with refused("The model cannot be sent", "by name ('timm:NAME'"):
        evaluate(model=module, **machines.on())
    lock = threading.Lock()

    def locked(module, pixels, target):
        with lock:
            return pixels.sum(1)

    with refused("The method 'locked' cannot be sent", "at the top of a module"):
        evaluate(methods=locked, **machines.on())

    class Locked(torch.utils.data.Dataset):
        def __init__(self):
            self.lock = threading.Lock()

        def __len__(self):
            return 4

        def __getitem__(self, place):
            return images(4)[place]

    with refused("The data cannot be sent", "by name (a folder"):
        evaluate(data=Locked(), **machines.on())
    learner = bags.BagLearner()
    learner.lock = threading.Lock()
    with refused("The model cannot be sent"):
        retrain(learner=learner, **machines.on())


def test_a_loader_is_refused(machines):
    with refused("A loader can be read only once"):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images()), 8)
        evaluate(data=loader, **machines.on())


def test_no_room_is_said_at_once(machines):
    started = time.monotonic()
    with refused("no room on Ray for a worker with 99 CPUs", "4 CPU", "cpus_per_worker"):
        evaluate(**machines.on(cpus_per_worker=99))
    with refused("no room", "1 CPU and 1 GPU"):
        evaluate(**machines.on(gpus_per_worker=1))
    assert time.monotonic() - started < 5


def test_options_of_workers_without_ray_are_refused():
    for name, value in {"workers": 2, "address": "auto", "cpus_per_worker": 1}.items():
        with refused(f"{name} goes with on='ray'"):
            evaluate(**{name: value})
    few = ("--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")
    assert "--workers goes with" in fails("evaluate", *few, "--workers", 2)


def test_an_error_of_planning_is_one_sentence(machines):
    with refused("A worker on Ray cannot plan the run", "no such thing"):
        evaluate(model=Unwelcome(linear()), **machines.on())


class Unwelcome(torch.nn.Sequential):
    """Cannot be unpacked."""

    def __setstate__(self, state):
        raise ImportError("no such thing here")


OTHER_PROCESS = """
import sys, time
import clusters, faithscope as fs
clusters.evaluate(), clusters.retrain()
print([held for held in sys.modules
       if held.split('.')[0] in ('ray', 's3fs', 'boto3', 'botocore', 'aiobotocore')
       or held.startswith('faithscope.runs.ray') or held == 'faithscope.runs.sending'])
for address in ('127.0.0.1:1', 'nowhere.invalid:6379', 'what?'):
    started = time.monotonic()
    try:
        clusters.evaluate(on='ray', address=address)
    except fs.FaithscopeError as error:
        print(error)
    print(time.monotonic() - started < 20)
"""


def test_a_local_run_imports_nothing_of_it_and_a_wrong_address_is_said_within_seconds():
    found = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS],
        capture_output=True,
        text=True,
        env=clusters.environment(),
    )
    imported, *said = found.stdout.splitlines()
    assert imported == "[]"
    assert said[1::2] == ["True"] * 3
    for sentence, address in zip(
        said[::2], ("127.0.0.1:1", "nowhere.invalid:6379", "what?"), strict=True
    ):
        assert sentence.startswith(f"No Ray cluster can be used at '{address}' (")
        assert "ray start --head" in sentence
    assert found.stderr == ""


def test_where_ray_cannot_be_imported_a_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    few = ("--model", "bundled:cifar10_vit", "--data", "bundled:cifar10")
    assert "pip install 'faithscope[ray]'" in fails("evaluate", *few, "--on", "ray")


# What is said


class Warns(torch.nn.Module):
    """Says the same whenever it is asked, in another process, too."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        warnings.warn("this model is not well", stacklevel=1)
        return self.inner(x)


def test_warnings_reach_the_driver_once(machines):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        evaluate(model=Warns(), **machines.on())
    assert [str(held.message) for held in found].count("this model is not well") == 1


@pytest.mark.parametrize("run", [evaluate, retrain])
def test_progress_rises_to_the_end_and_the_manifest_names_the_hosts(run, machines):
    seen = []
    result = run(progress=seen.append, **machines.on())
    done = [held.done for held in seen]
    assert done == sorted(done) and done[-1] == pytest.approx(seen[-1].total)
    assert result.manifest.machine.hosts == (platform.node(),)


@pytest.mark.slow
def test_runs_that_are_kept_in_hand_do_not_keep_the_workers(machines):
    options = {**FEW, "batch_size": 64, **machines.on(None)}
    held = [fs.prepare(linear(), images(), **options) for _ in range(5)]  # of four CPUs
    whole = evaluate()
    for prepared in (*held[::2], held[0]):
        assert_same_tables(prepared.run(), whole)
    machines.free()
    wait_for(lambda: not machines.workers())


@pytest.mark.slow
def test_a_study_on_the_command_line_says_where_it_runs_and_nothing_of_ray(machines, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(
        "model: bundled:cifar10_vit\ndata: bundled:cifar10\nlimit: 2\nmethods: [rollout]\n"
        "metrics: [saco]\nk: 4\nfill: [mean, black]\nrandom_draws: 1\n"
    )
    machines.free()
    where = ("--on", "ray", "--address", machines.address, "--workers", 2, "--cpus-per-worker", 1)
    process = clusters.start("run", study, "--out", tmp_path / "there", *where)
    out, said = clusters.ended(process)
    assert "ray: 2 workers with 1 CPU on 3 machines" in said
    dashboard = machines.cluster.head_node.webui_url
    assert not dashboard or f"; dashboard: http://{dashboard}" in said
    for word in ("INFO", "WARNING", "raylet", "Traceback"):
        assert word not in out + said
    here = fs.run_study(fs.load_study(study), tmp_path / "here").results
    there = fs.load_results(tmp_path / "there").results
    assert list(here) == list(there) and len(here) == 2
    for name, result in here.items():
        assert_same_tables(there[name], result)


def test_two_folders_of_one_prepared_run_keep_their_own_plans(machines, tmp_path):
    for name, size in (("a", 16), ("b", 48)):
        stopped = fs.prepare(linear(), images(), "gradient", "saco", k=4, batch_size=size)
        with pytest.raises(KeyboardInterrupt):
            stopped.at(tmp_path / name).run(stop_after_a_task(tmp_path / name))
    asked = {"k": 4, "batch_size": "auto"}
    prepared = fs.prepare(linear(), images(), "gradient", "saco", **asked, **machines.on())
    both = [prepared.at(tmp_path / name) for name in ("a", "b")]
    for made, size in zip(both, (16, 48), strict=True):
        result = made.run()
        assert result.manifest.plan.request.batch_size == size == made.plan.request.batch_size
        alone = fs.evaluate(linear(), images(), "gradient", "saco", k=4, batch_size=size)
        assert_same_tables(result, alone)


def stop_after_a_task(out: Path):
    """Ends a run as soon as a task of it is finished."""

    def stop(_: object) -> None:
        if list(out.glob("tasks/*.json")):
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("share", [1.5, 1e-5])
def test_a_share_of_a_gpu_that_ray_cannot_count_is_refused(share):
    with refused("gpus_per_worker must be a share of a GPU"):
        evaluate(on="ray", gpus_per_worker=share)


def test_another_address_than_that_of_the_cluster_is_refused(machines, monkeypatch):
    with refused("speaks to the Ray cluster at", "ray.shutdown()"):
        evaluate(**machines.on(address="10.9.9.9:6379"))
    port = machines.address.rpartition(":")[2]
    monkeypatch.setattr("faithscope.runs.ray._ADDRESS", [f"localhost:{port}"])
    assert evaluate(**machines.on(address=f"localhost:{port}")).scores.num_rows  # as it was called
    with refused("without a user"):
        evaluate(**machines.on(address="me:secret@10.9.9.9:6379"))


@pytest.mark.slow
def test_ray_that_a_thread_started_outlives_the_thread():
    code = """
import threading
from clusters import evaluate
go = lambda: evaluate(on="ray", workers=1)
thread = threading.Thread(target=go); thread.start(); thread.join()
print(go().scores.num_rows)
"""
    path = {**os.environ, "PYTHONPATH": f"{clusters.HERE}:{clusters.ROOT / 'src'}"}
    path.pop("RAY_ADDRESS", None)
    ended = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, timeout=180)
    assert ended.stdout.split() == [b"300"], ended.stderr
