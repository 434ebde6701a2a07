"""Large tables stay in their files: what they say is the same, and little of them is in memory."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import faithscope as fs
from bag_runs import prepared
from bags import BagLearner
from conftest import randn, toy
from disasters import harm, leftovers
from faithscope.errors import FaithscopeError
from faithscope.probes.perturb import probe
from faithscope.runs import files, saved
from faithscope.runs.saved import SavedTable, open_rows, parts_of, read_rows, write_rows
from faithscope.runs.tables import SCHEMAS, make_table

IMAGES = randn(9, 3, 10, 10, seed=1)
MAPS = {"a": randn(9, 10, 10, seed=2), "b": randn(9, 10, 10, seed=3)}
pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
UNTIMED = ("scores", "responses", "maps", "spans", "samples", "pictures")


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are left in their files, and shards are small, so that there are many groups."""
    monkeypatch.setattr(files, "GROUP", 300)
    monkeypatch.setattr(saved, "GROUP", 300)
    monkeypatch.setattr(probe, "SHARD", 2)


def evaluate(out: Path | None = None) -> fs.Result:
    return fs.evaluate(toy(), IMAGES, methods=(), maps=MAPS, k=5, random_draws=2, out=out)


@cache
def in_memory() -> fs.Result:
    """The same run without a folder."""
    return evaluate()


def said(table: pa.Table) -> str:
    """What a table holds, NaN like NaN."""
    return repr(table.to_pylist())


def assert_same(found: fs.Result, expected: fs.Result) -> None:
    for name in UNTIMED:
        assert found.get_table(name).equals(expected.get_table(name)), name
    assert said(found.summary()) == said(expected.summary())
    assert found.verdicts() == expected.verdicts()
    assert found.warnings() == expected.warnings()


def test_a_run_says_the_same_wherever_its_tables_are(all_are_large, tmp_path: Path) -> None:
    whole, left = in_memory(), evaluate(tmp_path / "run")
    assert not any(isinstance(table, SavedTable) for table in whole.tables.values())
    for name in ("scores", "responses", "maps", "samples"):
        assert isinstance(left.tables[name], SavedTable)
        assert len([*left.parts(name)]) > 1
        assert left.count(name) == whole.count(name)
    assert_same(left, whole)
    assert_same(fs.load_result(tmp_path / "run"), whole)
    assert_same(evaluate(tmp_path / "run"), whole)  # which reads what is there
    assert said(left.comparisons()) == said(whole.comparisons())
    assert left.to_pandas("responses").equals(whole.to_pandas("responses"))


def test_one_column_is_read_alone(all_are_large, tmp_path: Path) -> None:
    left = evaluate(tmp_path / "run")
    assert left.get_table("scores", "value").column_names == ["value"]
    values = np.concatenate([part["value"].to_numpy() for part in left.parts("scores", "value")])
    np.testing.assert_array_equal(values, in_memory().scores["value"].to_numpy())


def test_other_metrics_and_another_folder(all_are_large, tmp_path: Path) -> None:
    left = evaluate(tmp_path / "run")
    left.save(tmp_path / "copy")
    copied = fs.load_result(tmp_path / "copy")
    assert copied.manifest.files == left.manifest.files
    left.save(tmp_path / "run")  # where it is already
    assert_same(fs.load_result(tmp_path / "run"), left)
    shutil.rmtree(tmp_path / "run")
    again = copied.rescore("aopc")
    assert isinstance(again.tables["responses"], SavedTable)
    again.save(tmp_path / "again")
    expected = in_memory().rescore("aopc")
    assert_same(fs.load_result(tmp_path / "again"), expected)


def test_a_way_to_a_run_may_be_relative_and_there_may_be_several(
    all_are_large, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated, loaded = evaluate(Path("run")), fs.load_result("run")
    Path("link").symlink_to("run")
    monkeypatch.chdir("/")
    for result in (evaluated, loaded):
        for way in ("run", "link"):
            result.save(tmp_path / way)
            assert_same(result, in_memory())
    assert_same(fs.load_result(tmp_path / "run"), in_memory())


def test_trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = prepared(BagLearner(), None).run()
    monkeypatch.setattr(files, "GROUP", 300)
    monkeypatch.setattr(saved, "GROUP", 300)
    left = prepared(BagLearner(), tmp_path / "run").run()
    assert isinstance(left.tables["trainings"], SavedTable)
    for found in (left, fs.load_result(tmp_path / "run")):
        assert said(found.summary()) == said(whole.summary())
        assert said(found.curves()) == said(whole.curves())


@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_file_that_is_not_there_as_it_was_is_named(all_are_large, how, tmp_path: Path) -> None:
    left = evaluate(tmp_path / "run")
    loaded = fs.load_result(tmp_path / "run")
    harm(tmp_path / "run" / "responses.parquet", how)
    for held in (left, loaded):
        with pytest.raises(FaithscopeError, match=r"responses\.parquet' cannot be read any more"):
            _ = held.responses
        assert held.summary().num_rows  # of another file
    with pytest.raises(FaithscopeError, match="is not a whole faithscope run"):
        fs.load_result(tmp_path / "run")
    with pytest.warns(UserWarning, match="is damaged"):
        assert_same(evaluate(tmp_path / "run"), in_memory())
    assert leftovers(tmp_path / "run") == []


def numbers(count: int, start: int = 0) -> pa.Table:
    names = [f"sample {start + i}" for i in range(count)]
    places = np.arange(start, start + count)
    columns = {"label": places, "target": places, "predicted": places, "log_p0": places / 7}
    return make_table("samples", {"sample": names, "digest": names, **columns})


def test_no_more_than_a_group_is_in_memory_while_a_table_is_written(tmp_path: Path) -> None:
    alive: list[weakref.ref[pa.Table]] = []
    most = 0

    def parts() -> Iterator[pa.Table]:
        nonlocal most
        for place in range(200):
            part = numbers(500, 500 * place)
            alive.append(weakref.ref(part))
            most = max(most, sum(one() is not None for one in alive))
            yield part

    digest, rows = write_rows(tmp_path / "samples.parquet", parts())
    assert isinstance(rows, SavedTable) and rows.num_rows == 100_000
    assert most <= files.GROUP // numbers(500).nbytes + 3 < 60
    assert max(part.nbytes for part in parts_of(rows)) < 2 * files.GROUP
    assert files.digest((tmp_path / "samples.parquet").read_bytes()) == digest
    assert read_rows(rows)["sample"].to_pylist() == [f"sample {i}" for i in range(100_000)]
    opened = open_rows(tmp_path / "samples.parquet", digest, SCHEMAS["samples"])
    assert isinstance(opened, SavedTable) and opened.num_rows == 100_000


def test_a_file_of_another_table_is_refused(tmp_path: Path) -> None:
    digest, _ = write_rows(tmp_path / "samples.parquet", [numbers(5)])
    with pytest.raises(ValueError, match="other columns"):
        open_rows(tmp_path / "samples.parquet", digest, SCHEMAS["maps"])
    with pytest.raises(ValueError, match="not what was written"):
        open_rows(tmp_path / "samples.parquet", "0" * 32, SCHEMAS["samples"])
