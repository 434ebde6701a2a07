"""Summarise a ROAR run as a small JSON file for the reproduction page.

python studies/summarise_roar.py runs/roar_babi1 --data 'babi:data/babi(task=1)'

Like studies/summarise.py for images: NAME.json is named after the folder and holds the command
(command.txt of the folder), data, model, protocol, cost and machine, whether the models of the
intact texts learnt anything, every curve with its intervals and its values by seed (RACU can be
computed again from them), RACU by seed and with one seed left out, and its paired differences
between procedures and between measures, the trainings at both ends with their validation, sparsity
and compute time. Fewer than three seeds have no intervals (null), one-token steps no RACU. `--data`
adds the share of each class in each split, the words with the most information on the class and how
many words have a pretrained vector. The same folder gives the same file; of a model's folder only
the last part of its path is named.
"""

from __future__ import annotations

import argparse
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
from faithscope.report.trainings import clips, sparsity_rows, time_rows
from faithscope.verdicts.statistics import interval_or_nan

ENDS = (0, 100)
"""Levels whose trainings are listed one by one."""
TELLING = 6
"""How many of the words with the most information on the class are named."""
PROTOCOL = ("strategy", "levels", "procedures", "methods", "seeds", "specials")
COST = (
    *("seconds", "trainings", "training_seconds", "explaining_seconds", "explained"),
    "packs",
)
VERSIONS = ("faithscope", "torch")


def summarise(folder: Path, data: str | None = None) -> Row:
    """Everything the page may quote from the one ROAR run in a folder."""
    (result,) = fs.load_results(folder).results.values()
    if result.manifest.kind != "retrain":
        raise SystemExit(f"{folder} is not a ROAR run: python studies/summarise.py {folder}")
    file = folder / "command.txt"
    manifest = result.manifest
    found = {
        "name": folder.absolute().name,
        "command": file.read_text().strip().splitlines() if file.exists() else [],
        "data": of_data(result),
        "model": {
            "name": manifest.model.name,
            "parameters": manifest.model.parameters,
            "recipe": None if (made := manifest.model.recipe) is None else made.model_dump(),
        },
        "protocol": protocol(result),
        "versions": {name: manifest.versions.get(name) for name in VERSIONS},
        "cost": {
            **{name: held for name in COST if (held := getattr(manifest.cost, name)) is not None},
            "pack_size": manifest.plan.pack_size,
        },
        "device": manifest.machine.device,
        "learnt": not result.trained.is_unlearned,
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
        "ends": {str(k): result.trained.at_level(k) for k in ENDS},
        "trainings": table([row for k in ENDS for row in trainings(result, k)]),
        "sparsity": table(sparsity_rows(result)),
        "time": table(time_rows(result)),
    }
    named: Row = without_place(found, manifest.model.name)
    return named


def of_data(result: fs.Result) -> Row:
    """What the manifest says about the data."""
    data, texts = result.manifest.data, result.manifest.data.texts
    return {
        "name": data.name,
        "metric": texts.metric,
        "sizes": texts.sizes,
        "mean_length": texts.mean_length,
        "vocabulary": texts.vocabulary,
        "majority": {"class": texts.majority.label, "score": texts.majority.score},
        "fingerprint": data.fingerprint,
        "truncated": texts.truncated,
        "notes": list(texts.notes),
    }


def protocol(result: fs.Result) -> Row:
    """The options that affect the numbers, and whether RACU was clipped."""
    asked = result.manifest.plan.request
    held = {name: getattr(asked, name) for name in PROTOCOL}
    found = {
        "measures" if name == "methods" else name: list(value)
        if isinstance(value, tuple)
        else value
        for name, value in held.items()
    }
    return {**found, "clip": clips(result)}


