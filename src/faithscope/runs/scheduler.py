"""Running the tasks of a plan: what is done already, what is still to do, in which order.

The scheduler knows no probe. Ready tasks are run in the order of the plan; three threads, one a
stage, let loading and finishing hide behind the device. Only here is a run resumed, its progress
shown and its cost forecast.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from faithscope.errors import FaithscopeError
from faithscope.runs.files import Tensors
from faithscope.runs.store import Card, Done, Store
from faithscope.runs.task import Loaded, Tables, Task, Worker

KEEP_EVERY = 5.0
"""Seconds after which the state of a task in progress is worth another file."""
KEEP_SHARE = 0.05
"""How much of a task's time keeping its state may take: large states are kept less often."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: what it is doing, and how much of its main unit of cost is behind it."""

    doing: str
    task: str
    done: float
    total: float


Report = Callable[[Progress], None]


class StoppingRule(Protocol):
    """Looks at finished tasks in the order of the plan, and says when no more are needed."""

    def add(self, tables: Tables) -> None:
        """Take in the rows of one more task."""

    def is_enough(self) -> bool:
        """Whether no more is needed."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The finished tasks in the order of the plan, with their rows."""

    done: Mapping[str, Done]

    def parts(self, table: str) -> list[Any]:
        """The rows of one table, task by task."""
        return [held.tables[table] for held in self.done.values() if table in held.tables]

    @property
    def inputs(self) -> dict[str, str]:
        """The hash of each task's input."""
        return {name: held.card.input for name, held in self.done.items() if held.card.input}


@dataclass(frozen=True, eq=False)
class State:
    """What a store holds of some tasks: those done, and those still to do."""

    done: Mapping[str, Done]
    todo: tuple[Task, ...]

    @property
    def again(self) -> int:
        """Finished tasks that are repeated, because what others need of them is gone."""
        return sum(task.id in self.done for task in self.todo)


def look(store: Store, tasks: Sequence[Task]) -> State:
    """What is done and what is to do.

    Tasks without a card are to do, those that made what is kept and damaged, and the makers of what
    these lack.
    """
    done = {task.id: held for task in tasks if (held := store.done(task)) is not None}
    makers = {made.name: task for task in tasks for made in task.makes}
    wanted = [task for task in tasks if task.id not in done or _is_spoilt(store, task)]
    todo = {task.id for task in wanted}
    is_there = cache(store.has_artifact)  # many read the same one, and every look hashes it
    while wanted:
        for name in wanted.pop().reads:
            maker = makers[name]
            if maker.id not in todo and not is_there(name):
                todo.add(maker.id)
                wanted.append(maker)
    return State(done, tuple(task for task in tasks if task.id in todo))


def _is_spoilt(store: Store, task: Task) -> bool:
    return any(made.is_kept and store.is_spoilt(made.name) for made in task.makes)


def total_cost(tasks: Iterable[Task]) -> dict[str, float]:
    """What tasks take together, by unit."""
    total: Counter[str] = Counter()
    for task in tasks:
        total.update(task.cost)
    return dict(total)


@dataclass(frozen=True)
class Forecast:
    """What a run will cost: what is still to do, by unit, and seconds by a measured sample."""

    cost: Mapping[str, float]
    seconds: float
    tasks: int
    finished: int = 0
    again: int = 0

    @property
    def duration(self) -> str:
        """The seconds in words."""
        if self.seconds >= 5400:
            return f"{self.seconds / 3600:.1f} h"
        return f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"

    def __str__(self) -> str:
        if self.finished == self.tasks:
            return "finished: nothing to do"
        there = f" ({self.finished:,} of {self.tasks:,} tasks finished)" if self.finished else ""
        again = f", {self.again:,} of them to be done again" if self.again else ""
        amounts = ", ".join(
            f"{amount:,.0f} {unit if round(amount) != 1 else unit.removesuffix('s')}"
            for unit, amount in self.cost.items()
            if not unit.startswith("explaining")
        )
        return f"{amounts}{there}{again}, about {self.duration}"


