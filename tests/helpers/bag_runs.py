"""Runs of retraining with bags of words: small enough to be stopped, harmed and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import faithscope as fs
from bags import MEASURES, BagLearner, bag_texts
from faithscope.api import Prepared
from faithscope.models.tensor_files import read_tensors

EPOCHS, JOBS, PACKS = 4, 36, 8
SMALL = {"measures": MEASURES, "seeds": 2, "levels": [20, 50, 80], "keep_every": 0}
BASES = {"k000-s0", "k000-s1"}


def prepared(learner: BagLearner, out: Path | None, **options: Any) -> Prepared:
    data = options.pop("data", bag_texts())
    return fs.prepare_roar(data, learner, out=out, **{**SMALL, **options})


def run(learner: BagLearner, out: Path | None, **options: Any) -> fs.Result:
    return prepared(learner, out, **options).run()


def stopped(out: Path, epochs: int, **options: Any) -> BagLearner:
    """Stop in so many epochs from now."""
    learner = BagLearner(stop_at=epochs)
    with pytest.raises(KeyboardInterrupt):
        run(learner, out, **options)
    return learner


def stopped_in(out: Path, pack: str) -> None:
    """Stop in the third epoch of a pack."""
    tasks = prepared(BagLearner(), None).planned.tasks
    before = [task for task in tasks if task.kind == "train" and task.arguments["pack"] < pack]
    stopped(out, len(before) * EPOCHS + 3)


def assert_same_bits(left: fs.Result, right: fs.Result) -> None:
    """Everything but the time it took and the packs it was trained in."""
    for name in ("scores", "trainings", "sparsity", "examples"):
        columns = [c for c in left.get_table(name).column_names if c != "seconds"]
        one, other = (result.get_table(name).select(columns) for result in (left, right))
        assert one.equals(other), name
        if "value" in columns:
            assert one["value"].to_numpy().tobytes() == other["value"].to_numpy().tobytes()
    assert left.manifest.doubts == right.manifest.doubts
    assert left.manifest.data == right.manifest.data
    assert left.headline() == right.headline()


def weights_in(root: Path) -> set[str]:
    """The trainings whose weights are there."""
    return {
        file.stem
        for file in root.glob("artifacts/models/*.safetensors")
        if any(name.startswith("weights.") for name in read_tensors(file.read_bytes())[0])
    }
