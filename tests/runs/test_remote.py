"""Runs at an address, on an S3-compatible server: same bits, kills, locks, faults, sentences."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bag_runs
import commands
import faithscope as fs
from bags import BagLearner
from conftest import randn, toy
from faithscope.api import pack_run, unpack_run
from faithscope.models.tensor_files import read_tensors
from faithscope.probes.perturb import probe
from faithscope.request import as_place, remote
from faithscope.request.remote import RemotePath
from faithscope.runs import lock, store
from faithscope.runs.lock import locked
from faithscope.runs.store import Store
from faithscope.studies import load_results
from families import refused
from s3 import BUCKET, Server

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
IMAGES = randn(6, 3, 4, 4)
TABLES = ("scores", "responses", "samples", "maps")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(probe, "SHARD", 2)
    monkeypatch.setattr(remote, "PAUSES", (0.02, 0.05, 0.1))


@pytest.fixture
def out(s3: Server, request: pytest.FixtureRequest) -> Iterator[RemotePath]:
    """A place of its own for each test."""
    place = as_place(f"s3://{BUCKET}/{request.node.name.translate(str.maketrans('[]', '--'))}")
    assert isinstance(place, RemotePath)
    yield place
    s3.flaky(0)
    s3.refuse(0)


def evaluate(out: Any, **options: Any) -> fs.Result:
    options = {"k": 4, "random_draws": 1, "batch_size": 64, **options}
    return fs.evaluate(toy(4, 4), IMAGES, "gradient", "saco", out=out, **options)


def retrain(out: Any, **options: Any) -> fs.Result:
    return bag_runs.run(BagLearner(), out, **options)


def stopped(out: RemotePath, tasks: int = 2) -> None:
    """An evaluation that ends after so many of its three tasks."""
    real, seen = Store.write, []

    def write(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) > tasks:
            raise KeyboardInterrupt
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write", write)
        evaluate(out)
    assert len(list(out.glob("tasks/*.json"))) == tasks


def same(left: fs.Result, right: fs.Result) -> bool:
    return all(left.get_table(name).equals(right.get_table(name)) for name in TABLES)


def objects(place: RemotePath) -> dict[str, bytes]:
    found = place.glob("**/*")
    return {str(file).removeprefix(f"{place}/"): file.read_bytes() for file in found}


def files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


# The same as in a folder


def test_images(out, s3, tmp_path):
    here = evaluate(tmp_path / "run")
    there = evaluate(str(out))
    assert same(there, here)
    assert same(fs.load_result(str(out)), here)
    assert same(evaluate(out), here)  # it is finished
    held = objects(out)
    assert held.keys() == files(tmp_path / "run") - {".lock"}
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in content for content in held.values())
    assert fs.compare(str(out), tmp_path / "run").headline().startswith("Nothing changed")
    parcel = pack_run(out, tmp_path / "run.tar.gz")
    unpack_run(parcel.file, tmp_path / "unpacked")
    assert same(fs.load_result(tmp_path / "unpacked"), here)


def test_trainings_with_their_artifacts_and_states(out, tmp_path):
    whole = retrain(tmp_path / "run", keep_weights=True)
    bag_runs.stopped(out, 7, keep_weights=True)
    assert list(out.glob("states/*.safetensors"))
    retrain(out, keep_weights=True)
    bag_runs.assert_same_bits(fs.load_result(out), whole)
    held = objects(out)
    assert held.keys() == files(tmp_path / "run") - {".lock"}
    for name in held:
        if name.startswith("artifacts/"):
            there, here = (
                read_tensors(held[name])[0],
                read_tensors((tmp_path / "run" / name).read_bytes())[0],
            )
            assert there.keys() == here.keys()
            assert all(torch.equal(there[key], here[key]) for key in here), name


def test_in_memory(tmp_path):
    place = "memory://test_in_memory/run"
    bag_runs.assert_same_bits(retrain(place), retrain(tmp_path))
    bag_runs.assert_same_bits(fs.load_result(place), retrain(place))


def test_a_file_system_with_real_folders(tmp_path):
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    class Shelf(LocalFileSystem):
        protocol = "shelf"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("shelf://"))

    fsspec.register_implementation("shelf", Shelf, clobber=True)
    place = f"shelf://{tmp_path}/far/run"
    bag_runs.stopped(as_place(place), 7)
    bag_runs.assert_same_bits(retrain(place), retrain(None))
    assert same(evaluate(f"shelf://{tmp_path}/images"), evaluate(None))
    assert (tmp_path / "far" / "run" / "manifest.json").is_file()
    with refused("holds no finished run"):
        fs.load_result(f"shelf://{tmp_path}/nothing")


def test_an_address_of_this_machine_is_a_folder(tmp_path):
    evaluate(f"file://{tmp_path}/run")
    assert same(fs.load_result(tmp_path / "run"), fs.load_result(f"file://{tmp_path}/run"))


def test_a_study_and_its_page(out, tmp_path):
    for k in (4, 2):
        evaluate(out / f"k{k}", k=k)
    stopped(out / "begun")
    runs = load_results(str(out))
    assert sorted(runs.results) == ["k2", "k4"] and runs.unfinished == ("begun",)
    commands.run("report", out, "--tables", tmp_path)
    assert b"<html" in (out / "report.html").read_bytes()
    commands.run("compare", out / "k2", out / "k4", "--csv", tmp_path / "a.csv")
    with refused("holds 2 runs"):
        fs.load_result(out)
    with refused("is not finished"):
        fs.load_result(out / "begun")


def test_a_path_travels_as_its_address(out):
    packed = pickle.dumps(Store(out))
    assert len(packed) < 2000 and b"secret" not in packed
    assert pickle.loads(packed).root == out


def test_a_local_run_imports_no_file_system(tmp_path):
    code = "import sys, faithscope as fs; from faithscope.request import as_place as a; a('x');"
    code += "sys.exit('fsspec' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_task_costs_few_requests(out, s3, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 60.0)
    counts = {}
    for images in (2, 6):
        s3.count()
        fs.evaluate(
            *(toy(4, 4), IMAGES[:images], "gradient", "saco"),
            **{"out": out / str(images), "k": 4, "random_draws": 1, "batch_size": 64},
        )
        counts[images] = s3.count()
    each = {what: (counts[6].get(what, 0) - counts[2].get(what, 0)) / 2 for what in counts[6]}
    print("requests of a task:", each, "of a run:", counts)
    tables = len(fs.load_result(out / "6").tables)
    assert each["PUT"] <= tables + 1  # its tables and its card
    assert each["GET"] <= tables  # all tables, when they become those of the run
    assert sum(each.values()) <= 2 * tables + 2  # and a state that it may have left
    s3.count()
    assert same(evaluate(out / "6"), fs.load_result(out / "6"))


# Kills and locks


def test_a_command_that_is_stopped_says_what_is_kept(out, s3, monkeypatch):
    real, seen = Store.write, []

    def write(*arguments: Any) -> Any:
        card = real(*arguments)
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return card

    monkeypatch.setattr(Store, "write", write)
    said = commands.run("evaluate", *ASKED, "--out", out, code=130).stderr
    assert f"2 finished tasks are kept in {out}; run the same command to resume" in said


def test_a_study(out, s3, tmp_path):
    study = "model: bundled:cifar10_vit\ndata: bundled:cifar10\nlimit: 2\nmethods: gradient\n"
    study += "metrics: saco\nrandom_draws: 1\nk: [2]\nbatch_size: 8\nfill: [mean, black]\n"
    (tmp_path / "study.yaml").write_text(study)
    said = commands.run("run", tmp_path / "study.yaml", "--out", out).output
    assert f"faithscope report {out} makes a page of it" in said
    assert len(load_results(out).results) == 2
    assert "nothing to do" in commands.run("run", tmp_path / "study.yaml", "--out", out).output


CHILD = """
import sys, time
from faithscope.probes.perturb import probe
from faithscope.runs.store import Store
probe.SHARD = 2
real, seen = Store.write, []
def write(*arguments):
    card = real(*arguments)
    seen.append(1)
    if len(seen) == 3:
        print("three", flush=True)
        time.sleep(600)
    return card
