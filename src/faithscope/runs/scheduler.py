"""The tasks of a plan: what is done already, what is still to do, in which order.

The scheduler knows no probe and runs nothing: an executor (`local.py`, `ray.py`) asks it for the
next task and brings back what came of it. Only here is a run resumed, its progress counted and its
cost forecast.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from faithscope.errors import FaithscopeError
from faithscope.request.paths import Place
from faithscope.runs.cards import Left
from faithscope.runs.files import AT_ONCE, each
from faithscope.runs.saved import Rows
from faithscope.runs.store import Card, Store
from faithscope.runs.tables import join_tables
from faithscope.runs.task import Outcome, Tables, Task


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
    """The finished tasks in the order of the plan; their rows are read when they are asked for."""

    done: Mapping[str, Card]
    read: Callable[[Card, str], pa.Table | None]
    root: Place = Path()
    """Where they are read from."""
    join: Callable[[str, Iterable[pa.Table]], Rows] = join_tables
    """Makes one table of the rows of all tasks, where the run is kept."""

    def parts(self, table: str) -> Iterator[pa.Table]:
        """The rows of one table, task by task."""
        cards = iter(self.done.values())
        while some := [*islice(cards, AT_ONCE)]:
            for part in each(self.root, lambda card: self.read(card, table), some):
                if part is not None:
                    yield part

    def joined(self, table: str) -> Rows:
        """The rows of all tasks in one table."""
        return self.join(table, self.parts(table))

    @property
    def inputs(self) -> dict[str, str]:
        """The hash of each task's input."""
        return {name: card.input for name, card in self.done.items() if card.input}


@dataclass(frozen=True, eq=False)
class State:
    """What a store holds of some tasks: those done, and those still to do."""

    done: Mapping[str, Card]
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

    def card(task: Task) -> Card | None:
        held = store.done(task)
        return None if held is None else held.card

    found = [*map(card, tasks[:1]), *each(store.root, card, tasks[1:])]
    done = {held.task: held for held in found if held is not None}
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
    left_out: tuple[Left, ...] = ()
    """The methods that are not in the run."""
    compiling: float = 0.0
    """Seconds beside the others, which every process that runs a compiled model takes once."""

    @property
    def duration(self) -> str:
        """The seconds in words."""
        return in_words(self.seconds)

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
        compiling = f" after {in_words(self.compiling)} of compiling" if self.compiling >= 1 else ""
        return f"{amounts}{there}{again}, about {self.duration}{compiling}"


def in_words(seconds: float) -> str:
    """A time in hours, minutes or seconds, of which one is the least.

    >>> in_words(0.2), in_words(100), in_words(9000)
    ('1 s', '2 min', '2.5 h')
    """
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, seconds):.0f} s"


def forecast(
    state: State,
    tasks: Sequence[Task],
    measure: Callable[[], Mapping[str, float]],
    workers: int = 1,
) -> Forecast:
    """Measure a small sample of the work, and multiply."""
    if not state.todo:
        return Forecast({}, 0.0, len(tasks), len(tasks))
    cost, measured = total_cost(state.todo), measure()
    seconds = sum(amount * measured.get(unit, 0.0) for unit, amount in cost.items()) / workers
    compiling = measured.get("compiling", 0.0)
    return Forecast(cost, seconds, len(tasks), len(state.done), state.again, compiling=compiling)


