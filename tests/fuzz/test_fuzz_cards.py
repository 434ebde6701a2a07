"""Every field of every JSON file of a run with an odd value, its hash made to fit."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from faithscope.api import pack_run
from faithscope.runs.files import sealed, unsealed
from fuzzing import answered, cases
from questions import RUNS, ask_everything, retrained

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


def deep(levels: int) -> Any:
    held: Any = 1
    for _ in range(levels):
        held = [held]
    return held


ODD = st.sampled_from(
    [
        *(-5, 0, 1, 2, 7, 10**9, 2**63 - 1, 10**400, -(10**20)),
        *(0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), float("-inf")),
        *(True, False, None, "", "auto", "random", "nonsense", "../x", "\x1b[31m", "\ud800"),
        *("x" * 100_000, "1", "2020-01-01", "9999-12-31T23:59:59+23:59", "recursive"),
        *([], {}, [[]], [0, 0], [None], [True], {"a": 1}, {"label": "x"}, [""], ["gradient"]),
        *(deep(50), deep(300), deep(5000)),
    ]
)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value."""
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for key, held in parts:
        yield (*path, key)
        if isinstance(held, dict | list):
            yield from places(held, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any, how: str) -> Any:
    """The same with another value, or without it, or with one more beside it."""
    content = copy.deepcopy(content)
    held = content
    for key in path[:-1]:
        held = held[key]
    if how == "gone":
        del held[path[-1]]
    elif how == "more" and isinstance(held, dict):
        held["more"] = value
    else:
        held[path[-1]] = value
    return content


def resealed(content: Any) -> bytes:
    """JSON of anything with its hash; what is too deep for Python to write is written by hand."""
    try:
        return sealed(content)
    except (RecursionError, ValueError):
        return b'{"hash": "0", "x": ' + b"[" * 100_000


def odd(file: Path, data: st.DataObject, content: Any = None) -> bytes:
    content = unsealed(file.read_bytes()) if content is None else content
    path = data.draw(st.sampled_from(list(places(content))))
    how = data.draw(st.sampled_from(["other"] * 8 + ["gone", "more"]))
    return resealed(changed(content, path, data.draw(ODD), how))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, fs.Result]]:
    made = {}
    for name, run in RUNS.items():
        root = tmp_path_factory.mktemp("runs") / name
        made[name] = root, run(root)
    return made


def copied(root: Path) -> Path:
    other = root.with_name("odd")
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(root, other)
    return other


@pytest.mark.parametrize("kind", RUNS)
@cases(25)
@given(data=st.data())
def test_odd_values_in_a_manifest(
    runs: dict[str, tuple[Path, fs.Result]], kind: str, data: st.DataObject
) -> None:
    good, result = runs[kind]
    root = copied(good)
    (root / "manifest.json").write_bytes(odd(good / "manifest.json", data))
    ask_everything(root, result, page=data.draw(st.integers(0, 3)) == 0)


def stopped(root: Path, kind: str) -> Path:
    """A run without its result: its plan is read when it is resumed."""
    other = copied(root)
    for name in ("manifest.json", *(f"{table}.parquet" for table in ("scores", "trainings"))):
        (other / name).unlink(missing_ok=True)
    return other


@pytest.mark.parametrize("kind", RUNS)
@cases(12)
@given(data=st.data())
def test_odd_values_in_a_plan(
    runs: dict[str, tuple[Path, fs.Result]], kind: str, data: st.DataObject
) -> None:
    good, result = runs[kind]
    root = stopped(good, kind)
    (root / "plan.json").write_bytes(odd(good / "plan.json", data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answered(pack_run, root, root.with_name("odd.tar.gz"))
        found = answered(RUNS[kind], root)
    if not isinstance(found, fs.FaithscopeError):
        assert sorted(map(repr, found.scores.to_pylist())) == sorted(
            map(repr, result.scores.to_pylist())
        )


@pytest.mark.parametrize("which", ["mask", "train"])
@cases(10)
@given(data=st.data())
def test_odd_values_in_the_card_of_a_task(
    runs: dict[str, tuple[Path, fs.Result]], which: str, data: st.DataObject
) -> None:
    good, result = runs["roar"]
    root = stopped(good, "roar")
    card = data.draw(st.sampled_from(sorted(good.glob(f"tasks/{which}*.json"))))
    (root / "tasks" / card.name).write_bytes(odd(card, data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = answered(retrained, root)
    if isinstance(found, fs.FaithscopeError):
        assert "do not make a whole run" in str(found)
    else:
        assert found.scores.equals(result.scores)
