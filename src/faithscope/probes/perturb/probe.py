"""The perturbing probe: from a request for an evaluation to its plan, tasks and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from faithscope.data import (
    Batch,
    ImageData,
    IndexedImages,
)
from faithscope.data.labels import class_count
from faithscope.data.text_samples import TextSamples
from faithscope.errors import FaithscopeError, warn
from faithscope.methods.explain import EXPLAIN_BATCH, choose_explain_batch
from faithscope.methods.layout import Inputs
from faithscope.methods.method import MODALITIES, has_method
from faithscope.metrics import Metric
from faithscope.models import Model, undisturbed
from faithscope.models.device import placed, say_what_the_cpu_does
from faithscope.models.dropping import Dropping, find_dropping
from faithscope.models.model import ends_in
from faithscope.perturb import FILLS
from faithscope.probes.perturb.ask import Column, Setup, field_of
from faithscope.probes.perturb.collect import Known, collect
from faithscope.probes.perturb.columns import choose_columns
from faithscope.probes.perturb.failures import nothing_usable, refuse_fatal, those_that_run
from faithscope.probes.perturb.maps import digests, fit_maps, open_maps
from faithscope.probes.perturb.plan import check_resolution, passes_per_image
from faithscope.probes.perturb.precision import (
    Forward,
    compiled_forward,
    exact_forward,
    prepare_forward,
)
from faithscope.probes.perturb.rescore import rescore
from faithscope.probes.perturb.resolve import (
    check_fill,
    chosen_methods,
    chosen_metrics,
    for_modality,
    given_target,
    made_in,
    one_k,
    read_data,
    read_model,
    with_target,
    with_units,
)
from faithscope.probes.perturb.respond import check_classes, choose_batch_size, economical
from faithscope.probes.perturb.score import REFILLED
from faithscope.probes.perturb.stopping import Tolerance
from faithscope.probes.perturb.worker import PerturbWorker
from faithscope.request import Given, Perturb
from faithscope.runs.cards import (
    Doubt,
    MethodCard,
    MetricCard,
    ModelCard,
    Named,
)
from faithscope.runs.executor import Planned
from faithscope.runs.machine import threads_for
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.scheduler import Answers
from faithscope.runs.task import Task
from faithscope.verdicts.sentences import probabilities

T = TypeVar("T")
SHARD = 64
"""Images or texts that are planned together."""
TEXTS_ON_GPU = 256
"""The same for texts there: passes are so short that what a shard costs beside them would show."""
Tasks = list[Task] | Iterator[Task]


class PerturbProbe:
    """Perturb the input, and see how far the prediction falls."""

    unit = "model passes"
    keeps_tasks = False

    def check(self, request: Perturb, given: Given) -> None:
        """Names of methods and metrics are known, whatever the model turns out to read.

        A fill and units that fit neither images nor texts together are refused, too.
        """
        check_fill(request)
        chosen_metrics(request, given)
        refused = dict[str, FaithscopeError]()
        for modality in MODALITIES:
            try:
                chosen_methods(request, given, modality)
            except FaithscopeError as error:
                refused[modality] = error
        if len(refused) == len(MODALITIES):
            named = request.methods or ()
            of_texts = any(not has_method("image", n) and has_method("text", n) for n in named)
            raise refused["text" if of_texts else "image"]

    def tasks(self, plan: Plan) -> list[Task]:
        """They are read off the data."""
        return []

    def join(self, plan: Plan, runs: Sequence[Run]) -> Run:
        """Only trainings have seeds that can be joined."""
        raise FaithscopeError("Only runs of retraining can be joined: unpack them one by one.")

    def prepare(self, request: Perturb, given: Given) -> Planned:
        """Check and plan an evaluation: what is asked for, and the objects behind its names."""
        self.check(request, given)
        metrics = chosen_metrics(request, given)
        opened = open_maps(given.maps)
        model = read_model(request, given)
        request = with_target(for_modality(request, model), model)
        model = with_units(model, request)
        methods = made_in(request, model, chosen_methods(request, given, model.modality))
        data = read_data(request, given, model)
        target = given_target(request, given, len(data), model.modality)
        if isinstance(data, IndexedImages):
            maps = fit_maps(opened, data)
        elif opened or isinstance(target, Tensor):
            raise FaithscopeError(
                "Maps and targets for each image need images in a known order, not a loader: give "
                "the images as a tensor, a list or a folder."
            )
        else:
            maps = {}
        first = _begin(data, _together(model))
        images = first.example.images
        _check_classes(model, images, data, target)
        fill = FILLS.of(model.modality)[request.fill]
        field_of(fill, model, request, images[:1], first.example.keys[:1])
        dropping = _dropping(model, request, placed(images, model.device))
        chosen = choose_columns(model, first.example, methods, maps, request)
        n = _unit_count(model, images, request.units)
        k = one_k(request)
        most = _most_units(model, data, n, request.units)
        check_resolution(metrics, k, most, request.units)
        say_what_the_cpu_does(model.device)
        shard = max(1, min(_together(model), (1 << 27) // (len(chosen.columns) * n)))
        per_image = passes_per_image(metrics, most, len(chosen.columns), k=k)
        forward, size = _tried_out(model, request, placed(images, model.device))
        if request.compile and request.batch_size == "auto":
            together = min(shard, len(data) or shard)
            size = economical(size, together, together * (per_image - 1))
        wanted = [(column.method, column.draw) for column in chosen.columns if column.method]
        explained = min(size, choose_explain_batch(model, placed(images, model.device), wanted))
        setup = Setup(
            request=request,
            k=k,
            model=model,
            forward=forward,
            fill=fill,
            batch_size=size,
            explain_batch=explained,
            columns=chosen.columns,
            metrics=metrics,
            maps=maps,
            target=target,
            dropping=dropping,
        )
        resolved = request.model_copy(
            update={
                "model": model.name,
                "data": data.name,
                "methods": tuple(method.label for method in chosen.methods),
                "metrics": tuple(metric.label for metric in metrics),
                "output": model.output,
                "precision": forward.precision,
                "explain_precision": _one_format(chosen.columns),
                "batch_size": size,
            }
        )
        plan = Plan(
            request=resolved,
            model=Named(name=model.name, fingerprint=model.fingerprint),
            data=Named(name=data.name, samples=len(data)),
            methods=_method_cards(chosen.columns),
            metrics=metric_cards(metrics),
            left_out=chosen.left_out,
            given={
                "normalisation": model.preparation,
                **({"model": model.origin} if model.origin else {}),
                **{f"method {own.label}": own.fingerprint for own in methods if own.fingerprint},
            },
            threads=threads_for(model.device),
            shard=shard,
            explain_batch=0 if explained == min(size, EXPLAIN_BATCH) else explained,
        )
        tasks = _tasks(data, plan.shard, per_image)
        worker = first.worker(setup, data, request.pictures, tasks, plan.shard)
        expected = max(len(data), sum(len(batch.images) for batch in first.batches))
        known = Known(
            _model_card(model),
            forward.deviation,
            (*_of_answers(model), *_of_drops(setup)),
            data.sample_names if isinstance(data, TextSamples) else (),
        )
        return Planned(plan, worker, tasks, known, expected * per_image)

    def adopt(self, planned: Planned, there: Plan | None, request: Perturb) -> Planned:
        """Run in the batches and the precision that were chosen before, with the same maps."""
        worker = planned.worker
        assert isinstance(worker, PerturbWorker)
        given = {**planned.plan.given, **digests(worker.setup.maps.values())}
        plan = planned.plan.model_copy(update={"given": given})
        if there is None or not isinstance(before := there.request, Perturb):
            return replace(planned, plan=plan)
        same = {name: getattr(there, name) for name in ("threads", "explain_batch")}
        if there.shard != plan.shard and isinstance(planned.tasks, list):  # not what is read once
            planned = replace(planned, tasks=_cut_anew(planned.tasks, worker.data, there.shard))
            worker, same["shard"] = replace(worker, read={}), there.shard
        plan = plan.model_copy(update=same)
        setup, changes = worker.setup, dict[str, Any]()
        if request.precision == "auto" and before.precision != setup.forward.precision:
            changes["precision"] = before.precision
            chosen = prepare_forward(setup.model, before.precision)
            setup = replace(setup, forward=_as_asked(setup.model, request, chosen))
        if request.explain_precision == "auto":
            formats = {card.label: card.precision for card in there.methods}
            columns = [_in_format(column, formats) for column in setup.columns]
            setup = replace(setup, columns=columns)
            plan = plan.model_copy(update={"methods": _method_cards(columns)})
            changes["explain_precision"] = _one_format(columns)
        if request.batch_size == "auto":
            changes["batch_size"] = before.batch_size
            setup = replace(setup, batch_size=int(before.batch_size))
        together = there.explain_batch or min(setup.batch_size, EXPLAIN_BATCH)
        setup = replace(setup, explain_batch=together)
        plan = plan.model_copy(update={"request": plan.request.model_copy(update=changes)})
        return replace(planned, plan=plan, worker=replace(worker, setup=setup))

    def rule(self, plan: Plan) -> Tolerance | None:
        """Stop when every mean is known as well as was asked for."""
        assert isinstance(plan.request, Perturb)
        tolerance = plan.request.tolerance
        return None if tolerance is None else Tolerance(tolerance, plan.methods, plan.metrics)

    def collect(self, planned: Planned, answers: Answers) -> Run:
        """The finished shards as one run, and everything needed to judge and repeat it."""
        return collect(planned.plan, planned.known, answers, self.rule(planned.plan))

    def rescore(self, run: Run, changes: dict[str, Any], given: Given) -> Run:
        """Other metrics of a finished run, from what the model answered."""
        request = run.manifest.plan.request
        assert isinstance(request, Perturb)
        request = request.model_copy(update=changes)
        metrics = chosen_metrics(request, given)
        return rescore(run, request, metrics, one_k(request), metric_cards(metrics))


def _one_format(columns: Sequence[Column]) -> str:
    """What all maps are made in that are not made in the model's own type; "auto" if all are."""
    made = (column.method.precision for column in columns if column.method)
    return next(filter(None, made), "auto")