def forecast(state: State, tasks: Sequence[Task], worker: Worker) -> Forecast:
    """Measure a small sample of the work, and multiply."""
    if not state.todo:
        return Forecast({}, 0.0, len(tasks), len(tasks))
    cost, seconds = total_cost(state.todo), 0.0
    measured = worker.measure()
    seconds = sum(amount * measured.get(unit, 0.0) for unit, amount in cost.items())
    return Forecast(cost, seconds, len(tasks), len(state.done), state.again)


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


@dataclass(eq=False)
class Scheduler:
    """Runs tasks on one worker.

    Args:
        worker: does the tasks.
        store: keeps what comes out.
        unit: the main unit of cost, in which progress is shown.
        rule: when to stop early.
        keep_every: seconds between kept states.
        report: called with where the run is.
    """

    worker: Worker
    store: Store
    unit: str
    rule: StoppingRule | None = None
    keep_every: float = KEEP_EVERY
    report: Report = lambda _: None

    def run(self, tasks: Sequence[Task]) -> Answers:
        """Run tasks that are all known beforehand; what is done already is not done again."""
        state = look(self.store, tasks)
        self._begin(tasks, state)
        pending = [t for t in tasks if t.id in self.todo or t.rereads or self.rule is not None]
        return self._run(pending)

    def run_stream(self, tasks: Iterator[Task], expected: float) -> Answers:
        """Run tasks whose data can be read only once, in order, and that end when it does."""
        self._begin((), State({}, ()))
        self.total = expected
        answers = self._run(tasks)
        if self.store.finished_tasks() - answers.done.keys():  # more than there is now
            raise changed("")
        return answers

    def _begin(self, tasks: Sequence[Task], state: State) -> None:
        self.order = {task.id: place for place, task in enumerate(tasks)}
        self.finished: dict[str, Done] = dict(state.done)
        self.todo = {task.id for task in state.todo}
        self.waiting = set(self.todo)
        """Tasks that are not finished, for which others may have to wait."""
        self.total = sum(task.cost.get(self.unit, 0.0) for task in tasks)
        self.spent = self.total - sum(task.cost.get(self.unit, 0.0) for task in state.todo)
        self.fleeting = {made.name for task in tasks for made in task.makes if not made.is_kept}
        self.readers: dict[str, set[str]] = {name: set() for name in self.fleeting}
        for task in tasks:
            for name in task.reads:
                self.readers.setdefault(name, set()).add(task.id)
        self.keeping = Keeping(self.keep_every)
        self._drop(self.fleeting)  # what a run that was stopped had no time to

    def _run(self, tasks: Iterable[Task]) -> Answers:
        """Take tasks through the three stages.

        At any time at most one task is being loaded, one computed and one finished.
        """
        queue = _Queue(tasks)
        loader, finisher = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        loading: Future[_Started | None] | None = None
        finishing: tuple[Task, Future[Done]] | None = None

        def collect() -> None:
            nonlocal finishing
            if finishing is not None:
                task, future = finishing
                finishing = None
                self._take(task, future.result())

        try:
            while True:
                if loading is None:
                    loading = self._next(queue, loader)
                if loading is None and finishing is not None:
                    collect()
                    continue
                if loading is None:
                    break
                started = loading.result()
                loading = None
                if started is None:  # the data has ended
                    break
                loading = self._next(queue, loader)
                if started.done is None or started.task.id in self.todo:
                    computed = self._compute(started)
                    collect()
                    finishing = started.task, finisher.submit(self._finish, started, computed)
                    if self.rule is not None:
                        collect()
                else:
                    collect()
                    self._check(started, started.done)
                    self._take(started.task, started.done)
                if self.rule is not None and self.rule.is_enough():
                    break
            collect()
        finally:
            finisher.shutdown()
            loader.shutdown(wait=False, cancel_futures=True)  # a slow loader must not hold an error
        if self.rule is None and self.waiting:
            raise RuntimeError(f"tasks wait for each other: {sorted(self.waiting)[:3]}")
        self._drop(self.fleeting)  # what was made once more beside what was lost
        return self._answers()

    def _next(self, queue: _Queue, loader: ThreadPoolExecutor) -> Future[_Started | None] | None:
        """Begin to load the first task, in the order of the plan, that waits for nothing."""
        task = queue.first(lambda held: not self.waiting.intersection(held.needs))
        return None if task is None else loader.submit(self._load, task)

    def _load(self, task: Task) -> _Started | None:
        context = TaskContext(task, self.store, self._tell, self.keeping)
        done = self.finished.get(task.id) if self.order else self.store.done(task)
        if done is not None and task.id not in self.todo and not task.rereads:
            return _Started(task, Loaded(None), context, done)
        loaded = self.worker.load(task, context)
        if loaded is None:
            return None
        context.input = loaded.digest
        return _Started(task, loaded, context, done)

    def _compute(self, started: _Started) -> Any:
        return self.worker.compute(started.task, started.loaded.value, started.context)

    def _finish(self, started: _Started, computed: Any) -> Done:
        """Make the rows of a task and keep them; of a repeated one the first rows stay."""
        task, context = started.task, started.context
        tables = self.worker.finish(task, computed, context)
        if started.done is not None:
            card = started.done.card.model_copy(update={"artifacts": dict(context.artifacts)})
            self.store.write_card(card)
            return Done(card, started.done.tables)
        card = Card(
            task=task.id, kind=task.kind, input=context.input, artifacts=dict(context.artifacts)
        )
        self.store.write(task, card, tables)
        return Done(card, tables)

    def _check(self, started: _Started, done: Done) -> None:
        """Refuse data that are not those a finished task was done with."""
        if started.task.rereads and done.card.input != started.loaded.digest:
            raise changed(started.loaded.near)
        if not self.order:  # of a stream nothing was known to be done beforehand
            self._tell(started.task.id, "reading", started.task.cost.get(self.unit, 0.0))

    def _take(self, task: Task, done: Done) -> None:
        """A task is finished: others may begin, and what was only for it can go."""
        self.waiting.discard(task.id)
        self.finished[task.id] = done
        if self.rule is not None:
            self.rule.add(done.tables)
        self._drop(self.fleeting.intersection(task.reads))

    def _drop(self, names: Iterable[str]) -> None:
        """Forget those of some artifacts that nobody waits for."""
        for name in names:
            if not self.waiting.intersection(self.readers[name]):
                self.store.drop_artifact(name)

    def _tell(self, task: str, doing: str, done: float) -> None:
        self.spent += done
        self.report(Progress(doing, task, self.spent, max(self.total, self.spent)))

    def _answers(self) -> Answers:
        names = list(self.finished)
        if self.order:
            names.sort(key=self.order.__getitem__)
        return Answers({name: self.finished[name] for name in names})


