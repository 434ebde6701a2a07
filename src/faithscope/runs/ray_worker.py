"""A worker on Ray: one process per device, which plans, or runs tasks through its three stages.

The driver (`ray.py`) pushes tasks into its inbox and polls what came of them: neither is one call
a task. Rows go back to the driver; artifacts and states are written to the store from here.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch

from faithscope.data.images import loaders_named
from faithscope.errors import FaithscopeError, said
from faithscope.models.memory import enough_memory
from faithscope.registry import registries
from faithscope.request import as_place
from faithscope.runs.executor import Planned
from faithscope.runs.files import StoreError
from faithscope.runs.local import Local
from faithscope.runs.machine import hold_memory
from faithscope.runs.plan import Plan
from faithscope.runs.sending import Sent, packed, unpacked
from faithscope.runs.stages import run_stages
from faithscope.runs.store import Store, sees_run
from faithscope.runs.task import Outcome, Task
from faithscope.version import __version__

PROGRESS = 0.5
"""Seconds between two words about progress."""
LINGER = 0.05
"""Seconds to wait for more to tell, while there is more to do."""


@dataclass(frozen=True)
class Home:
    """Where the driver is, for a worker that may be elsewhere."""

    folder: str
    path: tuple[str, ...]
    threads: int
    version: str


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer to a call: a value, or the sentence that says why there is none."""

    value: Any = None
    error: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Job:
    """What a worker must know of a run beside its tasks."""

    number: int
    """Later jobs of a process have higher ones."""
    root: str
    plan: Plan
    is_lasting: bool
    uses_store: bool
    keep_every: float


@dataclass(frozen=True, eq=False)
class Errand:
    """A task for a worker, and the hashes of the artifacts that it reads."""

    task: Task
    hashes: Mapping[str, str]
    is_done: bool = False
    """Whether only its input is to be looked at."""