def _in_format(column: Column, formats: Mapping[str, str]) -> Column:
    """The same, in the format that a plan chose for its method."""
    if column.method is None or column.label not in formats:
        return column
    return replace(column, method=replace(column.method, precision=formats[column.label]))


def metric_cards(metrics: Sequence[Metric]) -> tuple[MetricCard, ...]:
    """What a reader must know of every metric."""
    return tuple(
        MetricCard.of(
            metric,
            bounds=tuple(None if np.isinf(end) else float(end) for end in metric.bounds),
            groups_units=metric.groups_units,
        )
        for metric in metrics
    )


def _tried_out(model: Model, request: Perturb, images: Inputs) -> tuple[Forward, int]:
    """The precision and the batch size, tried on images."""

    def choose(example: Inputs) -> tuple[Forward, int]:
        forward = prepare_forward(model, request.precision, example[:32])
        numbers, size = model.numbers(example), request.batch_size
        chosen = choose_batch_size(forward, example, numbers) if size == "auto" else int(size)
        return _as_asked(model, request, forward), chosen

    return _on_some(model, images, choose)


def _as_asked(model: Model, request: Perturb, forward: Forward) -> Forward:
    return compiled_forward(model, forward) if request.compile else forward


def _dropping(model: Model, request: Perturb, images: Any) -> Dropping | None:
    """How patches leave the model's sequence, tried on images; None if they are to be replaced."""
    if model.modality == "text" or not FILLS[request.fill].drops:
        return None

    def find(example: Tensor) -> Dropping:
        exact = exact_forward(model)
        with exact.mode():
            few = example[:2].to(exact.dtype)
            return find_dropping(model, exact.module, exact.logits, few)

    return _on_some(model, images, find)


