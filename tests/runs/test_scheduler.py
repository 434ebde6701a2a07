"""The scheduler on a toy probe: random graphs of tasks, stopped anywhere, with files damaged."""

from __future__ import annotations

import hashlib
import random
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from disasters import cards_in, full_disk, harm, kill_again_and_again, leftovers
from faithscope.errors import FaithscopeError
from faithscope.request import Perturb
from faithscope.runs.cards import MethodCard, MetricCard, Named
from faithscope.runs.local import Local
from faithscope.runs.plan import Plan
from faithscope.runs.scheduler import Answers, Forecast, Progress, Scheduler, forecast, look
from faithscope.runs.store import Store
from faithscope.runs.tables import table_of_rows
from faithscope.runs.task import Artifact, Loaded, Task
from families import refused

PLAN = Plan(
    request=Perturb(model="toy", data="toy"),
    model=Named(name="toy"),
    data=Named(name="toy"),
    methods=(MethodCard(label="toy", name="toy"),),
    metrics=(MetricCard(label="toy", name="toy", higher_is_better=True),),
)
STEPS = 3
pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


class Stopped(Exception):
    """What stands for a kill."""


class Toy:
    """A worker whose answers are hashes of everything that went into them.

    Every call of a stage and every step of one is counted, and any of them can be the last.
    """

    def __init__(self, *, stop_at: int | None = None, data: str = "", seconds: float = 0.0) -> None:
        self.stop_at, self.data, self.seconds = stop_at, data, seconds
        self.calls, self.lock = 0, threading.Lock()
        self.computed: list[str] = []
        self.resumed: list[int] = []

    def _tick(self) -> None:
        time.sleep(self.seconds)
        with self.lock:  # the stages run in threads of their own
            self.calls += 1
            if self.calls == self.stop_at:
                raise Stopped

    def load(self, task: Task, context) -> Loaded | None:
        self._tick()
        if task.arguments.get("last"):
            return None
        held = [context.read(name)[0]["held"] for name in task.reads]
        outside = f"{self.data}{task.id}" if task.rereads else ""
        content = b"".join(part.numpy().tobytes() for part in held) + outside.encode()
        return Loaded(held, hashlib.sha256(content).hexdigest(), near=task.id)

    def compute(self, task: Task, value, context):
        total = torch.tensor([int(hashlib.sha256(task.id.encode()).hexdigest()[:8], 16)])
        step = 0
        if (kept := context.kept()) is not None:
            total, step = kept[0]["total"].clone(), int(kept[1]["step"])
            self.resumed.append(step)
        for number in range(step, STEPS):
            self._tick()
            for part in value:
                total = total * 31 + part.sum() + number
            context.keep(lambda: {"total": total}, {"step": str(number + 1)})  # noqa: B023
            context.report("working", task.cost["steps"] / STEPS)
        self.computed.append(task.id)
        return total

    def finish(self, task: Task, computed, context):
        self._tick()
        for made in task.makes:
            context.write(made.name, {"held": computed + len(made.name)}, {})
        same = {"data": "toy", "model": "toy", "measure": "toy", "seed": 0, "x": 0}
        row = {**same, "kind": task.id, "value": float(int(computed) % 10**9)}
        return {"sparsity": table_of_rows("sparsity", [row])}

    def measure(self) -> dict[str, float]:
        return {"steps": 0.5}


def graph(seed: int, count: int = 12) -> list[Task]:
    """Tasks that read artifacts of earlier ones, some of which are kept."""
    draw = random.Random(seed)
    tasks: list[Task] = []
    for number in range(count):
        earlier = [(task, made) for task in tasks for made in task.makes]
        chosen = draw.sample(earlier, min(len(earlier), draw.randrange(4)))
        makes = [
            Artifact(f"kind/{number}-{i}", draw.random() < 0.3) for i in range(draw.randrange(3))
        ]
        tasks.append(
            Task(
                f"task-{number:03d}",
                "toy",
                needs=tuple(dict.fromkeys(task.id for task, _ in chosen)),
                reads=tuple(made.name for _, made in chosen),
                makes=tuple(makes),
                cost={"steps": 1.0 + number},
                rereads=not chosen and draw.random() < 0.5,
            )
        )
    return tasks


