"""The driver's bookkeeping without Ray: workers that are slow, die and fail in any order.

Each worker is a real `Desk` whose stages and calls are moved on one at a time, as a die decides.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError

from faithscope.runs import ray_shift as driver
from faithscope.runs import ray_worker
from faithscope.runs.ray import Need
from faithscope.runs.ray_shift import Shift
from faithscope.runs.ray_worker import Desk, News, Reply
from faithscope.runs.scheduler import Scheduler, TasksFailed
from faithscope.runs.store import Store, StoreError
from faithscope.runs.tables import table_of_rows
from faithscope.runs.task import Artifact, Outcome, Task


def graph(draw: random.Random, count: int) -> list[Task]:
    """Tasks that read what earlier ones left."""
    tasks: list[Task] = []
    for number in range(count):
        earlier = [(task, made) for task in tasks for made in task.makes]
        chosen = draw.sample(earlier, min(len(earlier), draw.randrange(3)))
        makes = [Artifact(f"a/{number}-{i}", draw.random() < 0.3) for i in range(draw.randrange(3))]
        tasks.append(
            Task(
                f"task-{number:02d}",
                "toy",
                needs=tuple(dict.fromkeys(task.id for task, _ in chosen)),
                reads=tuple(made.name for _, made in chosen),
                makes=tuple(makes),
                cost={"steps": 1.0},
            )
        )
    return tasks


@dataclass(eq=False)
class Call:
    """A call of a worker, answered some time."""

    answer: Callable[[], Any]
    value: Any = None
    is_answered: bool = False


@dataclass(eq=False)
class FakeWorker:
    """An actor without a process."""

    world: World
    desk: Desk = field(default_factory=Desk)
    calls: list[Call] = field(default_factory=list)
    is_dead: bool = False
    loading: Task | None = None
    computing: Task | None = None
    finishing: Task | None = None

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._called(f"on_{name}", *args))

    def _called(self, name: str, *args: Any) -> Call:
        call = Call(lambda: getattr(type(self), name)(self, *args))
        self.calls.append(call)
        return call

    def on_begin(self, job: Any, kit: Any) -> Reply:
        self.desk = Desk(self.world.store, job.number)
        return Reply()

    def on_push(self, job: int, errands: Any) -> None:
        self.desk.push(errands)

    def on_recall(self, job: int, task: str) -> tuple[str, bool]:
        return task, self.desk.recall(task)

    def on_poll(self, job: int) -> News:
        return self.desk.news()

    def on_rest(self, job: int) -> None:
        self.desk.close()

    def die(self) -> None:
        self.is_dead = True
        for call in self.calls:
            call.value, call.is_answered = ActorDiedError(), True

    def move(self) -> None:
        """One of the stages does something, or a call is answered; calls come in any order."""
        draw = self.world.draw
        waiting = [call for call in self.calls if not call.is_answered]
        if waiting and draw.random() < 0.6:
            call = draw.choice(waiting)
            call.value, call.is_answered = call.answer(), True
            return
        stage = draw.choice(["load", "begin", "compute", "finish"])
        if stage == "load" and self.loading is None:
            self.loading = self.desk.next(wait=False)
        elif stage == "begin" and self.loading is not None and self.computing is None:
            task, self.loading = self.loading, None
            if self.desk.begins(task):
                self.computing = task
                if task.id in self.world.deadly:
                    self.die()
        elif stage == "compute" and self.computing is not None and self.finishing is None:
            task, self.computing = self.computing, None
            if task.id in self.world.broken:
                self.desk.fail(task, ValueError("broken"))
            elif self.world.mishap(0.05):
                self.desk.fail(task, StoreError("the disk does not answer"))
            else:
                self.finishing = task
        elif stage == "finish" and self.finishing is not None:
            task, self.finishing = self.finishing, None
            self.desk.take(task, self.world.outcome(task))


class World:
    """A store, a die, and what Ray would do."""

    def __init__(self, draw: random.Random, folder: Path, tasks: list[Task]) -> None:
        self.draw, self.store = draw, Store(folder, is_lasting=False)
        self.tasks = {task.id: task for task in tasks}
        names = [task.id for task in tasks]
        self.deadly = {*draw.choices(names, k=draw.choice([0, 0, 1, 2]))}
        self.broken = {*draw.choices(names, k=draw.choice([0, 0, 1]))} - self.deadly
        self.left = 1 if self.deadly else 2
        self.actors: list[FakeWorker] = []
        self.now = 0.0
        self.shift: Shift | None = None
        self.need, self.planner, self.workers = Need(1, 0), None, draw.randrange(1, 4)
        self.warned: list[str] = []

    def mishap(self, chance: float) -> bool:
        """Whether something goes wrong that goes well the next time."""
        happens = self.left > 0 and self.draw.random() < chance
        self.left -= happens
        return happens

    def outcome(self, task: Task) -> Outcome:
        """Depends on everything that the task reads; one that was dropped too early is missed."""
        held = hashlib.sha256(task.id.encode())
        for name in task.reads:
            held.update(self.store.read_artifact(name)[0]["held"].numpy().tobytes())
        number = int(held.hexdigest()[:8], 16)
        left = {
            made.name: self.store.write_artifact(made.name, {"held": torch.tensor([number])}, {})
            for made in task.makes
        }
        same = {"data": "toy", "model": "toy", "measure": "toy", "seed": 0, "x": 0}
        row = {**same, "kind": task.id, "value": float(number)}
        return Outcome(task.id, {"sparsity": table_of_rows("sparsity", [row])}, left)

    # As a crew

    def start_actor(self) -> FakeWorker:
        self.actors.append(FakeWorker(self))
        return self.actors[-1]

    def forget(self, actor: FakeWorker) -> None:
        actor.is_dead = True
        self.actors.remove(actor)

    def value(self, reply: Reply) -> Any:
        return reply.value

    def warn(self, texts: Any) -> None:
        self.warned += texts

    # As Ray, and as the clock

    def wait(self, calls: list[Call], *, num_returns: int = 1, timeout: float) -> Any:
        self.check()
        for _ in range(2000 if timeout else 0):
            alive = [actor for actor in self.actors if not actor.is_dead]
            if any(call.is_answered for call in calls) and self.draw.random() < 0.3:
                break
            if not alive:
                break
            actor = self.draw.choice(alive)
            if self.mishap(0.01):
                actor.die()
            else:
                actor.move()
        self.now += 0.1
        return [call for call in calls if call.is_answered], []

    def get(self, call: Call) -> Any:
        if isinstance(call.value, Exception):
            raise call.value
        return call.value

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self) -> None:
        """No task is with two workers, or finished and still with one."""
        assert self.shift is not None
        held = Counter(name for seat in self.shift.seats for name in seat.tasks)
        held.update(task.id for task in self.shift.alone)
        held.update(task.id for _, task in self.shift.later)
        assert all(count == 1 for count in held.values())
        assert not held.keys() & self.shift.scheduler.failed.keys()
        assert held.keys() <= self.shift.scheduler.open


class Rule:
    """Enough is enough."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, list[str]()

    def add(self, tables: Any) -> None:
        self.seen += tables["sparsity"]["kind"].to_pylist()

    def is_enough(self) -> bool:
        return len(self.seen) >= self.count