def _check_classes(model: Model, images: Inputs, data: ImageData, target: Any) -> None:
    """Refuse labels and targets that are no class of the model, as far as they are known."""
    labels = getattr(data, "labels", None)
    known = labels.tolist() if isinstance(labels, Tensor) else list(labels or ())
    known += target.tolist() if isinstance(target, Tensor) else [target]
    highest = max((number for number in known if isinstance(number, int)), default=0)
    declared = class_count(model)
    if declared is None or highest < declared:
        return

    def count(example: Any) -> int:
        with torch.inference_mode():
            return model.logits(placed(example[:1], model.device).to(model.dtype)).shape[1]

    check_classes(torch.tensor([highest]), _on_some(model, images, count))


def _on_some(model: Model, images: Any, call: Callable[[Any], T]) -> T:
    """What a call that runs the model gives on images, of which some may fail."""
    with undisturbed(model.module):
        try:
            return call(images)
        except Exception as error:
            refuse_fatal(error)
            return call(those_that_run(model, images))


def _of_drops(setup: Setup) -> tuple[Doubt, ...]:
    """A doubt if the model cannot do without any patch, and is given others instead."""
    return (Doubt(kind="refilled", names=(REFILLED,)),) if setup.is_refilled else ()


def _of_answers(model: Model) -> tuple[Doubt, ...]:
    """A doubt, and a warning, if the model seems to give probabilities where logits are read."""
    last = ends_in(model.module)
    if last is None:
        return ()
    warn(probabilities(model.name, last))
    return (Doubt(kind="probabilities", names=(last,)),)