def run(tasks: list[Task], root: Path | None, worker: Toy | None = None, **options):
    with Store.open(root, PLAN) as store:
        scheduler = Scheduler(store, "steps", **options)
        scheduler.begin(tasks)
        Local(worker or Toy()).run(scheduler, keep_every=0.0)
        return with_rows(scheduler.answers())


def with_rows(answers: Answers) -> Answers:
    """The same, with rows that are read while the store is open."""
    held = {card.task: answers.read(card, "sparsity") for card in answers.done.values()}
    return Answers(answers.done, lambda card, _: held[card.task])


def rows(answers) -> list[dict]:
    return [row for part in answers.parts("sparsity") for row in part.to_pylist()]


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_give_the_same_rows_wherever_they_are_stopped(seed, tmp_path):
    tasks, draw, root = graph(seed), random.Random(seed), tmp_path / "run"
    expected = rows(run(tasks, None))
    assert [row["kind"] for row in expected] == [task.id for task in tasks]
    for stops in range(1000):
        try:
            found = run(tasks, root, Toy(stop_at=draw.randrange(1, 40)))
            break
        except Stopped:
            assert stops < 100
    assert rows(found) == expected
    left = {file.stem for file in (root / "artifacts").rglob("*.safetensors")}
    kept = {made.name for task in tasks for made in task.makes if made.is_kept}
    assert {f"kind/{name}" for name in left} == kept
    assert not list(root.glob("states/*"))
    again = Toy()
    assert rows(run(tasks, root, again)) == expected
    assert again.computed == []


@pytest.mark.parametrize("seed", range(25))
def test_damaged_files_are_named_and_made_again(seed, tmp_path):
    tasks, draw, root = graph(seed), random.Random(seed), tmp_path / "run"
    expected = rows(run(tasks, None))
    with pytest.raises(Stopped):
        run(tasks, root, Toy(stop_at=40))
    folders = ("tasks", "artifacts", "states")
    there = sorted(file for part in folders for file in root.glob(f"{part}/**/*.*"))
    for file in draw.sample(there, min(3, len(there))):
        place = draw.randrange(file.stat().st_size)
        harm(file, draw.choice(["gone", "cut", "flipped"]), place, draw.randrange(1, 256))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert rows(run(tasks, root)) == expected


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_rows(tmp_path):
    tasks = graph(7, 30)
    expected = rows(run(tasks, None))
    work = partial(run, tasks, worker=Toy(seconds=0.003))
    kill_again_and_again(work, tmp_path, times=8, done=cards_in)
    assert rows(run(tasks, tmp_path)) == expected


def test_a_task_goes_on_from_its_last_kept_state(tmp_path):
    tasks = [Task("only", "toy", cost={"steps": 1.0})]
    with pytest.raises(Stopped):
        run(tasks, tmp_path, Toy(stop_at=4))  # loaded, two steps done, stopped in the third
    worker = Toy()
    assert rows(run(tasks, tmp_path, worker)) == rows(run(tasks, None))
    assert worker.resumed == [2]


def test_a_lost_artifact_is_made_again_and_the_first_rows_stay(tmp_path):
    tasks = [
        Task("a", "toy", makes=(Artifact("held"),), cost={"steps": 1.0}),
        Task("b", "toy", needs=("a",), reads=("held",), cost={"steps": 1.0}),
    ]
    with pytest.raises(Stopped):
        run(tasks, tmp_path, Toy(stop_at=7))  # a is done, b has begun
    (tmp_path / "artifacts" / "held.safetensors").unlink()
    with Store.open(tmp_path, PLAN) as store:
        state = look(store, tasks)
        assert [task.id for task in state.todo] == ["a", "b"] and state.again == 1
        told = str(forecast(state, tasks, Toy().measure))
    assert told == "2 steps (1 of 2 tasks finished), 1 of them to be done again, about 1 s"
    worker = Toy()
    assert rows(run(tasks, tmp_path, worker)) == rows(run(tasks, None))
    assert worker.computed == ["a", "b"]


