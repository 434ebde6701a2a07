"""Write what the reproduction page needs of a ROAR run as a small JSON file.

python studies/summarise_roar.py runs/roar_babi1 --data 'babi:data/babi(task=1)'

As studies/summarise.py does for images: NAME.json has the name of the folder and holds the command
(command.txt of the folder), data, model, protocol, cost and machine, whether the models of the
intact texts learnt anything, every curve with its intervals and its values by seed (RACU can be
computed again from them), RACU by seed, left out one seed at a time, and its paired differences
between procedures and between measures, the trainings at both ends with their validation, sparsity
and compute time. Fewer than three seeds have no intervals (null), one-token steps no RACU. `--data`
adds the share of each class in each split, the words that tell most of the class and how many words
have a pretrained vector. The same folder gives the same file; a model's folder is named by its last
part only.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from summarise import Row, table, written

import faithscope as fs
from faithscope.data.text_sources import fingerprint, load_text
from faithscope.data.vocabulary import CLS, EOS, PAD, Vocabulary
from faithscope.methods.words import word_information
from faithscope.probes.retrain.result import RoarResult
from faithscope.report.roar_rows import at_level, sparsity_rows, time_rows
from faithscope.verdicts.statistics import told_interval

ENDS = (0, 100)
"""Levels whose trainings are told one by one."""
TELLING = 6
"""How many of the words that tell most of the class are named."""
KEPT = {
    "data": (
        *("name", "metric", "sizes", "mean_length", "vocabulary", "majority", "fingerprint"),
        *("truncated", "notes"),
    ),
    "model": ("name", "parameters", "recipe"),
    "protocol": ("strategy", "levels", "procedures", "measures", "seeds", "specials", "clip"),
    "versions": ("faithscope", "torch"),
}


def summarise(folder: Path, data: str | None = None) -> Row:
    """Everything that the page may quote of the one ROAR run in a folder."""
    ((name, result),) = fs.load_results(folder).results.items()
    if not isinstance(result, RoarResult):
        raise SystemExit(f"{folder} is no ROAR run: python studies/summarise.py {folder}")
    root = folder if (folder / "manifest.json").exists() else folder / name  # of a study's one run
    file = folder / "command.txt"
    manifest = result.manifest
    found = {
        "name": folder.absolute().name,
        "command": file.read_text().strip().splitlines() if file.exists() else [],
        **{part: {key: manifest[part].get(key) for key in keys} for part, keys in KEPT.items()},
        "cost": manifest["cost"],
        "device": manifest["machine"].get("device"),
        "learnt": not result.is_unlearned,
        "headline": result.headline(),
        "warnings": result.warnings(),
        **({} if data is None else about_data(result, data)),
        "curves": table(result.curves().to_pylist()),
        "values": table(values(result)),
        "racu": table(racu_rows(result)),
        "racu_by_seed": table(by_seed(result)),
        "one_class": table(result.one_class()),
        "left_out": table(left_out(result)),
        "procedures": table(between_procedures(result)),
        "measures": table(between_measures(result)),
        "ends": {str(k): at_level(result, k) for k in ENDS},
        "trainings": table([row for k in ENDS for row in trainings(root, result, k)]),
        "sparsity": table(without_names(sparsity_rows({"": result}))),
        "time": table(without_names(time_rows({"": result}))),
    }
    named: Row = without_place(found, manifest["model"]["name"])
    return named


def without_place(value: Any, model: str) -> Any:
    """The same with a model that is a folder named by its last part, wherever it is named.

    >>> without_place({"headline": "By ROAR of hf:/mine/minilm on sst"}, "hf:/mine/minilm")
    {'headline': 'By ROAR of hf:minilm on sst'}
    """
    kind, _, place = model.partition(":")
    if "/" not in place:
        return value
    if isinstance(value, dict):
        return {key: without_place(item, model) for key, item in value.items()}
    if isinstance(value, list):
        return [without_place(item, model) for item in value]
    return value.replace(model, f"{kind}:{Path(place).name}") if isinstance(value, str) else value


def about_data(result: RoarResult, data: str) -> Row:
    """What a manifest does not say of the very data that was run.

    The share of each class that occurs, by split, the words that tell most of the class, and the
    size of pretrained vectors with how many words of the vocabulary have one.
    """
    texts = load_text(data)
    if fingerprint(texts) != result.manifest["data"]["fingerprint"]:
        raise SystemExit(f"'{data}' is other data than the run's: give the data that was run.")
    tokens = Vocabulary.of(texts).encode(texts)
    told = word_information(tokens.train, len(tokens.words), len(texts.classes), (PAD, CLS, EOS))
    return {
        "classes": {
            name: {
                texts.classes[label]: float(np.mean(split.labels == label))
                for label in np.unique(split.labels)
            }
            for name, split in texts.splits
        },
        "telling_words": [tokens.words[i] for i in told.argsort(descending=True)[:TELLING]],
        "vectors": None
        if (known := texts.vectors) is None
        else {"size": known.size, "words": sum(word in known.vectors for word in tokens.words)},
    }


def values(result: RoarResult) -> list[Row]:
    """The task metric of every curve and seed at every level."""
    return [
        {
            "measure": measure,
            "procedure": procedure,
            "seed": seed,
            **dict(zip(map(str, result.levels), map(float, row), strict=True)),
        }
        for measure in result.measures
        for procedure in result.procedures
        for seed, row in zip(result.seeds, result.values(measure, procedure), strict=True)
    ]


def racu_rows(result: RoarResult) -> list[Row]:
    """RACU with its interval, and without clipping; none for one-token steps."""
    free = {(row["measure"], row["procedure"]): row for row in known_racu(result, clip=False)}
    return [
        {
            **{key: row[key] for key in ("measure", "procedure", "mean", "ci_low", "ci_high", "n")},
            "unclipped": free[row["measure"], row["procedure"]]["mean"],
        }
        for row in known_racu(result)
    ]


def known_racu(result: RoarResult, clip: bool | None = None) -> list[Row]:
    """RACU's rows; none where tokens were counted, because it is relative to masking all."""
    return list(result.racu(clip).to_pylist()) if result.is_relative else []


