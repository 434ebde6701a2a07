"""Summarise run folders as small JSON files for the reproduction page.

python studies/summarise.py runs/c10_base runs/k_base --out studies/results

A run folder is written by `faithscope run` or `faithscope evaluate --out`. NAME.json is named after
the folder and holds, for each of its runs, the protocol, model, data, cost, machine and versions,
the summary with its tests, comparisons of methods and correlations of metrics, and, over the runs
of a study, the effect of each choice. Numbers have six digits, at most nine after the point; the
same folder gives the same file. A model's card is read from the folder of its weights. Ten thousand
images take a few minutes.

A run folder does not record the command that made it. To show the command on the page, write it to
command.txt in the folder, one command per line; lines with # are comments. Without this file the
summary says so and lists what the manifest contains:

echo "faithscope run studies/choice_of_k.yaml --out runs/k_base --yes" > runs/k_base/command.txt
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

import faithscope as fs
from faithscope.verdicts.sensitivity import sensitivity_rows

Row = dict[str, Any]

RESAMPLES = 200
FEW = 6
"""With at most this many methods, all comparisons are kept."""
CARD = ("architecture", "parameters", "test_accuracy", "test_images", "epochs", "minutes", "seed")
COST = (
    *("response_passes", "explanation_passes", "seconds", "explain_seconds"),
    *("passes_per_second", "batch_halvings", "fp16_deviation"),
)
BUNDLED = Path(fs.__file__).parent / "bundled"


def summarise(folder: Path) -> Row:
    """Everything the page may quote from a run or a study."""
    runs = fs.load_results(folder)
    alone = len(runs.results) == 1
    labelled = dict.fromkeys(["run"], *runs.results.values()) if alone else runs.labelled
    first, *others = labelled.values()
    return {
        "name": runs.name,
        "command": command(folder, list(labelled.values())),
        "runs": {name: describe(result) for name, result in labelled.items()},
        "sensitivity": table(sensitivity_rows(runs.results)),
        "changes": {
            name: table(fs.compare(first, other).summary().drop_columns("procedure").to_pylist())
            for name, other in zip(list(labelled)[1:], others, strict=True)
        },
    }


def command(folder: Path, results: Sequence[fs.Result]) -> list[str]:
    """The commands in command.txt, or a note on what the manifests contain."""
    file = folder / "command.txt"
    if file.exists():
        return file.read_text().strip().splitlines()
    manifests = [result.manifest for result in results]
    about = [
        ("model", [m.model.name for m in manifests]),
        ("data", [f"{m.data.name} ({m.data.samples} {m.sample}s)" for m in manifests]),
        ("metrics", [metric for m in manifests for metric in m.metrics]),
        ("methods", [method for m in manifests for method in m.methods]),
        *(
            (name, [str(protocol(result)[name]) for result in results])
            for name in protocol(results[0])
        ),
    ]
    known = "; ".join(f"{name} {', '.join(dict.fromkeys(values))}" for name, values in about)
    return [f"# {folder.resolve().name}: no command.txt; the manifest says {known}"]


def describe(result: fs.Result) -> Row:
    """One run."""
    manifest, data = result.manifest, result.manifest.data
    summary = result.summary().drop_columns("procedure").to_pylist()
    return {
        "model": {"name": manifest.model.name, "card": card(manifest.model.name)},
        "data": {
            "name": data.name,
            "images": data.samples,
            "accuracy": data.accuracy,
            "skipped": len(data.skipped),
        },
        "protocol": protocol(result),
        "cost": {
            **{name: getattr(manifest.cost, name) for name in COST},
            "batch_size": manifest.plan.request.batch_size,
            "shard": manifest.plan.shard,
        },
        "device": manifest.machine.device,
        "versions": {name: manifest.versions[name] for name in ("faithscope", "torch", "timm")},
        "methods": {
            name: {
                "granularity": about.granularity,
                "random": about.is_random,
                "matched_random": about.matched_random,
            }
            for name, about in manifest.methods.items()
        },
        "metrics": {
            name: {"higher_is_better": about.higher_is_better}
            for name, about in manifest.metrics.items()
        },
        "summary": table(summary),
        "verdicts": result.metric_verdicts(),
        "comparisons": table(worth_keeping(result)),
        "correlations": table(result.correlations().to_pylist()),
        "correlations_over_images": table(over_images(result)),
        "k_used": k_used(result),
    }


def protocol(result: fs.Result) -> Row:
    """The options that affect the numbers; options that were not set are left out."""
    return {name: value for name, value in result.manifest.protocol.items() if value is not None}


def card(name: str) -> Row:
    """How a model was trained and its accuracy, from the card next to its weights."""
    kind, _, place = name.partition(":")
    files = {
        "file": Path(place).with_suffix(".json"),
        "bundled": BUNDLED / f"{place}.json",
    }
    file = files.get(kind)
    if file is None or not file.exists():
        return {}
    about = json.loads(file.read_text())
    return {key: about[key] for key in CARD if key in about}


def worth_keeping(result: fs.Result) -> list[Row]:
    """Comparisons with random attribution and with the best and the worst method of each metric."""
    rows: list[Row] = result.comparisons().to_pylist()
    if len(result.methods) <= FEW:
        return rows
    kept = {metric: outstanding(result, metric) for metric in result.metrics}
    return [row for row in rows if {row["method"], row["other"]} & kept[row["metric"]]]


def outstanding(result: fs.Result, metric: str) -> set[str]:
    """Random attributions, and the methods with the highest and the lowest mean."""
    rows = [row for row in result.summary().to_pylist() if row["metric"] == metric]
    random = {name for name, about in result.manifest.methods.items() if about.is_random}
    means = {r["method"]: r["mean"] for r in rows if r["n"] and r["method"] not in random}
    ends = {max(means, key=means.__getitem__), min(means, key=means.__getitem__)} if means else {}
    return random.union(ends)


def over_images(result: fs.Result) -> list[Row]:
    """Do two metrics rank images similarly? Spearman over images, mean over explanation methods.

    This is how the paper correlates metrics; `correlations` asks, image by image, whether they
    rank the methods similarly. The interval is a percentile bootstrap over images, ranked again
    each time; + means that the metrics agree.
    """
    shown = [not about.is_random for about in result.manifest.methods.values()]
    ways = [1 if about.higher_is_better else -1 for about in result.manifest.metrics.values()]
    cube = result.cube[shown] * np.array(ways)[:, None]
    whole = ~np.isnan(cube).all(2)  # methods × metrics that have scores
    images = cube.shape[2]
    found = rank_correlations(cube, whole)
    rng = np.random.default_rng(0)
    again = [
        rank_correlations(cube[:, :, rng.integers(images, size=images)], whole)
        for _ in range(RESAMPLES if images > 1 else 0)
    ]
    low, high = np.percentile(again, [2.5, 97.5], axis=0) if again else (found, found)
    names = result.metrics
    return [
        {
            "metric": names[i],
            "other": names[j],
            "correlation": found[i, j],
            "ci_low": low[i, j],
            "ci_high": high[i, j],
            "methods": int((whole[:, i] & whole[:, j]).sum()),
        }
        for i, j in combinations(range(len(names)), 2)
    ]


def rank_correlations(cube: NDArray[np.float64], whole: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over methods of Spearman's correlation over images: [metrics, metrics]."""
    sums, counts = np.zeros((2, cube.shape[1], cube.shape[1]))
    for values, has in zip(cube, whole, strict=True):
        for i, j in combinations(np.flatnonzero(has), 2):
            known = ~np.isnan(values[i] + values[j])
            pair = values[[i, j]][:, known]
            if pair.shape[1] > 1 and (np.ptp(pair, axis=1) > 0).all():
                sums[i, j] += np.corrcoef(rankdata(pair, axis=1))[0, 1]
                counts[i, j] += 1
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


