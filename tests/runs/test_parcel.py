"""A run is packed into one file and goes on elsewhere, with the same bits."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import faithscope as fs
from bag_runs import BASES, JOBS, PACKS, assert_same_bits, run, stopped, stopped_in, weights_in
from bags import MEASURES, BagLearner, bag_texts
from commands import csv, fails, interrupted, rows
from commands import run as command
from conftest import randn, tiny_vit
from disasters import cards_in
from faithscope.api import pack_run, unpack_run
from faithscope.hashing import digest
from faithscope.probes.retrain import bilstm
from faithscope.probes.retrain.learner import Recipe
from faithscope.runs import parcel
from faithscope.runs.files import sealed, unsealed
from faithscope.runs.parcel import INDEX
from faithscope.runs.store import locked
from families import refused

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
FEW = {"measures": ["gradient"], "levels": [50], "seeds": 1}
"""Four trainings."""


@pytest.fixture(scope="module")
def whole() -> fs.Result:
    return run(BagLearner(), None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    root = tmp_path_factory.mktemp("finished") / "run"
    run(BagLearner(), root)
    return root


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parcel of a small finished run; not to be changed."""
    return packed(tmp_path_factory.mktemp("few"), "few", **FEW)


def packed(folder: Path, name: str, **options: Any) -> Path:
    run(BagLearner(), folder / f"run-{name}", **options)
    return Path(pack_run(folder / f"run-{name}", folder / f"{name}.tar.gz").file)


def files_in(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


# There and back


@pytest.mark.parametrize("pack", ["00-000", "00-001", "01-001", "02-000", "03-001"])
@pytest.mark.parametrize("states", [False, True])
def test_a_run_that_was_stopped_goes_on_elsewhere_with_the_same_bits(whole, tmp_path, pack, states):
    stopped_in(tmp_path / "run", pack)
    made = pack_run(tmp_path / "run", tmp_path / "run.tar.gz", states=states)
    cards, trained = (len(list((tmp_path / "run").glob(f"tasks/{k}*.json"))) for k in ("", "train"))
    assert (made.finished, made.tasks) == (cards, 2 * PACKS)
    assert made.size == Path(made.file).stat().st_size
    shutil.rmtree(tmp_path / "run")
    found = unpack_run(made.file, tmp_path / "deep" / "elsewhere")
    assert (found.finished, found.tasks, found.seeds) == (cards, 2 * PACKS, (0, 1))
    assert not found.is_whole
    learner = BagLearner()
    assert_same_bits(run(learner, Path(found.folder)), whole)
    assert learner.resumed == ([2] if states else [])
    assert learner.epochs_run == (PACKS - trained) * 4 - (2 if states else 0)  # none twice


def test_only_what_is_still_to_be_read_is_packed(tmp_path):
    root = tmp_path / "run"
    stopped_in(root, "01-001")
    unpack_run(pack_run(root).file, tmp_path / "middle")  # to run.tar.gz, beside it
    links = {f"{name}-roar-k020-s{seed}" for name in MEASURES[:2] for seed in range(2)}
    assert weights_in(tmp_path / "middle") == BASES | links
    assert not list(tmp_path.glob("middle/states/*"))
    (root / "tasks" / "notes.txt").write_text("mine")
    stopped(root, 2 + 2 * 4 + 3)  # in the last wave: what is still to be masked is decided
    unpack_run(pack_run(root).file, tmp_path / "late")  # the earlier parcel is replaced
    assert files_in(tmp_path / "late") == {
        "plan.json",
        *(f"artifacts/masks/s0-1-03-00{place}.safetensors" for place in range(2)),
        *(name for name in files_in(root) if name.startswith("tasks/") and "notes" not in name),
    }


def test_a_run_with_nothing_but_a_plan_is_packed(whole, tmp_path):
    stopped(tmp_path / "run", 1)
    for name in ("tasks", "artifacts", "states"):
        shutil.rmtree(tmp_path / "run" / name, ignore_errors=True)
    assert pack_run(tmp_path / "run").finished == 0
    unpack_run(tmp_path / "run.tar.gz", tmp_path / "elsewhere")
    assert files_in(tmp_path / "elsewhere") == {"plan.json"}
    assert_same_bits(run(BagLearner(), tmp_path / "elsewhere"), whole)


def test_a_finished_run_is_read_elsewhere_and_takes_no_weights_along(whole, finished, tmp_path):
    made = pack_run(finished, tmp_path / "run.tar.gz")
    assert made.finished == made.tasks == 2 * PACKS
    root = tmp_path / "elsewhere"
    assert unpack_run(made.file, root).is_whole
    assert_same_bits(fs.load_result(root), whole)
    assert not (root / "artifacts").exists()
    learner = BagLearner()
    assert_same_bits(run(learner, root), whole)
    (root / "trainings.parquet").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):  # made again from the tasks, as at home
        assert_same_bits(run(learner, root), whole)
    assert learner.begun == []