@dataclass(frozen=True, eq=False)
class _Started:
    """A task whose input is there; `done` if it was finished before."""

    task: Task
    loaded: Loaded
    context: TaskContext
    done: Done | None


class _Queue:
    """Tasks in order, those known so far in a list; of a stream one at a time is known."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.known: list[Task] = list(tasks) if isinstance(tasks, Sequence) else []
        self._more: Iterator[Task] = iter(() if isinstance(tasks, Sequence) else tasks)

    def first(self, is_ready: Callable[[Task], bool]) -> Task | None:
        """Take the first task that is ready out of the queue."""
        if not self.known:
            self.known = list(islice(self._more, 1))
        for place, task in enumerate(self.known):
            if is_ready(task):
                return self.known.pop(place)
        return None


def check_inputs(tasks: Iterable[Task], worker: Worker, inputs: Mapping[str, str]) -> None:
    """Refuse data that are not those of a finished run, whose tasks had these inputs."""
    is_stream = not isinstance(tasks, Sequence)
    for task in tasks:
        if task.id not in inputs and not is_stream:  # a rule ended the run before it
            return
        context = TaskContext(task, Store(Path(), is_lasting=False), lambda *_: None)
        loaded = worker.load(task, context)
        if loaded is None and task.id not in inputs:
            return
        if loaded is None or loaded.digest != inputs.get(task.id):
            raise changed("" if loaded is None else loaded.near)


def changed(near: str) -> FaithscopeError:
    """The sentence for data that are not what they were."""
    where = f" (near the sample '{near}')" if near else ""
    return FaithscopeError(
        f"The data has changed since the run began{where}: choose another folder for a new run."
    )
