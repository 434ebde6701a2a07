"""Tables of a run with other rows and values, their hashes made to fit: answered or refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from faithscope.runs.files import sealed, unsealed, write_parquet
from fuzzing import cases
from questions import RUNS, ask_everything

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
ODD: dict[str, list[Any]] = {
    "int": [None, 0, -1, 1, 5, 100, 2**31 - 1, -(2**31)],
    "float": [None, 0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, -1e-320],
    "text": [
        None,
        "",
        "nonsense",
        "random",
        "0",
        "\x1b[31m",
        "<script>",
        "a" * 5000,
        "\u202e",
        "1,2",
    ],
    "bytes": [None, b"", b"x" * 16, b"\x00" * 1000],
    "bool": [None, True, False],
    "list": [None, [], [None], [-1, 5], [10**6], [0] * 100, ["x", None], ["\x1b"] * 50],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, fs.Result]]:
    made = {}
    for name, run in RUNS.items():
        root = tmp_path_factory.mktemp("runs") / name
        made[name] = root, run(root)
    return made


def kind_of(kind: pa.DataType) -> str:
    tests = {
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "bytes": pa.types.is_binary,
        "bool": pa.types.is_boolean,
        "list": pa.types.is_list,
    }
    return next((name for name, test in tests.items() if test(kind)), "text")


def changed(table: pa.Table, draw: Any) -> pa.Table:
    """A table with an odd value in some rows, or rows missing, repeated or in another order."""
    how = draw(st.sampled_from(["value"] * 6 + ["missing", "repeated", "turned", "empty", "first"]))
    rows = table.to_pylist()
    at = draw(st.integers(0, max(0, len(rows) - 1)))
    if how == "empty":
        rows = []
    elif how == "first":
        rows = rows[:1]
    elif how == "missing":
        rows = rows[:at] + rows[at + 1 :]
    elif how == "repeated":
        rows = [*rows, *rows[at : at + 1]]
    elif how == "turned":
        rows = rows[::-1]
    elif rows:
        column = draw(st.sampled_from(table.column_names))
        odd = draw(st.sampled_from(ODD[kind_of(table.schema.field(column).type)]))
        everywhere = draw(st.booleans())
        rows = [
            {**row, column: odd} if everywhere or place == at else row
            for place, row in enumerate(rows)
        ]
    try:
        return pa.Table.from_pylist(rows, schema=table.schema)
    except (pa.ArrowException, ValueError, TypeError):  # no list of such things
        return table


def reseal(root: Path, name: str, table: pa.Table) -> None:
    content = unsealed((root / "manifest.json").read_bytes())
    content["files"][f"{name}.parquet"] = write_parquet(root / f"{name}.parquet", [table])
    (root / "manifest.json").write_bytes(sealed(content))


def every_value() -> Iterator[tuple[str, str, str]]:
    for kind, run in RUNS.items():
        for name, table in run().tables.items():
            for column in table.column_names:
                yield kind, name, column


@pytest.mark.parametrize("kind", RUNS)
@cases(25)
@given(data=st.data())
def test_odd_rows_of_a_finished_run(
    runs: dict[str, tuple[Path, fs.Result]], kind: str, data: st.DataObject
) -> None:
    good, result = runs[kind]
    root = good.with_name("odd")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(good, root)
    name = data.draw(st.sampled_from(sorted(result.tables)))
    reseal(root, name, changed(result.tables[name], data.draw))
    ask_everything(root, result, page=data.draw(st.integers(0, 3)) == 0)