Store.write = write
from faithscope.cli import main
sys.argv[0] = "faithscope"
main()
"""
ASKED = "--model bundled:cifar10_vit --data bundled:cifar10 --limit 8 --methods gradient".split()
ASKED += "--metrics saco --random-draws 1 --k 2 --batch-size 8".split()


def test_a_command_that_is_killed_resumes_and_no_second_one_writes_before(out, s3, tmp_path):
    command = ["evaluate", *ASKED, "--out"]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *command, str(out)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and "three" in child.stdout.readline()
        assert "error: Another run is writing to" in commands.run(*command, out, code=2).stderr
        before = objects(out / "tasks")
        assert sum(name.endswith(".json") for name in before) == 3
    finally:
        child.kill()
        child.wait()
    assert list((out / ".lock").iterdir())
    started = time.monotonic()
    whole = commands.run(*command, out)
    assert time.monotonic() - started < lock.LEASE  # its machine knows that it is dead
    assert "resuming the run" in whole.stderr
    assert not list((out / ".lock").iterdir())
    commands.run(*command, tmp_path / "run")
    assert same(fs.load_result(out), fs.load_result(tmp_path / "run"))


def held_elsewhere(out: RemotePath, beat: int = 0) -> None:
    owner = {"token": "t", "host": "elsewhere", "process": 1, "started": "1", "beat": beat}
    (out / ".lock" / "000003.json").write_bytes(json.dumps(owner).encode())


def test_the_lock_of_a_dead_process_elsewhere_is_taken_after_a_lease(out, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 0.5)
    held_elsewhere(out)
    started = time.monotonic()
    with pytest.warns(UserWarning, match="on another machine"):
        evaluate(out)
    assert time.monotonic() - started > 0.5
    assert not list((out / ".lock").iterdir())


def test_the_lock_of_a_live_process_elsewhere_is_respected(out, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 2.0)
    held_elsewhere(out)
    beating = threading.Timer(0.3, held_elsewhere, (out, 1))
    beating.start()
    with pytest.warns(UserWarning, match="on another machine"):
        with refused("Another run is writing to", "wait for it"):
            evaluate(out)
    beating.join()
    assert [file.name for file in (out / ".lock").iterdir()] == ["000003.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"host": 1}'])
def test_a_lock_that_is_none_is_taken_after_a_lease(content, out, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 0.2)
    (out / ".lock" / "000001.json").write_bytes(content)
    with pytest.warns(UserWarning, match="on another machine"), locked(out):
        assert [file.name for file in (out / ".lock").iterdir()] == ["000002.json"]


def test_a_lock_that_was_let_go_while_somebody_waited_is_free(out, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 5.0)
    held_elsewhere(out)
    going = threading.Timer(0.3, (out / ".lock" / "000003.json").unlink)
    going.start()
    with pytest.warns(UserWarning, match="on another machine"), locked(out):
        assert [file.name for file in (out / ".lock").iterdir()] == ["000001.json"]


def test_of_many_that_want_the_lock_of_a_dead_one_one_gets_it(out, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 0.3)
    held_elsewhere(out)
    got, refusals, end = [], [], threading.Barrier(6)

    def want() -> None:
        try:
            with locked(out):
                got.append(1)
                end.wait()
        except fs.FaithscopeError as error:
            refusals.append(str(error))
            end.wait()

    with pytest.warns(UserWarning):
        threads = [threading.Thread(target=want) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) == 1 and len(refusals) == 5
    assert all("Another run is writing" in said for said in refusals)


@pytest.mark.parametrize("beat", [0.05, 600.0])
@pytest.mark.parametrize("how", ["taken over", "overwritten", "gone"])
def test_who_has_lost_the_lock_writes_no_more(how, beat, out, monkeypatch):
    """Seen by the next beat; or, after a long silence, before the next file is written."""
    monkeypatch.setattr(lock, "BEAT", beat)
    real, seen = Store.write, []

    def write(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            (first,) = (out / ".lock").iterdir()
            for _ in range(10 if beat < 1 else 1):  # a beat may be under way
                if how == "gone":
                    first.unlink(missing_ok=True)
                elif how == "taken over":
                    (out / ".lock" / "000002.json").write_bytes(b"{}")
                else:
                    first.write_bytes(b"{}")
                time.sleep(0.05 if beat < 1 else 0.0)
            if beat > 1:
                monkeypatch.setattr(lock, "LEASE", 0.0)
        return real(*arguments)

    monkeypatch.setattr(Store, "write", write)
    with refused("gone" if how == "gone" else "taken over", "run the same command"):
        evaluate(out)
    assert len(list(out.glob("tasks/*.json"))) == 1
    assert not (out / "manifest.json").exists()


def test_a_process_whose_lock_could_not_be_removed_does_not_lock_itself_out(out, s3):
    with locked(out):
        s3.refuse(503, "DELETE")
    s3.refuse(0)
    assert list((out / ".lock").iterdir())
    with locked(out):
        with refused("Another run is writing"), locked(out):
            pass
    assert not list((out / ".lock").iterdir())


# Faults


@pytest.mark.parametrize("run", [evaluate, retrain])
def test_a_flaky_server_changes_no_bit(run, out, s3, tmp_path):
    s3.flaky(4)
    run(out)
    found = fs.load_result(out)
    s3.flaky(0)
    whole = run(tmp_path)
    assert run is retrain or same(found, whole)
    bag_runs.assert_same_bits(found, whole)
    assert objects(out).keys() == files(tmp_path) - {".lock"}


def test_a_damaged_object_is_found_named_and_made_again(out):
    whole = evaluate(None)
    stopped(out)
    table = next(out.glob("tasks/*/scores.parquet"))
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is damaged"):
        assert same(evaluate(out), whole)
    (out / "scores.parquet").write_bytes(b"")
    with refused("is not a whole faithscope run"):
        fs.load_result(out)
    with pytest.warns(UserWarning, match="is damaged"):
        assert same(evaluate(out), whole)
    assert same(fs.load_result(out), whole)


def test_a_damaged_artifact_is_made_again(out):
    whole = retrain(None)
    bag_runs.stopped_in(out, "01-001")
    for harmed in out.glob("artifacts/**/*.safetensors"):
        harmed.write_bytes(b"harm" + harmed.read_bytes()[4:])
    with pytest.warns(UserWarning, match="is damaged"):
        bag_runs.assert_same_bits(retrain(out), whole)


@pytest.mark.parametrize("status", [503, 403])
def test_what_cannot_be_read_now_is_neither_damaged_nor_gone(status, out, s3, recwarn):
    whole = evaluate(None)
    stopped(out)
    before = objects(out / "tasks")
    s3.refuse(status)
    for ask in (
        evaluate,
        fs.load_result,
        load_results,
        lambda place: Store(place).finished_tasks(),
    ):
        with refused("cannot be read", "check the address, the network and your credentials"):
            ask(out)
    s3.refuse(status, "GET")
    with refused("cannot be read"):
        evaluate(out)
    s3.refuse(0)
    assert objects(out / "tasks") == before
    assert same(evaluate(out), whole)
    assert not [held for held in recwarn if "damaged" in str(held.message)]


def test_a_finished_run_is_read_where_nothing_can_be_written(out, s3):
    whole = evaluate(out)
    s3.refuse(403, "PUT")
    assert same(evaluate(out), whole)
    with refused("cannot be written to", "access is denied"):
        evaluate(out / "other")


def test_a_server_that_fails_in_the_middle_costs_nothing_that_is_finished(out, s3, monkeypatch):
    real, seen = Store.write, []

    def write(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            s3.refuse(503)
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "write", write)
        with refused("cannot be written to", "what is finished is kept"):
            evaluate(out)
    s3.refuse(0)
    assert len(list(out.glob("tasks/*.json"))) == 1
    assert same(evaluate(out), evaluate(None))


@pytest.mark.parametrize("last", [2, 3])
def test_a_folder_that_is_removed_during_the_run_is_not_begun_anew(last, out, monkeypatch):
    """Seen after a moment, and in any case before the result is written."""
    real, seen = Store.write, []

    def write(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == last:
            out.remove_tree()
        return real(*arguments)

    if last == 2:
        monkeypatch.setattr(store, "PLAN_SEEN", 0.0)

    monkeypatch.setattr(Store, "write", write)
    with refused("gone"):
        evaluate(out)
    assert not (out / "manifest.json").exists()


# Sentences


def test_a_bucket_that_is_not_there(s3):
    with refused("'s3://nowhere/run' cannot be written to (there is no 's3://nowhere')"):
        evaluate("s3://nowhere/run")
    said = commands.fails("evaluate", *ASKED, "--out", "s3://nowhere/run")
    assert "there is no 's3://nowhere'" in said
    assert "There is no folder" in commands.fails("report", "s3://nowhere/run")
    assert not as_place("s3://nowhere").exists()  # none was made


def test_no_network_and_no_credentials(s3, monkeypatch, tmp_path):
    remote._file_system.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    with refused("cannot be read (EndpointConnectionError)", "check the address, the network"):
        evaluate(f"s3://{BUCKET}/no-network")
    assert "EndpointConnectionError" in commands.fails("report", f"s3://{BUCKET}/no-network")
    assert time.monotonic() - started < 20
    remote._file_system.cache_clear()
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3.refuse(403)
    try:
        with refused("credentials"):
            evaluate(f"s3://{BUCKET}/no-credentials")
    finally:
        s3.refuse(0)
        remote._file_system.cache_clear()


def test_a_package_that_is_not_installed(monkeypatch):
    pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setattr(sys.modules["fsspec.registry"], "registry", {})
    with refused("out 's3://bucket/run' needs a package", "pip install s3fs"):
        evaluate("s3://bucket/run")
    assert "pip install s3fs" in commands.fails("report", "s3://bucket/run")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s4://bucket/run", ["Unknown file system 's4'", "did you mean 's3'"]),
        ("https://bucket/run", ["Unknown file system 'https'"]),
        ("simplecache::s3://bucket/run", ["Unknown file system 'simplecache::s3'"]),
        ("s3://", ["no address of a folder"]),
        ("s3:///", ["no address of a folder"]),
        ("s3://bucket/../other", ["no address of a folder"]),
        ("s3://bucket/*", ["no address of a folder"]),
        ("s3://bucket/run?versionId=1", ["no address of a folder"]),
        ("sftp://me:secret@host/run", ["holds a password"]),
    ],
)
def test_what_is_no_address_is_refused(address, words):
    with refused(*words):
        evaluate(address)
    said = commands.fails("report", address)
    assert all(word in said for word in words)
    assert "secret" not in said


@pytest.mark.parametrize(
    "command",
    [
        ("report", "RUN", "--figures", "s3://runs/a"),
        ("compare", "RUN", "RUN", "--csv", "s3://runs/a.csv"),
        ("pack", "RUN", "--out", "s3://runs/a.tar.gz"),
        ("unpack", "a.tar.gz", "--out", "s3://runs/a"),
        ("evaluate", "--model", "bundled:cifar10_vit", "--data", "s3://runs/photos"),
        ("evaluate", *ASKED, "--checkpoint", "s3://runs/a.pt"),
        ("roar", "--demo", "--out", "s3://runs/a"),
    ],
)
def test_only_runs_and_pages_may_lie_elsewhere(command, tmp_path):
    pytest.importorskip("s3fs")
    evaluate(tmp_path / "run")
    said = commands.fails(*(tmp_path / "run" if part == "RUN" else part for part in command))
    assert "is not on this machine" in said or "Unknown data source 's3'" in said
    assert not os.path.exists("s3:")


def test_a_tidy_address_is_what_is_kept():
    pytest.importorskip("s3fs")
    place = as_place("S3://bucket//a/./run/")
    assert str(place) == "s3://bucket/a/run" and str(place.parent.parent) == "s3://bucket"
    assert place.parent.parent.parent == place.parent.parent
    assert (place / "x.json").stem == "x" and (place / "x.json").suffix == ".json"
