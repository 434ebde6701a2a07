"""The public calls evaluate and roar, what they have in common, and compare.

Whatever was asked for, in Python, on the command line or in a study, becomes a request and the
objects given beside it; a probe plans it; the scheduler runs the plan's tasks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from faithscope.data import class_numbers
from faithscope.data.images import loaders_named
from faithscope.data.labelled_images import ImageSplits
from faithscope.data.text import TextData
from faithscope.errors import FaithscopeError, shown, warn
from faithscope.explaining import ModelLike, Units
from faithscope.methods import MethodLike
from faithscope.metrics import MetricLike
from faithscope.models.memory import enough_memory
from faithscope.probes import probe_of
from faithscope.probes.perturb.resolve import with_code
from faithscope.probes.probe import Probe
from faithscope.registry import as_list, listed
from faithscope.request import (
    Given,
    Perturb,
    Place,
    Request,
    Retrain,
    as_path,
    as_place,
    check_request,
    renamed,
)
from faithscope.result import Comparison, Result, as_result, load_result, named_objects
from faithscope.runs import parcel
from faithscope.runs.executor import Executor, Planned
from faithscope.runs.local import Local
from faithscope.runs.parcel import Parcel, Unpacked
from faithscope.runs.plan import Plan
from faithscope.runs.progress import following
from faithscope.runs.run import Run, check_defined
from faithscope.runs.scheduler import (
    Forecast,
    Report,
    Scheduler,
    State,
    forecast,
    look,
)
from faithscope.runs.stages import KEEP_EVERY
from faithscope.runs.store import Store, begun_plan, check_folder
from faithscope.verdicts.compare import compare_findings

if TYPE_CHECKING:
    from faithscope.runs.ray import Crew

OF_RAY = ("address", "workers", "gpus_per_worker", "cpus_per_worker")
"""Options that say which workers."""


@renamed(images="data")
def evaluate(
    model: ModelLike,
    data: Any,
    methods: MethodLike | Iterable[MethodLike] | None = None,
    metrics: MetricLike | Iterable[MetricLike] = "all",
    *,
    labels: Tensor | Iterable[int] | None = None,
    maps: Mapping[str, Any] | None = None,
    target: str | int | Tensor = "predicted",
    output: Literal["auto", "softmax", "sigmoid"] = "auto",
    k: int | str | Iterable[int | str] = 10,
    fill: str = "auto",
    units: Units = "auto",
    side: Literal["both", "first", "second"] = "both",
    upsample: Literal["bilinear", "nearest"] = "bilinear",
    ties: Literal["ascending", "descending"] = "ascending",
    group: Literal["sum", "mean"] = "sum",
    random_draws: int = 3,
    seed: int = 0,
    precision: str = "auto",
    explain_precision: str = "auto",
    tolerance: float | None = None,
    batch_size: int | str = "auto",
    compile: bool = False,
    limit: int | None = None,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    pictures: int = 1000,
    device: str = "auto",
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: int | None = None,
    out: str | Path | None = None,
    strict: bool = False,
    trust_remote_code: bool = False,
    progress: Report | bool | None = None,
) -> Result:
    """Measure how faithful explanations are to the model they explain.

    Every perturbed input that any metric needs of any map is run once; random attribution, matched
    in granularity, is always in the run.

    Args:
        model: a Model, a torch module or a name.
        data: images [B, C, H, W] normalised for the model, or whatever `fs.load_data` takes: a
            folder, a pattern or another name, PIL images, a list, a data set, a loader. For a text
            model, texts: strings, pairs, a CSV or JSONL file, a data set, tokens.
        methods: names, Methods or functions (module, images, target) -> maps; "all" are the
            papers'. The default is "all", or none if `maps` are given. Of several, those that the
            model does not allow are left out and named in `result.left_out`.
        metrics: names, Metrics or functions of Responses; "all" are the papers' five.
        labels: [B], for `auc`, target="label" and accuracy, where the data has none of its own.
        maps: maps from anywhere, by name: [B, H, W] or coarser, with channels to sum, patch vectors
            [B, P], a list with a map for each image, a dict or a folder of files by their names; of
            texts one number for each unit, as a list of arrays.
        target: whose probability is watched: "predicted", "label", a class (number or name) or [B].
        output: how logits become probabilities: "softmax", or each by its own "sigmoid" (several
            labels an image, or one logit: target 1 is p, target 0 is 1 - p); "auto" asks the model.
        k: SaCo's number of groups, or "auto" to choose it per map; several share most passes.
        fill: what replaces removed units: mean, black, noise, blur, inpaint; with "drop", whole
            patches leave a ViT's sequence instead (units="patches"). Of texts mask, pad, unk, and
            "drop": tokens leave the text. "auto" is mean, or mask.
        units: what is ranked and removed: "pixels" or whole "patches"; of texts "tokens" or whole
            "words". "auto" is pixels, or tokens.
        side: of pairs of texts, the side that is ranked and removed: "both", "first" or "second".
        upsample: how patch maps become pixel maps: "bilinear" or "nearest".
        ties: order of equal salience: by "ascending" or "descending" index.
        group: salience of a SaCo group: "sum" (the paper's) or "mean".
        random_draws: draws of random attribution, averaged per sample; 0 leaves it out.
        seed: of everything random.
        precision: of the perturbed passes: auto, fp64, fp32, tf32, fp16, bf16.
        explain_precision: of the passes that maps are made from; "auto" is half precision for
            integrated gradients on a CUDA GPU, else the model's own type (LRP in float64).
        tolerance: visit images in random order, and stop when every mean is known to within it.
        batch_size: inputs per model call; "auto" chooses once.
        compile: run perturbed images by a program that torch.compile makes of the model, which
            takes up to some minutes: for many images on a GPU. Not for texts or fill="drop".
        limit: use only so many images or texts, spread evenly.
        checkpoint: local weights of a model by name.
        pretrained: fetch the library's own weights of a model by name.
        pictures: of how many images small pictures and maps are kept for the report's gallery.
        device: where a model by name runs; "auto" is a GPU if there is one.
        on: "local" is this process; "ray" are workers on all GPUs of a machine or cluster.
        address: of a running Ray cluster, HOST:PORT or "auto"; else $RAY_ADDRESS, or Ray here.
        workers: how many on Ray; by default as many as there are GPUs, or CPUs, for.
        gpus_per_worker: 0.25 lets four workers share a GPU.
        cpus_per_worker: CPUs of a worker, and its threads where it has no GPU.
        out: a folder to keep the run in: the same call resumes it if it was stopped.
        strict: stop with an error where something would be left out: a method that the model does
            not allow, an image that cannot be read, or that the model or a method fails on, or a
            score that is not defined.
        trust_remote_code: run the Python files that come with a model of Hugging Face, by name.
        progress: None draws a bar where somebody is watching, a terminal or a notebook; False is
            silent; a function is called with where the run is.
    """
    asked = dict(locals())
    asked.pop("progress")
    return prepare(**asked).run(progress)


def roar(
    data: TextData | ImageSplits | Mapping[str, Any] | str | Path,
    model: Any = "bilstm",
    *,
    measures: MethodLike | Iterable[MethodLike] = "all",
    metrics: str | Iterable[Any] = "all",
    seeds: int | Iterable[int] = 5,
    levels: Iterable[int] | None = None,
    strategy: Literal["relative", "count"] = "relative",
    procedures: str | Iterable[str] = ("roar", "recursive"),
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    fill: str | None = None,
    units: Literal["pixels", "patches"] | None = None,
    specials: bool = True,
    limit: int | None = None,
    device: str = "auto",
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: int | None = None,
    out: str | Path | None = None,
    keep_weights: bool = False,
    keep_every: float = 5.0,
    strict: bool = False,
    trust_remote_code: bool = False,
    progress: Report | bool | None = None,
) -> Result:
    """Measure how faithful explanations are: mask what they point to, retrain, test.

    Args:
        data: the texts, or the name of a data set (as `fs.load_text` takes); or labelled images,
            "cifar10:FOLDER", "array:FILE.npz" or {"train": (images, labels), "test": …}.
        model: what is trained on them: of texts "bilstm" or "hf:ID or folder", of images "vit" or
            "vit(dim=192, depth=6)"; or your own learner.
        measures: names or objects, of images methods as `fs.evaluate` takes; "all" are the paper's
            that the model can give, of images a short list. `random` is always among them.
        metrics: of the curves, scored by seed: racu, area, end; "racu(clip=false)" may pass ±1.
        seeds: which seeds, or how many from 0.
        levels: percent of tokens or pixels to mask (10, 20, …, 90), or numbers of them (1 to 10).
        strategy: whether levels are "relative" or a "count".
        procedures: "roar", "recursive" or both.
        epochs: how long a model is trained; by default as long as the paper.
        batch_size: texts or images per step of a training, if not the paper's.
        learning_rate: of a training, if not the paper's.
        fill: of images, what replaces masked units: mean (the default), black, noise, blur,
            inpaint.
        units: of images, what is ranked and masked: "pixels" (the default) or whole "patches".
        specials: whether sparsity counts special tokens, as the paper's program does.
        limit: use only so many texts or images of each split, of data by name.
        device: where a model by name is trained; "auto" is a GPU if there is one.
        on: "local" is this process; "ray" are workers on all GPUs of a machine or cluster.
        address: of a running Ray cluster, HOST:PORT or "auto"; else $RAY_ADDRESS, or Ray here.
        workers: how many on Ray; by default as many as there are GPUs, or CPUs, for.
        gpus_per_worker: 0.25 lets four workers share a GPU.
        cpus_per_worker: CPUs of a worker, and its threads where it has no GPU.
        out: a folder to keep every training in: the same call resumes the run if it was stopped.
        keep_weights: keep the weights of every model, not only of those that are explained.
        keep_every: seconds between the states of a training that are kept; 0 keeps every epoch.
        strict: stop with an error where something would be left out: a measure that the model
            cannot give, or a score that is not defined.
        trust_remote_code: run the Python files that come with a model of Hugging Face, by name.
        progress: None draws a bar where somebody is watching, a terminal or a notebook; False is
            silent; a function is called with where the run is.
    """
    asked = dict(locals())
    asked.pop("progress")
    return prepare_roar(**asked).run(progress)


@renamed(images="data")
def prepare(
    model: ModelLike,
    data: Any,
    methods: MethodLike | Iterable[MethodLike] | None = None,
    metrics: MetricLike | Iterable[MetricLike] = "all",
    *,
    labels: Any = None,
    maps: Any = None,
    target: Any = "predicted",
    **options: Any,
) -> Prepared:
    """Check and plan an evaluation; the arguments are those of `fs.evaluate`."""
    if maps is not None and not isinstance(maps, Mapping):
        raise FaithscopeError(
            f"maps must be given by name, maps={{'mine': …}}, got {type(maps).__name__}."
        )
    goal, goal_name = _target(target)
    options = {"target": goal_name, **options}
    given = {"labels": labels, "maps": maps or {}, "target": goal}
    return _prepare(Perturb, model, data, methods, metrics, options, **given)


def prepare_roar(
    data: Any,
    model: Any = "bilstm",
    *,
    measures: Any = "all",
    metrics: Any = "all",
    **options: Any,
) -> Prepared:
    """Check a request for ROAR and encode its data; the arguments are those of `fs.roar`."""
    return _prepare(Retrain, model, data, measures, metrics, options)


def _prepare(
    kind: type[Request],
    model: Any,
    data: Any,
    methods: Any,
    metrics: Any,
    options: Mapping[str, Any],
    **given: Any,
) -> Prepared:
    """Names go into the request, the objects behind them beside it."""
    model_name, model = _named(model, "model")
    data_name, data = _named(data, "data")
    method_names, methods = (None, {}) if methods is None else named_objects(methods)
    metric_names, metrics = named_objects(metrics)
    names = {"model": model_name, "data": data_name, "methods": method_names}
    request = check_request(kind, {**names, "metrics": metric_names, **options})
    held = Given(model=model, data=data, methods=methods, metrics=metrics, **given)
    return prepare_typed(request, held)


def prepare_typed(request: Request, given: Given) -> Prepared:
    """The same of names that a person typed, among which there may be Python code."""
    if isinstance(request, Perturb):
        request, given = with_code(request, given)
    return prepare_request(request, given)


def prepare_request(request: Request, given: Given | None = None) -> Prepared:
    """Check and plan what is asked for; nothing is computed yet."""
    probe = probe_of(request.kind)
    given = given or Given()
    crew = _crew(request, given)
    with enough_memory(), loaders_named():
        prepare = partial(probe.prepare, request, given)
        planned = prepare() if crew is None else crew.prepare(prepare)
        prepared = Prepared(request, planned, probe, crew)
        return prepared if request.out is None else prepared.at(request.out)


def _crew(request: Request, given: Given) -> Crew | None:
    """The workers on Ray, if that is where the tasks are to be run."""
    of_ray = {name: getattr(request, name) for name in OF_RAY}
    if request.on == "ray":
        if importlib.util.find_spec("ray") is None:
            raise FaithscopeError("on='ray' needs Ray: pip install 'faithscope[ray]'.")
        from faithscope.runs.ray import hire

        probe_of(request.kind).check(request, given)  # what is wrong is said before Ray starts
        return hire(device=request.device, given=given, **of_ray)
    for name, value in of_ray.items():
        if value is not None:
            raise FaithscopeError(f"{name} goes with on='ray': add that, or leave it out.")
    return None


@dataclass(eq=False)
class Prepared:
    """A request that has been checked and planned: it can say what it will cost, and be run."""

    request: Request
    planned: Planned
    probe: Probe
    crew: Crew | None = None
    """Workers on Ray."""

    @property
    def plan(self) -> Plan:
        """The request with nothing left open."""
        return self.planned.plan

    @property
    def out(self) -> Place | None:
        """The folder of the run."""
        return None if self.request.out is None else as_place(self.request.out)

    def at(self, out: str | Place) -> Prepared:
        """The same, kept in a folder; what was left open is as it was chosen there before."""
        root = as_place(out, "out")
        request = self.request.model_copy(update={"out": str(root)})
        adopt = partial(self.probe.adopt, there=begun_plan(root), request=request)
        planned = (
            adopt(self.planned) if self.crew is None else self.crew.change(self.planned, adopt)
        )
        return Prepared(request, planned, self.probe, self.crew)

    @property
    def executor(self) -> Executor:
        """Where the tasks are run."""
        if self.crew is not None:
            from faithscope.runs.ray import OnRay

            return OnRay(self.crew, self.planned)
        assert self.planned.worker is not None
        return Local(self.planned.worker, self.plan.threads)

    def is_begun(self) -> bool:
        """Whether this run was begun in its folder; a folder of another run is refused."""
        return self.out is not None and check_folder(self.out, self.plan)

    def state(self) -> State | None:
        """What is done of it and what is to do; None of data that can be read only once."""
        if not isinstance(self.planned.tasks, list):
            return None
        if self.out is None:
            return State({}, tuple(self.planned.tasks))
        store = Store(self.out, self.plan, looks_on=True)
        finished, state = store.finished(), look(store, self.planned.tasks)
        if finished is None or finished.manifest.plan.content() != self.plan.content():
            return state
        return state if state.again else State({}, ())

    def forecast(self) -> Forecast:
        """Measure a small sample of the work, and multiply."""
        return replace(self._forecast(), left_out=self.plan.left_out)

    def _forecast(self) -> Forecast:
        state, tasks = self.state(), self.planned.tasks
        with enough_memory():
            if state is None or not isinstance(tasks, list):
                unit, per = self.probe.unit, self.executor.measure()
                cost = {unit: self.planned.expected}
                seconds, compiling = (
                    self.planned.expected * per.get(unit, 0.0),
                    per.get("compiling"),
                )
                return Forecast(cost, seconds, 1, compiling=compiling or 0.0)
            return forecast(state, tasks, self.executor.measure, self.executor.workers)

    def run(self, progress: Report | bool | None = None) -> Result:
        """Run every task that is not finished yet, and collect them all.

        With a folder, finished tasks are kept there, and the same request that was stopped resumes.
        """
        kept = "" if self.out is None else str(self.out)
        with (
            enough_memory(kept),
            loaders_named(),
            following(self.probe.unit, progress) as report,
            Store.open(self.out, self.plan) as store,
        ):
            found = store.finished()
            if found is not None:
                self._check_finished(found)
                self._check_strict(found)
                state = self.state()
                is_whole = state is None or not state.todo  # what is kept beside the tables, too
                if is_whole or store.refusal is not None:
                    return as_result(found)
            rule = self.probe.rule(self.plan)
            scheduler = Scheduler(store, self.probe.unit, rule=rule, report=report)
            tasks = self.planned.tasks
            if isinstance(tasks, list):
                scheduler.begin(tasks)
            else:
                scheduler.begin_stream(iter(tasks), self.planned.expected)
            self.executor.run(scheduler, getattr(self.request, "keep_every", KEEP_EVERY))
            run = self.probe.collect(self.planned, scheduler.answers())
            self._check_strict(run)
            return as_result(store.finish(run, keeps_tasks=self.probe.keeps_tasks))

    def _check_strict(self, run: Run) -> None:
        """Refuse what was left out before, when nobody had asked for everything."""
        if not self.request.strict:
            return
        data = run.manifest.data
        left = [item.name for item in data.skipped] + [item.sample for item in data.failed]
        if left:
            raise FaithscopeError(
                f"'{left[0]}' was left out of the run, which strict forbids: leave strict out, or "
                "fix it and choose another folder."
            )
        check_defined(run.tables["scores"])

    def _check_finished(self, run: Run) -> None:
        """A finished run must be the one that was asked for, of the same data."""
        if run.manifest.plan.content() != self.plan.content():
            raise FaithscopeError(
                f"'{self.out}' holds another result than its plan says: choose another folder, or "
                "remove it."
            )
        self.executor.check_inputs(self.planned.tasks, run.manifest.inputs)
        wanted = getattr(self.request, "pictures", 0)
        kept = len(run.get_table("pictures", "sample")["sample"].unique())
        if kept < min(wanted, run.count("samples")):
            warn(
                f"The run is finished and has kept pictures of {kept} images: choose another "
                "folder to keep more."
            )


def pack_run(run: str | Place, to: str | Path | None = None, *, states: bool = False) -> Parcel:
    """Pack a run that was stopped, or is finished, into one archive, to resume elsewhere.

    Args:
        run: the folder of the run; nobody may be writing to it.
        to: the archive; by default RUN.tar.gz, beside the run or, of one that is elsewhere, here.
        states: take along how far unfinished trainings are, too (large).
    """
    root = as_place(run)
    whole = root if root.name not in ("", "..") else root.resolve()
    beside = whole.parent if isinstance(whole, Path) else Path()
    file = beside / f"{whole.name}.tar.gz" if to is None else as_path(to)
    return parcel.pack_run(root, file, lambda plan: probe_of(plan.kind).tasks(plan), states=states)


def unpack_run(parcels: str | Path | Iterable[str | Path], out: str | Path) -> Unpacked:
    """Unpack archives into a new folder, where the command that made the run resumes it.

    Runs that differ in nothing but seeds become one run of all their seeds.
    """
    single = isinstance(parcels, str | bytes | os.PathLike)
    named = [parcels] if single else listed(parcels, "archives")

    def join(plan: Plan, runs: Sequence[Run]) -> Run:
        return probe_of(plan.kind).join(plan, runs)

    return parcel.unpack_run([as_path(file) for file in named], as_path(out, "out"), join)


def compare(
    first: Result | str | Place,
    second: Result | str | Place,
    *,
    methods: Iterable[str] | None = None,
    metrics: Iterable[str] | None = None,
    allow: Iterable[str] = (),
) -> Comparison:
    """Compare two runs, given as results or folders, on what both have.

    Runs may differ in one thing: the model, the data or one option. `allow` names options ("fill",
    "k", "model", "data", …) that may differ besides. `methods` and `metrics` choose some of those
    that both runs have; p-values are adjusted over what is chosen.
    """
    one, other = (
        source if isinstance(source, Result) else load_result(source) for source in (first, second)
    )
    found = compare_findings(
        one,
        other,
        methods=None if methods is None else _words("method", methods),
        metrics=None if metrics is None else _words("metric", metrics),
        allow=_words("option", allow),
    )
    return Comparison(**vars(found))


def _words(kind: str, given: Any) -> list[str]:
    """Names, one or several."""
    names = as_list(kind, given, str)
    for name in names:
        if not isinstance(name, str):
            raise FaithscopeError(f"The name of a {kind} is text, got {shown(name)}.")
    return names


def _named(value: Any, what: str) -> tuple[str, Any]:
    """A name as it is, or an object and what it is called."""
    if value is None:
        raise FaithscopeError(f"There is no {what}, got None: give a name, a path or an object.")
    if isinstance(value, str | Path):
        return str(value), None
    try:
        name = getattr(value, "name", None)
    except Exception:  # a property of somebody's own
        name = None
    return name if isinstance(name, str) and name else type(value).__name__, value


def _target(target: Any) -> tuple[Tensor | None, str | int]:
    """Classes that were given, and what stands for them in a request: their hash."""
    if isinstance(target, str):
        return None, target
    numbers = class_numbers("target", target)
    if numbers.ndim == 0:
        return None, int(numbers)
    digest = hashlib.blake2b(numbers.numpy().tobytes(), digest_size=8)
    return numbers, f"given:{digest.hexdigest()}"
