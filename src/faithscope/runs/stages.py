"""Three threads take tasks through a worker's stages, so that two of them hide behind the device.

At any time at most one task is being loaded, one computed and one finished. Tasks come from a
`Desk`, in this process (`local.py`) or far from the one that plans (`ray_worker.py`), and what
comes of them goes back there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from faithscope.models.tensor_files import Tensors
from faithscope.runs.store import Store
from faithscope.runs.task import Loaded, Outcome, Task, Worker

KEEP_EVERY = 5.0
"""Seconds after which the state of a task in progress is worth another file."""
KEEP_SHARE = 0.05
"""How much of a task's time keeping its state may take: large states are kept less often."""


@dataclass(eq=False)
class Keeping:
    """How often states are kept, whichever tasks they are of."""

    every: float = KEEP_EVERY
    last: float = field(default_factory=time.monotonic)
    taking: float = 0.0

    def is_time(self) -> bool:
        """Whether the last state is old enough, and another worth what the last one took."""
        wait = max(self.every, self.taking / KEEP_SHARE) if self.every else 0.0
        return time.monotonic() - self.last >= wait

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what it takes; to get the state, from a GPU, is a part of that."""
        started = time.monotonic()
        yield
        self.last = time.monotonic()
        self.taking = self.last - started


@dataclass(eq=False)
class TaskContext:
    """What the stages of one task may ask for."""

    task: Task
    store: Store
    tell: Callable[[str, str, float], None]
    keeping: Keeping = field(default_factory=Keeping)
    input: str = ""
    artifacts: dict[str, str] = field(default_factory=dict)

    def report(self, doing: str, done: float = 0.0) -> None:
        """Say what is going on, and how much was just done."""
        self.tell(self.task.id, doing, done)

    def read(self, artifact: str) -> tuple[Tensors, Mapping[str, str]]:
        """The tensors of an artifact and what they say of themselves."""
        return self.store.read_artifact(artifact)

    def write(self, artifact: str, tensors: Tensors, about: Mapping[str, str]) -> None:
        """Leave an artifact for other tasks."""
        self.artifacts[artifact] = self.store.write_artifact(artifact, tensors, about)

    def kept(self) -> tuple[Tensors, Mapping[str, str]] | None:
        """How far this very task was, when it was stopped."""
        return self.store.read_state(self.task, {"input": self.input})

    def keep(self, state: Callable[[], Tensors], about: Mapping[str, str]) -> None:
        """Keep how far the task is, if the last time is long enough ago."""
        if self.store.is_lasting and self.keeping.is_time():
            with self.keeping.measured():
                self.store.write_state(self.task, state(), {**about, "input": self.input})


class Desk(Protocol):
    """Where tasks come from, and where what came of them goes.

    Only `finish` is called by another thread than the one that calls `run_stages`.
    """

    def next(self, *, wait: bool) -> Task | None:
        """A task to load; None if there is none now or, with `wait`, if there will be none."""

    def is_done(self, task: Task) -> bool:
        """Whether only the input of a task is to be looked at."""

    def begins(self, task: Task) -> bool:
        """Whether a task that is loaded is still to be computed here."""

    def look_again(self, task: Task, outcome: Outcome) -> None:
        """Take the hash of an input that was only looked at."""

    def finish(self, task: Task, outcome: Outcome) -> Any:
        """Keep what came of a task; in the thread that finishes."""

    def take(self, task: Task, kept: Any) -> None:
        """A task is finished, and `finish` gave this."""

    def fail(self, task: Task, error: Exception) -> None:
        """A stage raised an error; raise it, or go on with the next task."""

    def end_of_data(self, task: Task) -> None:
        """There is no data for a task."""

    @property
    def is_over(self) -> bool:
        """Whether no more tasks are needed."""

    @property
    def in_order(self) -> bool:
        """Whether a task must be taken before the next is computed."""


@dataclass(frozen=True, eq=False)
class _Started:
    """A task whose input is there; None if the data has ended."""

    task: Task
    loaded: Loaded | None
    context: TaskContext


def run_stages(
    worker: Worker,
    desk: Desk,
    store: Store,
    tell: Callable[[str, str, float], None],
    keep_every: float = KEEP_EVERY,
) -> None:
    """Take tasks from a desk through the three stages, until there will be no more."""
    keeping = Keeping(keep_every)
    loader, finisher = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    loading: tuple[Task, Future[_Started]] | None = None
    finishing: tuple[Task, Future[Any]] | None = None

    def load(task: Task) -> _Started:
        context = TaskContext(task, store, tell, keeping)
        loaded = worker.load(task, context)
        context.input = "" if loaded is None else loaded.digest
        return _Started(task, loaded, context)

    def begin(*, wait: bool) -> tuple[Task, Future[_Started]] | None:
        task = desk.next(wait=wait)
        return None if task is None else (task, loader.submit(load, task))

    def finish(started: _Started, computed: Any) -> Any:
        task, context = started.task, started.context
        tables = worker.finish(task, computed, context)
        return desk.finish(task, Outcome(context.input, tables, dict(context.artifacts)))

    def collect() -> None:
        nonlocal finishing
        if finishing is not None:
            (task, future), finishing = finishing, None
            try:
                kept = future.result()
            except Exception as error:
                desk.fail(task, error)
            else:
                desk.take(task, kept)

    def compute(started: _Started) -> None:
        nonlocal finishing
        assert started.loaded is not None
        try:
            computed = worker.compute(started.task, started.loaded.value, started.context)
        except Exception as error:
            desk.fail(started.task, error)
            return
        collect()
        finishing = started.task, finisher.submit(finish, started, computed)
        if desk.in_order:
            collect()

    try:
        while not desk.is_over:
            loading = loading or begin(wait=False)
            if loading is None and finishing is not None:
                collect()
                continue
            loading = loading or begin(wait=True)
            if loading is None:
                break
            (task, future), loading = loading, None
            try:
                started = future.result()
            except Exception as error:
                desk.fail(task, error)
                continue
            if started.loaded is None:
                collect()
                desk.end_of_data(task)
                break
            loading = begin(wait=False)
            if desk.is_done(task):
                collect()
                desk.look_again(task, Outcome(started.loaded.digest, near=started.loaded.near))
            elif desk.begins(task):
                compute(started)
        collect()
    finally:
        finisher.shutdown()
        loader.shutdown(wait=False, cancel_futures=True)  # a slow loader must not hold an error
