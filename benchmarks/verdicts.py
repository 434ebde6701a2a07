"""How long do the statistics of a large run take, whole and in parts, and those of its page?

Scores are drawn at random; the time is the process's CPU time on one thread. The run is kept in a
temporary folder and loaded again for each line, so that a line counts all that it needs: reading
the scores, too. `--reference` also times what this replaced, interval by interval with scipy, on a
few columns, and compares.

    OMP_NUM_THREADS=1 python benchmarks/verdicts.py --reference
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
import torch
from scipy import stats

import faithscope as fs
from faithscope.metrics import resolve_metrics
from faithscope.runs.tables import SCHEMAS
from faithscope.verdicts.replicates import Samples
from faithscope.verdicts.statistics import (
    bootstrap_intervals,
    effect_size,
    metric_correlation,
    paired_p_values,
)


def main() -> None:
    """Time every statistic, print a line each, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--methods", type=int, default=13)
    parser.add_argument("--metrics", type=int, default=5)
    parser.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = options.methods, options.metrics, options.images
    cube = rng.normal(rng.normal(scale=0.02, size=shape[:2])[..., None], size=shape)
    pairs = [
        cube[i, metric] - cube[j, metric]
        for metric in range(options.metrics)
        for i, j in combinations(range(options.methods), 2)
    ]
    scores = [*np.concatenate(cube)]
    columns, higher = np.stack(pairs, axis=1), np.ones(options.metrics, dtype=bool)
    print(f"{options.methods} methods, {options.metrics} metrics, {options.images:,} images")
    seconds = {
        "intervals of the summary": _cpu_seconds(lambda: Samples().intervals(scores)),
        "intervals of all pairs": _cpu_seconds(lambda: bootstrap_intervals(pairs)),
        "tests of all pairs": _cpu_seconds(lambda: paired_p_values(columns)),
        "effect sizes of all pairs": _cpu_seconds(lambda: effect_size(columns)),
        "correlations of metrics": _cpu_seconds(lambda: metric_correlation(cube, higher)),
    }
    for name, spent in seconds.items():
        print(f"{name:30} {spent:8.2f} s of CPU time")
    with tempfile.TemporaryDirectory() as folder:
        _made_up(options.images, options.methods, options.metrics).save(folder)
        for name, ask in WHOLE.items():
            seconds[name] = _cpu_seconds(lambda ask=ask: ask(fs.load_result(folder), Path(folder)))
            print(f"{name:30} {seconds[name]:8.2f} s of CPU time")
    if options.reference:
        _compare(pairs)
    machine = {"machine": platform.machine(), "numpy": np.__version__, "scipy": scipy.__version__}
    rounded = {name: round(spent, 3) for name, spent in seconds.items()}
    print(json.dumps({**vars(options), "pairs": len(pairs), **rounded, **machine}))


WHOLE: dict[str, Callable[[fs.Result, Path], Any]] = {
    "load_result": lambda found, _: found,
    "summary()": lambda found, _: found.summary(),
    "verdicts()": lambda found, _: found.verdicts(),
    "comparisons()": lambda found, _: found.comparisons(),
    "correlations()": lambda found, _: found.correlations(),
    "report()": lambda found, folder: found.report(folder / "page.html"),
}
"""What a saved run is asked; each line loads it first, which counts."""


def _made_up(images: int, methods: int, metrics: int) -> fs.Result:
    """A run of so many images: a tiny one, whose rows are repeated with scores of their own."""
    few, rng = 8, np.random.default_rng(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 4))
    maps = {f"method {i}": torch.rand(few, 8, 8) for i in range(methods - 1)}
    names = [metric.label for metric in resolve_metrics("registered")][:metrics]
    result = fs.evaluate(
        module, torch.rand(few, 3, 8, 8), methods=(), metrics=names, maps=maps, random_draws=1
    )
    tables = {}
    for name, table in result.tables.items():
        if "sample" not in table.column_names or name == "pictures":
            tables[name] = table
            continue
        parts = [table] * (images // few)
        held = pa.concat_tables(parts).to_pydict()
        copies = np.repeat(np.arange(len(parts)), table.num_rows)
        held["sample"] = [f"{copy}-{own}" for copy, own in zip(copies, held["sample"], strict=True)]
        if name == "scores":
            held["value"] = rng.normal(size=len(copies))
        tables[name] = pa.Table.from_pydict(held, schema=SCHEMAS[name])
    kept = tables["pictures"].to_pydict()
    kept["sample"] = [f"0-{own}" for own in kept["sample"]]
    tables["pictures"] = pa.Table.from_pydict(kept, schema=SCHEMAS["pictures"])
    count = tables["samples"].num_rows
    data = result.manifest.data.model_copy(update={"samples": count})
    return replace(
        result, manifest=result.manifest.model_copy(update={"data": data}), tables=tables
    )


def _compare(pairs: list[np.ndarray], few: int = 5) -> None:
    """One column at a time with scipy, in blocks that fit the cache, for the time of all."""
    found = np.transpose(bootstrap_intervals(pairs[:few]))
    expected = []

    def one_by_one() -> None:
        for values in pairs[:few]:
            rng, batch = np.random.default_rng(0), max(1, 2_000_000 // len(values))
            interval = stats.bootstrap(
                (values,), np.mean, n_resamples=2000, batch=batch, rng=rng, vectorized=True
            ).confidence_interval
            expected.append([interval.low, interval.high])

    spent = _cpu_seconds(one_by_one) / few * len(pairs)
    apart = np.abs(found - expected).max()
    print(f"{'scipy, one pair at a time':30} {spent:8.2f} s of CPU time (of {few} pairs, scaled)")
    print(f"largest difference of an end: {apart:.1e}")


def _cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


if __name__ == "__main__":
    main()
