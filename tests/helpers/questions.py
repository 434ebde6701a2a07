"""Everything that can be asked of a folder of a run, and two small finished runs to ask it of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import faithscope as fs
from bags import BagLearner, bag_texts
from conftest import randn, toy
from faithscope.cli.shared import as_data
from faithscope.report.page import render_page
from faithscope.studies import load_results
from faithscope.verdicts.sensitivity import sensitivity_rows
from fuzzing import answered

IMAGES = 6


def evaluated(out: Path | None = None, **options: Any) -> fs.Result:
    """A small run over images, with maps that are given."""
    maps = {name: randn(IMAGES, 4, 4, seed=seed) for seed, name in enumerate(("mine", "other"), 1)}
    asked = {"k": 4, "batch_size": 16, "random_draws": 2, "maps": maps, **options}
    images = randn(IMAGES, 3, 4, 4)
    return fs.evaluate(toy(4, 4), images, (), ["saco", "aopc"], out=out, **asked)


def retrained(out: Path | None = None, **options: Any) -> fs.Result:
    """A small run of ROAR."""
    asked = {"measures": ["gradient"], "seeds": 3, "levels": [20, 50], "keep_every": 0, **options}
    return fs.roar(bag_texts(24, 12), BagLearner(pack_size=7), out=out, **asked)


RUNS = {"evaluate": evaluated, "roar": retrained}


def ask_everything(root: Path, other: fs.Result, *, page: bool = True) -> Any:
    """Read a run and ask it all; an error that is not ours fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, where numbers are infinite
        result = answered(fs.load_result, root)
        if isinstance(result, fs.FaithscopeError):
            return result
        questions = [
            lambda: as_data(result),
            result.metric_verdicts,
            result.table,
            result.comparisons,
            result.correlations,
            lambda: repr(result),
            lambda: fs.compare(result, other).sentences(),
            lambda: fs.compare(other, result, allow=["model", "data", "k"]).headline(),
            lambda: result.rescore("saco" if result.manifest.kind == "perturb" else "end"),
            lambda: sensitivity_rows({"a": result, "b": other}),
            lambda: load_results(root).labelled,
        ]
        if result.procedures:
            questions += [result.racu, result.one_class, result.compute_time]
        if page:
            questions.append(lambda: render_page(result))
        for question in questions:
            answered(question)
    return result
