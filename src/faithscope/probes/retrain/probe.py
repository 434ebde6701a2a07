"""The retraining probe: from a request for ROAR to its plan, tasks and run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from faithscope.data.text import TextData, TokenData, check_texts
from faithscope.data.text_sources import describe, load_text
from faithscope.errors import FaithscopeError, shown, warn
from faithscope.methods import METHODS, Method, resolve_methods
from faithscope.metrics import TrainingMetric, resolve_metrics
from faithscope.probes.refusals import leave_out
from faithscope.probes.retrain.doubts import doubts_of
from faithscope.probes.retrain.jobs import (
    MOST_SEEDS,
    PROCEDURES,
    Jobs,
    checked_levels,
    checked_seeds,
)
from faithscope.probes.retrain.learner import Learner
from faithscope.probes.retrain.learner import Recipe as LearnerRecipe
from faithscope.probes.retrain.learners import check_model, load_learner
from faithscope.probes.retrain.tasks import jobs_by_group, retrain_tasks
from faithscope.probes.retrain.worker import RetrainWorker
from faithscope.request import Given, Retrain
from faithscope.request.paths import as_place
from faithscope.runs.cards import (
    Cost,
    DataCard,
    Left,
    Majority,
    MethodCard,
    MetricCard,
    ModelCard,
    Named,
    Recipe,
    TextCard,
    Vectors,
)
from faithscope.runs.checks import check_collected
from faithscope.runs.executor import Planned
from faithscope.runs.files import tensor_digest
from faithscope.runs.machine import joined_names, joined_versions, machine_of, threads_for
from faithscope.runs.manifest import Manifest
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.scheduler import Answers
from faithscope.runs.store import Store
from faithscope.runs.tables import join_tables, table_of_rows
from faithscope.runs.task import Task
from faithscope.verdicts.curves import BASELINE, Trainings

TABLES = ("trainings", "sparsity", "examples", "tasks")
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
        chosen_measures(request, given)
        chosen_metrics(request, given)
        _seeds(request)
        checked_levels(request.levels, request.strategy)
        if given.model is None:
            check_model(request.model)

    def prepare(self, request: Retrain, given: Given) -> Planned:
        """Check a request and encode its texts; nothing is trained yet."""
        self.check(request, given)  # what is wrong is said before data is read
        asked = chosen_measures(request, given)
        metrics, seeds = chosen_metrics(request, given), _seeds(request)
        levels = checked_levels(request.levels, request.strategy)
        texts = _texts(request, given)
        _check_splits(texts.name, texts.splits)
        learner = _learner(request, given, texts)
        chosen, left_out = _measures(request, asked, learner)
        tokens = learner.encode(texts)
        if not isinstance(tokens, TokenData):
            raise FaithscopeError(
                f"What the learner '{learner.name}' encodes is TokenData, got {shown(tokens)}."
            )
        _check_splits(tokens.name, tokens.splits)
        _check_tokens(tokens)
        _check_lengths(tokens, levels, request.strategy)
        recipe = Recipe(**asdict(learner.recipe))
        resolved = request.model_copy(
            update={
                "model": learner.name,
                "data": tokens.name,
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
            data=Named(name=tokens.name, fingerprint=fingerprint(tokens), samples=len(tokens.test)),
            methods=_method_cards(chosen),
            metrics=metric_cards(metrics, texts.metric),
            left_out=left_out,
            given={"metric": texts.metric, "selection": texts.selection},
            recipe=recipe,
            threads=threads_for(learner.device),
            pack_size=max(1, learner.pack_size),
            groups=(seeds,),
        )
        by_label = {method.label: method for method in chosen}
        worker = RetrainWorker(plan, texts, tokens, learner, by_label, metrics)
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
        own = (worker.texts, worker.data, worker.learner, worker.measures, worker.metrics)
        adopted = _planned(plan, RetrainWorker(plan, *own))
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
        texts = run.manifest.data.texts
        assert isinstance(plan.request, Retrain) and texts is not None
        request = plan.request.model_copy(update=changes)
        metrics = chosen_metrics(request, given)
        cards = metric_cards(metrics, texts.metric)
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
    data = _data_card(worker.texts, worker.data, jobs)
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


def chosen_measures(request: Retrain, given: Given) -> list[Method]:
    """The measures: methods of text."""
    found = resolve_methods([given.methods.get(n, n) for n in request.methods], "text")
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
    assert isinstance(plan.request, Retrain) and data.texts is not None
    tables = {name: _in_order(plan, name, table) for name, table in tables.items()}
    trainings = Trainings(plan, data.texts, tables["trainings"])
    first = trainings.seeds[0]
    shown = tables["examples"].filter(pc.equal(tables["examples"]["seed"], first))
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
    return Run(manifest, {"scores": scores, **tables, "examples": shown})


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


def _method_cards(measures: Sequence[Method]) -> tuple[MethodCard, ...]:
    return tuple(
        MethodCard.of(
            method,
            modality="text",
            granularity="token",
            reads_model=method.reads_model,
            matched_random=None if method.is_random else BASELINE,
        )
        for method in measures
    )


def fingerprint(data: TokenData) -> str:
    """A hash of every token and label, and of what the words start from."""
    tensors = {
        f"{name} {part}": held
        for name, tokens in data.splits
        for part, held in vars(tokens).items()
        if held is not None
    }
    if data.vectors is not None:
        known = data.vectors.vectors
        rows = [known[word] for word in data.words if word in known]
        tensors["vectors"] = torch.from_numpy(np.array(rows))
    names = {"classes": list(data.classes), "words": list(data.words)}
    return tensor_digest(tensors, {"names": json.dumps(names)})


def _texts(request: Retrain, given: Given) -> TextData:
    if given.data is None:
        return load_text(request.data, limit=request.limit)
    if not isinstance(given.data, TextData):
        raise FaithscopeError(
            f"ROAR takes texts by name or as fs.load_text gives them, got "
            f"{type(given.data).__name__}."
        )
    if request.limit is not None:
        raise FaithscopeError(
            "limit applies only to data given by name: give the texts that are to be used."
        )
    check_texts(given.data)
    return given.data


def _learner(request: Retrain, given: Given, texts: TextData) -> Learner:
    changes = {name: value for name in RECIPE if (value := getattr(request, name)) is not None}
    if given.model is None:
        return load_learner(
            request.model,
            texts,
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
                f"A model to train is 'bilstm', 'hf:…' or a learner with encode, begin, explain "
                f"and check, got {shown(learner)}."
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
    request: Retrain, asked: Sequence[Method], learner: Learner
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
        chosen.append(METHODS.of("text")[BASELINE])
    return chosen, left_out


def _check_splits(data: str, splits: Iterable[tuple[str, Sized]]) -> None:
    for name, held in splits:
        if not len(held):
            raise FaithscopeError(
                f"The {name} split of '{data}' has no texts: ROAR needs train, validation and test."
            )


def _check_tokens(data: TokenData) -> None:
    for name, tokens in data.splits:
        if not bool(tokens.eligible.any()):
            raise FaithscopeError(
                f"The {name} split of '{data.name}' has no token that can be masked: give texts "
                "with words in them."
            )


def _check_lengths(data: TokenData, levels: Sequence[int], strategy: str) -> None:
    """Refuse texts of which no level masks a token but the one that masks them all."""
    longest = max(int(tokens.eligible.sum(1).max()) for _, tokens in data.splits)
    highest = max(k for k in levels if k < 100 or strategy == "count")
    if strategy == "relative" and longest * highest < 100:
        words = f"{longest} token{'s' * (longest > 1)}"
        raise FaithscopeError(
            f"The texts of '{data.name}' have at most {words}, of which {highest} % is less than "
            "one: give longer texts, or mask by count."
        )


def _data_card(texts: TextData, data: TokenData, jobs: Jobs) -> DataCard:
    about = describe(texts, data)
    majority, vectors = about["majority"], about["vectors"]
    return DataCard(
        name=about["name"],
        samples=len(data.test),
        fingerprint=about["fingerprint"],
        texts=TextCard(
            kind=about["kind"],
            classes=tuple(about["classes"]),
            metric=about["metric"],
            selection=about["selection"],
            sizes=about["sizes"],
            mean_length=about["mean_length"],
            vocabulary=about["vocabulary"],
            majority=Majority(label=majority["class"], score=majority["score"]),
            truncated=about["truncated"],
            vectors=None if vectors is None else Vectors(**vectors),
            notes=(*about["notes"], *_too_short(data, jobs)),
        ),
    )


def _too_short(data: TokenData, jobs: Jobs) -> list[str]:
    """Say how many texts keep all their tokens at every level below 100 %."""
    if jobs.strategy != "relative":
        return []
    highest = max(k for k in jobs.levels if k < 100)
    counts = torch.cat([tokens.eligible.sum(1) for _, tokens in data.splits])
    short = int((counts * highest < 100).sum())
    if not short:
        return []
    some = "1 text is" if short == 1 else f"{short:,} of {len(counts):,} texts are"
    return [f"{some} so short that {highest} % of the tokens is less than one: nothing is masked."]


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
