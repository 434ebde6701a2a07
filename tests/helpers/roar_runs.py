"""ROAR runs made of numbers alone, without training: for tests of tables, pages and comparisons."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from faithscope.metrics import resolve_metrics
from faithscope.probes.retrain.classification import CLASSIFICATION_METRICS
from faithscope.probes.retrain.probe import assemble, metric_cards
from faithscope.request import Retrain
from faithscope.result import Result, as_result
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Machine,
    Majority,
    MethodCard,
    ModelCard,
    Named,
    Recipe,
    TextCard,
    Vectors,
)
from faithscope.runs.plan import Plan
from faithscope.runs.tables import table_of_rows

STRENGTHS = {
    "attention": 0.6,
    "gradient": 0.25,
    "input_x_gradient": 0.1,
    "integrated_gradients": 0.45,
    "mutual_information": 0.3,
    "random": 0.0,
}
"""How fast the performance falls under each measure: 0 as under random masking, 1 at once."""
WORDS = "Mary went to the bathroom . John moved to the hallway . Mary travelled to the office"
RECIPE = Recipe(epochs=100, batch_size=50, learning_rate=1e-3, weight_decay=0.0)


def make_roar(
    *,
    data: str = "babi-1",
    model: str = "bilstm",
    seeds: int = 5,
    measures: tuple[str, ...] = tuple(STRENGTHS),
    metrics: tuple[str, ...] = ("all",),
    procedures: tuple[str, ...] = ("roar", "recursive"),
    strategy: str = "relative",
    levels: tuple[int, ...] | None = None,
    metric: str = "accuracy",
    words: tuple[str, ...] = tuple(WORDS.split()),
    label: str = "office",
    shift: float = 0.0,
    noise: float = 0.02,
    majority: float = 0.149,
    vectors: Vectors | None = None,
) -> Result:
    """A run whose curves fall from 1 to 0.15; `shift` is added to every measure's strength."""
    whole = strategy == "relative"
    levels = levels or (tuple(range(0, 101, 10)) if whole else tuple(range(11)))
    scored = resolve_metrics(list(metrics), "retrain")
    plan = Plan(
        request=Retrain(
            model=model,
            data=data,
            methods=measures,
            metrics=tuple(metric.label for metric in scored),
            seeds=tuple(range(seeds)),
            levels=levels,
            strategy=strategy,
            procedures=procedures,
            epochs=RECIPE.epochs,
            batch_size=RECIPE.batch_size,
            learning_rate=RECIPE.learning_rate,
        ),
        model=Named(name=model),
        data=Named(name=data, fingerprint=f"hash of {data}", samples=1000),
        methods=tuple(
            MethodCard(
                label=name,
                name=name,
                modality="text",
                granularity="token",
                is_random=name == "random",
                matched_random=None if name == "random" else "random",
            )
            for name in measures
        ),
        metrics=metric_cards(scored, metric),
        recipe=RECIPE,
        pack_size=8,
        groups=(tuple(range(seeds)),),
    )
    rows = {
        "trainings": _trainings(
            data, model, seeds, measures, procedures, levels, shift, noise, whole
        ),
        "sparsity": _sparsity(data, model, measures, seeds),
        "examples": _examples(words, label, measures, procedures, levels, whole),
        "pictures": [],
        "tasks": [],
    }
    texts = TextCard(
        kind="babi",
        classes=(label, "kitchen"),
        metric=metric,
        selection="accuracy",
        sizes={"train": 8500, "validation": 1500, "test": 1000},
        mean_length=38.19,
        vocabulary=25,
        majority=Majority(label=label, score=majority),
        vectors=vectors,
    )
    made = assemble(
        plan,
        {name: table_of_rows(name, held) for name, held in rows.items()},
        DataCard(name=data, samples=1000, fingerprint=f"hash of {data}", texts=texts),
        ModelCard(name=model, recipe=RECIPE, weights="random"),
    )
    known = {
        "created": "2026-03-04T05:06:07+00:00",
        "model": made.manifest.model.model_copy(update={"device": "cpu", "parameters": 55048}),
        "machine": Machine(device="a processor", threads=1, platform="a system", python="3.11"),
        "versions": {"faithscope": "0.1.0"},
        "cost": Cost(
            seconds=1234.5,
            trainings=415,
            training_seconds=1000.0,
            explaining_seconds={name: 3.5 * i for i, name in enumerate(measures)},
            explained=dict.fromkeys(measures, 7),
        ),
    }
    return as_result(replace(made, manifest=made.manifest.model_copy(update=known)))


