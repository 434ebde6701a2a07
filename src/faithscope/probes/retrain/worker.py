"""What the retraining probe does with a task: explain and mask, or train and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from faithscope.data.text import TextData, TokenData
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import Method
from faithscope.metrics import TrainingMetric
from faithscope.probes.retrain.jobs import Job, Jobs, Pack
from faithscope.probes.retrain.learner import Learner, Trained
from faithscope.probes.retrain.masking import (
    Explained,
    Masked,
    Masker,
    Masks,
    masked_data,
    packed_masks,
    packed_model,
    timed,
    unpacked_masks,
    unpacked_model,
)
from faithscope.probes.retrain.sparsity import sparsity
from faithscope.probes.retrain.tasks import (
    jobs_by_group,
    keeps_weights,
    masks_name,
    weights_name,
)
from faithscope.request import Retrain
from faithscope.runs.files import tensor_digest
from faithscope.runs.machine import task_row
from faithscope.runs.plan import Plan
from faithscope.runs.tables import table_of_rows
from faithscope.runs.task import Context, Loaded, Tables, Task

EXAMPLES = 3
"""Test texts whose masks and scores are kept for people to look at."""
TIMED_BATCHES = 8
"""Batches of a training that a forecast is made from."""
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
    texts: TextData
    data: TokenData
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
        """Explains models and ranks tokens, and remembers what all levels use."""
        return Masker(self.data, self.learner, self.measures, self.plan.pack_size)

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
        data = [masked_data(self.data, masks[job.id]) for job in pack.jobs]
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
        texts = [row for held in masked.values() for row in self._example_rows(jobs, held)]
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
            **({"examples": table_of_rows("examples", texts)} if texts else {}),
        }

    def _finish_training(self, task: Task, done: Finished, context: Context) -> Tables:
        jobs, pack = self._pack(task)
        rows = []
        for job, model in zip(pack.jobs, done.trained, strict=True):
            needed = keeps_weights(jobs, job, self.request.keep_weights)
            weights = model.weights if needed else None
            context.write(weights_name(job), *packed_model(weights, done.masks[job.id]))
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
        part = self.data.validation
        shares = sparsity(
            held.scores["validation"], part.lengths, part.eligible, specials=self.request.specials
        )
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
        """The first test texts of the first seed: what was masked of them, and by which scores."""
        job, test = held.job, self.data.test
        if job.seed != jobs.seeds[0] or job.k == 0:
            return []
        rows = []
        for (measure, procedure, seed), curve in jobs.curves.items():
            if seed != job.seed or curve.get(job.k) != job:
                continue
            for index in range(min(EXAMPLES, len(test))):
                words, auxiliary = _written(self.data, index)
                length = int(test.lengths[index])
                scores = [] if held.scores is None else held.scores["test"][index, :length].tolist()
                rows.append(
                    {
                        "split": "test",
                        "index": index,
                        "measure": measure,
                        "procedure": procedure,
                        "seed": seed,
                        "k": job.k,
                        "label": self.data.classes[int(test.labels[index])],
                        "words": words,
                        "auxiliary": auxiliary,
                        "eligible": test.eligible[index].nonzero().flatten().tolist(),
                        "masked": held.masks["test"][index].nonzero().flatten().tolist(),
                        "scores": scores,
                    }
                )
        return rows

    def measure(self) -> Mapping[str, float]:
        """Train the first pack and explain it on a few batches."""
        jobs = next(iter(self.jobs.values()))
        pack = jobs.packs(self.plan.pack_size)[0].jobs
        few, share = _few(self.data, TIMED_BATCHES * self.learner.recipe.batch_size)
        seeds = [job.seed for job in pack]
        training = self.learner.begin([few] * len(pack), seeds)
        training.run_epoch()  # what is only done once must not be multiplied
        with timed() as epoch:
            training.run_epoch()
        models = [trained.weights for trained in training.finish()]
        found = {"trainings": epoch() * self.learner.recipe.epochs / len(pack) / share}
        for label, item in self.measures.items():
            if item.reads_model:
                with timed() as taken:
                    self.masker.explain(item, models, [few] * len(pack), seeds)
                found[f"explaining {label}"] = taken() / len(pack) / share
        return found


def _few(data: TokenData, count: int) -> tuple[TokenData, float]:
    """About `count` training texts from everywhere, the same share of the others, and the share."""
    share = min(1.0, count / len(data.train))
    parts = {}
    for name, tokens in data.splits:
        rows = torch.linspace(0, len(tokens) - 1, max(1, round(share * len(tokens)))).long()
        held = {part: v[rows] for part, v in vars(tokens).items() if v is not None}
        parts[name] = replace(tokens, **held)
    few = replace(data, train=parts["train"], validation=parts["validation"], test=parts["test"])
    return few, share


def _written(data: TokenData, index: int) -> tuple[list[str], list[str] | None]:
    """The words of a test text, and of the one that comes with it."""
    test = data.test
    length = int(test.lengths[index])
    main, rest = test.ids[index, :length].tolist(), test.ids[index, length:].tolist()
    if test.auxiliary is not None and test.auxiliary_lengths is not None:
        rest = test.auxiliary[index, : int(test.auxiliary_lengths[index])].tolist()
    special = {data.pad_id, *test.ids[index, :length][~test.eligible[index, :length]].tolist()}
    words = [_shown(data.words[token]) for token in rest if token not in special]
    return [_shown(data.words[token]) for token in main], words or None


def _shown(word: str) -> str:
    r"""A word as a table can hold it: half a character, which has no UTF-8, is "?".

    >>> _shown("a\ud800")
    'a?'
    """
    return word.encode("utf-8", "replace").decode()
