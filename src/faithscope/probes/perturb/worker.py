"""What the perturbing probe does with a task: read images, ask the model, score the answers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch

from faithscope.data import Batch, ImageData, IndexedImages, Skipped
from faithscope.methods import explain_batch
from faithscope.methods.explain import Draw
from faithscope.models import cannot_run, undisturbed
from faithscope.models.device import placed, wait_for
from faithscope.probes.perturb.ask import Answers, Setup, ask_shard
from faithscope.probes.perturb.failures import (
    Failure,
    check_some_work,
    refuse_failures,
    refuse_fatal,
    refuse_skipped,
)
from faithscope.probes.perturb.rows import (
    failure_table,
    join_shards,
    overflow_table,
    shard_tables,
    skipped_table,
)
from faithscope.runs.machine import task_row
from faithscope.runs.run import check_defined
from faithscope.runs.tables import table_of_rows
from faithscope.runs.task import Context, Loaded, Tables, Task

PACKAGES = ("torch", "torchvision", "timm", "transformers", "captum", "numpy", "scipy", "triton")
"""What the numbers may depend on."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The answers to the batches of one task, and when they were asked for."""

    answers: Sequence[Answers]
    skipped: Sequence[Skipped]
    failures: Sequence[Failure]
    began: float


@dataclass(eq=False)
class PerturbWorker:
    """Evaluates shards of images on one device.

    `example` are images to measure the cost on; `read` are batches that were read already, by the
    task they belong to; `stream` is data that can be read only once, in order.
    """

    setup: Setup
    data: ImageData
    pictures: int
    example: Batch
    read: dict[str, list[Batch]] = field(default_factory=dict)
    stream: Iterator[Batch] = field(default_factory=lambda: iter(()))
    _until: float = 0.0
    """When the last task was finished: what overlaps is counted once."""

    def __getstate__(self) -> dict[str, Any]:
        """Another process reads its images itself, and measures nothing."""
        few = replace(self.example, images=self.example.images[:0])
        return {**vars(self), "example": few, "read": {}, "stream": iter(()), "_until": 0.0}

    def load(self, task: Task, context: Context) -> Loaded | None:
        """Read the images of a task."""
        batches = self.read.pop(task.id, None) or self._read(task)
        if batches is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for batch in batches:
            labels = [""] * len(batch.samples) if batch.labels is None else batch.labels.tolist()
            for each in zip(batch.samples, batch.digests, labels, strict=True):
                digest.update("|".join(map(str, each)).encode())
        near = next(chain.from_iterable(batch.samples for batch in batches), "")
        return Loaded(batches, digest.hexdigest(), near)

    def _read(self, task: Task) -> list[Batch] | None:
        if isinstance(self.data, IndexedImages):
            return self.data.read_batches(task.arguments["positions"])
        batch = next(self.stream, None)
        return None if batch is None else [batch]

    def compute(self, task: Task, value: Sequence[Batch], context: Context) -> Asked:
        """Ask the model everything that the metrics need to know of these images."""
        began, left = time.perf_counter(), max(0, self.pictures - task.arguments["offset"])
        answers = []
        for batch in value:
            if len(batch.images):
                program = self.setup.forward.program
                is_made = program is None or program.is_made
                context.report("explaining" if is_made else "compiling the model")
                answers.append(
                    ask_shard(
                        self.setup,
                        batch,
                        pictures=left,
                        advance=lambda passes: context.report("measuring", passes),
                    )
                )
                left = max(0, left - len(batch.images))
        skipped = [item for batch in value for item in batch.skipped]
        failures = [failure for held in answers for failure in held.failures]
        self._check_left_out(task, answers, skipped, failures)
        return Asked(answers, skipped, failures, began)

    def _check_left_out(
        self,
        task: Task,
        answers: Sequence[Answers],
        skipped: Sequence[Skipped],
        failures: Sequence[Failure],
    ) -> None:
        """Stop if nothing of the first task works, or if nothing may be left out."""
        if failures and not task.arguments["offset"]:
            columns = dict.fromkeys(column.label for column in self.setup.columns)
            samples = sum(len(held.batch.samples) for held in answers)
            images = answers[0].batch.images
            check_some_work(self.setup.model, images, failures, list(columns), samples)
        if self.setup.request.strict:
            noun = self.setup.model.modality
            refuse_skipped(skipped, noun)
            refuse_failures(failures, noun)

    def finish(self, task: Task, computed: Asked, context: Context) -> Tables:
        """Fetch the answers from the device and score them."""
        answers = computed.answers
        tables = {"skipped": skipped_table(computed.skipped)} if computed.skipped else {}
        if computed.failures:
            tables["failures"] = failure_table(computed.failures)
        if overflowed := [pair for held in answers for pair in held.spent.overflowed]:
            tables["overflows"] = overflow_table(overflowed)
        if answers:
            tables |= join_shards(
                [shard_tables(self.setup, self.data.name, held) for held in answers]
            )
            if self.setup.request.strict:
                check_defined(tables["scores"])
        now = time.perf_counter()
        taken, self._until = now - max(computed.began, self._until), now
        spent = [held.spent for held in answers]
        row = {
            **task_row(task, self.setup.model.device, PACKAGES),
            "seconds": taken,
            "explaining": sum(part.explaining_seconds for part in spent),
            "passes": sum(part.passes for part in spent),
            "explanation_passes": sum(part.explanation_passes for part in spent),
            "halvings": sum(part.halvings for part in spent),
        }
        return {**tables, "tasks": table_of_rows("tasks", [row])}

    def measure(self) -> Mapping[str, float]:
        """Time one batch of the model and one small batch of the methods.

        On a CPU the methods are timed on a single image: integrated gradients of a few images can
        take longer than somebody who only wants to know will wait. Images that fail are passed
        over. Compiling is not counted as part of a pass; its time is given separately.
        """
        setup = self.setup
        per_pass = self._on_some(self._passing)
        if isinstance(per_pass, Exception):
            raise cannot_run(setup.model, self.example.images, per_pass) from per_pass
        wanted = [(column.method, column.draw) for column in setup.columns if column.method]
        per_image = self._on_some(partial(self._explaining, wanted)) if wanted else 0.0
        if isinstance(per_image, Exception):  # on every image some method fails
            each = [self._on_some(partial(self._explaining, [one])) for one in wanted]
            per_image = sum(taken for taken in each if not isinstance(taken, Exception))
        program = setup.forward.program
        compiling = {} if program is None else {"compiling": program.seconds}
        return {"model passes": per_pass, "images": per_image, **compiling}

    def _on_some(self, seconds: Callable[[slice], float]) -> float | Exception:
        """What something takes on the first images that it works on, else its last error."""
        fast = self.setup.model.device.type == "cuda"
        count = self.setup.explain_batch if fast else 1
        for first in range(len(self.example.images)):
            try:
                return seconds(slice(first, first + count))
            except Exception as error:
                refuse_fatal(error)
                last, count = error, 1
        return last

    def _passing(self, places: slice) -> float:
        """Seconds of one pass of the model."""
        setup = self.setup
        few = placed(self.example.images[places], setup.model.device).to(setup.forward.dtype)
        program = setup.forward.program
        with undisturbed(setup.model.module), setup.forward.mode():
            inputs = few[torch.arange(setup.batch_size) % len(few)]  # as in a run, in this mode
            run = partial(setup.forward.logits, inputs)
            if program is not None and not program.is_made:
                run()
            return _timed(run, few.device) / len(inputs)

    def _explaining(self, wanted: Sequence[Draw], places: slice) -> float:
        """Seconds of explaining one image."""
        images = placed(self.example.images[places], self.setup.model.device)
        target = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        keys = self.example.keys[places]
        size = self.setup.explain_batch
        explain = partial(
            explain_batch, self.setup.model, images, target, wanted, keys=keys, batch_size=size
        )
        return _timed(explain, images.device) / len(images)


def _timed(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call; on a GPU, after one to warm up."""
    seconds = 0.0
    for _ in range(1 if device.type == "cpu" else 2):
        started = time.perf_counter()
        call()
        wait_for(device)
        seconds = time.perf_counter() - started
    return seconds
