"""Update the sentences of stored summaries; their numbers do not change.

python studies/rewrite_words.py

Every sentence is made again from the numbers of its summary. Those of a ROAR run come from a run
with the stored curves, whose RACU must equal the stored one. A file whose other entries would
change is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
from summarise import Row, written

import faithscope as fs
from faithscope.metrics import resolve_metrics
from faithscope.probes.retrain.probe import assemble, metric_cards
from faithscope.request import Retrain
from faithscope.result import as_result
from faithscope.runs.cards import DataCard, Majority, MethodCard, ModelCard, Named, TextCard
from faithscope.runs.plan import Plan
from faithscope.runs.tables import table_of_rows
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import mean_and_interval, metric_verdicts

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from filling import RESULTS, Shown, rows_of

SENTENCES = ("headline", "warnings")
ENDS = ("mean", "ci_low", "ci_high", "n")
CLOSE: Row = {"rtol": 0, "atol": 2e-5, "equal_nan": True}
"""Summaries have six digits."""


def rewritten(study: Row) -> Row:
    """A summary with the current sentences."""
    if "runs" in study:
        runs = {
            name: {**run, "verdicts": metric_verdicts(cast(Findings, Shown(run)))}
            for name, run in study["runs"].items()
        }
        return {**study, "runs": runs}
    run = run_of(study)
    check_racu(study, run)
    return {**study, "headline": run.headline(), "warnings": run.warnings()}


def run_of(study: Row) -> fs.Result:
    """A run with the curves of a summary, and what its sentences need of other test metrics."""
    asked, data = study["protocol"], study["data"]
    racu = "racu" if asked["clip"] else "racu(clip=false)"
    metrics = resolve_metrics([racu, "area", "end"], "retrain")
    seeds, names = tuple(asked["seeds"]), (study["model"]["name"], data["name"])
    plan = Plan(
        request=Retrain(
            model=names[0],
            data=names[1],
            methods=tuple(asked["measures"]),
            metrics=tuple(metric.label for metric in metrics),
            seeds=seeds,
            levels=tuple(asked["levels"]),
            strategy=asked["strategy"],
            procedures=tuple(asked["procedures"]),
            specials=asked["specials"],
        ),
        model=Named(name=names[0]),
        data=Named(name=names[1], fingerprint=data["fingerprint"]),
        methods=tuple(
            MethodCard(
                label=name,
                name=name,
                modality="text",
                granularity="token",
                is_random=name == "random",
                matched_random=None if name == "random" else "random",
            )
            for name in asked["measures"]
        ),
        metrics=metric_cards(metrics, data["metric"]),
        pack_size=1,
        groups=(seeds,),
    )
    texts = TextCard(
        kind="own",
        classes=(),
        metric=data["metric"],
        selection=data["metric"],
        sizes=data["sizes"],
        mean_length=data["mean_length"],
        vocabulary=data["vocabulary"],
        majority=Majority(label=data["majority"]["class"], score=data["majority"]["score"]),
        truncated=data["truncated"] or {},
    )
    card = DataCard(
        name=names[1],
        samples=data["sizes"]["test"],
        fingerprint=data["fingerprint"],
        texts=texts,
    )
    tables = {
        "trainings": table_of_rows("trainings", training_rows(study)),
        **{name: table_of_rows(name, []) for name in ("sparsity", "examples", "pictures", "tasks")},
    }
    return as_result(assemble(plan, tables, card, ModelCard(name=names[0]), metrics))


def training_rows(study: Row) -> Iterator[Row]:
    """Every point of every curve, by the test metric of the data, accuracy and macro-F1."""
    alone = {tuple(row.values()) for row in rows_of(study["one_class"])}
    metric = study["data"]["metric"]
    for row in rows_of(study["values"]):
        place = row["measure"], row["procedure"], row["seed"]
        for k in study["protocol"]["levels"]:
            names = dict(zip(("measure", "procedure", "seed", "k"), (*place, k), strict=True))
            value = row[str(k)]
            scores = {**one_class(metric, value, (*place, k) in alone), metric: value}
            for name, score in scores.items():
                yield {**names, "metric": name, "value": np.nan if score is None else score}


def one_class(metric: str, value: float, is_alone: bool) -> Row:
    """Accuracy and macro-F1 that show whether a model predicts one class only.

    Macro-F1 is then 2a / (1 + a) by a whole number of classes, where a is the accuracy.
    """
    classes = 2.0 if is_alone else 1.75
    if metric == "macro_f1":
        return {"accuracy": classes * value / (2 - classes * value)}
    share = value if metric == "accuracy" else 0.5
    return {"accuracy": share, "macro_f1": 2 * share / (1 + share) / classes}


def check_racu(study: Row, run: fs.Result) -> None:
    """Refuse a run whose RACU differs from the summary, by seed or as quoted.

    An interval of rounded numbers may differ in its third digit, because of ties in the bootstrap.
    """
    again = {(row["measure"], row["procedure"]): row for row in run.racu().to_pylist()}
    for row in rows_of(study["racu_by_seed"]):
        found = again[row["measure"], row["procedure"]]
        value = dict(zip(found["seeds"], found["values"], strict=True))[row["seed"]]
        if not np.isclose(value, row["racu"] if row["racu"] is not None else np.nan, **CLOSE):
            raise SystemExit(f"RACU is {value} and not as in {row}")
    known = [{key: row[key] for key in ENDS} for row in rows_of(study["racu"])]
    quoted = [
        mean_and_interval({k: np.nan if v is None else v for k, v in r.items()}) for r in known
    ]
    if known and not any(f"({text})" in run.headline() for text in quoted):
        raise SystemExit(f"'{run.headline()}' quotes none of {quoted}")


def without_sentences(study: Row) -> Row:
    """The entries that must not change."""
    rest = {name: held for name, held in study.items() if name not in SENTENCES}
    if "runs" in study:
        rest["runs"] = {
            name: {**run, "verdicts": len(run["verdicts"])} for name, run in study["runs"].items()
        }
    return rest


def main(arguments: Iterable[str] | None = None) -> None:
    """Rewrite summaries in place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="by default all that are stored")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for file in options.files or sorted(RESULTS.glob("*.json")):
        study = json.loads(file.read_text())
        if "runs" not in study and not all(name in study for name in SENTENCES):
            continue
        text = written(rewritten(study))
        if without_sentences(json.loads(text)) != without_sentences(study):
            raise SystemExit(f"{file} would hold other numbers and is not written")
        if text != file.read_text():
            file.write_text(text)
            print(file, flush=True)


if __name__ == "__main__":
    main()