class Scheduler:
    """Knows which tasks are finished, which may begin, and when to stop.

    Args:
        store: keeps what comes out.
        unit: the main unit of cost, in which progress is shown.
        rule: when to stop early; it sees tasks in the order of the plan, whenever they end.
        report: called with where the run is.
    """

    def __init__(
        self,
        store: Store,
        unit: str,
        *,
        rule: StoppingRule | None = None,
        report: Report = lambda _: None,
    ) -> None:
        self.store, self.unit, self.rule, self.report = store, unit, rule, report
        self.failed: dict[str, str] = {}
        """Tasks that were given up, and why."""
        self.is_over = False
        self._rows: dict[str, Tables] = {}
        """Of finished tasks: those that no file has, and those that the rule has not seen yet."""
        self._progress: dict[str, float] = {}
        self._seen = 0
        """How many tasks, in the order of the plan, the rule has seen."""
        self._stream: Iterator[Task] | None = None

    def begin(self, tasks: Sequence[Task]) -> None:
        """Look what is done already of tasks that are all known beforehand."""
        state = look(self.store, tasks)
        self.tasks = list(tasks)
        self.order = {task.id: place for place, task in enumerate(tasks)}
        self.finished: dict[str, Card] = dict(state.done)
        self.todo = {task.id for task in state.todo}
        self.waiting = set(self.todo)
        """Tasks that are not finished, for which others may have to wait."""
        self.open = self.todo | {task.id for task in tasks if task.rereads}
        """Those, and finished ones whose input is to be looked at again."""
        self.total = sum(task.cost.get(self.unit, 0.0) for task in tasks)
        self.spent = self.total - sum(task.cost.get(self.unit, 0.0) for task in state.todo)
        self.fleeting = {made.name for task in tasks for made in task.makes if not made.is_kept}
        self.readers: dict[str, set[str]] = {name: set() for name in self.fleeting}
        self._missing: dict[str, int] = {}
        self._children: dict[str, list[int]] = {}
        for place, task in enumerate(tasks):
            for name in task.reads:
                self.readers.setdefault(name, set()).add(task.id)
            missing = self.waiting.intersection(task.needs) if task.id in self.todo else ()
            self._missing[task.id] = len(missing)
            for name in missing:
                self._children.setdefault(name, []).append(place)
        self._ready = [
            place
            for place, task in enumerate(tasks)
            if task.id in self.open and not self._missing[task.id]
        ]
        self._drop(self.fleeting)  # what a run that was stopped had no time to
        self._advance()

    def begin_stream(self, tasks: Iterator[Task], expected: float) -> None:
        """Take tasks whose data can be read only once, in order, and that end when it does."""
        self.begin(())
        self._stream, self.is_over, self.total = tasks, False, expected

    # What an executor asks for

    def next(self) -> Task | None:
        """The first task, in the order of the plan, that waits for nothing; None if all wait."""
        if self._stream is None:
            return self.tasks[heapq.heappop(self._ready)] if self._ready else None
        task = next(self._stream, None)
        if task is not None:
            self.order[task.id] = len(self.tasks)
            self.tasks.append(task)
            self.open.add(task.id)
            done = self.store.done(task)
            if done is None:
                self.todo.add(task.id)
                self.waiting.add(task.id)
            else:
                self.finished[task.id] = done.card
        return task

    @property
    def has_ready(self) -> bool:
        """Whether a task waits for nothing but a worker."""
        return bool(self._ready)

    def is_done(self, task: Task) -> bool:
        """Whether a task was finished before, so that only its input is looked at again."""
        return task.id not in self.todo

    def tell(self, task: str, doing: str, done: float) -> None:
        """Say what is going on, and how much was just done."""
        self._progress[task] = self._progress.get(task, 0.0) + done
        self.spent += done
        self.report(Progress(doing, task, self.spent, max(self.total, self.spent)))

    # What an executor brings back

    def keep(self, task: Task, outcome: Outcome) -> Card:
        """Write down what came of a task; of a repeated one the first rows stay."""
        artifacts = dict(outcome.artifacts)
        before = self.finished.get(task.id)
        if before is not None:
            card = before.model_copy(update={"artifacts": artifacts})
            self.store.write_card(card)
            return card
        card = Card(task=task.id, kind=task.kind, input=outcome.input, artifacts=artifacts)
        card = self.store.write(task, card, outcome.tables)
        if self.rule is not None or not self.store.is_lasting:
            self._rows[task.id] = outcome.tables
        return card

    def take(self, task: Task, card: Card) -> None:
        """A task is finished: others may begin, and what was only for it can go."""
        self.store.hashes |= card.artifacts
        self.finished[task.id] = card
        self.waiting.discard(task.id)
        self.open.discard(task.id)
        self._progress.pop(task.id, None)
        for place in self._children.pop(task.id, ()):
            name = self.tasks[place].id
            self._missing[name] -= 1
            if not self._missing[name]:
                heapq.heappush(self._ready, place)
        self._drop(self.fleeting.intersection(task.reads))
        self._advance()

    def look_again(self, task: Task, outcome: Outcome) -> None:
        """Refuse data that are not those a finished task was done with."""
        if self.finished[task.id].input != outcome.input:
            raise changed(outcome.near)
        if self._stream is not None:  # nothing was known to be done beforehand
            self.tell(task.id, "reading", task.cost.get(self.unit, 0.0))
        self.open.discard(task.id)
        self._advance()

    def give_back(self, task: Task) -> None:
        """Nothing came of a task, whose worker is gone or busy: another may have it."""
        self.spent -= self._progress.pop(task.id, 0.0)
        heapq.heappush(self._ready, self.order[task.id])

    def give_up(self, task: Task, why: str) -> None:
        """Nothing will come of a task, nor of those that wait for it; the others go on."""
        self.spent -= self._progress.pop(task.id, 0.0)
        self.failed[task.id] = why

    def end_of_data(self, task: Task) -> None:
        """There is no data for the last task of a stream."""
        self.tasks.remove(task)
        self.finished.pop(task.id, None)
        for held in (self.todo, self.waiting, self.open):
            held.discard(task.id)
        if self.store.finished_tasks() - self.finished.keys():  # more than there is now
            raise changed("")
        self.is_over = True

    # The end

    def _advance(self) -> None:
        """Show the rule what follows in the order of the plan, and see whether that is all."""
        while self.rule is not None and self._seen < len(self.tasks):
            task = self.tasks[self._seen]
            if task.id in self.open or self.is_over:
                return
            self.rule.add(self._tables(task))
            self._seen += 1
            self.is_over = self.rule.is_enough()
        if self._stream is None and not self.open:
            self.is_over = True

    def _tables(self, task: Task) -> Tables:
        """The rows of a finished task, for the rule."""
        if task.id in self._rows:
            return self._rows.pop(task.id) if self.store.is_lasting else self._rows[task.id]
        done = self.store.done(task)
        return {} if done is None else done.tables

    def _drop(self, names: Iterable[str]) -> None:
        """Forget those of some artifacts that nobody waits for."""
        for name in names:
            if not self.waiting.intersection(self.readers[name]):
                self.store.drop_artifact(name)

    def answers(self) -> Answers:
        """The finished tasks in the order of the plan, as far as the rule wanted them."""
        if self.failed and not self.is_over:  # what lies behind the end of a rule is not missed
            raise TasksFailed(self.failed, sum(name not in self.failed for name in self.waiting))
        if self.waiting and not self.is_over:
            raise RuntimeError(f"tasks wait for each other: {sorted(self.waiting)[:3]}")
        self._drop(self.fleeting)  # what was made once more beside what was lost
        wanted = self.tasks if self.rule is None else self.tasks[: self._seen]
        return Answers(
            {task.id: self.finished[task.id] for task in wanted},
            self._read,
            self.store.root,
            self.store.join,
        )

    def _read(self, card: Card, table: str) -> pa.Table | None:
        if card.task in self._rows:
            return self._rows[card.task].get(table)
        return self.store.read_table(card, table)


class TasksFailed(FaithscopeError):
    """Some tasks were given up; what is finished is kept."""

    def __init__(self, failed: Mapping[str, str], waiting: int) -> None:
        name, why = next(iter(failed.items()))
        which = f"'{name}'" if len(failed) == 1 else f"{len(failed)} tasks ('{name}', …)"
        others = f", and {waiting} that wait for {'it' if len(failed) == 1 else 'them'}"
        super().__init__(
            f"{which} failed again and again ({why.rstrip('.')}){others if waiting else ''}; the "
            "others are finished: fix the cause, and run the same command to resume."
        )


def changed(near: str) -> FaithscopeError:
    """The sentence for data that are not what they were."""
    where = f" (near the sample '{near}')" if near else ""
    return FaithscopeError(
        f"The data has changed since the run began{where}: choose another folder for a new run."
    )
