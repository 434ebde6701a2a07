"""An evaluation from end to end: check the request, plan it, run it shard by shard, collect.

`prepare` turns what a user asks for into an `Evaluation`, which can say what it will cost and can
be run. Nothing is computed before everything that can be checked has been checked.
"""

from __future__ import annotations

import hashlib
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faithscope.data import (
    Batch,
    ImageData,
    LoaderImages,
    Skipped,
    as_image_data,
    as_tensor,
    class_numbers,
    load_data,
)
from faithscope.errors import FaithscopeError, choose
from faithscope.methods import METHODS, Method, MethodLike, explain_batch, resolve_methods
from faithscope.metrics import MetricLike, check_k, resolve_metrics
from faithscope.models import Model, as_model, cannot_run, undisturbed
from faithscope.perturb import FILLS, TIES, UNITS, UPSAMPLES
from faithscope.probes.perturb.ask import Answers, Column, Job, Protocol, ask_shard
from faithscope.probes.perturb.collect import Collected, make_shard, manifest, update_fingerprint
from faithscope.probes.perturb.plan import check_resolution, passes_per_image
from faithscope.probes.perturb.precision import prepare_forward
from faithscope.probes.perturb.respond import Responder, choose_batch_size
from faithscope.result import FORMAT, Result
from faithscope.runs.store import Shard, Store, batch_size_of
from faithscope.verdicts.enough import Watch

GROUPS = ("sum", "mean")
SHARD = 64
"""Images that are planned together."""
EXPLAIN_BATCH = 32
"""Images that are explained together."""
PICTURES = 1000
"""Images that are kept, small and with their maps, for people to look at."""

Advance = Callable[[int], None]
ModelLike = Model | nn.Module | str


