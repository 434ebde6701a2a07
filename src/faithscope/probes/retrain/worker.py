"""What the retraining probe does with a task: explain and mask, or train and test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from faithscope.data.pictures import example_name
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import Method
from faithscope.metrics import TrainingMetric
from faithscope.models.tensor_files import tensor_digest
from faithscope.probes.retrain.jobs import Job, Jobs, Pack
from faithscope.probes.retrain.learner import Encoded, Learner, Masks, Trained
from faithscope.probes.retrain.masking import (
    Explained,
    Masked,
    Masker,
    packed_masks,
    packed_model,
    timed,
    unpacked_masks,
    unpacked_model,
)
from faithscope.probes.retrain.modality import Modality
from faithscope.probes.retrain.tasks import (
    jobs_by_group,
    keeps_weights,
    masks_name,
    weights_name,
)
from faithscope.request import Retrain
from faithscope.runs.machine import task_row
from faithscope.runs.plan import Plan
from faithscope.runs.tables import table_of_rows
from faithscope.runs.task import Context, Loaded, Tables, Task

TIMED_BATCHES = 8
"""Batches of a training that a forecast is made from."""
TRAINED_ON_CPU, EXPLAINED_ON_CPU = 256, 32
"""Samples at most on a CPU, to train on, and to be explained by one model."""
PACKAGES = ("torch", "numpy", "scipy", "transformers")
"""What the numbers may depend on."""


@dataclass(frozen=True, eq=False)
class Finished:
    """The models of a pack, trained, and the seconds that took."""

    trained: Sequence[Trained]
    masks: Mapping[str, Masks]
    seconds: float


@dataclass(eq=False)
class RetrainWorker:
    """Masks and trains packs of models on one device."""

    plan: Plan
    modality: Modality
    source: Any
    """The data as it was loaded."""
    data: Encoded
    learner: Learner
    measures: Mapping[str, Method]
    metrics: Sequence[TrainingMetric]
    jobs: Mapping[tuple[int, ...], Jobs] = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = jobs_by_group(self.plan)

    @property
    def request(self) -> Retrain:
        """What was asked for."""
        assert isinstance(self.plan.request, Retrain)
        return self.plan.request

    @cached_property
    def masker(self) -> Masker:
        """Explains models and ranks units, and remembers what all levels use."""
        return Masker(self.modality, self.data, self.learner, self.measures, self.plan.pack_size)

    @cached_property
    def _packs(self) -> dict[tuple[int, ...], dict[str, Pack]]:
        return {
            seeds: {pack.id: pack for pack in jobs.packs(self.plan.pack_size)}
            for seeds, jobs in self.jobs.items()
        }

    def _pack(self, task: Task) -> tuple[Jobs, Pack]:
        seeds = tuple(task.arguments["seeds"])
        return self.jobs[seeds], self._packs[seeds][task.arguments["pack"]]

    def load(self, task: Task, context: Context) -> Loaded:
        """What a pack is trained on; a pack to be masked has no input but finished models."""
        if task.kind == "mask":
            return Loaded(None)
        _, pack = self._pack(task)
        tensors, about = context.read(masks_name(task.arguments["seeds"], pack))
        masks = unpacked_masks(tensors, about, [job.id for job in pack.jobs])
        return Loaded(masks, tensor_digest(tensors, {}))

    def compute(self, task: Task, value: Any, context: Context) -> Any:
        """Explain and mask, or train and test."""
        return (
            self._mask(task, context) if task.kind == "mask" else self._train(task, value, context)
        )

    def _mask(self, task: Task, context: Context) -> list[Explained]:
        jobs, pack = self._pack(task)
        return self.masker.mask(
            jobs,
            pack,
            lambda job: unpacked_model(*context.read(weights_name(job))),
            context.report,
        )

    def _train(self, task: Task, masks: Mapping[str, Masks], context: Context) -> Finished:
        _, pack = self._pack(task)
        data = [self.data.masked(masks[job.id]) for job in pack.jobs]
        training = self.learner.begin(data, [job.seed for job in pack.jobs])
        epochs, seconds = self.learner.recipe.epochs, 0.0
        share = len(pack.jobs) / epochs
        if (kept := context.kept()) is not None:
            state, about = kept
            training.load_state(state)
            seconds = float(about["seconds"])
        doing = f"training {len(pack.jobs)}, epoch {{}}/{epochs}".format
        context.report(doing(training.epoch), share * training.epoch)
        while not training.is_done:
            with timed() as taken:
                training.run_epoch()
            seconds += taken()
            context.keep(training.state, {"seconds": repr(seconds)})
            context.report(doing(training.epoch), share)
        with timed() as taken:
            trained = training.finish()
        if not isinstance(trained, Sequence) or len(trained) != len(pack.jobs):
            raise FaithscopeError(
                f"The learner '{self.learner.name}' must give {len(pack.jobs)} trained models, "
                f"and gave {shown(trained)}."
            )
        return Finished(trained, masks, seconds + taken())

    def finish(self, task: Task, computed: Any, context: Context) -> Tables:
        """Rows and artifacts."""
        if task.kind == "mask":
            return self._finish_masks(task, computed, context)
        return self._finish_training(task, computed, context)

    def _finish_masks(self, task: Task, explained: Sequence[Explained], context: Context) -> Tables:
        jobs, pack = self._pack(task)
        masked = {held.job.id: held for part in explained for held in part.jobs}
        tensors, about = packed_masks({job.id: masked[job.id].masks for job in pack.jobs})
        context.write(masks_name(jobs.seeds, pack), tensors, about)
        shares = [row for held in masked.values() for row in self._sparsity_rows(jobs, held)]
        examples = [row for held in masked.values() for row in self._example_rows(jobs, held)]
        pictures = [
            {"sample": example_name(row), "method": "", **row["picture"]}
            for row in examples
            if "picture" in row
        ]
        rows = [
            {
                **task_row(task, self.learner.device, PACKAGES),
                "method": part.measure,
                "explaining": part.seconds,
            }
            for part in explained
        ]
        return {
            "tasks": table_of_rows("tasks", rows),
            **({"sparsity": table_of_rows("sparsity", shares)} if shares else {}),
            **({"examples": table_of_rows("examples", examples)} if examples else {}),
            **({"pictures": table_of_rows("pictures", pictures)} if pictures else {}),
        }

    def _finish_training(self, task: Task, done: Finished, context: Context) -> Tables:
        jobs, pack = self._pack(task)
        rows = []
        for job, model in zip(pack.jobs, done.trained, strict=True):
            needed = keeps_weights(jobs, job, self.request.keep_weights)
            weights = model.weights if needed else None
            masks = done.masks[job.id] if needed or self.modality.keeps_masks else {}
            context.write(weights_name(job), *packed_model(weights, masks, self._card))
            rows += self._training_rows(jobs, job, model, done.seconds / len(pack.jobs))
        size = sum(held.numel() for held in done.trained[0].weights.values())
        row = {
            **task_row(task, self.learner.device, PACKAGES),
            "seconds": done.seconds,
            "parameters": size,
        }
        return {
            "trainings": table_of_rows("trainings", rows),
            "tasks": table_of_rows("tasks", [row]),
        }

    @cached_property
    def _card(self) -> str | None:
        """What is needed to use a trained model, beside its weights; None of somebody's learner."""
        card = getattr(self.learner, "card", None)
        return None if card is None else json.dumps(card(self.data))

    def _training_rows(
        self, jobs: Jobs, job: Job, model: Trained, seconds: float
    ) -> list[dict[str, Any]]:
        """A row for every point of every curve that a training serves, by each test metric."""
        return [
            {
                "job": job.id,
                "data": self.data.name,
                "model": self.learner.name,
                "measure": measure,
                "procedure": procedure,
                "strategy": job.strategy,
                "k": job.k,
                "seed": seed,
                "metric": metric,
                "value": value,
                "epoch": model.epoch,
                "seconds": seconds,
                "validation": list(model.validation),
            }
            for (measure, procedure, seed), curve in jobs.curves.items()
            if curve.get(job.k) == job
            for metric, value in model.scores.items()
        ]

    def _sparsity_rows(self, jobs: Jobs, held: Masked) -> list[dict[str, Any]]:
        """From the first step of each measure and seed."""
        if held.scores is None or held.job.k != jobs.levels[1]:
            return []
        shares = self.modality.sparsity(self.data, held.scores, self.request)
        return [
            {
                "data": self.data.name,
                "model": self.learner.name,
                "measure": held.job.measure,
                "seed": held.job.seed,
                "kind": kind,
                "x": x,
                "value": value,
            }
            for kind, values in shares.items()
            for x, value in values.items()
        ]

    def _example_rows(self, jobs: Jobs, held: Masked) -> list[dict[str, Any]]:
        """The first test samples of the first seed: what was masked of them, by which scores."""
        job = held.job
        if job.seed != jobs.seeds[0] or (job.k == 0 and not self.modality.shows_intact):
            return []
        shown = self.modality.examples(self.data, held.masks, held.scores)
        return [
            {"measure": measure, "procedure": procedure, "seed": seed, "k": job.k, **row}
            for (measure, procedure, seed), curve in jobs.curves.items()
            if seed == job.seed and curve.get(job.k) == job
            for row in shown
        ]

    def measure(self) -> Mapping[str, float]:
        """Train the first pack and explain it on a few batches."""
        jobs = next(iter(self.jobs.values()))
        pack = jobs.packs(self.plan.pack_size)[0].jobs
        count = TIMED_BATCHES * self.learner.recipe.batch_size
        is_slow = self.learner.device == "cpu"
        few, share = _few(self.data, min(count, TRAINED_ON_CPU) if is_slow else count)
        seeds = [job.seed for job in pack]
        training = self.learner.begin([few] * len(pack), seeds)
        training.run_epoch()  # what is only done once must not be multiplied
        with timed() as epoch:
            training.run_epoch()
        models = [trained.weights for trained in training.finish()]
        found = {"trainings": epoch() * self.learner.recipe.epochs / len(pack) / share}
        if is_slow:
            few, share = _few(self.data, min(count, EXPLAINED_ON_CPU))
        if is_slow or getattr(self.learner, "explains_one_by_one", False):
            models, seeds = models[:1], seeds[:1]
        for label, item in self.measures.items():
            if item.reads_model:
                with timed() as taken:
                    self.masker.explain([item], models, [few] * len(models), seeds)
                found[f"explaining {label}"] = taken() / len(models) / share
        return found


def _few(data: Any, count: int) -> tuple[Any, float]:
    """About `count` training samples from everywhere, the same share of others, and the share."""
    share = min(1.0, count / len(data.train))
    parts = {}
    for name, part in data.splits:
        rows = torch.linspace(0, len(part) - 1, max(1, round(share * len(part)))).long()
        parts[name] = part.at(rows)
    return data.with_splits(parts), share
