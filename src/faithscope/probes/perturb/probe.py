"""The perturbing probe: from a request for an evaluation to its plan, tasks and run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from faithscope.data import (
    Batch,
    ImageData,
    IndexedImages,
    Skipped,
    in_random_order,
    load_data,
)
from faithscope.data.labels import class_by_name, class_count
from faithscope.data.text_samples import TextSamples
from faithscope.errors import FaithscopeError, warn
from faithscope.methods import METHODS, Method, resolve_methods
from faithscope.methods.bilstm import as_read_by
from faithscope.methods.explain import EXPLAIN_BATCH, choose_explain_batch
from faithscope.methods.layout import Inputs
from faithscope.methods.method import MODALITIES
from faithscope.metrics import Metric, SaCo, resolve_metrics
from faithscope.models import Model, TextModel, as_model, load_model, undisturbed
from faithscope.models.device import placed, say_what_the_cpu_does
from faithscope.models.dropping import Dropping, find_dropping
from faithscope.models.model import ends_in
from faithscope.models.text_model import UNITS as TEXT_UNITS
from faithscope.perturb import DEFAULTS, FILLS, UNITS
from faithscope.probes.perturb.ask import Column, Setup, field_of
from faithscope.probes.perturb.columns import choose_columns, matched_label
from faithscope.probes.perturb.failures import FAILED, refuse_fatal, those_that_run
from faithscope.probes.perturb.maps import digests, fit_maps, open_maps
from faithscope.probes.perturb.plan import check_resolution, passes_per_image
from faithscope.probes.perturb.precision import Forward, exact_forward, prepare_forward
from faithscope.probes.perturb.rescore import rescore
from faithscope.probes.perturb.respond import check_classes, choose_batch_size
from faithscope.probes.perturb.score import REFILLED
from faithscope.probes.perturb.stopping import Tolerance
from faithscope.probes.perturb.worker import PerturbWorker
from faithscope.registry import parse_spec
from faithscope.request import Given, Perturb
from faithscope.request.code import named_code, refuse_code
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Doubt,
    Failed,
    Left,
    MethodCard,
    MetricCard,
    ModelCard,
    Named,
)
from faithscope.runs.checks import check_collected
from faithscope.runs.executor import Planned
from faithscope.runs.machine import joined_versions, machine_of, threads_for
from faithscope.runs.manifest import Manifest
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.saved import Rows, parts_of, read_rows
from faithscope.runs.scheduler import Answers
from faithscope.runs.tables import joined
from faithscope.runs.task import Task
from faithscope.verdicts.sentences import probabilities

T = TypeVar("T")
SHARD = 64
"""Images that are planned together."""
OF_A_NAME = ("checkpoint", "pretrained", "device", "trust_remote_code")
"""Options that say how a model is got by its name."""
OF_ONE = {"side": ("text", "pairs of texts"), "upsample": ("image", "maps of images")}
"""Options that only images or only texts have."""
TABLES = ("scores", "responses", "maps", "spans", "samples", "pictures", "tasks")
"""What a run leaves behind."""

Tasks = list[Task] | Iterator[Task]


@dataclass(frozen=True)
class Known:
    """What the manifest says of the model, and how far fp16 was off where it was tried."""

    model: ModelCard
    deviation: float | None
    doubts: tuple[Doubt, ...] = ()
    names: Sequence[str] = ()
    """Of the samples in the order of the data, where tasks take them in another."""


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
        try:
            chosen_methods(request, given)
        except FaithscopeError as error:
            try:
                chosen_methods(request, given, "text")
            except FaithscopeError as other:
                raise (other if _is_meant_for_texts(request) else error) from None

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
        model = _model(request, given)
        request = with_target(for_modality(request, model), model)
        model = with_units(model, request)
        methods = as_read_by(model, chosen_methods(request, given, model.modality))
        data = _data(request, given, model)
        target = _target(request, given, len(data), model.modality)
        if isinstance(data, IndexedImages):
            maps = fit_maps(opened, data)
        elif opened or isinstance(target, Tensor):
            raise FaithscopeError(
                "Maps and targets for each image need images in a known order, not a loader: give "
                "the images as a tensor, a list or a folder."
            )
        else:
            maps = {}
        first = _begin(data)
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
        forward, size = _tried_out(model, request, placed(images, model.device))
        wanted = [(column.method, column.draw) for column in chosen.columns if column.method]
        together = min(size, choose_explain_batch(model, placed(images, model.device), wanted))
        setup = Setup(
            request=request,
            k=k,
            model=model,
            forward=forward,
            fill=fill,
            batch_size=size,
            explain_batch=together,
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
            shard=max(1, min(SHARD, (1 << 27) // (len(chosen.columns) * n))),
            explain_batch=0 if together == min(size, EXPLAIN_BATCH) else together,
        )
        per_image = passes_per_image(metrics, most, len(chosen.columns), k=k)
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
        plan = plan.model_copy(
            update={"threads": there.threads, "explain_batch": there.explain_batch}
        )
        setup, changes = worker.setup, dict[str, Any]()
        if request.precision == "auto" and before.precision != setup.forward.precision:
            changes["precision"] = before.precision
            setup = replace(setup, forward=prepare_forward(setup.model, before.precision))
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
        plan, known = planned.plan, planned.known
        ordered = _in_order(answers.parts("samples"), known.names)
        tables = {"samples": answers.join("samples", ordered)}
        tables |= {name: answers.joined(name) for name in TABLES if name != "samples"}
        skipped = [row for part in answers.parts("skipped") for row in part.to_pylist()]
        tasks = read_rows(tables["tasks"]).to_pylist()
        count = tables["samples"].num_rows
        if not count:
            left = [Skipped(row["sample"], row["reason"]) for row in skipped]
            of_texts = getattr(plan.request, "units", "") in TEXT_UNITS
            raise _nothing_usable(left, "texts" if of_texts else "images")
        check_collected(plan, tables)
        answered = read_rows(tables["samples"], "label", "predicted")
        label, predicted = (column.to_numpy() for column in answered.columns)
        hits = (label == predicted)[(label >= 0) & (predicted != FAILED)]
        failed = [
            Failed(sample=row["sample"], method=row["method"], why=row["reason"])
            for part in answers.parts("failures")
            for row in part.to_pylist()
        ]
        rule = self.rule(plan)
        if rule is not None:
            for part in answers.parts("scores"):
                rule.add({"scores": part})
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            plan=plan,
            model=known.model,
            data=DataCard(
                name=plan.data.name,
                samples=count,
                fingerprint=_fingerprint(tables["samples"]),
                accuracy=float(hits.mean()) if len(hits) else None,
                skipped=tuple(Left(name=row["sample"], why=row["reason"]) for row in skipped),
                failed=tuple(failed),
            ),
            methods=_matched(plan, tables["maps"]),
            metrics={card.label: card for card in plan.metrics},
            cost=_cost(tasks, known.deviation),
            machine=machine_of(plan, tasks),
            versions=joined_versions(row["versions"] for row in tasks),
            stopping=None if rule is None else rule.summary(),
            doubts=(*known.doubts, *_doubts(failed, tables["scores"], count)),
            inputs=answers.inputs,
        )
        return Run(manifest, tables)

    def rescore(self, run: Run, changes: dict[str, Any], given: Given) -> Run:
        """Other metrics of a finished run, from what the model answered."""
        request = run.manifest.plan.request
        assert isinstance(request, Perturb)
        request = request.model_copy(update=changes)
        metrics = chosen_metrics(request, given)
        return rescore(run, request, metrics, one_k(request), metric_cards(metrics))


def check_fill(request: Perturb) -> None:
    """Refuse to drop pixels: a sequence is made of patches."""
    if request.fill in FILLS and FILLS[request.fill].drops and request.units == "pixels":
        raise FaithscopeError(
            f"fill='{request.fill}' takes whole patches out of the model's sequence: ask for "
            "units='patches', or choose another fill."
        )


def one_k(request: Perturb) -> int | str:
    """The protocol's K: the first of several."""
    return request.k[0] if isinstance(request.k, tuple) else request.k


