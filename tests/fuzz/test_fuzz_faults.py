"""Faults of disks and kills at any moment: the same call goes on and ends with the same bits."""

from __future__ import annotations

import errno
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bag_runs
import faithscope as fs
from bags import BagLearner
from conftest import randn, toy
from disasters import Killed, failing, leftovers
from faithscope.hashing import digest
from faithscope.probes.perturb import probe
from faithscope.probes.retrain.learner import Recipe
from fuzzing import answered, cases

ERRORS = [
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE),
    *(MemoryError, Killed, Killed, Killed),
]
OPERATIONS = ["open", "read", "fsync", "replace", "mkdir", "unlink", "lock"]


def images(out: Path | None) -> fs.Result:
    options: dict[str, Any] = {"k": 4, "random_draws": 1, "batch_size": 64}
    return fs.evaluate(toy(4, 4), randn(6, 3, 4, 4), "gradient", "saco", out=out, **options)


def trainings(out: Path | None) -> fs.Result:
    learner = BagLearner(pack_size=2, recipe=Recipe(2, 16, 1))
    options: dict[str, Any] = {"seeds": 1, "levels": [50], "procedures": "roar"}
    return bag_runs.run(learner, out, measures="gradient", **options)


RUNS = {"images": images, "trainings": trainings}
TABLES = ("scores", "responses", "samples", "maps", "trainings", "sparsity", "examples")


@pytest.fixture(scope="module")
def wholes() -> Iterator[dict[str, dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "SHARD", 2)
        yield {name: content(run(None)) for name, run in RUNS.items()}


def content(result: fs.Result) -> dict[str, Any]:
    """Every number but the seconds that something took."""
    tables = {name: result.get_table(name) for name in TABLES}
    return {
        name: digest(
            repr(
                table.select([c for c in table.column_names if c != "seconds"]).to_pydict()
            ).encode()
        )
        for name, table in tables.items()
    }


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    """What fails, where, and whether it goes on failing."""
    error = draw(st.sampled_from(ERRORS))
    chosen = draw(st.one_of(st.just(OPERATIONS), st.lists(st.sampled_from(OPERATIONS), min_size=1)))
    most = 40 if len(chosen) == 1 else 160
    lasts = error is Killed or draw(st.booleans())
    where = {"at": draw(st.integers(0, most)), "operations": tuple(chosen)}
    return {"error": error, "lasts": lasts, **where}


@cases(60)
@given(
    name=st.sampled_from(["images", "images", "trainings"]),
    befalls=st.lists(faults(), min_size=1, max_size=3),
)
def test_whatever_befalls_the_disk_the_same_call_ends_with_the_same_bits(wholes, name, befalls):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is damaged is named
        out = Path(folder) / "run"

        def attempt() -> Any:
            try:
                return RUNS[name](out)
            except Killed:
                return None

        for fault in befalls:
            with failing(out, **fault):
                found = answered(attempt)
            if isinstance(found, fs.Result):
                assert content(found) == wholes[name]
        assert content(RUNS[name](out)) == wholes[name]
        assert content(fs.load_result(out)) == wholes[name]
        assert not leftovers(out)
