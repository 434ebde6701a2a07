"""An evaluation from end to end: check the request, plan it, run it shard by shard, collect.

`prepare` turns what a user asks for into an `Evaluation`, which can say what it will cost and can
be run. Nothing is computed before everything that can be checked has been checked.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

import faithscope
from faithscope.data import Batch, ImageData, Skipped, as_image_data, image_digests, load_data
from faithscope.engine import (
    Column,
    Job,
    Protocol,
    Responder,
    ShardResult,
    check_resolution,
    choose_batch_size,
    evaluate_shard,
    passes_per_image,
    prepare_forward,
)
from faithscope.errors import FaithscopeError, choose
from faithscope.methods import METHODS, Method, MethodLike, explain_batch, resolve_methods
from faithscope.metrics import MetricLike, check_k, resolve_metrics
from faithscope.models import Model, as_model
from faithscope.perturb import FILLS, TIES, UNITS, UPSAMPLES
from faithscope.results import FORMAT, SCHEMAS, Result

GROUPS = ("sum", "mean")
SHARD = 64
"""Images that are explained and planned together."""

Advance = Callable[[int], None]
ModelLike = Model | nn.Module | str


@dataclass(frozen=True)
class Forecast:
    """What an evaluation will cost: images, perturbed passes, seconds measured on a sample."""

    images: int
    passes_per_image: int
    passes: int
    seconds: float

    def __str__(self) -> str:
        minutes = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
        return (
            f"{self.images:,} images × {self.passes_per_image:,} = {self.passes:,} model passes, "
            f"about {minutes}"
        )


@dataclass(eq=False)
class Evaluation:
    """A request that has been checked and planned, ready to be run once."""

    job: Job
    data: ImageData
    first: Batch
    batches: Iterator[Batch]
    shard: int
    batch_size: int
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def passes_per_image(self) -> int:
        """Distinct perturbed inputs of one image (an upper bound for k="auto")."""
        job = self.job
        n = _unit_count(job.model, self.first.images, job.protocol.units)
        return passes_per_image(job.metrics, n, len(job.columns), k=job.protocol.k)

    def forecast(self) -> Forecast:
        """Time one batch of the model and one small batch of the methods, and multiply."""
        job = self.job
        images = self.first.images[:4].to(job.model.device)
        few = images.to(job.responder.forward.dtype)
        inputs = few.repeat(self.batch_size // len(few) + 1, 1, 1, 1)[: self.batch_size]
        with job.responder.forward.mode():
            per_pass = _timed(lambda: job.responder.forward.logits(inputs)) / len(inputs)
        wanted = [(column.method, column.draw) for column in job.columns if column.method]
        target = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        per_image = 0.0
        if wanted:
            keys = self.first.keys[: len(images)]
            once = _timed(lambda: explain_batch(job.model, images, target, wanted, keys=keys))
            per_image = once / len(images)
        count = max(len(self.data), len(self.first.images))
        passes = count * self.passes_per_image
        seconds = passes * per_pass + count * per_image
        return Forecast(count, self.passes_per_image, passes, seconds)

    def run(self, advance: Advance | None = None) -> Result:
        """Evaluate shard after shard; memory holds one shard and the tables."""
        started = time.perf_counter()
        if advance is not None:
            self.job.responder.advance = advance
        collected = _Collected(self.job, self.data.name)
        for batch in chain([self.first], self.batches):
            self.skipped += batch.skipped
            for part in batch.split(self.shard):
                collected.add(evaluate_shard(self.job, part))
        seconds = time.perf_counter() - started
        return collected.result(_manifest(self, collected, seconds))


def prepare(
    model: ModelLike,
    images: Tensor | np.ndarray | ImageData | Iterable[Any] | str | Path,
    methods: MethodLike | Iterable[MethodLike] | None = None,
    metrics: MetricLike | Iterable[MetricLike] = "all",
    *,
    labels: Tensor | Iterable[int] | None = None,
    maps: Mapping[str, Tensor | np.ndarray] | None = None,
    target: str | int | Tensor = "predicted",
    k: int | str = 10,
    fill: str = "mean",
    units: str = "pixels",
    upsample: str = "bilinear",
    ties: str = "ascending",
    group: str = "sum",
    random_draws: int = 3,
    seed: int = 0,
    precision: str = "auto",
    batch_size: int | str = "auto",
) -> Evaluation:
    """Check and plan an evaluation; the arguments are those of `fs.evaluate`."""
    wanted = resolve_metrics(metrics)
    check_k(k)
    choose("fill", fill, FILLS)
    choose("units", units, UNITS)
    choose("upsampling", upsample, UPSAMPLES)
    choose("tie order", ties, TIES)
    choose("group salience", group, GROUPS)
    if random_draws < 0:
        raise FaithscopeError(f"random_draws must be 0 or more, got {random_draws}.")
    model = as_model(model)
    data = _as_data(model, images, labels)
    given = _given_maps(maps, len(data))
    chosen = resolve_methods(("all" if not given else ()) if methods is None else methods)
    first, batches, skipped = _first_batch(data)
    columns = _columns(model, first.images, chosen, given, units, random_draws)
    n = _unit_count(model, first.images, units)
    check_resolution(wanted, k, _most_units(model, data, n, units))
    example = first.images.to(model.device)
    forward = prepare_forward(model, precision, example[:32])
    size = _batch_size(batch_size, lambda: choose_batch_size(forward, example))
    protocol = Protocol(
        target=target if isinstance(target, str) else "given",
        k=k,
        fill=fill,
        units=units,
        upsample=upsample,
        ties=ties,
        group=group,
        seed=seed,
        precision=forward.precision,
    )
    job = Job(
        model=model,
        responder=Responder(forward, FILLS[fill], size),
        columns=columns,
        metrics=wanted,
        protocol=protocol,
        given=given,
        target=_checked_target(target, len(data)),
        explain_batch_size=min(size, 32),
    )
    shard = max(1, min(SHARD, (1 << 27) // (len(columns) * n)))
    return Evaluation(job, data, first, batches, shard, size, skipped)


def _as_data(model: Model, images: Any, labels: Any) -> ImageData:
    if isinstance(images, str | Path):
        return load_data(images, model)
    return as_image_data(images, labels)


def _first_batch(data: ImageData) -> tuple[Batch, Iterator[Batch], list[Skipped]]:
    """The first batch with a usable image; what was left out before it is kept."""
    batches, skipped = data.batches(SHARD), list[Skipped]()
    for batch in batches:
        if len(batch.images):
            return batch, batches, skipped
        skipped += batch.skipped
    if not skipped:
        raise FaithscopeError("There are no images: give at least one.")
    worst = skipped[0]
    raise FaithscopeError(
        f"None of the {len(skipped)} images could be used; the first, '{worst.sample}': "
        f"{worst.reason}."
    )


def _columns(
    model: Model,
    images: Tensor,
    methods: list[Method],
    given: Mapping[str, Tensor],
    units: str,
    draws: int,
) -> list[Column]:
    """One column per method, per given map and per draw of random attribution."""
    grid = model.grid(images.shape[-2], images.shape[-1])
    for method in methods:
        if "attention" in method.needs:
            model.require_vit(f"The method '{method.label}'")
            model.require_grid(images, f"The method '{method.label}'")
    for name, maps in given.items():
        shape, size = tuple(maps.shape[1:]), tuple(images.shape[-2:])
        if shape not in (size, grid):
            raise FaithscopeError(
                f"The maps '{name}' have shape {list(maps.shape)}: needed is [{len(maps)}, "
                f"{size[0]}, {size[1]}]"
                + (f" or, by patch, [{len(maps)}, {grid[0]}, {grid[1]}]." if grid else ".")
            )
    columns = [Column(method.label, 0, method) for method in methods if not method.is_random]
    columns += [Column(name) for name in given]
    labels = [column.label for column in columns]
    for label in labels:
        if labels.count(label) > 1 or (label in given and label in METHODS):
            raise FaithscopeError(f"'{label}' names both a method and given maps: rename the maps.")
    baselines = {method.label: method for method in methods if method.is_random}
    if draws:
        baselines.setdefault("random", METHODS["random"])
        if grid is not None:
            baselines.setdefault("random_patch", METHODS["random_patch"])
    for label, method in baselines.items():
        columns += [Column(label, draw, method) for draw in range(max(1, draws))]
    if not columns:
        raise FaithscopeError("There is nothing to evaluate: give methods=… or maps=….")
    return columns


def _given_maps(maps: Mapping[str, Tensor | np.ndarray] | None, count: int) -> dict[str, Tensor]:
    given = {name: torch.as_tensor(values) for name, values in (maps or {}).items()}
    for name, values in given.items():
        if values.ndim != 3 or (count and len(values) != count):
            raise FaithscopeError(
                f"The maps '{name}' have shape {list(values.shape)}: needed are {count} maps, "
                f"[{count}, height, width]."
            )
        if not values.is_floating_point():
            given[name] = values.to(torch.float64)
    return given


def _unit_count(model: Model, images: Tensor, units: str) -> int:
    if units == "patches":
        rows, columns = model.require_grid(images, "units='patches'")
        return rows * columns
    return images.shape[-2] * images.shape[-1]


def _most_units(model: Model, data: ImageData, first: int, units: str) -> int:
    """The most units any sample has; only a list of tensors can hold several sizes."""
    images = getattr(data, "images", None)
    if not isinstance(images, list):
        return first
    return max(_unit_count(model, image, units) for image in images)


def _batch_size(batch_size: int | str, automatic: Callable[[], int]) -> int:
    if batch_size == "auto":
        return automatic()
    if isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size >= 1:
        return batch_size
    raise FaithscopeError(f"batch_size must be 'auto' or at least 1, got {batch_size!r}.")


def _checked_target(target: str | int | Tensor, count: int) -> str | int | Tensor:
    if isinstance(target, str):
        return choose("target", target, ("predicted", "label"))
    if isinstance(target, int):
        return target
    target = torch.as_tensor(target).to(torch.int64).cpu()
    if count and target.shape != (count,):
        raise FaithscopeError(
            f"target must be 'predicted', 'label', a class or one class for each of the {count} "
            f"images, got shape {list(target.shape)}."
        )
    return target


def _timed(call: Callable[[], Any]) -> float:
    """Seconds of one call, after one to warm up."""
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return seconds


class _Collected:
    """Tables that grow by a shard at a time."""

    def __init__(self, job: Job, data: str) -> None:
        self.job = job
        self.data = data
        self.parts: dict[str, list[pa.Table]] = {name: [] for name in SCHEMAS}
        self.digest = hashlib.blake2b(digest_size=16)
        self.hits: list[bool] = []
        self.samples = 0

    def add(self, shard: ShardResult) -> None:
        samples = np.array(shard.batch.samples, dtype=object)
        self.samples += len(samples)
        for sample, pixels in zip(samples, image_digests(shard.batch.images), strict=True):
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
        tables = {
            name: pa.concat_tables(parts).unify_dictionaries() for name, parts in self.parts.items()
        }
        return Result(**tables, manifest=manifest)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


def _manifest(evaluation: Evaluation, collected: _Collected, seconds: float) -> dict[str, Any]:
    job, responder = evaluation.job, evaluation.job.responder
    model = job.model
    packages = ("torch", "torchvision", "timm", "transformers", "captum", "numpy", "scipy")
    passes = responder.passes
    return {
        "format": FORMAT,
        "protocol": asdict(job.protocol),
        "model": {
            "name": model.name,
            "fingerprint": model.fingerprint,
            "mean": model.mean,
            "std": model.std,
            "dtype": str(model.dtype).removeprefix("torch."),
            "classes": model.classes,
        },
        "data": {
            "name": evaluation.data.name,
            "images": collected.samples,
            "fingerprint": collected.digest.hexdigest(),
            "accuracy": float(np.mean(collected.hits)) if collected.hits else None,
            "skipped": [asdict(item) for item in evaluation.skipped],
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
            "respond_seconds": job.respond_seconds,
            "passes_per_second": passes / job.respond_seconds if job.respond_seconds else None,
            "batch_size": evaluation.batch_size,
            "shard": evaluation.shard,
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
        cards[label] = {"granularity": granularity, "matched_random": matched}
    return cards


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or device.type