@dataclass(frozen=True, eq=False)
class _Beginning:
    """What was read of the data until there was an image to try things on."""

    batches: list[Batch]
    parts: list[tuple[list[int], list[Batch]]]
    """Of data that can be read in any order: positions and what is there."""
    rest: Iterator[Batch]
    """Of other data: what comes next."""

    @property
    def example(self) -> Batch:
        """The first images that can be used, of one shape."""
        return next(batch for batch in self.batches if len(batch.images))

    def worker(
        self, setup: Setup, data: ImageData, pictures: int, tasks: Tasks, shard: int
    ) -> PerturbWorker:
        """A worker that reads nothing a second time."""
        if not isinstance(data, IndexedImages):
            whole = chain(self.batches, self.rest)
            stream = chain.from_iterable(_cut(batch, shard) for batch in whole)
            return PerturbWorker(setup, data, pictures, self.example, stream=stream)
        assert isinstance(tasks, list)
        read = {
            task.id: batches
            for task, (positions, batches) in zip(tasks, self.parts, strict=False)
            if task.arguments["positions"] == positions
        }
        return PerturbWorker(setup, data, pictures, data.typical(self.example), read)


def _begin(data: ImageData, together: int) -> _Beginning:
    """Read until there is a usable image; refuse data without one."""
    if isinstance(data, IndexedImages):
        read, parts = list[Batch](), list[tuple[list[int], list[Batch]]]()
        for positions in data.parts(together):
            parts.append((positions, data.read_batches(positions)))
            read += parts[-1][1]
            if any(len(batch.images) for batch in read):
                return _Beginning(read, parts, iter(()))
        raise nothing_usable([item for batch in read for item in batch.skipped], data.noun)
    read, rest = list[Batch](), iter(data.batches(together))
    for batch in rest:
        read.append(batch)
        if len(batch.images):
            return _Beginning(read, [], rest)
    raise nothing_usable([item for batch in read for item in batch.skipped], "images")


def _cut(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts of at most `size` images; what it skipped goes with the first."""
    parts = list(batch.split(size))
    if not parts:
        yield batch
        return
    yield replace(parts[0], skipped=batch.skipped)
    yield from parts[1:]


def _tasks(data: ImageData, shard: int, per_image: int) -> Tasks:
    """A task per shard; of data that can be read only once, without end: they say where it is."""
    if not isinstance(data, IndexedImages):
        return (_task(number, shard, per_image, number * shard, [], "images") for number in count())
    tasks, offset = [], 0
    for number, positions in enumerate(data.parts(shard)):
        tasks.append(_task(number, len(positions), per_image, offset, positions, data.noun))
        offset += len(positions)
    return tasks


def _together(model: Model) -> int:
    """How many images or texts are planned together, if their maps fit in memory."""
    is_fast = model.modality == "text" and model.device.type == "cuda"
    return TEXTS_ON_GPU if is_fast else SHARD


def _cut_anew(tasks: Sequence[Task], data: ImageData, shard: int) -> Tasks:
    """The same work in tasks of another size."""
    about = tasks[0]
    return _tasks(data, shard, int(about.cost["model passes"]) // len(about.arguments["positions"]))


def _task(
    number: int, samples: int, per_image: int, offset: int, positions: list[int], noun: str
) -> Task:
    return Task(
        f"shard-{number:05d}",
        "shard",
        {"offset": offset, "positions": positions},
        cost={noun: samples, "model passes": samples * per_image},
        rereads=True,
    )


def _model_card(model: Model) -> ModelCard:
    return ModelCard(
        name=model.name,
        weights=model.weights,
        fingerprint=model.fingerprint,
        mean=model.mean,
        std=model.std,
        dtype=str(model.dtype).removeprefix("torch."),
        classes=model.classes,
    )


def _method_cards(columns: Sequence[Column]) -> tuple[MethodCard, ...]:
    draws = Counter(column.label for column in columns)
    return tuple(
        MethodCard(label=label, name=label, is_given=True)
        if method is None
        else MethodCard.of(
            method,
            label=label,
            granularity="" if method.granularity == "any" else method.granularity,
            draws=draws[label],
        )
        for label, method in {column.label: column.method for column in columns}.items()
    )


def _unit_count(model: Model, images: Any, units: str) -> int:
    if units == "patches":
        rows, columns = model.require_grid(images, "units='patches'")
        return rows * columns
    return int(images.shape[-2] * images.shape[-1])


def _most_units(model: Model, data: ImageData, first: int, units: str) -> int:
    """The most units any sample has; only a list of tensors can hold several sizes."""
    if model.modality == "text":
        return int(getattr(data, "most_units", first))
    images = getattr(data, "images", None)
    if not isinstance(images, list):
        return first
    return max(_unit_count(model, image, units) for image in images)