@dataclass(eq=False)
class News:
    """What happened since the driver asked last."""

    done: list[tuple[str, Outcome]] = field(default_factory=list)
    looked: list[tuple[str, Outcome]] = field(default_factory=list)
    failed: list[tuple[str, Failure]] = field(default_factory=list)
    progress: dict[str, tuple[str, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_urgent(self) -> bool:
        """Whether the driver can do something about it."""
        return bool(self.done or self.looked or self.failed)


@dataclass(frozen=True)
class Failure:
    """Why a task came to nothing, and what to do about it."""

    why: str
    is_final: bool
    """A sentence for whoever asked: trying again is no use."""
    is_of_worker: bool
    """An error that nobody expected: the process may be broken."""


def answered(method: Callable[..., Any]) -> Callable[..., Reply]:
    """Let a call answer with a sentence instead of an error, and with its warnings."""

    @wraps(method)
    def call(self: RayWorker, *args: Any) -> Reply:
        try:
            with enough_memory(), loaders_named():
                value = method(self, *args)
        except FaithscopeError as error:
            return Reply(error=str(error), reason=error.reason, warnings=self._warned())
        return Reply(value, warnings=self._warned())

    return call


class RayWorker:
    """The actor."""

    def __init__(self, home: Home) -> None:
        hold_memory()
        if os.path.isdir(home.folder):
            os.chdir(home.folder)
        sys.path += [held for held in home.path if held not in sys.path]
        self.home = home
        self.desk = Desk()
        self.planned: Planned | None = None
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()
        torch.set_num_threads(home.threads)
        warnings.showwarning = lambda message, *_, **__: self.desk.warn(str(message))
        warnings.simplefilter("always", UserWarning)

    @answered
    def about(self) -> dict[str, frozenset[str]]:
        """What is registered here, by its kind."""
        self._check_version()
        return {kind: frozenset(held) for kind, held in registries().items()}

    def _check_version(self) -> None:
        if self.home.version != __version__:
            raise FaithscopeError(
                f"'{platform.node()}' has faithscope {__version__}, and not "
                f"{self.home.version}: install the same version on all machines."
            )

    @answered
    def learn(self, entries: Sent) -> None:
        """Register what the driver has registered of its own."""
        known = registries()
        for kind, held in unpacked(entries).items():
            for name, item in held.items():
                if name not in known[kind]:
                    known[kind].register(name, item)

    # Planning

    @answered
    def prepare(self, make: Sent) -> Sent:
        """Plan here, where the devices are; everything but the worker is told."""
        torch.set_num_threads(self.home.threads)
        self.planned = unpacked(make)()
        if not isinstance(self.planned.tasks, list):
            raise FaithscopeError(
                "A loader can be read only once, in order, which several workers cannot: give the "
                "images as a tensor, a list, a data set or a folder."
            )
        return packed(replace(self.planned, worker=None))

    @answered
    def change(self, change: Sent) -> Sent:
        """Change the plan, as for a folder in which it was begun."""
        self.planned = unpacked(change)(self.planned)
        return packed(replace(self.planned, worker=None))

    @answered
    def kit(self) -> Sent:
        """The worker that was made ready, for others to have."""
        return packed(self._local.worker)

    @answered
    def measure(self) -> Mapping[str, float]:
        """Seconds that a unit of cost takes here."""
        return self._local.measure()

    @answered
    def check_inputs(self, tasks: Sequence[Task], inputs: Mapping[str, str]) -> None:
        """Refuse data that are not those of a finished run."""
        self._local.check_inputs(tasks, inputs)

    @property
    def _local(self) -> Local:
        assert self.planned is not None and self.planned.worker is not None
        return Local(self.planned.worker, self.planned.plan.threads)

    # Working

    @answered
    def begin(self, job: Job, kit: Sent | None) -> None:
        """Make ready to run tasks of a job; who planned it has its worker already."""
        self._check_version()
        root = as_place(job.root)
        if job.uses_store and not sees_run(root, job.plan if job.is_lasting else None):
            raise FaithscopeError(
                f"The worker on '{platform.node()}' does not see the folder '{root}' of the run: "
                "put it on a file system that all machines share, or on s3://… (out=…)."
            )
        worker = self._local.worker if kit is None else unpacked(kit)
        store = Store(root, job.plan, is_lasting=job.is_lasting)

        def work(desk: Desk) -> None:
            try:
                if job.plan.threads:
                    torch.set_num_threads(job.plan.threads)
                run_stages(worker, desk, store, desk.tell, job.keep_every)
            except BaseException as error:  # as sys.exit() in a model: no more is to come from here
                desk.break_off(error)

        with self._beginning:
            if job.number < self.desk.number:  # a slow beginning of a run that is over
                return
            self.desk.close()
            if self._thread is not None:
                self._thread.join()
            self.desk = Desk(store, job.number)
            self._thread = threading.Thread(target=work, args=[self.desk], daemon=True)
            self._thread.start()

    # Calls come in any order, those for a job that is over, too

    def push(self, job: int, errands: Sequence[Errand]) -> None:
        """Put tasks into the inbox."""
        if (desk := self.desk).number == job:
            desk.push(errands)

    def recall(self, job: int, task: str) -> tuple[str, bool]:
        """Give a task back, if it has not begun."""
        return task, (desk := self.desk).number == job and desk.recall(task)

    def poll(self, job: int) -> News:
        """What happened since the last time; waits a moment if that is nothing."""
        if (desk := self.desk).number != job:
            raise RuntimeError("the worker is at another job")
        return desk.news()

    def rest(self, job: int) -> None:
        """Leave what is in the inbox; what is being computed is the last."""
        if (desk := self.desk).number == job:
            desk.close()

    def _warned(self) -> tuple[str, ...]:
        return tuple(self.desk.warnings())


class Desk:
    """The inbox and the outbox of a worker."""

    def __init__(self, store: Store | None = None, number: int = -1) -> None:
        self.store, self.number = store, number
        self.inbox: deque[Errand] = deque()
        self.open: dict[str, Errand] = {}
        """Tasks that were taken out of the inbox and have not begun to be computed."""
        self.recalled: set[str] = set()
        self.is_over = False
        self._broken = ""
        self._news = News()
        self._changed = threading.Condition()

    # For the stages

    in_order = False

    def next(self, *, wait: bool) -> Task | None:
        """The next task of the inbox."""
        with self._changed:
            while wait and not self.inbox and not self.is_over:
                self._changed.wait()
            if not self.inbox or self.is_over:
                return None
            errand = self.inbox.popleft()
            self.open[errand.task.id] = errand
            assert self.store is not None
            self.store.hashes |= errand.hashes
            return errand.task

    def is_done(self, task: Task) -> bool:
        """Whether only its input is to be looked at."""
        return self.open[task.id].is_done

    def begins(self, task: Task) -> bool:
        """Whether a task was not recalled; from now on it cannot be."""
        with self._changed:
            del self.open[task.id]
            is_recalled = task.id in self.recalled
            self.recalled.discard(task.id)
            return not is_recalled

    def look_again(self, task: Task, outcome: Outcome) -> None:
        """Tell the hash of an input."""
        if self.begins(task):
            with self._changed:
                self._news.looked.append((task.id, outcome))
                self._changed.notify_all()

    def finish(self, task: Task, outcome: Outcome) -> Outcome:
        """The driver keeps the rows."""
        return outcome

    def take(self, task: Task, kept: Outcome) -> None:
        """Tell what came of a task."""
        with self._changed:
            self._news.done.append((task.id, kept))
            self._changed.notify_all()

    def fail(self, task: Task, error: Exception) -> None:
        """Tell why nothing came of a task; one that was recalled is somebody else's."""
        try:
            with enough_memory():
                raise error
        except FaithscopeError as held:
            is_store = isinstance(held, StoreError)
            failure = Failure(str(held), is_final=not is_store, is_of_worker=False)
        except Exception as held:
            where = traceback.extract_tb(held.__traceback__)[-1]
            why = f"{said(held)}, in {os.path.basename(where.filename)}:{where.lineno}"
            failure = Failure(why, is_final=False, is_of_worker=True)
        with self._changed:
            self.open.pop(task.id, None)
            if task.id in self.recalled:
                self.recalled.discard(task.id)
                return
            self._news.failed.append((task.id, failure))
            self._changed.notify_all()

    def end_of_data(self, task: Task) -> None:
        """Tasks whose data can end are run on one machine."""
        raise AssertionError("a stream on Ray")

    def tell(self, task: str, doing: str, done: float) -> None:
        """Add up progress until the driver asks."""
        with self._changed:
            before = self._news.progress.get(task, ("", 0.0))[1]
            self._news.progress[task] = doing, before + done

    def warn(self, text: str) -> None:
        """Pass a warning on."""
        with self._changed:
            self._news.warnings.append(text)

    # For the driver

    def push(self, errands: Sequence[Errand]) -> None:
        """Put tasks into the inbox; one that was recalled in vain goes on."""
        with self._changed:
            for errand in errands:
                if errand.task.id in self.recalled:
                    self.recalled.discard(errand.task.id)
                else:
                    self.inbox.append(errand)
            self._changed.notify_all()

    def recall(self, task: str) -> bool:
        """Give a task back, if it has not begun to be computed."""
        with self._changed:
            waiting = [errand for errand in self.inbox if errand.task.id == task]
            for errand in waiting:
                self.inbox.remove(errand)
            if task in self.open:
                self.recalled.add(task)
            return bool(waiting) or task in self.open

    def news(self) -> News:
        """What happened; waits for something urgent, and a little longer for more of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._news.is_urgent or self._broken, PROGRESS)
            until = time.monotonic() + LINGER
            while self.inbox and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._broken and not self._news.is_urgent:
                raise RuntimeError(self._broken)
            found, self._news = self._news, News()
            return found

    def warnings(self) -> list[str]:
        """Warnings since the last time."""
        with self._changed:
            found, self._news.warnings = self._news.warnings, []
            return found

    def break_off(self, error: BaseException) -> None:
        """Say that no more is to come, after what has."""
        with self._changed:
            self._broken = f"{type(error).__name__}: {error}"
            self._changed.notify_all()

    def close(self) -> None:
        """End the stages as soon as they have nothing in hand."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()