def without_place(value: Any, model: str) -> Any:
    """The same with a model's folder replaced by the last part of its path.

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


def about_data(result: fs.Result, data: str) -> Row:
    """What the manifest does not say about the data of the run.

    The share of each class by split, the words with the most information on the class, and the
    size of pretrained vectors with the number of words that have one.
    """
    texts = load_text(data)
    if fingerprint(texts) != result.manifest.data.fingerprint:
        raise SystemExit(f"'{data}' is other data than the run's: give the data that was run.")
    tokens = Vocabulary.of(texts).encode(texts)
    information = word_information(
        tokens.train, len(tokens.words), len(texts.classes), (PAD, CLS, EOS)
    )
    return {
        "classes": {
            name: {
                texts.classes[label]: float(np.mean(split.labels == label))
                for label in np.unique(split.labels)
            }
            for name, split in texts.splits
        },
        "telling_words": [tokens.words[i] for i in information.argsort(descending=True)[:TELLING]],
        "vectors": None
        if (known := texts.vectors) is None
        else {"size": known.size, "words": sum(word in known.vectors for word in tokens.words)},
    }


def values(result: fs.Result) -> list[Row]:
    """The task metric of every curve and seed at every level."""
    curves = result.trained
    return [
        {
            "measure": measure,
            "procedure": procedure,
            "seed": seed,
            **dict(zip(map(str, curves.levels), map(float, row), strict=True)),
        }
        for measure, procedure in curves.kinds
        for seed, row in zip(curves.seeds, curves.values(measure, procedure), strict=True)
    ]


def racu_rows(result: fs.Result) -> list[Row]:
    """RACU with its interval, and without clipping; none for one-token steps."""
    free = {(row["measure"], row["procedure"]): row for row in known_racu(result, clip=False)}
    return [
        {
            **{key: row[key] for key in ("measure", "procedure", "mean", "ci_low", "ci_high", "n")},
            "unclipped": free[row["measure"], row["procedure"]]["mean"],
        }
        for row in known_racu(result)
    ]


def known_racu(result: fs.Result, clip: bool | None = None) -> list[Row]:
    """RACU's rows; none for token counts, because RACU is relative to masking everything."""
    return list(result.racu(clip).to_pylist()) if result.trained.is_relative else []


def by_seed(result: fs.Result) -> list[Row]:
    """RACU of every seed."""
    return [
        {"measure": row["measure"], "procedure": row["procedure"], "seed": seed, "racu": value}
        for row in known_racu(result)
        for seed, value in zip(row["seeds"], row["values"], strict=True)
    ]


def left_out(result: fs.Result) -> list[Row]:
    """RACU over all seeds but one: how much depends on it."""
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


def between_procedures(result: fs.Result) -> list[Row]:
    """By measure, RACU of Recursive ROAR minus that of ROAR, paired by seed."""
    if len(result.procedures) < 2:
        return []
    found = racu_values(result)
    return [
        {"measure": name, **difference(found[name, "roar"], found[name, "recursive"])}
        for name in result.methods
        if (name, "roar") in found
    ]


def between_measures(result: fs.Result) -> list[Row]:
    """By procedure and pair of measures, RACU of the second minus the first, paired by seed."""
    found = racu_values(result)
    names = [name for name in result.methods if (name, result.procedures[0]) in found]
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


def racu_values(result: fs.Result) -> dict[tuple[str, str], list[float]]:
    """RACU by measure and procedure: one number per seed."""
    rows = known_racu(result)
    return {(row["measure"], row["procedure"]): row["values"] for row in rows}


def difference(first: Iterable[float], second: Iterable[float]) -> Row:
    """The second minus the first, paired, with its interval."""
    pairs = zip(first, second, strict=True)
    found = interval([after - before for before, after in pairs])
    return {"difference": found.pop("mean"), **found}


def interval(numbers: list[float]) -> Row:
    """A mean over the seeds that have a number, with its interval if there are three or more."""
    known = [number for number in numbers if math.isfinite(number)]
    found = interval_or_nan(known) if known else [math.nan] * 3
    return dict(zip(("mean", "ci_low", "ci_high"), found, strict=True))


def trainings(result: fs.Result, k: int) -> list[Row]:
    """The trainings of a level that all measures share, with test and validation scores."""
    curves, rows = result.trained, []
    for row in result.trainings.to_pylist():
        place = row["measure"], row["procedure"], row["metric"], row["k"]
        if place != ("random", curves.procedures[0], curves.metric, k):
            continue
        history = row["validation"] or []
        rows.append(
            {
                "k": k,
                "seed": row["seed"],
                "test": row["value"],
                "validation": max(history, default=None),
                "epoch": row["epoch"],
                "tenth": history[9] if len(history) > 10 else None,
                "lowest_after": min(history[10:], default=None),
                "highest_after": max(history[10:], default=None),
            }
        )
    return sorted(rows, key=lambda row: curves.seeds.index(row["seed"]))


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