@dataclass(frozen=True)
class Forecast:
    """What an evaluation will cost: images, perturbed passes, seconds measured on a sample."""

    images: int
    passes_per_image: int
    passes: int
    seconds: float

    @property
    def duration(self) -> str:
        """The seconds in words."""
        return f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"

    def __str__(self) -> str:
        return (
            f"{self.images:,} images × {self.passes_per_image:,} = {self.passes:,} model passes, "
            f"about {self.duration}"
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
    chooses_batch: bool = False
    tolerance: float | None = None
    pictures: int = PICTURES
    ran: bool = False

    @property
    def passes_per_image(self) -> int:
        """Distinct perturbed inputs of one image (an upper bound for k="auto")."""
        job = self.job
        n = _unit_count(job.model, self.first.images, job.protocol.units)
        return passes_per_image(job.metrics, n, len(job.columns), k=job.protocol.k)

    def forecast(self) -> Forecast:
        """Time one batch of the model and one small batch of the methods, and multiply.

        On a CPU the methods are timed on a single image: integrated gradients of a few images can
        take longer than somebody who only wants to know will wait.
        """
        job = self.job
        fast = job.model.device.type == "cuda"
        images = self.first.images[: job.explain_batch_size if fast else 1].to(job.model.device)
        few = images.to(job.responder.forward.dtype)
        inputs = few.repeat(self.batch_size // len(few) + 1, 1, 1, 1)[: self.batch_size]
        with undisturbed(job.model.module), job.responder.forward.mode():
            try:
                per_pass = _timed(lambda: job.responder.forward.logits(inputs)) / len(inputs)
            except FaithscopeError:
                raise
            except (RuntimeError, AssertionError, ValueError, IndexError) as error:
                raise cannot_run(job.model, images, error) from error
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

    def run(self, advance: Advance | None = None, out: str | Path | None = None) -> Result:
        """Evaluate shard after shard; memory holds one shard and the tables.

        With `out`, finished shards are kept in that folder, and the same evaluation that was
        stopped there before goes on where it was.
        """
        if self.ran:
            raise FaithscopeError("An evaluation can be run once: prepare it again.")
        self.ran = True
        if advance is not None:
            self.job.responder.advance = advance
        if out is None:
            return self._run(None)
        if self.chooses_batch and (chosen := batch_size_of(Path(out))):
            self.batch_size = self.job.responder.batch_size = chosen  # same batches, same bits
            self.job.explain_batch_size = min(chosen, EXPLAIN_BATCH)
        with Store.open(Path(out), self.plan()) as store:
            result = store.finished()
            if result is None:
                result = self._run(store)
                store.finish(result)
            else:
                self._check_data(result)
                self._check_pictures(result)
        return result

    def _check_data(self, result: Result) -> None:
        """Refuse data that are not those of a finished run."""
        digest, left = hashlib.blake2b(digest_size=16), result.samples.num_rows
        for batch in chain([self.first], self.batches):
            for part in batch.split(self.shard):
                if left > 0:  # a tolerance may have ended the run inside a batch
                    update_fingerprint(digest, part.samples, part.digests)
                left -= len(part.samples)
            if left <= 0:
                break
        if digest.hexdigest() != result.manifest["data"]["fingerprint"]:
            raise FaithscopeError(
                "The data has changed since the run was finished: give another folder for a new "
                "run."
            )

    def _check_pictures(self, result: Result) -> None:
        """Say so if more pictures are wanted than a finished run has kept."""
        kept = len(result.pictures["sample"].unique())
        if kept < min(self.pictures, result.samples.num_rows):
            warnings.warn(
                f"The run is finished and has kept pictures of {kept} images: give another folder "
                "to keep more.",
                stacklevel=3,
            )

    def plan(self) -> dict[str, Any]:
        """Everything that decides the numbers, but for the pixels: those are checked by shard."""
        job = self.job
        given = {name: _digest(maps) for name, maps in job.given.items()}
        return {
            "faithscope": FORMAT,
            "protocol": asdict(job.protocol),
            "model": {"name": job.model.name, "fingerprint": job.model.fingerprint},
            "data": {"name": self.data.name, "images": len(self.data)},
            "methods": [f"{column.label} #{column.draw}" for column in job.columns],
            "metrics": [metric.label for metric in job.metrics],
            "maps": given,
            "batch_size": self.batch_size,
            "shard": self.shard,
            "tolerance": self.tolerance,
        }

    def _run(self, store: Store | None) -> Result:
        started, job = time.perf_counter(), self.job
        collected = Collected(job, self.data.name)
        watch = None
        if self.tolerance is not None:
            watch = Watch(self.tolerance, job.columns, job.metrics)
        loader, scorer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        scoring: Future[None] | None = None

        def take(shard: Shard) -> None:
            collected.add(shard)
            if watch is not None:
                watch.add(shard.tables["scores"])

        def finish(index: int, answers: Answers, cost: dict[str, float]) -> None:
            shard = make_shard(job, self.data.name, answers, cost)
            if store is not None:
                store.write(index, shard)
            take(shard)

        try:
            for index, part in enumerate(self._parts(loader)):
                kept = None if store is None else store.read(index)
                if kept is None:
                    before = job.cost()
                    pictures = max(0, self.pictures - index * self.shard)
                    answers = ask_shard(job, part, pictures=pictures)
                    cost = {name: value - before[name] for name, value in job.cost().items()}
                if scoring is not None:
                    scoring.result()
                    scoring = None
                if kept is None:
                    scoring = scorer.submit(finish, index, answers, cost)
                else:
                    _check_unchanged(kept, part)
                    job.charge(kept.cost, kept.notes["granularity"])
                    take(kept)
                if watch is not None:
                    if scoring is not None:
                        scoring.result()
                        scoring = None
                    if watch.is_enough():
                        break
            if scoring is not None:
                scoring.result()
        finally:
            scorer.shutdown()
            loader.shutdown(wait=False, cancel_futures=True)  # a slow loader must not hold an error
        about = manifest(
            collected,
            skipped=self.skipped,
            batch_size=self.batch_size,
            shard=self.shard,
            seconds=time.perf_counter() - started,
        )
        if watch is not None:
            about["stopping"] = watch.said()
        return collected.result(about)

    def _parts(self, loader: Executor) -> Iterator[Batch]:
        for batch in _ahead(loader, chain([self.first], self.batches)):
            self.skipped += batch.skipped
            yield from batch.split(self.shard)


def _check_unchanged(kept: Shard, part: Batch) -> None:
    if kept.digests != tuple(part.digests):
        raise FaithscopeError(
            f"The data has changed since the run began (near the sample '{part.samples[0]}'): give "
            "another folder for a new run."
        )


def _digest(values: Tensor) -> str:
    content = values.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _ahead(loader: Executor, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Load the next batch while the model is busy with this one."""
    pending = loader.submit(next, batches, None)
    while (batch := pending.result()) is not None:
        pending = loader.submit(next, batches, None)
        yield batch


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
    pictures: int = PICTURES,
) -> Evaluation:
    """Check and plan an evaluation; the arguments are those of `fs.evaluate`."""
    wanted = resolve_metrics(metrics)
    k, batch_size = _plain_number(k), _plain_number(batch_size)
    seed, random_draws = _whole("seed", seed), _whole("random_draws", random_draws)
    check_k(k)
    choose("fill", fill, FILLS)
    choose("units", units, UNITS)
    choose("upsampling", upsample, UPSAMPLES)
    choose("tie order", ties, TIES)
    choose("group salience", group, GROUPS)
    pictures = _whole("pictures", pictures)
    for name, number in (("random_draws", random_draws), ("pictures", pictures)):
        if number < 0:
            raise FaithscopeError(f"{name} must be 0 or more, got {number}.")
    model = as_model(model)
    data = _as_data(model, images, labels)
    goal = _checked_target(target, len(data))
    given = _given_maps(maps, len(data))
    if isinstance(data, LoaderImages) and (given or isinstance(goal, Tensor)):
        raise FaithscopeError(
            "Maps and targets for each image need images in a known order, not a loader: give the "
            "images as a tensor, a list or a folder."
        )
    chosen = resolve_methods(("all" if not given else ()) if methods is None else methods)
    first, batches, skipped = _first_batch(data)
    columns = _columns(model, first.images, chosen, given, units, random_draws)
    n = _unit_count(model, first.images, units)
    check_resolution(wanted, k, _most_units(model, data, n, units))
    example = first.images.to(model.device)
    with undisturbed(model.module):
        forward = prepare_forward(model, precision, example[:32])
        size = _batch_size(batch_size, lambda: choose_batch_size(forward, example))
    protocol = Protocol(
        target=_target_name(goal),
        k=k,
        fill=fill,
        units=units,
        upsample=upsample,
        ties=ties,
        group=group,
        random_draws=random_draws,
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
        target=goal,
        explain_batch_size=min(size, EXPLAIN_BATCH),
    )
    shard = max(1, min(SHARD, (1 << 27) // (len(columns) * n)))
    automatic = batch_size == "auto"
    return Evaluation(job, data, first, batches, shard, size, skipped, automatic, pictures=pictures)


def _as_data(model: Model, images: Any, labels: Any) -> ImageData:
    if isinstance(images, str | Path):
        images = load_data(images, model)
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
        method.check(model, images)
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
    if maps is not None and not isinstance(maps, Mapping):
        raise FaithscopeError(
            f"maps must be given by name, maps={{'mine': …}}, got {type(maps).__name__}."
        )
    given = {str(name): _as_maps(name, values) for name, values in (maps or {}).items()}
    if "" in given:
        raise FaithscopeError("The maps '' have no name: give one, maps={'mine': …}.")
    for name, values in given.items():
        if values.ndim != 3 or (count and len(values) != count):
            raise FaithscopeError(
                f"The maps '{name}' have shape {list(values.shape)}: needed are {count} maps, "
                f"[{count}, height, width]."
            )
        if not values.is_floating_point():
            given[name] = values.to(torch.float64)
    return given


def _as_maps(name: str, values: Any) -> Tensor:
    try:
        made = as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        made = torch.empty(0, dtype=torch.complex64)
    if made.is_complex():
        raise FaithscopeError(
            f"The maps '{name}' must be one tensor or array of real numbers, got "
            f"{type(values).__name__}."
        )
    return made


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


def _plain_number(value: Any) -> Any:
    """A number of another library as Python's own; anything else as it is."""
    return operator.index(value) if isinstance(value, np.integer) else value


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise FaithscopeError(f"{name} must be a whole number, got {value!r}.") from None


def _target_name(target: str | int | Tensor) -> str:
    """What the protocol says of the target: the word, the class, or the classes by their hash."""
    if isinstance(target, Tensor):
        digest = hashlib.blake2b(target.numpy().tobytes(), digest_size=8)
        return f"given:{digest.hexdigest()}"
    return str(target)


def _checked_target(target: str | int | Tensor, count: int) -> str | int | Tensor:
    if isinstance(target, str):
        return choose("target", target, ("predicted", "label"))
    target = class_numbers("target", target)
    if target.ndim == 0:
        return int(target)
    if count and target.shape != (count,):
        raise FaithscopeError(
            f"target must be 'predicted', 'label', a class or one class for each of the {count} "
            f"images, got shape {list(target.shape)}."
        )
    return target


def _timed(call: Callable[[], Any]) -> float:
    """Seconds of one call; where there is a GPU, after one to warm up."""
    gpu = torch.cuda.is_available()
    seconds = 0.0
    for _ in range(2 if gpu else 1):
        started = time.perf_counter()
        call()
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return seconds