def by_seed(result: RoarResult) -> list[Row]:
    """RACU of every seed."""
    return [
        {"measure": row["measure"], "procedure": row["procedure"], "seed": seed, "racu": value}
        for row in known_racu(result)
        for seed, value in zip(row["seeds"], row["values"], strict=True)
    ]


def left_out(result: RoarResult) -> list[Row]:
    """RACU over all seeds but one: how much hangs on it."""
    return [
        {
            "measure": row["measure"],
            "procedure": row["procedure"],
            "seed": seed,
            **interval([value for own, value in known if own != seed]),
        }
        for row in known_racu(result)
        for known in [list(zip(row["seeds"], row["values"], strict=True))]
        for seed, _ in known
        if len(known) > 2
    ]


def between_procedures(result: RoarResult) -> list[Row]:
    """By measure, RACU of Recursive ROAR less that of ROAR, paired by seed."""
    if len(result.procedures) < 2:
        return []
    found = racu_values(result)
    return [
        {"measure": name, **difference(found[name, "roar"], found[name, "recursive"])}
        for name in result.measures
        if (name, "roar") in found
    ]


def between_measures(result: RoarResult) -> list[Row]:
    """By procedure and pair of measures, RACU of the second less that of the first, by seed."""
    found = racu_values(result)
    names = [name for name in result.measures if (name, result.procedures[0]) in found]
    return [
        {
            "procedure": procedure,
            "measure": first,
            "other": second,
            **difference(found[first, procedure], found[second, procedure]),
        }
        for procedure in result.procedures
        for first, second in combinations(names, 2)
    ]


def racu_values(result: RoarResult) -> dict[tuple[str, str], list[float]]:
    """RACU by measure and procedure: one number a seed."""
    rows = known_racu(result)
    return {(row["measure"], row["procedure"]): row["values"] for row in rows}


def difference(first: Iterable[float], second: Iterable[float]) -> Row:
    """The second less the first, paired, with its interval."""
    pairs = zip(first, second, strict=True)
    found = interval([after - before for before, after in pairs])
    return {"difference": found.pop("mean"), **found}


def interval(numbers: list[float]) -> Row:
    """A mean over the seeds that have a number, with its interval if they are three or more."""
    known = [number for number in numbers if math.isfinite(number)]
    found = told_interval(known) if known else [math.nan] * 3
    return dict(zip(("mean", "ci_low", "ci_high"), found, strict=True))


def trainings(folder: Path, result: RoarResult, k: int) -> list[Row]:
    """The trainings of a level that all measures share, from their cards if the folder has them."""
    if k not in result.levels:
        return []
    rows = []
    tested = result.values("random", result.procedures[0])[:, result.levels.index(k)]
    for seed, test in zip(result.seeds, map(float, tested), strict=True):
        card = read_card(folder / "jobs" / f"k{k:03d}-s{seed}.json")
        history = card.get("validation", [])
        rows.append(
            {
                "k": k,
                "seed": seed,
                "test": test,
                "validation": max(history, default=None),
                "epoch": card.get("epoch"),
                "tenth": history[9] if len(history) > 10 else None,
                "lowest_after": min(history[10:], default=None),
                "highest_after": max(history[10:], default=None),
            }
        )
    return rows


def read_card(file: Path) -> Row:
    """What a run keeps of a training."""
    if not file.exists():
        return {}
    card: Row = json.loads(file.read_text())["card"]
    return card


def without_names(rows: Iterable[Row]) -> list[Row]:
    """Rows without the columns that are the same in all."""
    return [
        {key: value for key, value in row.items() if key not in ("run", "data", "model")}
        for row in rows
    ]


def main(arguments: Iterable[str] | None = None) -> None:
    """Write a file for every folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of ROAR runs")
    parser.add_argument("--data", help="the data that was run, for the shares of its classes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options: Any = parser.parse_args(None if arguments is None else list(arguments))
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in options.runs:
        file = options.out / f"{folder.absolute().name}.json"
        file.write_text(written(summarise(folder, options.data)))
        print(file, flush=True)


if __name__ == "__main__":
    main()
