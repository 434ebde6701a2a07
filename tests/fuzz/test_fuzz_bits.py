"""Bits flipped in every file of every kind of run: noticed and named, or without any effect.

And files cut, made longer, exchanged and gone. The same command given again ends with the numbers
of the run that nothing befell.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from bags import BagLearner, bag_texts
from conftest import SoftmaxLinear, randn, toy
from disasters import content_of
from faithscope.api import pack_run, unpack_run
from faithscope.probes.perturb import probe
from faithscope.studies import load_results
from fuzzing import answered, cases

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
COUNT = 6
SMALL = {"measures": ["gradient"], "seeds": 1, "levels": [20, 50], "keep_every": 0}


class Stopping(SoftmaxLinear):
    """Is interrupted at some pass."""

    left = 10**9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= len(x)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().forward(x)


def evaluate(out: Path, *, passes: int = 10**9, **options: Any) -> fs.Result:
    module = toy(4, 4)
    module.__class__ = Stopping
    module.left = passes
    maps = {"mine": randn(COUNT, 4, 4, seed=1), "other": randn(COUNT, 4, 4, seed=2)}
    options = {"maps": maps, "metrics": ["saco", "aopc"], "random_draws": 1, **options}
    return fs.evaluate(module, randn(COUNT, 3, 4, 4), k=4, batch_size=16, out=out, **options)


def study(out: Path, **_: Any) -> None:
    for fill in ("mean", "noise"):
        evaluate(out / fill, fill=fill)


def roar(out: Path, *, stop_at: int | None = None, **options: Any) -> fs.Result:
    data = bag_texts(24, 12)
    learner = BagLearner(stop_at=stop_at, pack_size=2)
    return fs.roar(data, learner, out=out, **{**SMALL, "keep_weights": True, **options})


@dataclass(frozen=True)
class Kind:
    """A way to leave a folder behind, and to give the command again."""

    leave: Callable[[Path], Any]
    again: Callable[[Path], Any]


KINDS = {
    "evaluate": Kind(evaluate, evaluate),
    "stopped evaluate": Kind(lambda out: evaluate(out, passes=150), evaluate),
    "study": Kind(study, study),
    "roar": Kind(roar, roar),
    "stopped roar": Kind(lambda out: roar(out, stop_at=11), roar),
}
TABLES = ("scores", "responses", "samples", "maps", "trainings", "sparsity", "examples")


def numbers(root: Path) -> dict[str, Any]:
    """Everything that is read of the runs of a folder but when they were and what they took."""
    found = {}
    for name, result in load_results(root).results.items():
        for table in TABLES:
            held = result.get_table(table)
            kept = [column for column in held.column_names if column != "seconds"]
            found[f"{name} {table}"] = repr(held.select(kept).to_pylist())
        unlike = {"cost", "created", "files"}
        found[f"{name} manifest"] = {
            key: held
            for key, held in result.manifest.model_dump(exclude=unlike).items()
            if key != "plan"
        }
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of every kind, and beside each ("… whole") what it must be in the end."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "SHARD", 2)
        for name, kind in KINDS.items():
            root = tmp_path_factory.mktemp("runs")
            try:
                kind.leave(root / "run")
            except KeyboardInterrupt:
                assert name.startswith("stopped")
            made[name] = root / "run"
            if name != "study":
                pack_run(root / "run", root / "run.tar.gz", states=True)
                unpack_run(root / "run.tar.gz", root / "unpacked")
            shutil.copytree(root / "run", root / "whole" / "run")
            kind.again(root / "whole" / "run")
        yield made


def harm(files: list[Path], number: int, how: str, place: float, bit: int) -> Path:
    """Do something to one of the files; gives which."""
    file = files[number % len(files)]
    content = bytearray(file.read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if how == "gone":
        file.unlink()
        return file
    if how == "exchanged":
        other = files[(number + 1 + bit) % len(files)]
        content, held = bytearray(other.read_bytes()), bytes(content)
        other.write_bytes(held)
    elif how == "cut":
        del content[at:]
    elif how == "longer":
        content += bytes([bit]) * (1 + bit)
    else:
        content[at] ^= 1 << bit
    file.write_bytes(content)
    return file


HARM = {
    "number": st.integers(0, 10**6),
    "how": st.sampled_from(["flipped"] * 6 + ["cut", "longer", "exchanged", "gone"]),
    "place": st.floats(0, 1),
    "bit": st.integers(0, 7),
}


def is_noticed(whole: Path, root: Path, files: list[Path]) -> None:
    """What is read is what it was, or refused by the name of a file that was harmed."""
    found = answered(numbers, root)
    if isinstance(found, fs.FaithscopeError):
        named = (file.name in str(found) for file in files)
        assert any(named) or "not finished" in str(found) or "no finished" in str(found), found
    else:
        expected = numbers(whole)
        for key, held in found.items():  # a run that was finished may be named as unfinished
            assert held == expected[key], key


@pytest.mark.parametrize("name", KINDS)
@cases(10)
@given(**HARM)
def test_nothing_that_befalls_a_file_changes_a_number(
    places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, **harmed: Any
) -> None:
    folder = tmp_path_factory.mktemp("harmed")
    root, whole = folder / "run", places[name].parent / "whole" / "run"
    shutil.copytree(places[name], root)
    files = sorted(file for file in root.rglob("*") if file.is_file() and file.name != ".lock")
    before = content_of(root)
    harm(files, **harmed)
    changed = [file for file, content in before.items() if not _is(file, content)]
    is_noticed(whole, root, changed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = answered(KINDS[name].again, root)
    if isinstance(answer, fs.FaithscopeError):
        said = ("plan.json", "holds another run", "holds a result already")
        assert any(words in str(answer) for words in said), answer
        assert any(file.name == "plan.json" for file in changed), answer
    else:
        assert numbers(root) == numbers(whole)
    shutil.rmtree(folder)


def _is(file: Path, content: bytes) -> bool:
    return file.exists() and file.read_bytes() == content


@pytest.mark.parametrize("name", [name for name in KINDS if name != "study"])
@cases(10)
@given(**HARM)
def test_a_parcel_that_is_harmed_is_refused_or_gives_the_same_files(
    places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, **harmed: Any
) -> None:
    good, folder = places[name].parent, tmp_path_factory.mktemp("harmed")
    parcel = folder / "run.tar.gz"
    shutil.copy(good / "run.tar.gz", parcel)
    harm([parcel], **harmed)
    answer = answered(unpack_run, parcel, folder / "run")
    if isinstance(answer, fs.FaithscopeError):
        assert "run.tar.gz" in str(answer)
        assert not (folder / "run").exists()
    else:
        expected = {
            file.relative_to(good / "unpacked"): content
            for file, content in content_of(good / "unpacked").items()
        }
        found = content_of(folder / "run").items()
        assert {file.relative_to(folder / "run"): held for file, held in found} == expected
    assert [file for file in folder.iterdir() if file.name.startswith(".")] == []
    shutil.rmtree(folder)


def test_every_bit_of_a_small_file_counts(places: dict[str, Path], tmp_path: Path) -> None:
    """One bit in each of many places of a manifest and a table, read and read again."""
    root, whole = tmp_path / "run", places["evaluate"].parent / "whole" / "run"
    shutil.copytree(places["evaluate"], root)
    draw = np.random.default_rng(0)
    for file in (root / "manifest.json", root / "scores.parquet"):
        content = file.read_bytes()
        for place in draw.integers(0, len(content), 20):
            harmed = bytearray(content)
            harmed[place] ^= 1 << int(draw.integers(8))
            file.write_bytes(harmed)
            is_noticed(whole, root, [file])
        file.write_bytes(content)