def test_what_is_damaged_is_not_packed(whole, finished, tmp_path):
    root = Path(shutil.copytree(finished, tmp_path / "tables"))
    (root / "sparsity.parquet").write_bytes(b"")
    assert not unpack_run(pack_run(root).file, tmp_path / "a").is_whole
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path / "a"), whole)
    assert learner.begun == []
    stopped_in(tmp_path / "run", "01-001")
    harmed = {
        "tasks/train-s0-1-00-000.json",
        "artifacts/models/gradient-roar-k020-s1.safetensors",
    }
    for name in harmed:
        file = tmp_path / "run" / name
        file.write_bytes(file.read_bytes()[:-20])
    unpack_run(pack_run(tmp_path / "run").file, tmp_path / "b")
    assert not files_in(tmp_path / "b") & harmed
    assert_same_bits(run(BagLearner(), tmp_path / "b"), whole)


def test_what_a_person_noted_of_a_run_travels(tmp_path):
    for seed in (0, 1):
        root = tmp_path / f"run{seed}"
        run(BagLearner(), root, **{**FEW, "seeds": [seed]})
        (root / "command.txt").write_text(f"faithscope roar --seeds {seed},\n# 3 s\n")
        pack_run(root)
    unpack_run(tmp_path / "run1.tar.gz", tmp_path / "alone")
    assert (tmp_path / "alone" / "command.txt").read_text() == "faithscope roar --seeds 1,\n# 3 s\n"
    unpack_run([tmp_path / "run0.tar.gz", tmp_path / "run1.tar.gz"], tmp_path / "both")
    assert (tmp_path / "both" / "command.txt").read_text() == (
        "faithscope roar --seeds 0,\n# 3 s\nfaithscope roar --seeds 1,\n# 3 s\n"
    )


def test_a_run_over_images_travels_in_the_same_way(tmp_path, monkeypatch):
    monkeypatch.setattr("faithscope.probes.perturb.probe.SHARD", 2)
    root, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def evaluate(out: Path | None, stop_at: float = float("inf")) -> fs.Result:
        def report(place: fs.Progress) -> None:
            if place.done > stop_at * place.total:
                raise KeyboardInterrupt

        images = randn(8, 3, 16, 16)
        return fs.evaluate(tiny_vit(), images, "rollout", "saco", out=out, progress=report)

    whole = evaluate(None)
    with pytest.raises(KeyboardInterrupt):
        evaluate(root, 0.6)
    made = pack_run(root)
    assert 0 < made.finished == cards_in(root) < 4
    assert unpack_run(made.file, elsewhere).finished == made.finished
    assert evaluate(elsewhere).scores.equals(whole.scores)
    assert unpack_run(
        pack_run(elsewhere, tmp_path / "done.tar.gz").file, tmp_path / "read"
    ).is_whole
    assert fs.load_result(tmp_path / "read").scores.equals(whole.scores)
    whole.save(tmp_path / "saved")  # from memory
    assert unpack_run(pack_run(tmp_path / "saved").file, tmp_path / "copy").is_whole
    assert fs.load_result(tmp_path / "copy").scores.equals(whole.scores)
    with refused("Only runs of seeds can be joined"):
        unpack_run([made.file, made.file], tmp_path / "both")


# What is packed to, and from


