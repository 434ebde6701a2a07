"""A run is packed into small files and goes on elsewhere, with the same bits."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import shutil
import signal
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bags import MEASURES, BagLearner, bag_texts
from faithscope.probes.retrain import bilstm, parcel
from faithscope.probes.retrain.learner import Recipe
from faithscope.probes.retrain.parcel import INDEX, Parcel, Part, pack_run, read_parcel, unpack_run
from faithscope.probes.retrain.result import RoarResult, load_roar
from faithscope.probes.retrain.store import RESULT_FILES
from families import refused
from test_cli import fails
from test_cli import run as command
from test_cli_roar import csv, rows
from test_roar_store import JOBS, assert_same_bits, run, stopped, stopped_in, weights_in

FEW = {"measures": ["gradient"], "levels": [50], "seeds": 1}
"""Four trainings."""


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def whole() -> RoarResult:
    return run(BagLearner(), None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run; not to be changed."""
    root = tmp_path_factory.mktemp("finished") / "run"
    run(BagLearner(), root)
    return root


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """The parcel of a small finished run; not to be changed."""
    root = tmp_path_factory.mktemp("few")
    run(BagLearner(), root / "run", **FEW)
    pack_run(root / "run", root / "parcel")
    return root / "parcel"


def files_in(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


# There and back


@pytest.mark.parametrize("pack", ["00-000", "00-001", "01-001", "02-000", "03-001"])
@pytest.mark.parametrize("states", [False, True])
def test_a_run_that_was_stopped_goes_on_elsewhere_with_the_same_bits(whole, tmp_path, pack, states):
    stopped_in(tmp_path / "run", pack)
    told = pack_run(tmp_path / "run", tmp_path / "parcel", states=states)
    cards = len(list((tmp_path / "run").glob("jobs/*.json")))
    assert (told.finished, told.trainings) == (cards, JOBS)
    shutil.rmtree(tmp_path / "run")
    found = unpack_run(tmp_path / "parcel", tmp_path / "deep" / "elsewhere")
    assert (found.finished, found.trainings, found.seeds) == (cards, JOBS, (0, 1))
    learner = BagLearner()
    assert_same_bits(run(learner, found.root), whole)
    assert learner.resumed == ([2] if states else [])
    assert len(learner.begun) + cards == JOBS  # none twice


def test_only_weights_that_are_still_to_be_explained_are_packed(tmp_path):
    run_, parcel_ = tmp_path / "run", tmp_path / "parcel"
    stopped_in(run_, "01-001")
    pack_run(run_, parcel_)
    unpack_run(parcel_, tmp_path / "middle")
    links = {f"{name}-roar-k020-s{seed}" for name in MEASURES[:2] for seed in range(2)}
    assert weights_in(tmp_path / "middle") == {"k000-s0", "k000-s1", *links}
    assert not list((tmp_path / "middle").glob("packs/*/state.*"))
    stopped(run_, 2 + 2 * 4 + 3)  # in the last wave: what is still to be masked is decided
    assert weights_in(run_) == {"k000-s0", "k000-s1"}
    pack_run(run_, parcel_)
    unpack_run(parcel_, tmp_path / "late")
    assert files_in(tmp_path / "late") == {
        "plan.json",
        *(f"packs/03-00{place}/inputs.safetensors" for place in range(2)),
        *(f"jobs/{file.name}" for file in run_.glob("jobs/*.json")),
    }


def test_a_run_with_nothing_but_a_plan_is_packed(whole, tmp_path):
    stopped(tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run" / "packs")
    told = pack_run(tmp_path / "run", tmp_path / "parcel")
    assert told.finished == told.members == 0
    unpack_run(tmp_path / "parcel", tmp_path / "elsewhere")
    assert files_in(tmp_path / "elsewhere") == {"plan.json"}
    assert_same_bits(run(BagLearner(), tmp_path / "elsewhere"), whole)


def test_a_finished_run_is_read_elsewhere_and_takes_no_weights_along(whole, finished, tmp_path):
    told = pack_run(finished, tmp_path / "parcel")
    assert told.finished == told.trainings == JOBS
    unpack_run(tmp_path / "parcel", tmp_path / "elsewhere")
    assert_same_bits(load_roar(tmp_path / "elsewhere"), whole)
    assert not list(tmp_path.glob("elsewhere/jobs/*.safetensors"))
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path / "elsewhere"), whole)
    assert learner.begun == []
    (tmp_path / "elsewhere" / "trainings.parquet").write_bytes(b"")
    with pytest.warns(UserWarning, match="tables are made again"):  # from the cards, as at home
        assert_same_bits(run(learner, tmp_path / "elsewhere"), whole)
    assert learner.begun == []


def test_a_result_whose_tables_are_damaged_is_packed_without_them(whole, finished, tmp_path):
    root = copy(finished, tmp_path / "run")
    (root / "sparsity.parquet").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        pack_run(root, tmp_path / "parcel")
    unpack_run(tmp_path / "parcel", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "manifest.json").exists()
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path / "elsewhere"), whole)
    assert learner.begun == []


