"""ROAR runs made of numbers alone, without training: for tests of tables, pages and comparisons."""

from typing import Any

import numpy as np
import pyarrow as pa

from faithscope.probes.retrain.classification import CLASSIFICATION_METRICS
from faithscope.probes.retrain.result import ROAR_SCHEMAS, RoarResult
from faithscope.result import FORMAT

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


def make_roar(
    *,
    data: str = "babi-1",
    model: str = "bilstm",
    seeds: int = 5,
    measures: tuple[str, ...] = tuple(STRENGTHS),
    procedures: tuple[str, ...] = ("roar", "recursive"),
    strategy: str = "relative",
    levels: tuple[int, ...] | None = None,
    metric: str = "accuracy",
    words: tuple[str, ...] = tuple(WORDS.split()),
    label: str = "office",
    shift: float = 0.0,
    noise: float = 0.02,
) -> RoarResult:
    """A run whose curves fall from 1 to 0.15; `shift` is added to every measure's strength."""
    whole = strategy == "relative"
    levels = levels or (tuple(range(0, 101, 10)) if whole else tuple(range(11)))
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
                            "strategy": strategy,
                            "k": k,
                            "seed": seed,
                            "metric": name,
                            "value": float(np.clip(value, 0, 1)),
                            "epoch": 3,
                            "seconds": 2.5,
                        }
                        for name in CLASSIFICATION_METRICS
                    ]
    return RoarResult(
        trainings=pa.Table.from_pylist(rows, schema=ROAR_SCHEMAS["trainings"]),
        sparsity=pa.Table.from_pylist(
            _sparsity(data, model, measures, seeds), schema=ROAR_SCHEMAS["sparsity"]
        ),
        examples=_examples(words, label, measures, procedures, levels, whole),
        manifest=_manifest(
            data, model, seeds, measures, procedures, strategy, levels, metric, label
        ),
    )


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
            steps = []
            for k in levels[1:]:
                count = len(words) * k // 100 if whole else min(k, len(words))
                masked = sorted(int(i) for i in order[:count])
                steps.append({"k": k, "masked": masked, "scores": scores.tolist()})
            found.append(
                {
                    "split": "test",
                    "index": 0,
                    "words": ["[CLS]", *words, "[EOS]"],
                    "eligible": list(range(1, len(words) + 1)),
                    "label": label,
                    "auxiliary": ["Where", "is", "Mary"],
                    "measure": measure,
                    "procedure": procedure,
                    "seed": 0,
                    "levels": steps,
                }
            )
    return found


def _manifest(
    data: str,
    model: str,
    seeds: int,
    measures: tuple[str, ...],
    procedures: tuple[str, ...],
    strategy: str,
    levels: tuple[int, ...],
    metric: str,
    label: str,
) -> dict[str, Any]:
    return {
        "kind": "roar",
        "format": FORMAT,
        "created": "2026-03-04T05:06:07+00:00",
        "data": {
            "name": data,
            "kind": "babi",
            "classes": [label, "kitchen"],
            "metric": metric,
            "selection": "accuracy",
            "sizes": {"train": 8500, "validation": 1500, "test": 1000},
            "mean_length": 38.19,
            "vocabulary": 25,
            "majority": {"class": label, "score": 0.149},
            "truncated": {},
            "notes": [],
            "fingerprint": "0123456789abcdef",
        },
        "model": {
            "name": model,
            "parameters": 55048,
            "recipe": {"epochs": 100, "batch_size": 50},
            "device": "cpu",
        },
        "protocol": {
            "strategy": strategy,
            "levels": list(levels),
            "procedures": list(procedures),
            "measures": list(measures),
            "seeds": list(range(seeds)),
            "clip": True,
        },
        "cost": {
            "seconds": 1234.5,
            "trainings": 415,
            "training_seconds": 1000.0,
            "explaining_seconds": {name: 3.5 * i for i, name in enumerate(measures)},
            "explained": dict.fromkeys(measures, 7),
        },
        "machine": {"cpu": "a processor"},
        "versions": {"faithscope": "0.1.0"},
    }
