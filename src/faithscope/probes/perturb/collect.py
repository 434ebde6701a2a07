"""Collecting: shards into the tables of a result, everything else into its manifest."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from faithscope.data import Skipped
from faithscope.data.pictures import picture_rows
from faithscope.metrics import Metric
from faithscope.probes.perturb.ask import Answers, Job
from faithscope.probes.perturb.score import ShardResult, score_shard
from faithscope.result import FORMAT, Result
from faithscope.runs.schema import SCHEMAS
from faithscope.runs.store import Shard
from faithscope.version import __version__


class Collected:
    """Tables that grow by a shard at a time."""

    def __init__(self, job: Job, data: str) -> None:
        self.job = job
        self.data = data
        self.parts: dict[str, list[pa.Table]] = {name: [] for name in SCHEMAS}
        self.digest = hashlib.blake2b(digest_size=16)

    def add(self, shard: Shard) -> None:
        """Append the rows of a shard, just made or read back."""
        for name, table in shard.tables.items():
            self.parts[name].append(table)
        samples = shard.tables["samples"]["sample"].to_pylist()
        update_fingerprint(self.digest, samples, shard.digests)

    def result(self, manifest: Mapping[str, Any]) -> Result:
        """All shards as one result."""
        return Result(**{name: self.table(name) for name in SCHEMAS}, manifest=manifest)

    def table(self, name: str) -> pa.Table:
        """One table of all shards."""
        return pa.concat_tables(self.parts[name]).unify_dictionaries()


def update_fingerprint(digest: Any, samples: Sequence[str], pixels: Sequence[str]) -> None:
    """Take samples, by name and hash of their pixels, into the fingerprint of a data set."""
    for sample, image in zip(samples, pixels, strict=True):
        digest.update(f"{sample}|{image}".encode())


def make_shard(job: Job, data: str, answers: Answers, cost: Mapping[str, float]) -> Shard:
    """Score one shard and write its rows."""
    scored = score_shard(job, answers)
    samples = np.array(scored.batch.samples, dtype=object)
    labels = scored.batch.labels
    tables = {
        "scores": score_table(
            job.model.name,
            data,
            asdict(job.protocol),
            [(column.label, column.draw) for column in job.columns],
            scored.batch.samples,
            scored.scores,
            scored.k,
            scored.flags,
        ),
        "responses": _concatenated("responses", _response_rows(job, scored, samples)),
        "samples": _table(
            "samples",
            sample=samples,
            label=np.full(len(samples), -1) if labels is None else labels.numpy(),
            target=scored.target.numpy(),
            predicted=scored.predicted.numpy(),
            log_p0=scored.log_p0.numpy(),
        ),
        "pictures": _table("pictures", **_pictures(job, answers)),
    }
    return Shard(tables, tuple(scored.batch.digests), cost, {"granularity": dict(job.granularity)})


def _pictures(job: Job, answers: Answers) -> dict[str, list[Any]]:
    maps = answers.miniatures
    count = len(next(iter(maps.values()), ()))
    batch, model = answers.batch, job.model
    images = batch.images[:count]
    return picture_rows(batch.samples, images, maps, mean=model.mean, std=model.std)


def score_table(
    model: str,
    data: str,
    protocol: Mapping[str, Any],
    columns: Sequence[tuple[str, int]],
    samples: Sequence[str],
    scores: Mapping[str, torch.Tensor],
    ks: Mapping[str, torch.Tensor],
    flags: Mapping[str, list[list[str]]],
) -> pa.Table:
    """The long table of scores, [S, M] by metric, of M columns of maps (method, draw)."""
    rows = len(samples) * len(columns)
    names = np.array(samples, dtype=object).repeat(len(columns))
    parts = [
        _table(
            "scores",
            model=[model] * rows,
            data=[data] * rows,
            sample=names,
            method=[method for method, _ in columns] * len(samples),
            draw=[draw for _, draw in columns] * len(samples),
            metric=[label] * rows,
            k=ks[label].flatten().numpy(),
            fill=[protocol["fill"]] * rows,
            upsample=[protocol["upsample"]] * rows,
            value=values.flatten().numpy(),
            flag=list(chain.from_iterable(flags[label])),
        )
        for label, values in scores.items()
    ]
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _response_rows(job: Job, shard: ShardResult, samples: np.ndarray) -> Iterator[dict[str, Any]]:
    labels = np.array([column.label for column in job.columns], dtype=object)
    draws = np.array([column.draw for column in job.columns])
    for part in shard.responses:
        pairs, cuts = part.log_p.shape
        bounds = np.array(part.plan.cuts)
        yield {
            "sample": samples[part.sample.numpy()].repeat(cuts),
            "method": labels[part.map.numpy()].repeat(cuts),
            "draw": draws[part.map.numpy()].repeat(cuts),
            "start": np.tile(bounds[:, 0], pairs),
            "stop": np.tile(bounds[:, 1], pairs),
            "log_p": part.log_p.flatten().numpy(),
            "top1": part.top1.flatten().numpy(),
            "salience": part.salience.flatten().numpy(),
        }


def _concatenated(name: str, parts: Iterable[dict[str, Any]]) -> pa.Table:
    tables = [_table(name, **columns) for columns in parts]
    if not tables:
        return SCHEMAS[name].empty_table()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _table(name: str, **columns: Any) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


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
    samples = collected.table("samples")
    label, predicted = samples["label"].to_numpy(), samples["predicted"].to_numpy()
    hits = (label == predicted)[label >= 0]
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
            "images": samples.num_rows,
            "fingerprint": collected.digest.hexdigest(),
            "accuracy": float(hits.mean()) if len(hits) else None,
            "skipped": [asdict(item) for item in skipped],
        },
        "methods": _method_cards(job),
        "metrics": metric_cards(job.metrics),
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
            "faithscope": __version__,
            **{name: version(name) for name in packages},
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def metric_cards(metrics: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """What a reader must know of every metric."""
    return {
        metric.label: {
            "higher_is_better": metric.higher_is_better,
            "bounds": [None if np.isinf(bound) else bound for bound in metric.bounds],
            "paper": metric.paper,
            "equation": metric.equation,
        }
        for metric in metrics
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