def test_what_is_damaged_is_not_packed(whole, tmp_path):
    stopped_in(tmp_path / "run", "01-001")
    harmed = ("jobs/k000-s0.json", "jobs/gradient-roar-k020-s1.safetensors")
    for name in harmed:
        file = tmp_path / "run" / name
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="is damaged"):
        pack_run(tmp_path / "run", tmp_path / "parcel")
    unpack_run(tmp_path / "parcel", tmp_path / "elsewhere")
    assert not files_in(tmp_path / "elsewhere") & set(harmed)
    assert_same_bits(run(BagLearner(), tmp_path / "elsewhere"), whole)


# Files of limited size


def test_no_file_is_larger_than_asked_for(finished, tmp_path):
    told = pack_run(finished, tmp_path, part_megabytes=0.01)
    sizes = [file.stat().st_size for file in sorted(tmp_path.iterdir(), key=lambda f: f.name)]
    assert len(told.parts) > 2
    assert max(sizes) <= 10_000 and sorted(sizes) == sorted(told.sizes)
    assert [part.size for part in told.parts[:-1]] == [10_000] * (len(told.parts) - 1)
    unpack_run(tmp_path, tmp_path.with_name("elsewhere"))


def test_a_parcel_is_the_same_bytes_whenever_it_is_packed(finished, tmp_path):
    told = [pack_run(finished, tmp_path / name) for name in "ab"]
    assert [p.hash for p in told[0].parts] == [p.hash for p in told[1].parts]


def test_an_index_that_would_be_too_large_is_refused(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(parcel, "LEAST_MEGABYTES", 0.0001)
    with refused("parts are too many", "larger part size"):
        pack_run(finished, tmp_path, part_megabytes=0.0005)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, -1, 0.001, float("nan"), float("inf"), 1e303])
def test_a_part_size_that_is_none_is_refused(finished, tmp_path, size):
    with refused("at least 0.01 MB"):
        pack_run(finished, tmp_path / "parcel", part_megabytes=size)
    assert not (tmp_path / "parcel").exists()


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.binary(max_size=40), max_size=12),
    limit=st.integers(1, 30),
    step=st.integers(1, 50),
)
def test_parts_are_what_was_written_cut(tmp_path_factory, chunks, limit, step):
    folder = tmp_path_factory.mktemp("parts")
    content = b"".join(chunks)
    with parcel._Writer(folder, "run", limit) as writer:
        for chunk in chunks:
            writer.write(chunk)
    sizes = [part.size for part in writer.parts]
    assert sizes == [limit] * (len(content) // limit) + [len(content) % limit] * (
        len(content) % limit > 0
    )
    files = [folder / part.name for part in writer.parts]
    assert [file.read_bytes() for file in files] == [
        content[start : start + limit] for start in range(0, len(content), limit)
    ]
    with parcel._Reader(files) as reader:
        found = b"".join(iter(lambda: reader.read(step), b""))
    assert found == content


# A parcel is replaced whole


def test_a_parcel_of_the_same_run_is_replaced_and_other_files_are_left_alone(tmp_path):
    root, to = tmp_path / "run", tmp_path / "parcel"
    stopped_in(root, "01-001")
    first = pack_run(root, to)
    own, _, _ = first.parts[0].name.rpartition("-")
    (to / f"{own}-0123abcd.tar.gz.000").write_bytes(b"left by a kill")
    others = {"log.txt", "run-0123abcd.tar.gz.000", "run-0123abcd-0123abcd.tar.gz.000"}
    for name in others:
        (to / name).write_text("of somebody else")
    stopped_in(root, "01-001")
    second = pack_run(root, to)
    assert second.finished > first.finished
    assert files_in(to) == {INDEX, *others, *(part.name for part in second.parts)}
    assert read_parcel(to) == second
    read_parcel(to).check()


def test_a_parcel_that_is_worth_more_is_not_replaced(finished, few, tmp_path):
    before = files_in(few)
    with refused("holds a parcel of another run"):
        pack_run(finished, few)
    assert files_in(few) == before
    pack_run(finished, tmp_path / "parcel")
    stopped_in(tmp_path / "run", "01-001")
    with refused("with more trainings of this run"):
        pack_run(tmp_path / "run", tmp_path / "parcel")
    assert read_parcel(tmp_path / "parcel").finished == JOBS


def test_a_target_whose_index_is_damaged_is_left_alone(finished, tmp_path):
    (tmp_path / INDEX).write_text("{")
    with refused("holds a parcel.json that cannot be read", "give another folder"):
        pack_run(finished, tmp_path)
    assert files_in(tmp_path) == {INDEX}