def chosen_methods(request: Perturb, given: Given, modality: str = "image") -> list[Method]:
    """The methods; none, if nothing was said and maps are given."""
    named = (() if given.maps else ("all",)) if request.methods is None else request.methods
    refuse_code(name for name in named if name not in given.methods)
    wanted = [given.methods.get(name, name) for name in named]
    try:
        return resolve_methods(wanted, modality)
    except FaithscopeError as error:
        other = {"image": "text", "text": "image"}[modality]
        for name, item in zip(named, wanted, strict=True):
            named_so = isinstance(item, str | Method) and not _is_of(item, modality)
            if named_so and _is_of(item, other):
                valid = ", ".join(METHODS.of(modality))
                raise FaithscopeError(
                    f"The method '{name}' is for {other}s, and the model reads {modality}s: choose "
                    f"{valid}, a function of your own, or give maps=…."
                ) from error
        raise


def _is_meant_for_texts(request: Perturb) -> bool:
    """Whether a method is asked for options that it has for texts alone."""
    for spec in request.methods or ():
        try:
            name, options = parse_spec(spec)
        except FaithscopeError:
            continue
        known = [METHODS.of(modality) for modality in MODALITIES]
        if options and all(name in held for held in known):
            images, texts = ({*held[name].defaults} for held in known)
            if {*options} <= texts and not {*options} <= images:
                return True
    return False