def with_rows(run: Result, name: str, rows: Iterable[Mapping[str, Any]]) -> Result:
    """The same run with other rows in one of its tables."""
    return replace(run, tables={**run.tables, name: table_of_rows(name, rows)})


def _trainings(
    data: str,
    model: str,
    seeds: int,
    measures: tuple[str, ...],
    procedures: tuple[str, ...],
    levels: tuple[int, ...],
    shift: float,
    noise: float,
    whole: bool,
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        jitter = {k: noise * rng.standard_normal() for k in levels}
        for measure in measures:
            for procedure in procedures:
                strength = 0.0 if measure == "random" else STRENGTHS.get(measure, 0.2) + shift
                strength *= 1.0 if procedure == "recursive" else 0.6
                for k in levels:
                    x = k / 100 if whole else k / 20
                    value = 0.15 + 0.85 * (1 - x) ** (1 + 6 * strength)
                    if k not in (0, 100):
                        value += jitter[k] + (noise * rng.standard_normal() if strength else 0)
                    rows += [
                        {
                            "job": _job(measure, procedure, k, seed),
                            "data": data,
                            "model": model,
                            "measure": measure,
                            "procedure": procedure,
                            "strategy": "relative" if whole else "count",
                            "k": k,
                            "seed": seed,
                            "metric": name,
                            "value": float(np.clip(value, 0, 1)),
                            "epoch": 3,
                            "seconds": 2.5,
                            "validation": [0.5, 0.75, float(np.clip(value, 0, 1))],
                        }
                        for name in CLASSIFICATION_METRICS
                    ]
    return rows


def _job(measure: str, procedure: str, k: int, seed: int) -> str:
    if k in (0, 100):
        return f"k{k:03d}-s{seed}"
    return f"{measure}-{'roar' if measure == 'random' else procedure}-k{k:03d}-s{seed}"


def _sparsity(data: str, model: str, measures: tuple[str, ...], seeds: int) -> list[dict[str, Any]]:
    names = {"data": data, "model": model}
    return [
        {**names, "measure": measure, "seed": seed, "kind": kind, "x": x, "value": value}
        for place, measure in enumerate(name for name in measures if name != "random")
        for seed in range(seeds)
        for kind, xs, scale in (("count", range(1, 11), 12), ("relative", range(10, 100, 10), 110))
        for x in xs
        for value in [min(1.0, (x / scale) ** (0.3 + 0.15 * place) + 0.004 * seed)]
    ]


def _examples(
    words: tuple[str, ...],
    label: str,
    measures: tuple[str, ...],
    procedures: tuple[str, ...],
    levels: tuple[int, ...],
    whole: bool,
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    found = []
    for measure in measures:
        for procedure in procedures:
            scores = rng.gamma(0.4, size=len(words) + 2)
            scores[[0, -1]] = 9.0  # special tokens
            order = 1 + np.argsort(-scores[1:-1])
            for k in levels[1:]:
                count = len(words) * k // 100 if whole else min(k, len(words))
                found.append(
                    {
                        "split": "test",
                        "index": 0,
                        "measure": measure,
                        "procedure": procedure,
                        "seed": 0,
                        "k": k,
                        "label": label,
                        "words": ["[CLS]", *words, "[EOS]"],
                        "auxiliary": ["Where", "is", "Mary"],
                        "eligible": list(range(1, len(words) + 1)),
                        "masked": sorted(int(i) for i in order[:count]),
                        "scores": scores.tolist(),
                    }
                )
    return found