def test_a_parcel_is_replaced_only_by_more_of_the_same_run(finished, few, tmp_path):
    before = few.read_bytes()
    with refused("holds a parcel of another run"):
        pack_run(finished, few)
    assert few.read_bytes() == before
    made = pack_run(finished, tmp_path / "run.tar.gz")
    stopped_in(tmp_path / "run", "01-001")
    with refused("with more of this run"):
        pack_run(tmp_path / "run", made.file)
    (tmp_path / "notes.txt").write_text("mine")
    with refused("exists already and is not a parcel"):
        pack_run(finished, tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["run.tar.gz", "tasks/x", "deep/inside", "../link/x"])
def test_a_run_is_not_packed_into_itself(finished, tmp_path, place):
    root = Path(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "link").symlink_to(root)
    before = files_in(root)
    with refused("cannot be packed into itself"):
        pack_run(root, root / place)
    assert files_in(root) == before


def test_packing_that_fails_leaves_the_parcel_that_was_there(finished, tmp_path, monkeypatch):
    made = Path(pack_run(finished, tmp_path / "run.tar.gz").file)
    before = made.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for place, name in ((Path, "replace"), (tarfile.TarFile, "addfile")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with refused("cannot be written to (No space left on device)"):
                pack_run(finished, made)
        assert made.read_bytes() == before and files_in(tmp_path) == {made.name}


def test_what_cannot_be_packed_is_said(tmp_path):
    stopped(tmp_path / "run", 1)
    with locked(tmp_path / "run"), refused("Another run is writing"):
        pack_run(tmp_path / "run")
    for content in (None, "", "[]", "{}"):
        (tmp_path / "none").mkdir(exist_ok=True)
        if content is not None:
            (tmp_path / "none" / "plan.json").write_text(content)
        with refused("holds no run"):
            pack_run(tmp_path / "none")
    with refused("such as", str(tmp_path / "none")):  # of a study
        pack_run(tmp_path)


# Nothing in an archive is trusted

Members = dict[str, Any]
"""Files by name: their content, or a TarInfo and its content."""


def forged(file: Path, to: Path, change: Callable[[dict[str, Any], Members], Any]) -> Path:
    """A parcel like another one, its index and files changed by somebody, its hashes right."""
    with tarfile.open(file) as archive:
        held: Members = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
    index = unsealed(held.pop(INDEX))
    change(index, held)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, member in {INDEX: sealed(index), **held}.items():
            info, data = member if isinstance(member, tuple) else (tarfile.TarInfo(name), member)
            if not isinstance(member, tuple):
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    to.write_bytes(content.getvalue())
    return to


def added(name: str, data: bytes = b"evil") -> Callable[[dict[str, Any], Members], None]:
    """Put a file in, and into the index."""

    def change(index: dict[str, Any], held: Members) -> None:
        index["files"][name] = {"size": len(data), "hash": digest(data)}
        held[name] = data

    return change


def as_kind(**traits: Any) -> Callable[[dict[str, Any], Members], None]:
    """Make a file that the index knows something else than a plain one."""

    def change(index: dict[str, Any], held: Members) -> None:
        name = next(name for name in held if name.startswith("tasks/"))
        info = tarfile.TarInfo(name)
        for key, value in {"size": index["files"][name]["size"], **traits}.items():
            setattr(info, key, value)
        held[name] = info, held[name]

    return change


def larger(index: dict[str, Any], held: Members) -> None:
    """Of zeros, which pack well, more than the index says."""
    held["tasks/zeros.json"] = bytes(10**8)


def twice(index: dict[str, Any], held: Members) -> None:
    name = next(name for name in held if name.startswith("tasks/"))
    again = tarfile.TarInfo(name)
    again.size = len(held[name])
    held["again"] = again, held[name]


def flipped(index: dict[str, Any], held: Members) -> None:
    held["manifest.json"] = held["manifest.json"].replace(b"bag", b"bug")


def of_index(**values: Any) -> Callable[[dict[str, Any], Members], None]:
    return lambda index, _: index.update(values)


NO_FILE, NOT_SAID = "which is no file of a run", "is not what its index says"
FORGED: Mapping[str, tuple[Callable[[dict[str, Any], Members], Any], str]] = {
    "above": (added("../evil.json"), NO_FILE),
    "above, later": (added("tasks/../../evil.json"), NO_FILE),
    "dots as a name": (added("tasks/../trainings.parquet"), NO_FILE),
    "absolute": (added("/tmp/evil.json"), NO_FILE),
    "a plan": (added("plan.json"), NO_FILE),
    "something else": (added("code.py"), NO_FILE),
    "nested": (added("tasks/a/b.json"), NO_FILE),
    "odd": (added("tasks/a\nb.json"), NO_FILE),
    "empty": (added(""), NO_FILE),
    "not in the index": (lambda _, held: held.update({"tasks/a.json": b"evil"}), NOT_SAID),
    "a link": (as_kind(type=tarfile.SYMTYPE, linkname="/etc", size=0), NOT_SAID),
    "a hard link": (as_kind(type=tarfile.LNKTYPE, linkname="manifest.json", size=0), NOT_SAID),
    "a folder": (as_kind(type=tarfile.DIRTYPE, size=0), NOT_SAID),
    "a pipe": (as_kind(type=tarfile.FIFOTYPE, size=0), NOT_SAID),
    "a device": (as_kind(type=tarfile.CHRTYPE, size=0), NOT_SAID),
    "a sparse file": (as_kind(pax_headers={"GNU.sparse.realsize": "9999999999"}), NOT_SAID),
    "another size": (as_kind(pax_headers={"size": "1000000000000"}), NOT_SAID),
    "twice": (twice, NOT_SAID),
    "more than the index says": (larger, "is not what its index says"),
    "another content": (flipped, "'manifest.json' is damaged"),
    "missing": (lambda _, held: held.pop("manifest.json"), "'manifest.json' is missing"),
    "another version": (of_index(format=99), "packed by another version of faithscope"),
    "no version": (of_index(format=None), "packed by another version of faithscope"),
    "no plan": (of_index(plan=None), "its parcel.json is not what it should be"),
    "an empty plan": (of_index(plan={}), "its plan is not what it should be"),
    "no files": (of_index(files=3), "its parcel.json is not what it should be"),
    "endless": (of_index(tasks=float("inf")), "its parcel.json is not what it should be"),
    "below nothing": (of_index(finished=-1), "its parcel.json is not what it should be"),
    "more than a disk": (
        lambda index, _: index["files"]["manifest.json"].update(size=10**18),
        "the disk has",
    ),
}


def test_a_parcel_that_is_copied_member_by_member_can_be_used(few, tmp_path):
    """Else the tests below might refuse everything."""
    made = forged(few, tmp_path / "forged.tar.gz", lambda *_: None)
    assert unpack_run(made, tmp_path / "run").is_whole


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_archive_is_refused_and_nothing_is_made(few, tmp_path, what):
    change, words = FORGED[what]
    made = forged(few, tmp_path / "forged.tar.gz", change)
    with refused(words):
        unpack_run(made, tmp_path / "deep" / "run")
    assert files_in(tmp_path) == {made.name}


def bomb(name: str, size: int) -> bytes:
    """An archive whose first file is a great many zeros."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return content.getvalue()


LONG = tarfile.TarInfo("././@LongLink")
LONG.type, LONG.size = tarfile.GNUTYPE_LONGNAME, 12
NAMED = LONG.tobuf() + b"parcel.json".ljust(512, b"\0")
"""Says what the file that follows is called."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        gzip.compress(b"no archive"),
        gzip.compress(bytes(512 * 100)),
        gzip.compress(NAMED * 5000),
        gzip.compress(tarfile.TarInfo.create_pax_global_header({"comment": "x"}) * 5000),
        bomb("tasks/a.json", 4),
        bomb(INDEX, 4),
        bomb(INDEX, 10**8),
        gzip.compress(bytes(10**8)),
    ],
    ids=range(10),  # the contents hold the time, and two processes must collect the same tests
)
def test_an_archive_that_is_none_is_refused(tmp_path, content):
    file = tmp_path / "run.tar.gz"
    file.write_bytes(content)
    with refused("cannot be used", "Copy or pack it again"):
        unpack_run(file, tmp_path / "run")
    assert files_in(tmp_path) == {file.name}