def _is_of(method: Any, modality: str) -> bool:
    """Whether a name, or an object, is a method of a modality."""
    try:
        return bool(resolve_methods([method], modality))
    except FaithscopeError:
        return False


def for_modality(request: Perturb, model: Model) -> Perturb:
    """The request with what "auto" means for images or texts; what is for the other is refused."""
    of_texts = model.modality == "text"
    fill = DEFAULTS[model.modality] if request.fill == "auto" else request.fill
    units = ("tokens" if of_texts else "pixels") if request.units == "auto" else request.units
    known = FILLS.of(model.modality)
    if fill not in known:
        raise FaithscopeError(
            f"The fill '{fill}' is not for {model.modality}s, which {model.name} reads: choose "
            f"{', '.join(known)}."
        )
    if (units in TEXT_UNITS) != of_texts:
        valid = TEXT_UNITS if of_texts else UNITS
        raise FaithscopeError(
            f"units='{units}' is not for {model.modality}s, which {model.name} reads: choose "
            f"{' or '.join(valid)}."
        )
    for option, (modality, things) in OF_ONE.items():
        usual = Perturb.model_fields[option].default
        if modality != model.modality and getattr(request, option) != usual:
            raise FaithscopeError(
                f"{option} is for {things}, and {model.name} reads {model.modality}s: leave it out."
            )
    request = request.model_copy(update={"fill": fill, "units": units})
    if not of_texts:
        check_fill(request)
    return request


def with_target(request: Perturb, model: Model) -> Perturb:
    """The request with the number of a class that it names."""
    target = request.target
    if isinstance(target, int) or target in ("predicted", "label") or target.startswith("given:"):
        return request
    return request.model_copy(update={"target": class_by_name(target, model, "predicted", "label")})


def with_units(model: Model, request: Perturb) -> Model:
    """A text model that reads the units and the side that are asked for."""
    if isinstance(model, TextModel):
        return model.with_units(request.units, request.side)
    return model


def chosen_metrics(request: Perturb, given: Given) -> list[Metric]:
    """The metrics; of several K's, those that have one once for each."""
    chosen = resolve_metrics([given.metrics.get(name, name) for name in request.metrics])
    if not isinstance(request.k, tuple) or len(request.k) == 1:
        return chosen
    spread: list[Metric] = []
    for metric in chosen:
        if isinstance(metric, SaCo) and metric.k is None:
            spread += [replace(metric, k=k) for k in request.k]
        else:
            spread.append(metric)
    labels = [metric.label for metric in spread]
    for label in labels:
        if labels.count(label) > 1:
            raise FaithscopeError(f"'{label}' is asked for twice: give every k once.")
    return spread


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


