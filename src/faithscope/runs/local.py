"""Running tasks in this process, on one worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faithscope.runs.machine import in_threads
from faithscope.runs.scheduler import Scheduler, changed
from faithscope.runs.stages import TaskContext, run_stages
from faithscope.runs.store import Card, Store
from faithscope.runs.task import Outcome, Task, Worker


@dataclass(eq=False)
class Local:
    """One worker in this process; on a CPU it runs in as many `threads` as the plan says."""

    worker: Worker
    threads: int = 0
    workers: int = 1

    def measure(self) -> Mapping[str, float]:
        """Seconds that a unit of cost takes, by a small sample of the work."""
        with in_threads(self.threads):
            return self.worker.measure()

    def check_inputs(self, tasks: Iterable[Task], inputs: Mapping[str, str]) -> None:
        """Refuse data that are not those of a finished run, whose tasks had these inputs."""
        is_stream = not isinstance(tasks, Sequence)
        for task in tasks:
            if task.id not in inputs and not is_stream:  # a rule ended the run before it
                return
            context = TaskContext(task, Store(Path(), is_lasting=False), lambda *_: None)
            loaded = self.worker.load(task, context)
            if loaded is None and task.id not in inputs:
                return
            if loaded is None or loaded.digest != inputs.get(task.id):
                raise changed("" if loaded is None else loaded.near)

    def run(self, scheduler: Scheduler, keep_every: float) -> None:
        """Run whatever the scheduler has to do; an error of a task ends the run."""
        with in_threads(self.threads):
            desk = _Desk(scheduler)
            run_stages(self.worker, desk, scheduler.store, scheduler.tell, keep_every)


@dataclass(eq=False)
class _Desk:
    """The scheduler itself, as one worker sees it."""

    scheduler: Scheduler

    def next(self, *, wait: bool) -> Task | None:
        return self.scheduler.next()

    def is_done(self, task: Task) -> bool:
        return self.scheduler.is_done(task)

    def begins(self, task: Task) -> bool:
        return True

    def look_again(self, task: Task, outcome: Outcome) -> None:
        self.scheduler.look_again(task, outcome)

    def finish(self, task: Task, outcome: Outcome) -> Card:
        return self.scheduler.keep(task, outcome)

    def take(self, task: Task, kept: Card) -> None:
        self.scheduler.take(task, kept)

    def fail(self, task: Task, error: Exception) -> None:
        raise error

    def end_of_data(self, task: Task) -> None:
        self.scheduler.end_of_data(task)

    @property
    def is_over(self) -> bool:
        return self.scheduler.is_over

    @property
    def in_order(self) -> bool:
        return self.scheduler.rule is not None