def test_an_archive_that_was_cut_off_or_damaged_is_refused(few, tmp_path):
    content, file = few.read_bytes(), tmp_path / "run.tar.gz"
    step = len(content) // 12
    for place in range(0, len(content) - 64, step):
        harmed = bytearray(content)
        harmed[place] ^= 1
        for changed in (content[:place], bytes(harmed)):
            file.write_bytes(changed)
            try:
                unpack_run(file, tmp_path / "run")
            except fs.FaithscopeError as error:
                assert "cannot be used" in str(error) and str(error).count("\n") == 0
                assert not (tmp_path / "run").exists()
            else:  # a bit that says nothing, such as when the archive was made
                assert len(changed) == len(content)
                assert fs.load_result(tmp_path / "run").trained.seeds == [0]
                shutil.rmtree(tmp_path / "run")


# Unpacked whole or not at all


def test_only_a_new_or_empty_folder_is_unpacked_into(few, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "full/file", "link"):
        with refused("exists already"):
            unpack_run(few, tmp_path / name)
    assert (tmp_path / "full" / "file").read_text() == "mine"
    for name, words in (("full/file/run", "cannot be written to"), ("x" * 300, "is too long")):
        with refused(words):
            unpack_run(few, tmp_path / name)
    with refused("no parcel to unpack"):
        unpack_run([], tmp_path / "run")
    with refused("cannot be read"):
        unpack_run(tmp_path / "nowhere", tmp_path / "run")
    (tmp_path / "empty").mkdir()
    unpack_run(few, tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    shutil.rmtree(tmp_path / "empty" / "tasks")
    for name in files_in(tmp_path / "empty"):
        (tmp_path / "empty" / name).unlink()
    with refused("the folder you are in"):
        unpack_run(few, ".")
    unpack_run(str(few), "relative")
    assert fs.load_result("relative").trained.seeds == [0]


def test_a_kill_while_unpacking_leaves_nothing_that_looks_like_a_run(few, tmp_path, monkeypatch):
    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for place, name in ((parcel.shutil, "copyfileobj"), (parcel, "replace_file"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, die)
            child = multiprocessing.get_context("fork").Process(
                target=unpack_run, args=(few, tmp_path / "run")
            )
            child.start()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert not (tmp_path / "run").exists()
    assert unpack_run(few, tmp_path / "run").is_whole


# Seeds of several machines


def test_seeds_of_several_machines_are_one_run(whole, tmp_path, monkeypatch):
    """Bags are trained to the same bits in any pack, so the run of both seeds is the same."""
    for seed in (0, 1):
        worker = "faithscope.runs.machine"
        monkeypatch.setattr(f"{worker}.device_name", lambda _, n=seed: f"GPU {n}")
        monkeypatch.setattr(f"{worker}.package_versions", lambda _, n=seed: {"torch": f"{n}.0"})
        packed(tmp_path, str(seed), seeds=[seed])
    found = unpack_run([tmp_path / "1.tar.gz", tmp_path / "0.tar.gz"], tmp_path / "both")
    assert found.is_whole and found.finished == found.tasks == cards_in(tmp_path / "both")
    assert found.seeds == (0, 1)
    learner = BagLearner()
    result = run(learner, tmp_path / "both")
    assert_same_bits(result, whole)
    assert result.manifest.plan.groups == ((0,), (1,))
    assert result.manifest.machine.device == "GPU 0, GPU 1"
    assert result.manifest.versions["torch"] == "0.0, 1.0"
    assert result.manifest.cost.trainings == JOBS
    (tmp_path / "both" / "manifest.json").unlink()  # the same tables are made of the tasks
    again = run(learner, tmp_path / "both", seeds=[1, 0])
    assert learner.begun == learner.explained == []
    contents = [{**held.manifest.content(), "created": ""} for held in (result, again)]
    assert contents[0] == contents[1]  # with the hash of every table


@pytest.mark.parametrize("states", [False, True])
def test_joined_runs_keep_what_they_had_begun(whole, tmp_path, states):
    first = packed(tmp_path, "first", seeds=[1])
    stopped(tmp_path / "second", 10, seeds=[0])
    second = pack_run(tmp_path / "second", tmp_path / "second.tar.gz", states=states)
    assert 0 < second.finished < second.tasks
    found = unpack_run([first, second.file], tmp_path / "both")
    assert found.finished == 2 * 4 + second.finished and not found.is_whole
    assert found.seeds == (0, 1)
    learner = BagLearner()
    assert_same_bits(run(learner, tmp_path / "both"), whole)
    assert learner.resumed == ([1] if states else [])
    assert learner.epochs_run == 2 * 4 - (1 if states else 0)  # of the stopped pack and the last
    # ... and what was joined can be packed and joined again
    third = packed(tmp_path, "third", seeds=[2])
    joined = unpack_run([pack_run(tmp_path / "both").file, third], tmp_path / "all")
    assert joined.is_whole and joined.seeds == (0, 1, 2)
    assert_same_bits(fs.load_result(tmp_path / "all"), run(BagLearner(), None, seeds=3))


def test_joined_seeds_begin_with_one_that_has_examples(tmp_path):
    parts = [
        packed(tmp_path, str(place), **{**FEW, "seeds": group})
        for place, group in enumerate(([4, 0], [2]))
    ]
    found = unpack_run(parts, tmp_path / "joined")
    assert found.seeds == (2, 4, 0)
    learner = BagLearner()
    result = run(learner, tmp_path / "joined", **{**FEW, "seeds": [0, 2, 4]})
    assert learner.begun == []
    assert result.trained.seeds == [2, 4, 0]
    assert set(result.examples["seed"].to_pylist()) == {2}
    assert_same_bits(result, run(BagLearner(), None, **{**FEW, "seeds": found.seeds}))


@pytest.mark.parametrize(
    ("learner", "options", "words"),
    [
        (BagLearner(), {"seeds": 2}, "The parcels share seed 0"),
        (BagLearner(), {"levels": [60]}, "levels is [0, 50, 100] there and [0, 60, 100]"),
        (BagLearner(), {"metrics": "end"}, "metrics is"),
        (BagLearner(), {"data": bag_texts(seed=1)}, "data fingerprint"),
        (BagLearner(pack_size=5), {}, "pack_size is 7 there and 5 here"),
        (BagLearner(recipe=Recipe(5, 16, 1)), {}, "epochs is 4 there and 5 here"),
    ],
)
def test_runs_that_differ_in_more_than_seeds_are_not_joined(few, tmp_path, learner, options, words):
    run(learner, tmp_path / "other", **{**FEW, "seeds": [1], **options})
    other = pack_run(tmp_path / "other").file
    with refused("joined", words):
        unpack_run([few, other], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_damaged_files_of_joined_runs_are_computed_again(few, tmp_path):
    """A card of somebody else's making has a hash like any other, but not that of its files."""

    def change(index: dict[str, Any], held: Members) -> None:
        held.pop("manifest.json"), index["files"].pop("manifest.json")
        name = next(name for name in held if name.endswith("trainings.parquet"))
        added(name, held[name][:-20])(index, held)

    second = packed(tmp_path, "second", **{**FEW, "seeds": [1]})
    unpack_run([few, forged(second, tmp_path / "forged.tar.gz", change)], tmp_path / "both")
    both = {**FEW, "seeds": 2}
    with pytest.warns(UserWarning, match="is damaged"):
        result = run(BagLearner(), tmp_path / "both", **both)
    assert_same_bits(result, run(BagLearner(), None, **both))


# From end to end, with the BiLSTM


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, ...]:
    """A request whose recursive chain has three links, of models that train in a blink."""
    monkeypatch.setitem(bilstm.SETTINGS, "own", bilstm.Setting(Recipe(2, 16), 4, 6, False))
    texts = csv(tmp_path / "texts.csv", rows())
    return ("roar", "--data", texts, "--measures", "gradient", "--levels", "20,50,80")


@pytest.mark.parametrize("spelled", ["pack", "roar --pack"])
def test_the_command_packs_a_run_and_resumes_elsewhere(small, tmp_path, spelled):
    request = (*small, "--seeds", "2", "--out")
    command(*request, tmp_path / "whole")
    root = tmp_path / "a run"
    interrupted(*request, root, packs=2)
    said = command(*spelled.split(), root).stdout
    file = tmp_path / "a run.tar.gz"
    done = f"{cards_in(root)} of {len(list((tmp_path / 'whole').glob('tasks/*.json')))} tasks"
    assert said.startswith(f"packed {done} of {root} into {file}")
    assert f"faithscope unpack '{file}' --out '{root}'" in said
    shutil.rmtree(root)
    unpack = "unpack" if spelled == "pack" else "roar --unpack"
    said = command(*unpack.split(), file, "--out", root).stdout
    assert said.startswith(f"unpacked {done} into {root}")
    assert f"resumes it with --out '{root}'" in " ".join(said.split())
    said = command(*request, root).stderr
    assert f"({done} finished)" in said and f"resuming the run in {root}" in said
    assert_same_bits(fs.load_result(root), fs.load_result(tmp_path / "whole"))
    command("pack", root, "--out", tmp_path / "done.tgz", "--states")
    said = command("unpack", tmp_path / "done.tgz", "--out", tmp_path / "read").stdout
    assert f"next: faithscope report {tmp_path / 'read'}" in " ".join(said.split())
    command("report", tmp_path / "read")


def test_the_command_joins_seeds(small, tmp_path, monkeypatch):
    for seed, packs in ((0, 9), (3, 2)):
        root = tmp_path / f"run{seed}"
        request = (*small, "--seeds", f"{seed},", "--out", root)
        command(*request) if packs == 9 else interrupted(*request, packs=packs)
        command("pack", root)
    parts = [tmp_path / f"run{seed}.tar.gz" for seed in (3, 0)]
    said = " ".join(command("unpack", *parts, "--out", tmp_path / "both").stdout.split())
    assert "resumes it with --seeds 0,3 --out" in said
    request = (*small, "--seeds", "0,3", "--out", tmp_path / "both")
    told = json.loads(command(*request, "--dry-run", "--json").stdout)
    assert told["again"] == 0 < told["cost"]["trainings"] < 20
    begun: list[int] = []
    real = bilstm.BiLSTMLearner.begin

    def begin(learner: Any, data: Any, seeds: Any) -> Any:
        begun.append(len(seeds))
        return real(learner, data, seeds)

    monkeypatch.setattr(bilstm.BiLSTMLearner, "begin", begin)
    command(*request)
    assert sum(begun[1:]) == told["cost"]["trainings"]
    both, alone = (fs.load_result(tmp_path / name).trained for name in ("both", "run0"))
    for name in both.measures:
        found = both.values(name, "recursive")[0]
        assert found.tobytes() == alone.values(name, "recursive")[0].tobytes()


def test_the_command_packs_and_unpacks_for_a_program(few, tmp_path):
    root = tmp_path / "a run"
    told = json.loads(command("unpack", few, "--out", root, "--json").stdout)
    assert told == {
        "folder": str(root),
        "tasks": 4,
        "finished": 4,
        "seeds": [0],
        "is_whole": True,
        "next": f"next: faithscope report '{root}'",
    }
    told = json.loads(command("pack", root, "--json").stdout)
    file = tmp_path / "a run.tar.gz"
    assert told == {
        "run": str(root),
        "file": str(file),
        "size": file.stat().st_size,
        "tasks": 4,
        "finished": 4,
        "unpack": f"faithscope unpack '{file}' --out '{root}'",
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("pack nowhere", "There is no folder 'nowhere'"),
        ("pack .", "holds no run"),
        ("unpack nowhere --out x", "There is no file 'nowhere'"),
        ("unpack texts --out x", "it is no archive, or damaged"),
        ("roar --pack . --seeds 3", "--seeds has no effect with --pack: leave it out."),
        ("roar --pack . --unpack x", "--unpack has no effect with --pack"),
        ("roar --pack . --demo", "--pack has no effect with --demo"),
        ("roar --unpack texts", "needs --out"),
        ("roar --unpack texts --out x --states", "--states has no effect with --unpack"),
        ("roar --data x.csv --states", "--states has no effect without --pack"),
    ],
)
def test_what_cannot_be_packed_or_unpacked_is_refused(tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text("no archive")
    assert complaint in fails(*arguments.split())
    assert files_in(tmp_path) == {"texts"}
