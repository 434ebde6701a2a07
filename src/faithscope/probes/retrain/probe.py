"""The retraining probe: from a request for ROAR to its plan, tasks and run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from faithscope.data.pictures import example_name
from faithscope.errors import FaithscopeError, shown, warn
from faithscope.methods import METHODS, Method
from faithscope.metrics import TrainingMetric, resolve_metrics
from faithscope.probes.refusals import leave_out
from faithscope.probes.retrain.doubts import doubts_of
from faithscope.probes.retrain.jobs import (
    MOST_SEEDS,
    PROCEDURES,
    checked_levels,
    checked_seeds,
)
from faithscope.probes.retrain.learner import Encoded, Learner
from faithscope.probes.retrain.learner import Recipe as LearnerRecipe
from faithscope.probes.retrain.learners import load_learner, modality_of
from faithscope.probes.retrain.modality import Modality
from faithscope.probes.retrain.tasks import jobs_by_group, retrain_tasks
from faithscope.probes.retrain.worker import RetrainWorker
from faithscope.request import Given, Retrain
from faithscope.request.paths import as_place
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Left,
    MethodCard,
    MetricCard,
    ModelCard,
    Named,
    Recipe,
    plural,
)
from faithscope.runs.checks import check_collected
from faithscope.runs.executor import Planned
from faithscope.runs.machine import joined_names, joined_versions, machine_of, threads_for
from faithscope.runs.manifest import Manifest
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.scheduler import Answers
from faithscope.runs.store import Store
from faithscope.runs.tables import join_tables, table_of_rows
from faithscope.runs.task import Task
from faithscope.verdicts.curves import BASELINE, Trainings

TABLES = ("trainings", "sparsity", "examples", "pictures", "tasks")
"""What tasks leave behind; scores are made of the trainings."""
ORDERS = {
    "trainings": ("measure", "procedure", "seed", "k"),
    "sparsity": ("measure", "seed"),
    "examples": ("measure", "procedure", "index", "k"),
}
"""By which columns rows stand in a table."""
RECIPE = ("epochs", "batch_size", "learning_rate")


@dataclass(frozen=True)
class Known:
    """What the manifest says of model and data, and the metrics that score the curves."""

    data: DataCard
    model: ModelCard
    metrics: Sequence[TrainingMetric]


class RetrainProbe:
    """Mask what a method points to, train again, and see what is lost."""

    unit = "trainings"
    keeps_tasks = True

    def check(self, request: Retrain, given: Given) -> None:
        """Names, seeds and levels are what they should be."""
        modality = modality_of(request, given)
        modality.open_options(request)
        chosen_measures(modality, request, given)
        chosen_metrics(request, given)
        _seeds(request)
        checked_levels(request.levels, request.strategy, unit=modality.unit)

    def prepare(self, request: Retrain, given: Given) -> Planned:
        """Check a request and encode its data; nothing is trained yet."""
        self.check(request, given)  # what is wrong is said before data is read
        modality = modality_of(request, given)
        asked = chosen_measures(modality, request, given)
        metrics, seeds = chosen_metrics(request, given), _seeds(request)
        levels = checked_levels(request.levels, request.strategy)
        source = modality.load(request, given)
        _check_splits(source.name, source.splits, modality)
        learner = _learner(request, given, source)
        chosen, left_out = _measures(modality, request, asked, learner)
        data = modality.encode(learner, source, request)
        _check_splits(data.name, data.splits, modality)
        _check_units(data, levels, request.strategy, modality)
        recipe = Recipe(**asdict(learner.recipe))
        resolved = request.model_copy(
            update={
                "model": learner.name,
                "data": data.name,
                **modality.open_options(request),
                "methods": tuple(method.label for method in chosen),
                "metrics": tuple(metric.label for metric in metrics),
                "seeds": seeds,
                "levels": levels,
                "procedures": tuple(name for name in PROCEDURES if name in request.procedures),
                **{name: getattr(recipe, name) for name in RECIPE},
            }
        )
        plan = Plan(
            request=resolved,
            model=Named(name=learner.name, fingerprint=getattr(learner, "fingerprint", "")),
            data=Named(
                name=data.name, fingerprint=modality.fingerprint(data), samples=len(data.test)
            ),
            methods=_method_cards(modality, request, chosen),
            metrics=metric_cards(metrics, source.metric),
            left_out=left_out,
            given={"metric": source.metric, "selection": source.selection},
            recipe=recipe,
            threads=threads_for(learner.device),
            pack_size=max(1, learner.pack_size),
            groups=(seeds,),
        )
        by_label = {method.label: method for method in chosen}
        worker = RetrainWorker(plan, modality, source, data, learner, by_label, metrics)
        return _planned(plan, worker)

    def adopt(self, planned: Planned, there: Plan | None, request: Retrain) -> Planned:
        """Train in the packs that were chosen before, and by the groups of seeds of joined runs."""
        worker = planned.worker
        assert isinstance(worker, RetrainWorker)
        if there is None or not isinstance(there.request, Retrain):
            return planned
        changes: dict[str, Any] = {"pack_size": there.pack_size, "threads": there.threads}
        seeds = {seed for group in there.groups for seed in group}
        if seeds == {seed for group in planned.plan.groups for seed in group}:
            changes["groups"] = there.groups
            own_order = {"seeds": there.request.seeds}
            changes["request"] = planned.plan.request.model_copy(update=own_order)
        plan = planned.plan.model_copy(update=changes)
        adopted = _planned(plan, replace(worker, plan=plan))
        if request.keep_weights and request.out is not None:
            _warn_of_lost_weights(
                retrain_tasks(plan), Store(as_place(request.out), plan, looks_on=True)
            )
        return adopted

    def tasks(self, plan: Plan) -> list[Task]:
        """The tasks of a plan, which need no data to be known."""
        return retrain_tasks(plan)

    def rule(self, plan: Plan) -> None:
        """Every training is needed."""

    def collect(self, planned: Planned, answers: Answers) -> Run:
        """The finished trainings as one run, and everything needed to judge and repeat it."""
        plan, known = planned.plan, planned.known
        tables = {name: join_tables(name, answers.parts(name)) for name in TABLES}
        check_collected(plan, tables)
        return assemble(plan, tables, known.data, known.model, known.metrics)

    def join(self, plan: Plan, runs: Sequence[Run]) -> Run:
        """Finished runs of other seeds as one, by a plan of all their seeds."""
        tables = {name: join_tables(name, [run.get_table(name) for run in runs]) for name in TABLES}
        first = runs[0].manifest
        check_collected(plan, tables)
        return assemble(plan, tables, first.data, first.model)

    def rescore(self, run: Run, changes: dict[str, Any], given: Given) -> Run:
        """Other metrics of a finished run, from its curves."""
        plan = run.manifest.plan
        card = run.manifest.data.splits
        assert isinstance(plan.request, Retrain) and card is not None
        request = plan.request.model_copy(update=changes)
        metrics = chosen_metrics(request, given)
        cards = metric_cards(metrics, card.metric)
        request = request.model_copy(update={"metrics": tuple(card.label for card in cards)})
        changed = plan.model_copy(update={"request": request, "metrics": cards})
        tables = {name: run.get_table(name) for name in TABLES}
        again = assemble(changed, tables, run.manifest.data, run.manifest.model, metrics)
        manifest = again.manifest.model_copy(update={"created": run.manifest.created})
        return Run(manifest, again.tables)


def _planned(plan: Plan, worker: RetrainWorker) -> Planned:
    model = ModelCard(
        name=plan.model.name,
        fingerprint=plan.model.fingerprint,
        weights=getattr(worker.learner, "weights", None),
        recipe=plan.recipe,
        device=str(worker.learner.device),
    )
    jobs = next(iter(worker.jobs.values()))
    data = worker.modality.card(worker.source, worker.data, jobs)
    return Planned(plan, worker, retrain_tasks(plan), Known(data, model, worker.metrics))


def _warn_of_lost_weights(tasks: Sequence[Task], store: Store) -> None:
    """Weights that a run has dropped are not worth training again, and are missed by somebody."""
    finished = [task for task in tasks if task.kind == "train" and store.done(task) is not None]
    models = [made.name for task in finished for made in task.makes]
    gone = sum(
        not store.has_tensor(name, "weights.") and not store.is_spoilt(name) for name in models
    )
    if gone:
        warn(
            f"The weights of {gone:,} finished trainings in '{store.root}' were not kept and are "
            "not brought back: to have them all, choose another folder."
        )


def chosen_measures(modality: Modality, request: Retrain, given: Given) -> list[Method]:
    """The measures: methods of texts, or of images."""
    found = modality.measures(request, given)
    if not found:
        raise FaithscopeError("No measures given: choose at least one, or 'all'.")
    return found


def chosen_metrics(request: Retrain, given: Given) -> list[TrainingMetric]:
    """The metrics that score the curves."""
    return resolve_metrics([given.metrics.get(n, n) for n in request.metrics], "retrain")


def _seeds(request: Retrain) -> tuple[int, ...]:
    """Which seeds: those named, or so many from 0."""
    if isinstance(request.seeds, tuple):
        return checked_seeds(request.seeds)
    return checked_seeds(range(min(request.seeds, MOST_SEEDS + 1)))


def assemble(
    plan: Plan,
    tables: Mapping[str, pa.Table],
    data: DataCard,
    model: ModelCard,
    metrics: Sequence[TrainingMetric] | None = None,
) -> Run:
    """A run from the rows of its tasks: scores, doubts and manifest."""
    assert isinstance(plan.request, Retrain) and data.splits is not None
    tables = {name: _in_order(plan, name, table) for name, table in tables.items()}
    trainings = Trainings(plan, data.splits, tables["trainings"])
    first = trainings.seeds[0]
    shown = tables["examples"].filter(pc.equal(tables["examples"]["seed"], first))
    named = pa.array([example_name(row) for row in shown.to_pylist()], pa.string())
    drawn = tables["pictures"]
    drawn = drawn.filter(pc.is_in(drawn["sample"].cast(pa.string()), named))
    metrics = resolve_metrics(list(plan.request.metrics), "retrain") if metrics is None else metrics
    tasks = tables["tasks"].to_pylist()
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        plan=plan,
        model=model.model_copy(
            update={
                "device": joined_names(row["device"] for row in tasks),
                "parameters": next((row["parameters"] for row in tasks if row["parameters"]), None),
            }
        ),
        data=data,
        methods={card.label: card for card in plan.methods},
        metrics={card.label: card for card in plan.metrics},
        cost=_cost(plan, tasks),
        machine=machine_of(plan, tasks),
        versions=joined_versions(row["versions"] for row in tasks),
        doubts=doubts_of(trainings, metrics),
    )
    scores = score_table(trainings, metrics)
    return Run(manifest, {"scores": scores, **tables, "examples": shown, "pictures": drawn})


def _in_order(plan: Plan, name: str, table: pa.Table) -> pa.Table:
    """The rows of a table as curves go, whichever packs they come from.

    The interval of a mean depends on the order of its numbers, by a little.
    """
    assert isinstance(plan.request, Retrain) and isinstance(plan.request.seeds, tuple)
    known: dict[str, list[Any]] = {
        "measure": [card.label for card in plan.methods],
        "procedure": list(plan.request.procedures),
        "seed": list(plan.request.seeds),
    }
    columns = ORDERS.get(name)
    if columns is None:
        return table

    def place(row: Mapping[str, Any]) -> list[int]:
        return [known[c].index(row[c]) if c in known else row[c] for c in columns]

    return table_of_rows(name, sorted(table.to_pylist(), key=place))


def score_table(trainings: Trainings, metrics: Sequence[TrainingMetric]) -> pa.Table:
    """Every metric of every curve, seed by seed."""
    names = {"model": trainings.plan.model.name, "data": trainings.plan.data.name, "draw": 0}
    rows = []
    for metric in metrics:
        for measure, procedure in trainings.kinds:
            if measure == BASELINE and metric.against == "zero":
                continue  # it is what the others are measured by
            found = metric.score(trainings.pair(measure, procedure))
            for seed, value, flag in zip(
                trainings.seeds, found.values.tolist(), found.flags, strict=True
            ):
                place = {"training": seed, "method": measure, "procedure": procedure}
                score = {"metric": metric.label, "value": value, "flag": flag}
                rows.append({**names, **place, **score})
    return table_of_rows("scores", rows)


def metric_cards(metrics: Sequence[TrainingMetric], test_metric: str) -> tuple[MetricCard, ...]:
    """What a reader must know of every metric; where less is good, more of a loss is better."""
    turned = test_metric == "cross_entropy"
    return tuple(
        MetricCard.of(
            metric,
            higher_is_better=metric.higher_is_better or (turned and metric.against == "random"),
            against=metric.against,
        )
        for metric in metrics
    )


def _method_cards(
    modality: Modality, request: Retrain, measures: Sequence[Method]
) -> tuple[MethodCard, ...]:
    return tuple(
        MethodCard.of(
            method,
            modality=modality.name,
            granularity=modality.granularity(method, request),
            is_random=method.label == BASELINE,  # any other is measured by it
            reads_model=method.reads_model,
            matched_random=None if method.label == BASELINE else BASELINE,
        )
        for method in measures
    )


def _learner(request: Retrain, given: Given, source: Any) -> Learner:
    changes = {name: value for name in RECIPE if (value := getattr(request, name)) is not None}
    if given.model is None:
        return load_learner(
            request.model,
            source,
            device=request.device,
            trust_remote_code=request.trust_remote_code,
            **changes,
        )
    if request.trust_remote_code:
        raise FaithscopeError("trust_remote_code goes with a model by name: leave it out.")
    if changes:
        raise FaithscopeError(
            f"{', '.join(changes)} cannot be given beside a learner, which has its own recipe."
        )
    learner: Learner = given.model
    for part in ("encode", "begin", "explain", "check"):
        if not callable(_part(learner, part)):
            raise FaithscopeError(
                "A model to train is 'bilstm', 'hf:…', 'vit' or a learner with encode, begin, "
                f"explain and check, got {shown(learner)}."
            )
    if not isinstance(_part(learner, "recipe"), LearnerRecipe):
        raise FaithscopeError("A learner's 'recipe' must be a Recipe of faithscope.")
    named, packed = _part(learner, "name"), _part(learner, "pack_size")
    if not isinstance(named, str) or not named or not isinstance(packed, int):
        raise FaithscopeError("A learner needs a 'name' and how many it trains together.")
    return learner


def _part(learner: Any, name: str) -> Any:
    """A part of somebody's own learner, or None."""
    try:
        return getattr(learner, name, None)
    except Exception:
        return None