def run(world: World, tasks: list[Task], rule: Rule | None = None) -> tuple[Scheduler, Counter]:
    scheduler, finished = Scheduler(world.store, "steps", rule=rule), Counter()
    scheduler.begin(tasks)
    drop, take = world.store.drop_artifact, scheduler.take

    def drop_artifact(name: str) -> None:
        for task in tasks:
            assert name not in task.reads or task.id not in scheduler.waiting
        drop(name)

    def taken(task: Task, card: Any) -> None:
        finished[task.id] += 1
        take(task, card)

    job = SimpleNamespace(number=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "drop_artifact", drop_artifact)
        patch.setattr(scheduler, "take", taken)
        patch.setattr(driver, "ray", world)
        patch.setattr(driver, "time", world)
        patch.setattr(ray_worker, "PROGRESS", 0)
        patch.setattr(ray_worker, "LINGER", 0)
        world.shift = Shift(world, scheduler, job, None)
        world.shift.work()
    return scheduler, finished


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("store")


@settings(max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_every_task_is_finished_once_or_given_up(seed, folders):
    draw = random.Random(seed)
    tasks = graph(draw, draw.randrange(1, 14))
    world = World(draw, folders(), tasks)
    scheduler, finished = run(world, tasks)
    bad = world.deadly | world.broken
    lost = set(bad)
    for task in tasks:  # in order: what needs a lost one is lost
        if lost.intersection(task.needs):
            lost.add(task.id)
    assert finished == Counter(task.id for task in tasks if task.id not in lost)
    assert scheduler.failed.keys() == {
        name for name in bad if not lost.intersection(world.tasks[name].needs)
    }
    if lost:
        with pytest.raises(TasksFailed):
            scheduler.answers()
        return
    answers = scheduler.answers()
    rows = [row for part in answers.parts("sparsity") for row in part.to_pylist()]
    calm = World(random.Random(0), folders(), tasks)
    calm.deadly, calm.broken, calm.left = set(), set(), 0
    expected = [calm.outcome(task).tables["sparsity"].to_pylist()[0] for task in tasks]
    assert rows == expected
    left = {str(file.stem) for file in world.store.root.glob("artifacts/a/*")}
    assert left == {made.name[2:] for task in tasks for made in task.makes if made.is_kept}


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_a_rule_sees_tasks_in_order_and_what_fails_behind_its_end_is_not_missed(seed, folders):
    draw = random.Random(seed)
    tasks = [
        Task(f"task-{i:02d}", "toy", cost={"steps": 1.0}) for i in range(draw.randrange(2, 12))
    ]
    world = World(draw, folders(), tasks)
    count = draw.randrange(1, len(tasks) + 1)
    rule = Rule(count)
    bad = sorted(world.deadly | world.broken)
    scheduler, finished = run(world, tasks, rule)
    names = [task.id for task in tasks]
    if bad and names.index(bad[0]) < count:
        with pytest.raises(TasksFailed):
            scheduler.answers()
    else:
        assert rule.seen == names[:count] == list(scheduler.answers().done)
    assert max(finished.values(), default=1) == 1
