"""Collecting: shards into the tables of a result, everything else into its manifest."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import faithscope
from faithscope.data import Skipped
from faithscope.engine import Answers, Job, ShardResult, score_shard
from faithscope.results.result import FORMAT, SCHEMAS, Result


class Collected:
    """Tables that grow by a shard at a time."""

    def __init__(self, job: Job, data: str) -> None:
        self.job = job
        self.data = data
        self.parts: dict[str, list[pa.Table]] = {name: [] for name in SCHEMAS}
        self.digest = hashlib.blake2b(digest_size=16)
        self.hits: list[bool] = []
        self.samples = 0

    def add(self, answers: Answers) -> None:
        """Score one shard and append its rows."""
        shard = score_shard(self.job, answers)
        samples = np.array(shard.batch.samples, dtype=object)
        self.samples += len(samples)
        for sample, pixels in zip(samples, shard.batch.digests, strict=True):
            self.digest.update(f"{sample}|{pixels}".encode())
        self._add_scores(shard, samples)
        self._add_responses(shard, samples)
        labels = shard.batch.labels
        if labels is not None:
            self.hits += (shard.predicted == labels).tolist()
        unknown = np.full(len(samples), -1)
        self._append(
            "samples",
            sample=samples,
            label=unknown if labels is None else labels.numpy(),
            target=shard.target.numpy(),
            predicted=shard.predicted.numpy(),
            log_p0=shard.log_p0.numpy(),
        )

    def _add_scores(self, shard: ShardResult, samples: np.ndarray) -> None:
        columns = self.job.columns
        rows = len(samples) * len(columns)
        for label, values in shard.scores.items():
            self._append(
                "scores",
                model=[self.job.model.name] * rows,
                data=[self.data] * rows,
                sample=samples.repeat(len(columns)),
                method=[column.label for column in columns] * len(samples),
                draw=[column.draw for column in columns] * len(samples),
                metric=[label] * rows,
                k=shard.k[label].flatten().numpy(),
                fill=[self.job.protocol.fill] * rows,
                upsample=[self.job.protocol.upsample] * rows,
                value=values.flatten().numpy(),
                flag=list(chain.from_iterable(shard.flags[label])),
            )

    def _add_responses(self, shard: ShardResult, samples: np.ndarray) -> None:
        labels = np.array([column.label for column in self.job.columns], dtype=object)
        draws = np.array([column.draw for column in self.job.columns])
        for part in shard.responses:
            pairs, cuts = part.log_p.shape
            bounds = np.array(part.plan.cuts)
            self._append(
                "responses",
                sample=samples[part.sample.numpy()].repeat(cuts),
                method=labels[part.map.numpy()].repeat(cuts),
                draw=draws[part.map.numpy()].repeat(cuts),
                start=np.tile(bounds[:, 0], pairs),
                stop=np.tile(bounds[:, 1], pairs),
                log_p=part.log_p.flatten().numpy(),
                top1=part.top1.flatten().numpy(),
                salience=part.salience.flatten().numpy(),
            )

    def _append(self, name: str, **columns: Any) -> None:
        schema = SCHEMAS[name]
        arrays = [_array(columns[field.name], field.type) for field in schema]
        self.parts[name].append(pa.Table.from_arrays(arrays, schema=schema))

    def result(self, manifest: Mapping[str, Any]) -> Result:
        """All shards as one result."""
        tables = {
            name: pa.concat_tables(parts).unify_dictionaries() for name, parts in self.parts.items()
        }
        return Result(**tables, manifest=manifest)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


def manifest(
    collected: Collected,
    *,
    skipped: Sequence[Skipped],
    batch_size: int,
    shard: int,
    seconds: float,
) -> dict[str, Any]:
    """Everything needed to judge and repeat a run: protocol, fingerprints, cost, versions."""
    job, responder = collected.job, collected.job.responder
    model = job.model
    packages = ("torch", "torchvision", "timm", "transformers", "captum", "numpy", "scipy")
    passes = responder.passes
    return {
        "format": FORMAT,
        "protocol": asdict(job.protocol),
        "model": {
            "name": model.name,
            "weights": model.weights,
            "fingerprint": model.fingerprint,
            "mean": model.mean,
            "std": model.std,
            "dtype": str(model.dtype).removeprefix("torch."),
            "classes": model.classes,
        },
        "data": {
            "name": collected.data,
            "images": collected.samples,
            "fingerprint": collected.digest.hexdigest(),
            "accuracy": float(np.mean(collected.hits)) if collected.hits else None,
            "skipped": [asdict(item) for item in skipped],
        },
        "methods": _method_cards(job),
        "metrics": {
            metric.label: {
                "higher_is_better": metric.higher_is_better,
                "bounds": [None if np.isinf(bound) else bound for bound in metric.bounds],
                "paper": metric.paper,
                "equation": metric.equation,
            }
            for metric in job.metrics
        },
        "cost": {
            "response_passes": passes,
            "explanation_passes": job.explanation_passes,
            "seconds": seconds,
            "explain_seconds": job.explain_seconds,
            "passes_per_second": passes / max(1e-9, seconds - job.explain_seconds),
            "batch_size": batch_size,
            "shard": shard,
            "batch_halvings": responder.halvings,
            "fp16_deviation": responder.forward.deviation,
        },
        "machine": {
            "device": _device_name(model.device),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {
            "faithscope": faithscope.__version__,
            **{name: version(name) for name in packages},
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _method_cards(job: Job) -> dict[str, dict[str, Any]]:
    """Granularity and matched random attribution of every column, in the columns' order."""
    labels = dict.fromkeys(column.label for column in job.columns)
    random = {column.label for column in job.columns if column.method and column.method.is_random}
    cards = {}
    for label in labels:
        granularity = job.granularity[label]
        coarse = granularity == "patch" or job.protocol.units == "patches"
        match = "random_patch" if coarse else "random"
        matched = match if match in random and label not in random else None
        cards[label] = {
            "granularity": granularity,
            "random": label in random,
            "matched_random": matched,
        }
    return cards


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or device.type