def _measures(
    modality: Modality, request: Retrain, asked: Sequence[Method], learner: Learner
) -> tuple[list[Method], tuple[Left, ...]]:
    """The measures that the model can give, random among them, and those it cannot, and why."""
    refused = dict[str, FaithscopeError]()
    for item in asked:
        try:
            if item.reads_model:
                learner.check(item)
        except FaithscopeError as error:
            refused[item.label] = error
    chosen, left_out = leave_out(asked, refused, asked=request.methods, strict=request.strict)
    if BASELINE not in [item.label for item in chosen]:
        chosen.append(METHODS.of(modality.name)[BASELINE])
    return chosen, left_out


def _check_splits(data: str, splits: Iterable[tuple[str, Sized]], modality: Modality) -> None:
    for name, held in splits:
        if not len(held):
            raise FaithscopeError(
                f"The {name} split of '{data}' has no {modality.sample}s: ROAR needs train, "
                "validation and test."
            )


def _check_units(data: Encoded, levels: Sequence[int], strategy: str, modality: Modality) -> None:
    """Refuse data of which nothing can be masked, or nothing but all at the last level."""
    counts = {name: int(part.eligible.sum(1).max()) for name, part in data.splits}
    sample, unit = modality.sample, modality.unit
    for name, count in counts.items():
        if not count:
            raise FaithscopeError(
                f"The {name} split of '{data.name}' has no {unit} that can be masked: give "
                f"{sample}s with something in them."
            )
    longest = max(counts.values())
    highest = max(k for k in levels if k < 100 or strategy == "count")
    if strategy == "relative" and longest * highest < 100:
        words = f"{longest} {unit if longest == 1 else plural(unit)}"
        raise FaithscopeError(
            f"The {sample}s of '{data.name}' have at most {words}, of which {highest} % is less "
            f"than one: give larger {sample}s, or mask by count."
        )


def _cost(plan: Plan, tasks: Sequence[Mapping[str, Any]]) -> Cost:
    training = sum(row["seconds"] for row in tasks if row["kind"] == "train")
    explaining = {card.label: 0.0 for card in plan.methods}
    for row in tasks:
        if row["method"] is not None:
            explaining[row["method"]] += row["explaining"]
    groups = jobs_by_group(plan).values()
    explained: dict[str, set[str]] = {}
    for jobs in groups:
        for job in jobs.jobs:
            if job.measure is not None and job.parent is not None:
                explained.setdefault(job.measure, set()).add(job.parent.id)
    return Cost(
        seconds=training + sum(explaining.values()),
        trainings=sum(map(len, groups)),
        training_seconds=training,
        explaining_seconds=explaining,
        explained={measure: len(parents) for measure, parents in explained.items()},
        packs=sum(len(jobs.packs(plan.pack_size)) for jobs in groups),
    )