def load_named_model(request: Perturb, *, allow_code: bool = False) -> Model:
    """The model that a request names; one in a Python file only if somebody typed that name."""
    if not allow_code:
        refuse_code([request.model])
    return load_model(
        request.model,
        pretrained=request.pretrained,
        checkpoint=request.checkpoint,
        device=request.device,
        trust_remote_code=request.trust_remote_code,
        output=request.output,
    )


def with_model(request: Perturb) -> Perturb:
    """The same request beside its model, which is loaded already."""
    return request.model_copy(
        update={name: Perturb.model_fields[name].default for name in OF_A_NAME}
    )


def with_code(request: Perturb, given: Given) -> tuple[Perturb, Given]:
    """The same, with the Python code that it names, typed by somebody, as objects beside it."""
    names = [name for name in request.methods or () if name not in given.methods]
    own = {name: resolve_methods(name)[0] for name in named_code(names)}
    methods = {**given.methods, **own}
    if given.model is not None or not named_code([request.model]):
        return request, replace(given, methods=methods)
    model = load_named_model(request, allow_code=True)
    return with_model(request), replace(given, model=model, methods=methods)


def _model(request: Perturb, given: Given) -> Model:
    if given.model is None:
        return load_named_model(request)
    _only_by_name(request, OF_A_NAME)
    return as_model(given.model).with_output(request.output)


def _data(request: Perturb, given: Given, model: Model) -> ImageData:
    wanted = request.data if given.data is None else given.data
    data: ImageData = load_data(wanted, model, labels=given.labels, limit=request.limit)
    if isinstance(data, TextSamples) and FILLS.of("text")[request.fill].drops:
        data = data.that_keep_some()
    return data if request.tolerance is None else in_random_order(data, request.seed)


def _only_by_name(request: Perturb, names: Iterable[str]) -> None:
    """Refuse options that say how a model is got by name, where it was given as an object."""
    for name in names:
        if getattr(request, name) != Perturb.model_fields[name].default:
            raise FaithscopeError(
                f"{name} goes with a model by name: leave it out beside an object, or give a name."
            )


def _tried_out(model: Model, request: Perturb, images: Inputs) -> tuple[Forward, int]:
    """The precision and the batch size, tried on images."""

    def choose(example: Inputs) -> tuple[Forward, int]:
        forward = prepare_forward(model, request.precision, example[:32])
        numbers, size = model.numbers(example), request.batch_size
        chosen = choose_batch_size(forward, example, numbers) if size == "auto" else int(size)
        return forward, chosen

    return _on_some(model, images, choose)


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


def _target(request: Perturb, given: Given, count: int, noun: str) -> str | int | Tensor:
    if given.target is None:
        return request.target
    target: Tensor = given.target
    if count and target.shape != (count,):
        raise FaithscopeError(
            f"target must be 'predicted', 'label', a class or one class for each of the {count} "
            f"{noun}s, got shape {list(target.shape)}."
        )
    return target


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


def _begin(data: ImageData) -> _Beginning:
    """Read until there is a usable image; refuse data without one."""
    if isinstance(data, IndexedImages):
        read, parts = list[Batch](), list[tuple[list[int], list[Batch]]]()
        for positions in data.parts(SHARD):
            parts.append((positions, data.read_batches(positions)))
            read += parts[-1][1]
            if any(len(batch.images) for batch in read):
                return _Beginning(read, parts, iter(()))
        raise _nothing_usable([item for batch in read for item in batch.skipped], data.noun)
    read, rest = list[Batch](), iter(data.batches(SHARD))
    for batch in rest:
        read.append(batch)
        if len(batch.images):
            return _Beginning(read, [], rest)
    raise _nothing_usable([item for batch in read for item in batch.skipped], "images")


