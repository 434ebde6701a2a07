"""A run in progress on Ray: which worker has which tasks, and what comes of them.

Workers, machines and tasks may fail: a task that its worker did not survive is given to another
one, alone, and given up after a few tries; what is finished stays finished.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from faithscope.errors import FaithscopeError, shortened
from faithscope.runs.ray_worker import Errand, Failure, Job, News
from faithscope.runs.scheduler import Scheduler
from faithscope.runs.task import Task

TRIES = 3
"""How often a task may fail, or its worker die, before it is given up."""
FILE_TRIES, PAUSE = 5, 0.5
"""The same of a task whose files fail; seconds until its second try, twice as many each time."""
MOST_GIVEN_UP = 8
"""Tasks that may be the death of workers, one after the other, before the run is ended."""
AT_ONCE = 3
"""Tasks that a worker has in its stages: any of them may have been its death."""
SHALLOWEST, DEEPEST, AHEAD = 2, 64, 0.5
"""Tasks in the inbox of a worker: at least, at most, and seconds that they should last."""
TICK = 1.0
"""Seconds after which the driver looks around, if nothing happens."""
PATIENCE = 60.0
"""Seconds without a worker after which the driver says so."""
SILENCE = 300.0
"""Seconds after which a worker that answers nothing is taken for dead."""
LONELY = 600.0
"""Seconds without a worker after which the run is ended."""


class Workers(Protocol):
    """What a run needs of those who hire its workers (`ray.Crew`)."""

    need: Any
    """What each of them holds, in words."""
    actors: list[Any]

    @property
    def workers(self) -> int:
        """How many there should be now."""

    @property
    def planner(self) -> Any:
        """The one that made the plan, and needs nothing sent."""

    def start_actor(self) -> Any:
        """One more."""

    def forget(self, actor: Any) -> None:
        """One less."""

    def value(self, reply: Any) -> Any:
        """What a worker answered, or its error."""

    def warn(self, texts: Sequence[str]) -> None:
        """Pass on what workers warned of."""


@dataclass(eq=False)
class Seat:
    """One worker, as the driver sees it."""

    actor: Any
    asked: Any
    """The call that it has not answered yet: to begin, then for news."""
    tasks: dict[str, Task] = field(default_factory=dict)
    """What is in its inbox or in its stages, in order."""
    is_ready: bool = False
    recall: Any = None
    begun: set[str] = field(default_factory=set)
    """Tasks that were recalled in vain."""
    pace: float = 1.0
    """Seconds that it takes for a task."""
    heard: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)
    """When it was asked what it has not answered yet."""

    @property
    def depth(self) -> int:
        """Tasks that it should have."""
        return min(DEEPEST, max(SHALLOWEST, math.ceil(AHEAD / max(self.pace, 1e-6))))


class Shift:
    """A run in progress: who does what, and what comes of it."""

    def __init__(self, crew: Workers, scheduler: Scheduler, job: Job, kit: Any) -> None:
        self.crew, self.scheduler, self.job, self.kit = crew, scheduler, job, kit
        self.seats: list[Seat] = []
        self.tries: Counter[tuple[str, int]] = Counter()
        self.suspects: set[str] = set()
        """Tasks in whose company a worker died: they are tried alone."""
        self.alone: list[Task] = []
        """Suspects that wait for a worker with nothing else to do."""
        self.later: list[tuple[float, Task]] = []
        """Tasks that are to be tried again, and when."""
        self.deaths = 0
        """Workers that died of tasks since one was finished."""
        self.stillborn = 0
        """How often workers did not come to begin, since one did."""
        self.target = 0
        self.counted = 0.0
        self.pause = 0.0
        """Until when no worker is started."""
        self.manned = time.monotonic()
        """When there was a worker last."""

    def work(self) -> None:
        """Keep every worker busy until nothing is left to do."""
        while not self.scheduler.is_over:
            self._wake()
            self._check_silence()
            self._fill()
            self._assign()
            if not (self.alone or self.later or any(seat.tasks for seat in self.seats)):
                if not self.scheduler.has_ready:
                    return  # what is left waits for tasks that were given up
            self._check_manned()
            self._listen()

    def end(self) -> None:
        """Let the workers leave what nobody wants any more."""
        for seat in self.seats:
            seat.actor.rest.remote(self.job.number)

    def _check_silence(self) -> None:
        """Part with workers that say nothing: one that computes still answers."""
        now = time.monotonic()
        for seat in [held for held in self.seats if held.is_ready]:
            if now - seat.since > SILENCE:
                self._lose(seat, RuntimeError(f"it said nothing for {SILENCE / 60:.0f} minutes"))

    def _check_manned(self) -> None:
        now = time.monotonic()
        if any(seat.is_ready for seat in self.seats):
            self.manned = now
        elif now - self.manned > LONELY:
            raise no_worker(self.crew.need)
        elif now - self.manned > PATIENCE:
            self.crew.warn(["No worker is left, and Ray has started no other yet."])

    # Workers

    def _fill(self) -> None:
        """Have as many workers as there is room for: machines come and go."""
        now = time.monotonic()
        if now - self.counted > TICK:
            self.target, self.counted = self.crew.workers, now
        if now < self.pause:
            return
        taken = [seat.actor for seat in self.seats]
        free = [actor for actor in self.crew.actors if actor not in taken]
        while len(self.seats) < min(self.target, len(self.scheduler.open)):
            actor = free.pop(0) if free else self.crew.start_actor()
            kit = None if actor is self.crew.planner else self.kit
            self.seats.append(Seat(actor, actor.begin.remote(self.job, kit)))

    def _lose(self, seat: Seat, error: Exception, culprit: Task | None = None) -> None:
        """A worker is gone: its tasks go to others, those that it may have died of alone."""
        self.seats.remove(seat)
        self.crew.forget(seat.actor)
        if not seat.is_ready:  # on a machine where something is missing, which others need not be
            if time.monotonic() >= self.pause:  # those that go together count once
                self.stillborn += 1
                self.pause = time.monotonic() + min(2.0**self.stillborn, PATIENCE)
            if self.stillborn >= TRIES and not any(held.is_ready for held in self.seats):
                raise died(error)
            return
        self.deaths += 1
        if self.deaths > TRIES * max(MOST_GIVEN_UP, self.target):
            raise died(error)
        tasks = list(seat.tasks.values())
        if culprit is None and len(tasks) == 1:
            self._fail(tasks[0], f"its worker died: {reason_of(error)}")
            return
        for place, task in enumerate(tasks):
            if task is culprit:
                self._fail(task, str(error))
                continue
            if culprit is None and place < AT_ONCE:  # it may have been any of these
                self.suspects.add(task.id)
            self.scheduler.give_back(task)

    def _fail(self, task: Task, why: str, *, tries: int = TRIES, pause: float = 0.0) -> None:
        kind = task.id, tries
        self.tries[kind] += 1
        if self.tries[kind] >= tries:
            self.scheduler.give_up(task, why)
        else:
            self.suspects.add(task.id)
            wait = pause * 2 ** (self.tries[kind] - 1)
            self.later.append((time.monotonic() + wait, task))

    def _wake(self) -> None:
        """Let tasks whose pause is over be tried again."""
        now = time.monotonic()
        for due, task in [held for held in self.later if held[0] <= now]:
            self.later.remove((due, task))
            self.scheduler.give_back(task)

    # Handing out

    def _assign(self) -> None:
        """Fill inboxes evenly, as deep as they should be; suspects have a worker to themselves."""
        pushed: dict[int, list[Errand]] = {}
        ready = [seat for seat in self.seats if seat.is_ready and not self._is_quarantined(seat)]
        while ready:
            seat = min(ready, key=lambda held: len(held.tasks))
            if self.alone:
                if not seat.tasks:
                    self._give(seat, self.alone.pop(), pushed)
                ready.remove(seat)  # or it is left to run dry
                continue
            if len(seat.tasks) >= seat.depth:
                break
            task = self.scheduler.next()
            if task is None:
                self._recall(ready)
                break
            if task.id in self.suspects:
                self.alone.append(task)
            else:
                self._give(seat, task, pushed)
        for place, errands in pushed.items():
            self.seats[place].actor.push.remote(self.job.number, errands)

    def _is_quarantined(self, seat: Seat) -> bool:
        return any(name in self.suspects for name in seat.tasks)

    def _give(self, seat: Seat, task: Task, pushed: dict[int, list[Errand]]) -> None:
        if not seat.tasks:
            seat.heard = time.monotonic()
        seat.tasks[task.id] = task
        known = self.scheduler.store.hashes
        hashes = {name: known[name] for name in task.reads if name in known}
        errand = Errand(task, hashes, self.scheduler.is_done(task))
        pushed.setdefault(self.seats.index(seat), []).append(errand)

    def _recall(self, ready: Sequence[Seat]) -> None:
        """Nothing is left for an idle worker: ask the busiest one for the last of its tasks."""
        if all(seat.tasks for seat in ready) or any(seat.recall for seat in ready):
            return
        busiest = max(ready, key=lambda held: len(held.tasks))
        *others, last = busiest.tasks or [""]
        if others and last not in busiest.begun:
            busiest.recall = busiest.actor.recall.remote(self.job.number, last)

    # Taking in

    def _listen(self) -> None:
        """Wait until a worker says something, and hear all that have."""
        calls = {seat.asked: seat for seat in self.seats}
        calls |= {seat.recall: seat for seat in self.seats if seat.recall is not None}
        if not calls:
            time.sleep(TICK / 10)
            return
        heard, _ = ray.wait(list(calls), timeout=TICK)
        heard, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0) if heard else ([], [])
        for call in heard:
            if calls[call] in self.seats and not self.scheduler.is_over:
                self._hear(calls[call], call)

    def _hear(self, seat: Seat, call: Any) -> None:
        try:
            value = ray.get(call)
        except RayError as error:
            self._lose(seat, error)
            return
        if call is seat.recall:
            name, is_given_back = value
            seat.recall = None
            if is_given_back:
                self.scheduler.give_back(seat.tasks.pop(name))
            else:
                seat.begun.add(name)
            return
        if not seat.is_ready:
            self.crew.value(value)
            seat.is_ready = True
            self.stillborn = 0
        else:
            self._take(seat, value)
        if seat in self.seats:
            seat.asked = seat.actor.poll.remote(self.job.number)
            seat.since = time.monotonic()

    def _take(self, seat: Seat, news: News) -> None:
        self.crew.warn(news.warnings)
        for name, (doing, done) in news.progress.items():
            if name in seat.tasks:
                self.scheduler.tell(name, doing, done)
        for name, outcome in news.looked:
            self.scheduler.look_again(seat.tasks.pop(name), outcome)
        for name, outcome in news.done:
            task = seat.tasks.pop(name)
            self.scheduler.take(task, self.scheduler.keep(task, outcome))
            self.suspects.discard(name)
            self.deaths = 0
        count = len(news.done) + len(news.looked)
        if count:
            now = time.monotonic()
            seat.pace = 0.5 * seat.pace + 0.5 * (now - seat.heard) / count
            seat.heard = now
        for name, failure in news.failed:
            if seat in self.seats:
                self._take_failure(seat, seat.tasks[name], failure)

    def _take_failure(self, seat: Seat, task: Task, failure: Failure) -> None:
        if failure.is_final:
            raise FaithscopeError(failure.why)
        if failure.is_of_worker:  # a GPU that has failed once fails for ever
            self._lose(seat, RuntimeError(failure.why), culprit=task)
        else:
            del seat.tasks[task.id]
            self._fail(task, failure.why, tries=FILE_TRIES, pause=PAUSE)


def reason_of(error: Exception) -> str:
    """What Ray says of a death, in a line."""
    if "low on memory" in str(error):
        return "its machine ran out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return shortened(last.partition(" There are some potential root causes")[0], 300).rstrip(".")


def broke(error: Exception) -> FaithscopeError:
    """The sentence for an error of a worker that nobody expected."""
    return FaithscopeError(
        f"A worker on Ray cannot plan the run ({reason_of(error)}): see that every machine has the "
        "same packages, files and modules as this one, or run without on='ray' to see where it is."
    )


def died(error: Exception) -> FaithscopeError:
    """The sentence for workers that do not live."""
    return FaithscopeError(
        f"The workers on Ray die ({reason_of(error)}): see that every machine has faithscope and "
        "memory enough; what is finished is kept, and the same command resumes it."
    )


def no_worker(need: object) -> FaithscopeError:
    """The sentence for a cluster that is full, or gone."""
    return FaithscopeError(
        f"Ray has started no worker with {need} for {LONELY / 60:.0f} minutes: see `ray status`; "
        "what is finished is kept, and the same command resumes it."
    )