@pytest.mark.parametrize("place", [".", "packs", "jobs", "deep/inside", "../link"])
def test_a_run_is_not_packed_into_itself(finished, tmp_path, place):
    root = copy(finished, tmp_path / "run")
    (tmp_path / "link").symlink_to(root)
    before = files_in(root)
    with refused("cannot be packed into itself"):
        pack_run(root, root / place)
    assert files_in(root) == before
    pack_run(root, tmp_path)  # around it is no harm
    unpack_run(tmp_path, tmp_path / "again")


def test_packing_that_fails_leaves_the_parcel_that_was_there(finished, tmp_path, monkeypatch):
    pack_run(finished, tmp_path / "parcel")
    before = files_in(tmp_path / "parcel")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for place, name in ((parcel, "replace_file"), (tarfile.TarFile, "addfile")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with refused("parcel' cannot be written to (No space left on device)"):
                pack_run(finished, tmp_path / "parcel")
        assert files_in(tmp_path / "parcel") == before
    read_parcel(tmp_path / "parcel").check()


def test_a_run_that_is_being_written_to_is_not_packed(tmp_path):
    child = multiprocessing.get_context("fork").Process(
        target=run, args=(BagLearner(seconds=0.2), tmp_path / "run")
    )
    child.start()
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "run" / "plan.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with refused("Another run is writing"):
            pack_run(tmp_path / "run", tmp_path / "parcel")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    pack_run(tmp_path / "run", tmp_path / "parcel")


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"faithscope": 1, "model": {}}'])
def test_a_folder_that_holds_no_run_is_not_packed(tmp_path, content):
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    before = files_in(tmp_path)
    with refused("holds no ROAR run"):
        pack_run(tmp_path, tmp_path / "parcel")
    assert files_in(tmp_path) == before
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "plan.json").touch()
    with refused("such as", str(tmp_path / "one")):  # a study's run
        pack_run(tmp_path, tmp_path / "parcel")


# What is not whole is refused


@pytest.fixture
def parts(finished, tmp_path) -> Path:
    """A parcel of several parts."""
    pack_run(finished, tmp_path / "parcel", part_megabytes=0.01)
    return tmp_path / "parcel"