def _cut(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts of at most `size` images; what it skipped goes with the first."""
    parts = list(batch.split(size))
    if not parts:
        yield batch
        return
    yield replace(parts[0], skipped=batch.skipped)
    yield from parts[1:]


def _nothing_usable(skipped: Sequence[Skipped], noun: str) -> FaithscopeError:
    if not skipped:
        return FaithscopeError(f"There are no {noun}: give at least one.")
    only = f"The only {noun.removesuffix('s')}"
    count = only if len(skipped) == 1 else f"None of the {len(skipped)} {noun}"
    could = "cannot be used" if len(skipped) == 1 else "can be used; the first"
    return FaithscopeError(f"{count} {could}, '{skipped[0].sample}': {skipped[0].reason}.")


def _tasks(data: ImageData, shard: int, per_image: int) -> Tasks:
    """A task per shard; of data that can be read only once, without end: they say where it is."""
    if not isinstance(data, IndexedImages):
        return (_task(number, shard, per_image, number * shard, [], "images") for number in count())
    tasks, offset = [], 0
    for number, positions in enumerate(data.parts(shard)):
        tasks.append(_task(number, len(positions), per_image, offset, positions, data.noun))
        offset += len(positions)
    return tasks


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


def _matched(plan: Plan, maps: Rows) -> dict[str, MethodCard]:
    """The methods with the granularity that their maps had, and the random one of the same."""
    assert isinstance(plan.request, Perturb)
    seen: dict[str, str] = {}
    for part in parts_of(maps, "method", "granularity"):
        if len(seen) < len(plan.methods):
            for method, size in zip(*part.to_pydict().values(), strict=True):
                seen.setdefault(method, size)
    random = {card.label for card in plan.methods if card.is_random}
    cards = {}
    for card in plan.methods:
        size = seen[card.label]
        if size == "pixel" and plan.request.units == "patches":
            size = "patch"
        match = matched_label(size)
        matched = match if match in random and card.label not in random else None
        cards[card.label] = card.model_copy(
            update={"granularity": seen[card.label], "matched_random": matched}
        )
    return cards


def _in_order(parts: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """The samples in the order of the data; of no names, as the tasks took them."""
    if not names:
        yield from parts
        return
    samples = joined([*parts])
    place = {name: at for at, name in enumerate(names)}
    yield samples.take(np.argsort([place[name] for name in samples["sample"].to_pylist()]))


def _cost(tasks: Sequence[Mapping[str, Any]], deviation: float | None) -> Cost:
    passes, seconds = (sum(row[name] for row in tasks) for name in ("passes", "seconds"))
    explaining = sum(row["explaining"] for row in tasks)
    return Cost(
        seconds=seconds,
        response_passes=passes,
        explanation_passes=sum(row["explanation_passes"] for row in tasks),
        explain_seconds=explaining,
        passes_per_second=passes / max(1e-9, seconds - explaining),
        batch_halvings=sum(row["halvings"] for row in tasks),
        fp16_deviation=deviation,
    )


def _doubts(failed: Sequence[Failed], scores: Rows, samples: int) -> tuple[Doubt, ...]:
    """What has no score: images on which something failed, and those with NaN."""
    named = {item.sample: f"{item.sample}: {item.method or 'the model'}" for item in failed}
    parts = parts_of(scores, "sample", "value", "flag")
    missing = (row for part in parts for row in part.filter(pc.is_nan(part["value"])).to_pylist())
    undefined = dict.fromkeys(row["sample"] for row in missing if "failed" not in row["flag"])
    lost, missed = tuple(named.values()), tuple(undefined)
    doubts = (
        Doubt(kind="failed", names=lost[:3], count=len(lost), total=samples),
        Doubt(kind="undefined", names=missed[:3], count=len(missed), total=samples),
    )
    return tuple(doubt for doubt in doubts if doubt.count)


def _fingerprint(samples: Rows) -> str:
    """A hash of all samples, by name and by their pixels."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts_of(samples, "sample", "digest"):
        for sample, pixels in zip(*part.to_pydict().values(), strict=True):
            digest.update(f"{sample}|{pixels}".encode())
    return digest.hexdigest()


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