def k_used(result: fs.Result) -> dict[str, dict[str, int]]:
    """How often each K was chosen, by method, where it is chosen per map."""
    columns = (result.scores[name].to_pylist() for name in ("metric", "method", "k"))
    cards = result.manifest.metrics
    automatic = {name for name, about in cards.items() if about.options.get("k") == "auto"}
    chosen = Counter(
        (method, k) for metric, method, k in zip(*columns, strict=True) if metric in automatic
    )
    methods = dict.fromkeys(method for method, _ in chosen)
    return {
        method: {str(k): count for (own, k), count in sorted(chosen.items()) if own == method}
        for method in methods
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Rows with the same columns, whose names are written once."""
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[row[name] for name in columns] for row in rows]}


def plain(value: Any) -> Any:
    """A value for JSON: six digits, null for non-finite numbers."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(float(f"{value:.6g}"), 9) if math.isfinite(value) else None
    return value


def written(found: Row) -> str:
    """JSON with one line for every row of a table."""
    text = json.dumps(plain(found), indent=1, ensure_ascii=False)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda part: " ".join(part[0].split()), text) + "\n"


def main(arguments: Iterable[str] | None = None) -> None:
    """Write a file for every folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs or studies")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in options.runs:
        file = options.out / f"{folder.resolve().name}.json"
        file.write_text(written(summarise(folder)))
        print(file, flush=True)


if __name__ == "__main__":
    main()