def nothing_made(folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == ["parcel"]


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize(
    ("harm", "words"),
    [("gone", "is missing"), ("cut", "bytes and not"), ("flipped", "its hash differs")],
)
def test_a_part_that_is_not_whole_is_named(parts, tmp_path, which, harm, words):
    name = read_parcel(parts).parts[which].name
    content = (parts / name).read_bytes()
    if harm == "gone":
        (parts / name).unlink()
    else:
        middle = len(content) // 2
        other = b"" if harm == "cut" else bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (parts / name).write_bytes(content[:middle] + other)
    with refused(name, words, "Copy or pack it again"):
        unpack_run(parts, tmp_path / "run")
    assert nothing_made(tmp_path)


def test_a_copy_that_was_cut_off_is_recognised(parts, tmp_path):
    content = (parts / INDEX).read_bytes()
    (parts / INDEX).unlink()
    with refused("holds no whole parcel", "written last"):
        unpack_run(parts, tmp_path / "run")
    for some in (0, 1, len(content) // 2, len(content) - 2):
        (parts / INDEX).write_bytes(content[:some])
        with refused("parcel.json of", "is damaged"):
            unpack_run(parts, tmp_path / "run")
    with refused("holds no whole parcel"):
        unpack_run(tmp_path / "nowhere", tmp_path / "run")
    with refused("no parcel to unpack"):
        unpack_run([], tmp_path / "run")
    assert nothing_made(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("finished", 3, "is damaged"),
        ("plan", {}, "is damaged"),
        ("plan", None, "is damaged"),
        ("plan", {"protocol": {"seeds": []}}, "is damaged"),
        ("plan", {"protocol": {"seeds": ["a", 0]}}, "is damaged"),
        ("parts", 3, "is damaged"),
        ("parts", [["../secret", 1, ""]], "is damaged"),
        ("parts", [["run-00000000.tar.gz.000", float("inf"), ""]], "is damaged"),
        ("members", float("inf"), "is damaged"),
        ("content", float("-inf"), "is damaged"),
        ("content", -1, "is damaged"),
        ("content", None, "is damaged"),
        ("content", 10**18, "disk has"),
        ("members", 10**15, "disk has"),
        ("faithscope", 99, "another version"),
        ("kind", "saco", "another version"),
    ],
)
def test_an_index_that_was_changed_is_refused(parts, tmp_path, key, value, words):
    held = json.loads((parts / INDEX).read_text())
    held["parcel"][key] = value
    if key != "finished":
        held["hash"] = parcel._hash(held["parcel"])
    (parts / INDEX).write_text(json.dumps(held))
    with refused(words):
        unpack_run(parts, tmp_path / "run")
    for content in ("null", "[]", "{}", '{"parcel": null}'):
        (parts / INDEX).write_text(content)
        with refused("is damaged"):
            unpack_run(parts, tmp_path / "run")
    assert nothing_made(tmp_path)


def forged(folder: Path, like: Parcel, content: bytes, members: int = 1, size: int = 10**6) -> Path:
    """A parcel with right hashes whose archive somebody else made."""
    folder.mkdir()
    name = "run-00000000.tar.gz.000"
    (folder / name).write_bytes(content)
    part = Part(name, len(content), parcel.digest(content))
    made = replace(like, folder=folder, members=members, content=size, parts=(part,))
    (folder / INDEX).write_bytes(made._index())
    return folder


def archive(*members: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for held in members:
            info = tarfile.TarInfo()
            for key, value in {"size": 4, **held}.items():
                setattr(info, key, value)
            made.addfile(info, io.BytesIO(b"evil"))
    return buffer.getvalue()


CUT = tarfile.TarInfo("jobs/a.json")
CUT.size = 10**6
EVIL: dict[str, Mapping[str, Any]] = {
    "above": {"name": "../evil.json"},
    "above, later": {"name": "jobs/../../evil.json"},
    "absolute": {"name": "/tmp/evil.json"},
    "a link": {"name": "jobs/a.json", "type": tarfile.SYMTYPE, "linkname": "/etc", "size": 0},
    "a hard link": {"name": "jobs/a.json", "type": tarfile.LNKTYPE, "linkname": "x", "size": 0},
    "a folder": {"name": "jobs", "type": tarfile.DIRTYPE, "size": 0},
    "a pipe": {"name": "jobs/a.json", "type": tarfile.FIFOTYPE, "size": 0},
    "a device": {"name": "jobs/a.json", "type": tarfile.CHRTYPE, "size": 0},
    "a plan": {"name": "plan.json"},
    "something else": {"name": "code.py"},
    "nested": {"name": "jobs/a/b.json"},
    "odd": {"name": "jobs/a\nb.json"},
    "empty": {"name": ""},
    "a second size": {"name": "jobs/a.json", "pax_headers": {"size": "1000000000000"}},
    "a sparse file": {"name": "jobs/a.json", "pax_headers": {"GNU.sparse.realsize": "9999999999"}},
    "a sparse file, older": {"name": "jobs/a.json", "type": tarfile.GNUTYPE_SPARSE, "size": 0},
    "a name too long": {"name": f"jobs/{'a' * 300}.json"},
}
BELOW = tarfile.TarInfo("jobs/a.json")
BELOW.size = -512
LONG = tarfile.TarInfo("././@LongLink")
LONG.type, LONG.size = tarfile.GNUTYPE_LONGNAME, 12
NAMED = LONG.tobuf() + b"jobs/a.json".ljust(512, b"\0")
"""Says what the file that follows is called."""
LOCAL = tarfile.TarInfo.create_pax_global_header({"comment": "x"})


@pytest.mark.parametrize("what", EVIL)
def test_an_archive_with_anything_but_files_of_a_run_is_refused(few, tmp_path, what):
    content = archive({"name": "jobs/a.json"}, EVIL[what])
    folder = forged(tmp_path / "parcel", read_parcel(few), content, members=2)
    with refused("no file of a ROAR run"):
        unpack_run(folder, tmp_path / "deep" / "run")
    assert files_in(tmp_path) == {f"parcel/{name}" for name in files_in(folder)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"no archive", "cannot be read"),
        (gzip.compress(b"no archive"), "cannot be read"),
        (archive({"name": "jobs/a.json"})[:-30], "cannot be read"),
        (archive({"name": "jobs/a.json"}, {"name": "jobs/a.json"}), "no file of a ROAR run"),
        (archive({"name": "jobs/a.json"}, {"name": "jobs/b.json"}), "holds more than 1 files"),
        (archive({"name": "jobs/a.json"}), "holds 1 files of 4 bytes and not 1 of 1,000,000"),
        (gzip.compress(CUT.tobuf() + b"evil"), "cannot be read"),
        (gzip.compress(BELOW.tobuf(tarfile.GNU_FORMAT) * 2), "no file of a ROAR run"),
        (gzip.compress(NAMED * 5000), "no file of a ROAR run"),
        (gzip.compress(LOCAL * 5000), "no file of a ROAR run"),
        (gzip.compress(NAMED), "cannot be read"),
        (gzip.compress(bytes(512 * 100)), "cannot be read"),
    ],
)
def test_an_archive_that_is_none_is_refused(few, tmp_path, content, words):
    folder = forged(tmp_path / "parcel", read_parcel(few), content)
    with refused(words):
        unpack_run(folder, tmp_path / "run")
    assert nothing_made(tmp_path)