def test_changed_data_is_refused_and_what_is_finished_stays(tmp_path):
    tasks = [Task(f"t{i}", "toy", cost={"steps": 1.0}, rereads=True) for i in range(4)]
    with pytest.raises(Stopped):
        run(tasks, tmp_path, Toy(stop_at=14))
    before = sorted(tmp_path.glob("tasks/*.json"))
    with refused("data has changed", "'t0'", "another folder"):
        run(tasks, tmp_path, Toy(data="other"))
    assert sorted(tmp_path.glob("tasks/*.json")) == before
    answers = run(tasks, tmp_path)
    Local(Toy()).check_inputs(tasks, answers.inputs)
    with refused("data has changed"):
        Local(Toy(data="other")).check_inputs(tasks, answers.inputs)


def stream(count: int) -> Iterator[Task]:
    for number in range(count + 1):
        last = {"last": True} if number == count else {}
        yield Task(f"part-{number}", "toy", last, cost={"steps": 1.0}, rereads=True)


def run_stream(worker: Toy, store: Store) -> list[dict]:
    scheduler = Scheduler(store, "steps")
    scheduler.begin_stream(stream(5), 5.0)
    Local(worker).run(scheduler, keep_every=5.0)
    return rows(scheduler.answers())


def test_a_stream_of_tasks_ends_with_its_data_and_is_resumed(tmp_path):
    with Store.open(None, PLAN) as store:
        expected = run_stream(Toy(), store)
    assert len(expected) == 5
    with Store.open(tmp_path, PLAN) as store, pytest.raises(Stopped):
        run_stream(Toy(stop_at=14), store)
    with Store.open(tmp_path, PLAN) as store:
        worker = Toy()
        assert run_stream(worker, store) == expected
        assert 0 < len(worker.computed) < 5


class Enough:
    """A rule that wants so many tasks."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, []

    def add(self, tables) -> None:
        self.seen.append(tables["sparsity"]["kind"].to_pylist()[0])

    def is_enough(self) -> bool:
        return len(self.seen) >= self.count


@pytest.mark.parametrize("stop_at", [None, 8, 13])
def test_a_rule_sees_tasks_in_order_and_drops_the_later_ones(tmp_path, stop_at):
    tasks = [Task(f"t{i}", "toy", cost={"steps": 1.0}) for i in range(6)]
    if stop_at is not None:
        with pytest.raises(Stopped):
            run(tasks, tmp_path, Toy(stop_at=stop_at), rule=Enough(4))
    rule = Enough(4)
    answers = run(tasks, tmp_path, rule=rule)
    assert rule.seen == list(answers.done) == ["t0", "t1", "t2", "t3"]


def test_progress_rises_to_the_whole_cost(tmp_path):
    tasks, told = graph(3), list[Progress]()
    run(tasks, tmp_path, report=told.append)
    total = sum(task.cost["steps"] for task in tasks)
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert told[-1].done == pytest.approx(total) == told[-1].total


def test_a_full_disk_costs_nothing_that_is_finished(tmp_path):
    tasks = graph(5)
    expected = rows(run(tasks, None))
    with full_disk(25), refused("No space left", "kept"):
        run(tasks, tmp_path)
    assert list(tmp_path.glob("tasks/*.json"))
    assert not leftovers(tmp_path)
    assert rows(run(tasks, tmp_path)) == expected


def test_an_error_of_a_task_keeps_the_others(tmp_path):
    class Broken(Toy):
        def compute(self, task, value, context):
            if task.id == "t2":
                raise FaithscopeError("t2 cannot be done.")
            return super().compute(task, value, context)

    tasks = [Task(f"t{i}", "toy", cost={"steps": 1.0}) for i in range(4)]
    with refused("t2 cannot be done"):
        run(tasks, tmp_path, Broken())
    assert [file.stem for file in sorted(tmp_path.glob("tasks/*.json"))] == ["t0", "t1"]


def test_tasks_that_wait_for_each_other_are_an_error():
    tasks = [Task("a", "toy", needs=("b",)), Task("b", "toy", needs=("a",))]
    with pytest.raises(RuntimeError, match="wait for each other"):
        run(tasks, None)


def test_a_forecast_in_words():
    cost = {"images": 1.0, "model passes": 28.0, "explaining": 3.0}
    assert str(Forecast(cost, 100.0, 2)) == "1 image, 28 model passes, about 2 min"
    assert str(Forecast({}, 0.0, 2, 2)) == "finished: nothing to do"
    assert Forecast(cost, 7200.0, 1).duration == "2.0 h"