def test_no_more_is_unpacked_than_the_index_says(few, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as made:
        member = tarfile.TarInfo("jobs/a.safetensors")
        member.size = 10**8
        made.addfile(member, io.BytesIO(bytes(member.size)))
    folder = forged(tmp_path / "parcel", read_parcel(few), content.getvalue(), size=10**8 - 1)
    with refused("more than 1 files of 99,999,999 bytes"):
        unpack_run(folder, tmp_path / "run")
    assert nothing_made(tmp_path)


def test_names_too_long_for_a_plain_header_travel(tmp_path):
    options = {**FEW, "measures": ["gradient"], "seeds": [2**31 - 1]}
    run(BagLearner(), tmp_path / "run", **options)
    long = tmp_path / "run" / "jobs" / f"{'m' * 89}-recursive-k10000-s2147483647.safetensors"
    long.write_bytes(b"held")
    files = [long, tmp_path / "run" / "manifest.json"]
    content, parts = parcel._write_parts(
        tmp_path, "run-00000000.tar.gz", 10**6, long.parents[1], files
    )
    made = Parcel(tmp_path, {}, 1, 1, 2, content, parts)
    found = {name: source.read() for name, source in made.files()}
    assert found == {
        f"jobs/{long.name}": b"held",
        "manifest.json": files[1].read_bytes(),
    }


def test_what_a_person_noted_of_a_run_travels(tmp_path):
    for seed in (0, 1):
        root = tmp_path / f"run-{seed}"
        run(BagLearner(), root, **{**FEW, "seeds": [seed]})
        (root / "command.txt").write_text(f"faithscope roar --seeds {seed},\n# 3 s\n")
        pack_run(root, tmp_path / str(seed))
    unpack_run(tmp_path / "1", tmp_path / "alone")
    assert (tmp_path / "alone" / "command.txt").read_text() == "faithscope roar --seeds 1,\n# 3 s\n"
    unpack_run([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
    assert (tmp_path / "both" / "command.txt").read_text() == (
        "faithscope roar --seeds 0,\n# 3 s\nfaithscope roar --seeds 1,\n# 3 s\n"
    )


# Unpacked whole or not at all


def test_only_a_new_or_empty_folder_is_unpacked_into(few, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "full/file", "link"):
        with refused("is there already"):
            unpack_run(few, tmp_path / name)
    assert (tmp_path / "full" / "file").read_text() == "mine"
    with refused("cannot be written to"):
        unpack_run(few, tmp_path / "full" / "file" / "run")
    with refused("cannot be written to"):
        unpack_run(few, tmp_path / ("x" * 300))
    (tmp_path / "empty").mkdir()
    unpack_run(few, tmp_path / "empty")
    assert load_roar(tmp_path / "empty").seeds == [0]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with refused("the folder one is in"):
        unpack_run(few, ".")
    unpack_run(few, "relative")
    assert load_roar("relative").seeds == [0]


def test_a_kill_while_unpacking_leaves_nothing_that_looks_like_a_run(few, tmp_path, monkeypatch):
    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for place, name in ((parcel.shutil, "copyfileobj"), (parcel, "write_file"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, die)
            child = multiprocessing.get_context("fork").Process(
                target=unpack_run, args=(few, tmp_path / "run")
            )
            child.start()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert not (tmp_path / "run").exists()
        for left in tmp_path.glob(".run.*"):
            assert name == "rename" or not (left / "plan.json").exists()
            shutil.rmtree(left)
    unpack_run(few, tmp_path / "run")
    assert load_roar(tmp_path / "run").seeds == [0]


# Seeds of several machines


def packed(folder: Path, name: str, **options: Any) -> Path:
    run(BagLearner(), folder / f"run-{name}", **options)
    return pack_run(folder / f"run-{name}", folder / name).folder


def test_seeds_of_several_machines_are_one_run(whole, tmp_path):
    """Bags are trained to the same bits in any pack, so the run of both seeds is the same."""
    folders = [packed(tmp_path, str(seed), seeds=[seed]) for seed in (1, 0)]
    found = unpack_run(folders, tmp_path / "both")
    assert (found.finished, found.trainings, found.seeds) == (JOBS, JOBS, (0, 1))
    assert found.is_whole
    learner = BagLearner()
    result = run(learner, tmp_path / "both")
    assert_same_bits(result, whole)
    assert learner.begun == learner.explained == []
    for seed in (0, 1):
        part = load_roar(tmp_path / f"run-{seed}")
        for name in part.measures:
            for procedure in part.procedures:
                joined = result.values(name, procedure)[seed]
                assert joined.tobytes() == part.values(name, procedure)[0].tobytes()
    assert result.manifest["cost"]["trainings"] == JOBS


@pytest.mark.parametrize(
    ("groups", "seeds"),
    [(([4, 0], [2]), [2, 0, 4]), (([0, 2], [3, 1]), [0, 1, 2, 3]), (([0, 1], [1, 2]), [0, 1, 2])],
)
def test_joined_seeds_begin_with_one_that_has_examples(tmp_path, groups, seeds):
    folders = [
        packed(tmp_path, str(place), **{**FEW, "seeds": group})
        for place, group in enumerate(groups)
    ]
    assert unpack_run(folders, tmp_path / "joined").seeds == tuple(seeds)
    learner = BagLearner()
    result = run(learner, tmp_path / "joined", **{**FEW, "seeds": seeds})
    assert learner.begun == []
    assert {example["seed"] for example in result.examples} == {seeds[0]}
    assert_same_bits(result, run(BagLearner(), None, **{**FEW, "seeds": seeds}))


@pytest.mark.parametrize("groups", [([1], [0]), ([4, 0], [2]), ([0, 1], [1, 2])])
def test_tables_of_joined_seeds_are_those_that_the_command_makes(tmp_path, monkeypatch, groups):
    for place, group in enumerate(groups):
        monkeypatch.setattr(
            "faithscope.probes.retrain.roar._device_name", lambda _, n=place: f"GPU {n}"
        )
        packed(tmp_path, str(place), seeds=group)
    found = unpack_run([tmp_path / "0", tmp_path / "1"], tmp_path / "joined")
    assert found.is_whole
    read = {name: (tmp_path / "joined" / name).read_bytes() for name in RESULT_FILES}
    (tmp_path / "joined" / "manifest.json").unlink()
    learner = BagLearner()
    run(learner, tmp_path / "joined", seeds=found.seeds)
    assert learner.begun == []
    made = {name: (tmp_path / "joined" / name).read_bytes() for name in RESULT_FILES}
    manifests = [json.loads(held.pop("manifest.json")) for held in (read, made)]
    assert read == made
    assert all(manifest.pop("created") for manifest in manifests)
    assert json.dumps(manifests[0]) == json.dumps(manifests[1])
    assert {"GPU 0", "GPU 1"} == {*manifests[0]["machine"]["device"].split(", ")}


def test_joined_results_name_the_versions_that_made_them_not_those_here(tmp_path, monkeypatch):
    """Cards of earlier versions name none, manifests do."""
    roar = "faithscope.probes.retrain.roar"
    monkeypatch.setattr(f"{roar}.package_versions", dict)
    for seed in (0, 1):
        made = {"machine": {"python": "3"}, "versions": {"faithscope": "0", "torch": f"{seed}.0"}}
        monkeypatch.setattr(f"{roar}.made_here", lambda _, made=made: made)
        packed(tmp_path, str(seed), **{**FEW, "seeds": [seed]})
    monkeypatch.undo()
    packed(tmp_path, "2", **{**FEW, "seeds": [2]})  # its cards name theirs
    assert unpack_run([tmp_path / str(n) for n in range(3)], tmp_path / "joined").is_whole
    manifest = json.loads((tmp_path / "joined" / "manifest.json").read_text())
    assert manifest["versions"]["torch"] == f"0.0, 1.0, {version('torch')}"
    assert manifest["machine"]["python"].startswith("3, 3.")


@pytest.mark.parametrize("harm", ["clip", "unfinished", "damaged"])
def test_tables_that_cannot_be_joined_are_left_to_the_command(tmp_path, harm):
    packed(tmp_path, "0", **FEW)
    packed(tmp_path, "1", **{**FEW, "seeds": [1], "clip": harm != "clip"})
    root = tmp_path / "run-1"
    if harm != "clip":
        (root / ("manifest.json" if harm == "unfinished" else "jobs/k000-s1.json")).write_text("{}")
        with pytest.warns(UserWarning, match="is damaged"):
            pack_run(root, tmp_path / "part")
    parts = [tmp_path / "0", tmp_path / ("1" if harm == "clip" else "part")]
    found = unpack_run(parts, tmp_path / "both")
    assert not found.is_whole and not list((tmp_path / "both").glob("*.parquet"))
    assert found.finished == found.trainings - (harm == "damaged")
    both = {**FEW, "seeds": 2}
    assert_same_bits(run(BagLearner(), tmp_path / "both", **both), run(BagLearner(), None, **both))


def test_a_card_without_examples_is_trained_again_where_they_are_needed(tmp_path):
    other = packed(tmp_path, "other", **{**FEW, "seeds": [5, 0]})
    with pytest.raises(KeyboardInterrupt):
        run(BagLearner(stop_at=1), tmp_path / "begun", **{**FEW, "seeds": [0, 6]})
    begun = pack_run(tmp_path / "begun", tmp_path / "begun.parcel").folder
    found = unpack_run([other, begun], tmp_path / "joined")
    assert (found.finished, found.trainings) == (4, 12)
    result = run(BagLearner(), tmp_path / "joined", **{**FEW, "seeds": found.seeds})
    assert_same_bits(result, run(BagLearner(), None, **{**FEW, "seeds": [0, 5, 6]}))


def test_runs_that_are_not_finished_are_joined_without_what_they_had_begun(whole, tmp_path):
    options = {"seeds": [1], "keep_every": 0}
    first = packed(tmp_path, "first", seeds=[0])
    stopped(tmp_path / "second", 10, **options)
    second = pack_run(tmp_path / "second", tmp_path / "half", states=True)
    assert 0 < second.finished < second.trainings
    found = unpack_run([first, second.folder], tmp_path / "both")
    assert found.finished == JOBS // 2 + second.finished
    assert not (tmp_path / "both" / "packs").exists()
    assert_same_bits(run(BagLearner(), tmp_path / "both"), whole)


def test_parcels_of_the_same_seeds_are_not_joined(few, tmp_path):
    stopped_in(tmp_path / "run", "01-001")
    early = pack_run(tmp_path / "run", tmp_path / "early").folder
    stopped(tmp_path / "run", 12)
    late = pack_run(tmp_path / "run", tmp_path / "late").folder
    with refused("both hold seeds 0, 1: nothing to join"):
        unpack_run([early, late], tmp_path / "both")
    with refused("both hold seed 0: nothing to join"):
        unpack_run([few, few], tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("learner", "options", "words"),
    [
        (BagLearner(), {"levels": [60]}, "protocol levels is [0, 50, 100] there and [0, 60, 100]"),
        (BagLearner(), {"data": bag_texts(seed=1)}, "data fingerprint"),
        (BagLearner(pack_size=5), {}, "pack_size is 7 there and 5 here"),
        (BagLearner(recipe=Recipe(5, 16, 1)), {}, "recipe epochs"),
    ],
)
def test_runs_that_differ_in_more_than_seeds_are_not_joined(few, tmp_path, learner, options, words):
    run(learner, tmp_path / "other", **{**FEW, "seeds": [1], **options})
    other = pack_run(tmp_path / "other", tmp_path / "parcel").folder
    with refused("cannot be joined", "differ in more than seeds", words):
        unpack_run([few, other], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trainings_that_came_out_otherwise_are_not_joined(few, tmp_path):
    run(BagLearner(), tmp_path / "run", **{**FEW, "seeds": 2})
    file = tmp_path / "run" / "jobs" / "gradient-roar-k050-s0.json"
    held = json.loads(file.read_text())
    held["card"]["seconds"] += 1  # of another machine: no matter
    for value in (held["card"]["scores"]["accuracy"], 0.123):
        held["card"]["scores"]["accuracy"] = value
        held["hash"] = parcel._hash(held["card"])
        file.write_text(json.dumps(held))
        (tmp_path / "run" / "manifest.json").unlink(missing_ok=True)
        other = pack_run(tmp_path / "run", tmp_path / "other").folder
        if value != 0.123:
            unpack_run([few, other], tmp_path / "joined")
    with refused("gradient-roar-k050-s0' of", "came out otherwise", "one parcel for each seed"):
        unpack_run([few, other], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_card_that_is_none_is_not_joined(few, tmp_path):
    like = read_parcel(few)
    other = {**like.plan, "protocol": {**like.plan["protocol"], "seeds": [1]}}
    content = archive({"name": "jobs/a.json"})
    folder = forged(tmp_path / "parcel", replace(like, plan=other), content)
    with refused("jobs/a.json is damaged"):
        unpack_run([few, folder], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_folder_of_a_parcel_may_be_a_name(few, tmp_path):
    assert unpack_run(str(few), str(tmp_path / "run")).finished == 4


# From end to end, with the BiLSTM


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, ...]:
    """A request whose recursive chain has three links, of models that train in a blink."""
    monkeypatch.setitem(bilstm.SETTINGS, "own", bilstm.Setting(Recipe(2, 16), 4, 6, False))
    texts = csv(tmp_path / "texts.csv", rows())
    return ("roar", "--dataset", texts, "--measures", "gradient", "--levels", "20,50,80")


def interrupted(request: tuple[Any, ...], packs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a command after so many packs."""
    real, begun = bilstm.BiLSTMLearner.begin, []

    def begin(*arguments: Any) -> Any:
        begun.append(1)
        if len(begun) > packs + 1:  # the first is the forecast's
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bilstm.BiLSTMLearner, "begin", begin)
        command(*request, code=130)


def test_the_command_packs_a_run_and_goes_on_elsewhere(small, tmp_path, monkeypatch):
    request = (*small, "--seeds", "2", "--out")
    command(*request, tmp_path / "whole")
    root = tmp_path / "a run"
    interrupted((*request, root), 2, monkeypatch)
    told = command("roar", "--pack", root, "--part-size", "0.01").stdout
    folder = tmp_path / "a run.parcel"
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert max(sizes) <= 10_000
    held = read_parcel(folder)
    assert 0 < held.finished < held.trainings
    assert f"packed {held.finished} of {held.trainings} finished trainings" in told
    assert f"into {len(sizes)} files" in told and f"the largest {max(sizes) / 1e6:.3f} MB" in told
    assert f"faithscope roar --unpack '{folder}' --out '{root}'" in told
    shutil.rmtree(root)
    told = command("roar", "--unpack", folder, "--out", root).stdout
    assert told.startswith(f"unpacked {held.finished} of {held.trainings} finished trainings into")
    assert f"goes on with --out '{root}'" in told
    told = command(*request, root)
    assert f"({held.finished} are finished)" in told.stderr
    assert_same_bits(load_roar(root), load_roar(tmp_path / "whole"))
    command("roar", "--pack", root, "--out", tmp_path / "done", "--states")
    told = command("roar", "--unpack", tmp_path / "done", "--out", tmp_path / "read").stdout
    assert f"finished: faithscope report {tmp_path / 'read'}" in " ".join(told.split())
    command("report", tmp_path / "read")
    assert_same_bits(load_roar(tmp_path / "read"), load_roar(tmp_path / "whole"))


def test_the_command_joins_seeds(small, tmp_path):
    for seed in ("0,", "1,"):
        command(*small, "--seeds", seed, "--out", tmp_path / f"run{seed[0]}")
        command("roar", "--pack", tmp_path / f"run{seed[0]}", "--out", tmp_path / f"part{seed[0]}")
    parts = [item for place in "10" for item in ("--unpack", tmp_path / f"part{place}")]
    told = command("roar", *parts, "--out", tmp_path / "both").stdout
    assert "unpacked 20 of 20 finished trainings" in told
    assert f"finished: faithscope report {tmp_path / 'both'}" in " ".join(told.split())
    command("report", tmp_path / "both")
    told = command(*small, "--seeds", "0,1", "--out", tmp_path / "both")
    assert "is finished: nothing to do" in told.stderr
    both = load_roar(tmp_path / "both")
    for seed in (0, 1):
        alone = load_roar(tmp_path / f"run{seed}")
        for name in both.measures:
            found = both.values(name, "recursive")[seed]
            assert found.tobytes() == alone.values(name, "recursive")[0].tobytes()


def test_the_command_says_what_is_trained_again_after_joining(small, tmp_path, monkeypatch):
    for seed, packs in (("0,", 9), ("3,", 2)):
        root = tmp_path / f"run{seed[0]}"
        request = (*small, "--seeds", seed, "--out", root)
        command(*request) if packs == 9 else interrupted(request, packs, monkeypatch)
        command("roar", "--pack", root, "--out", tmp_path / seed[0])
    parts = [item for place in "03" for item in ("--unpack", tmp_path / place)]
    told = " ".join(command("roar", *parts, "--out", tmp_path / "both").stdout.split())
    assert "goes on with --seeds 0,3 --out" in told
    assert "trainings whose weights are gone, and that others need, are trained again" in told
    request = (*small, "--seeds", "0,3", "--out", tmp_path / "both")
    told = json.loads(command(*request, "--dry-run", "--json").stdout)
    begun: list[int] = []
    real = bilstm.BiLSTMLearner.begin

    def begin(learner: Any, data: Any, seeds: Any) -> Any:
        begun.append(len(seeds))
        return real(learner, data, seeds)

    monkeypatch.setattr(bilstm.BiLSTMLearner, "begin", begin)
    said = " ".join(command(*request).stderr.split())
    assert told["again"] > 0
    assert f"({told['finished']} are finished, {told['again']} of them to be trained again" in said
    assert sum(begun[1:]) == told["trainings"] - told["finished"] + told["again"]


def test_the_command_packs_and_unpacks_for_a_program(few, tmp_path):
    root = tmp_path / "a run"
    told = json.loads(command("roar", "--unpack", few, "--out", root, "--json").stdout)
    assert told == {
        "run": str(root),
        "trainings": 4,
        "finished": 4,
        "seeds": [0],
        "report": True,
        "next": f"finished: faithscope report '{root}'",
    }
    told = json.loads(command("roar", "--pack", root, "--json").stdout)
    sizes = [file.stat().st_size for file in (tmp_path / "a run.parcel").iterdir()]
    assert (told["files"], told["bytes"], told["largest"]) == (len(sizes), sum(sizes), max(sizes))
    assert (told["finished"], told["trainings"]) == (4, 4)
    assert told["unpack"] == f"faithscope roar --unpack '{told['parcel']}' --out '{root}'"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--pack", "nowhere"], "There is no folder 'nowhere'"),
        (["--pack", "."], "holds no ROAR run"),
        (["--pack", ".", "--part-size", "0"], "at least 0.01 MB"),
        (["--pack", ".", "--seeds", "3"], "--seeds has no effect with --pack: leave it out."),
        (["--pack", ".", "--unpack", "x"], "--unpack has no effect with --pack"),
        (["--pack", ".", "--demo"], "--pack has no effect with --demo"),
        (["--pack", ".", "--part-size", "1e303"], "at most 1,000,000,000"),
        (["--unpack", "."], "--unpack needs --out"),
        (["--unpack", "nowhere", "--out", "x"], "There is no folder 'nowhere'"),
        (["--unpack", ".", "--out", "x"], "holds no whole parcel"),
        (["--unpack", ".", "--out", "x", "--states"], "--states has no effect with --unpack"),
        (["--dataset", "x.csv", "--states"], "--states has no effect without --pack"),
        (["--part-size", "3"], "--part-size has no effect without --pack"),
    ],
)
def test_what_cannot_be_packed_or_unpacked_is_said(tmp_path, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in fails("roar", *options)
    assert not list(tmp_path.iterdir())
