"""Running tasks on Ray: workers on all GPUs of a machine or a cluster, one plan, one scheduler.

The driver plans on a worker, sends what that worker holds (the model above all) to the others once
through Ray's object store, keeps the inbox of each a few tasks deep, and writes down the rows that
come back (ray_shift.py).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from faithscope.errors import FaithscopeError, said, shown, warn
from faithscope.registry import registries
from faithscope.request import Given
from faithscope.runs.executor import Planned
from faithscope.runs.ray_shift import (
    LONELY,
    PATIENCE,
    TICK,
    TRIES,
    Shift,
    broke,
    died,
    no_worker,
)
from faithscope.runs.ray_worker import Home, Job, RayWorker, Reply
from faithscope.runs.scheduler import Scheduler
from faithscope.runs.sending import Sent, packed, refuse_unsendable, unpacked
from faithscope.runs.task import Task
from faithscope.version import __version__

IDLENESS = 60.0
"""Seconds that the workers of a run are kept for the next one."""
LEAST_SHARE = 0.0001
"""Of a GPU, as Ray counts them."""
PROMPT = 10.0
"""Seconds in which a cluster must answer."""


@dataclass(frozen=True)
class Need:
    """What a worker needs."""

    cpus: int
    gpus: float

    def __str__(self) -> str:
        cpus = f"{self.cpus} CPU{'s' * (self.cpus != 1)}"
        return f"{cpus} and {self.gpus:g} GPU" if self.gpus else cpus

    def fit(self, resources: Mapping[str, float]) -> int:
        """How many workers find room in these resources."""
        by_cpu = resources.get("CPU", 0.0) / self.cpus
        by_gpu = resources.get("GPU", 0.0) / self.gpus if self.gpus else by_cpu
        return math.floor(min(by_cpu, by_gpu) + 1e-9)


# Connecting


def hire(
    *,
    device: str,
    given: Given,
    address: str | None,
    workers: int | None,
    gpus_per_worker: float | None,
    cpus_per_worker: int | None,
) -> Crew:
    """Connect to Ray, or start it here, and see how many workers there is room for."""
    if device not in ("auto", "cpu", "cuda"):
        raise FaithscopeError(
            f"device must be auto, cpu or cuda with on='ray', where a worker sees its own GPU "
            f"alone, got {shown(device)}."
        )
    share = gpus_per_worker or 0.0
    if 0 < share < LEAST_SHARE or (share > 1 and share != int(share)):
        raise FaithscopeError(
            f"gpus_per_worker must be a share of a GPU from {LEAST_SHARE}, or a whole number of "
            f"them, got {shown(gpus_per_worker)}."
        )
    dashboard = _connect(address)
    if gpus_per_worker is None:
        gpus_per_worker = 1.0 if _wants_gpu(device, given) else 0.0
    need = Need(cpus_per_worker or 1, gpus_per_worker)
    crew = Crew(need, workers, given, dashboard)
    _dismiss_others(crew.kind)
    if not crew.room():
        total = _resources()
        raise FaithscopeError(
            f"There is no room on Ray for a worker with {need}: its machines have "
            f"{total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs in all; ask for less "
            "(cpus_per_worker, gpus_per_worker), or use the CPU (device)."
        )
    return crew


_ADDRESS = [""]
"""By which this process reached its cluster, as somebody called it: Ray has its own name for it."""


def _connect(address: str | None) -> str:
    """Begin to speak to Ray; gives the address of its dashboard, "" if it has none."""
    if address is not None and "@" in address:
        raise FaithscopeError("The address of a Ray cluster is HOST:PORT or auto, without a user.")
    if not ray.is_initialized():
        _IDLE.clear()  # of a cluster that this process has left
        asked, address = address, address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            _check_answers(address)
            _in_lasting_thread(lambda: _begin_to_speak(address))
        except Exception as error:  # of any kind, from any of its processes
            if address == "local":
                raise FaithscopeError(f"Ray does not start here ({said(error)}).") from None
            typed = "" if asked else " (of $RAY_ADDRESS)"
            raise FaithscopeError(
                f"No Ray cluster can be used at '{address}'{typed} ({said(error)}): check the "
                "address, set RAY_AUTH_MODE=token if the cluster asks for a token, start a cluster "
                "with `ray start --head`, or leave the address out to use this machine."
            ) from None
        _ADDRESS[0] = address
    elif address not in (None, "auto", _ADDRESS[0], ray.get_runtime_context().gcs_address):
        raise FaithscopeError(
            f"This process speaks to the Ray cluster at {ray.get_runtime_context().gcs_address} "
            f"already, not to '{address}': leave the address out, or call ray.shutdown() first."
        )
    node = getattr(ray._private.worker, "_global_node", None)
    return str(getattr(node, "webui_url", "") or "")


def _begin_to_speak(address: str | None) -> None:
    with _same_signals(), _unheard():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def _in_lasting_thread(call: Callable[[], None]) -> None:
    """Call from a thread that stays: Ray's processes end with the one that started them."""
    if threading.current_thread() is threading.main_thread():
        call()
        return
    done, wrong = threading.Event(), list[Exception]()

    def stay() -> None:
        try:
            call()
        except Exception as error:
            wrong.append(error)
        done.set()
        threading.Event().wait()

    threading.Thread(target=stay, daemon=True).start()
    done.wait()
    if wrong:
        raise wrong[0]


def _check_answers(address: str | None) -> None:
    """Knock at an address: Ray itself takes minutes to say that nobody is there."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=PROMPT).close()


@contextmanager
def _same_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever had it before says what it does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _unheard() -> Iterator[None]:
    """Ray prints a paragraph to stdout for every worker that dies, and has no option against it."""
    home, name = ray._private.worker, "listen_error_messages"
    before = getattr(home, name, None)
    setattr(home, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(home, name, before)


def _machines() -> list[Mapping[str, float]]:
    """What each of the machines has."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def _resources() -> Mapping[str, float]:
    """What the machines have in all."""
    total: Counter[str] = Counter()
    for machine in _machines():
        total.update(machine)
    return total


def _wants_gpu(device: str, given: Given) -> bool:
    """Whether tasks run on GPUs: a model that was given stays on the kind of device it is on."""
    if device != "auto":
        return device == "cuda"
    if given.model is None:
        return _resources().get("GPU", 0) > 0
    module = getattr(given.model, "module", given.model)
    parameters = getattr(module, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return "cuda" in str(getattr(module if first is None else first, "device", ""))


# Workers

Kind = tuple[Need, Home]
"""What makes a worker fit for a run: what it holds, and the folder and path it was started with."""
_IDLE: dict[Kind, list[Any]] = {}
"""Workers of runs that have ended, for the next one in this process: to start one takes seconds."""
_CREWS: weakref.WeakSet[Crew] = weakref.WeakSet()
"""Those who hold workers, be it only to plan."""


_JOBS = count()
_RELEASED = [0.0]
"""When workers became idle last."""


def _release(kind: Kind, actors: list[Any]) -> None:
    if actors and ray.is_initialized():
        _IDLE.setdefault(kind, []).extend(actors)
        _RELEASED[0] = time.monotonic()
        timer = threading.Timer(IDLENESS, _dismiss_idle)
        timer.daemon = True
        timer.start()
    actors.clear()


def _dismiss_idle() -> None:
    """Let others have what workers hold that nobody in this process has wanted for a while."""
    if time.monotonic() - _RELEASED[0] >= IDLENESS - TICK:
        for kind in list(_IDLE):
            _dismiss(_IDLE.pop(kind, []))


def _dismiss(actors: list[Any]) -> None:
    while actors:
        with suppress(Exception):
            ray.kill(actors.pop())


def _dismiss_others(kind: Kind) -> None:
    """Part with idle workers of other kinds: they hold what this one may need."""
    for other in [held for held in _IDLE if held != kind]:
        _dismiss(_IDLE.pop(other))


Steps = tuple[tuple[str, Any], ...]
"""How a plan was made: calls and what they were given."""


class Crew:
    """The workers on Ray, who plan there, too; `OnRay` runs one plan by them."""

    def __init__(self, need: Need, wanted: int | None, given: Given, dashboard: str) -> None:
        self.need, self.wanted, self.given, self.dashboard = need, wanted, given, dashboard
        self.actors: list[Any] = []
        self._planner: Any = None
        self._made: Steps = ()
        """Which plan the planner holds."""
        self._session = ray.get_runtime_context().get_job_id()
        self._told: set[str] = set()
        self._runs = False
        path = tuple(held for held in sys.path if held and os.path.isdir(held))
        self.kind = need, Home(os.getcwd(), path, need.cpus, __version__)
        weakref.finalize(self, _release, self.kind, self.actors).atexit = False
        _CREWS.add(self)

    def room(self) -> int:
        """How many workers find room on the machines that are there now."""
        return sum(map(self.need.fit, _machines()))

    @property
    def workers(self) -> int:
        """How many workers there are to be."""
        room = max(1, self.room())
        return room if self.wanted is None else min(self.wanted, room)

    def __str__(self) -> str:
        machines = len(_machines())
        workers = f"{self.workers} worker{'s' * (self.workers != 1)} with {self.need}"
        seen = f"; dashboard: http://{self.dashboard}" if self.dashboard else ""
        return f"ray: {workers} on {machines} machine{'s' * (machines != 1)}{seen}"

    def start_actor(self) -> Any:
        """A worker of an earlier run, or a new one, which is not there yet."""
        if not _IDLE.get(self.kind) and sum(len(held.actors) for held in _CREWS) >= self.room():
            for other in _CREWS:
                if other is not self and not other._runs:
                    other.release()
            _dismiss_others(self.kind)
        idle = _IDLE.get(self.kind)
        if idle:
            actor = idle.pop(0)
        else:
            options = {"num_cpus": self.need.cpus, "num_gpus": self.need.gpus}
            remote = ray.remote(RayWorker).options(**options, max_concurrency=4)
            actor = remote.remote(self.kind[1])
        self.actors.append(actor)
        return actor

    def release(self) -> None:
        """Leave the workers to others; a plan that is needed again is made again."""
        self._planner = None
        _release(self.kind, self.actors)

    def forget(self, actor: Any) -> None:
        """Part with a worker that is gone or broken."""
        if actor in self.actors:
            self.actors.remove(actor)
        if actor is self._planner:
            self._planner = None
        _dismiss([actor, *_IDLE.pop(self.kind, [])])  # what befell it may have befallen those

    # Planning

    def prepare(self, make: Callable[[], Planned]) -> Planned:
        """Plan on a worker, which knows the device; what is "auto" is decided there."""
        try:
            sent = packed(make)
        except Exception as error:
            refuse_unsendable(self.given, error)
        return self._stepped((), "prepare", sent)

    def change(self, planned: Planned, change: Callable[[Planned], Planned]) -> Planned:
        """Change a plan where it was made; the plan that it was stays what it is."""
        return self._stepped(planned.steps, "change", packed(change))

    def _stepped(self, before: Steps, name: str, sent: Sent) -> Planned:
        self._check_session()
        steps = (*before, (name, ray.put(sent)))
        planned: Planned = unpacked(self.ask(steps[:-1], *steps[-1]))
        self._made = steps
        return replace(planned, steps=steps)

    def _check_session(self) -> None:
        if not ray.is_initialized() or ray.get_runtime_context().get_job_id() != self._session:
            raise FaithscopeError("Ray was shut down since the run was prepared: prepare it again.")

    def ask(self, steps: Steps, name: str, *arguments: Any) -> Any:
        """Ask a worker that made a plan; if there is none, one makes it first, step by step."""
        self._check_session()
        for left in reversed(range(TRIES)):
            try:
                actor = self._with_plan(steps)
                return self.value(ray.get(getattr(actor, name).remote(*arguments)))
            except RayTaskError as error:  # it lives, and would say the same again
                self.forget(self._planner or self.actors[-1])
                raise broke(error) from None
            except RayError as error:
                self.forget(self._planner or self.actors[-1])
                if not left:
                    raise died(error) from None
        raise AssertionError

    def _with_plan(self, steps: Steps) -> Any:
        if self._planner is None:
            self._planner, self._made = self._taught(self.start_actor()), ()
        if self._made != steps[: len(self._made)]:
            self._made = ()
        for step in steps[len(self._made) :]:
            self.value(ray.get(getattr(self._planner, step[0]).remote(step[1])))
            self._made = (*self._made, step)
        return self._planner

    def _taught(self, actor: Any) -> Any:
        """A worker that knows what this process has registered, once it is there."""
        about = actor.about.remote()
        waited = 0.0
        while not ray.wait([about], timeout=PATIENCE)[0]:
            waited += PATIENCE
            if waited >= LONELY:
                raise no_worker(self.need)
            warn(f"Ray has started no worker yet, after {waited:.0f} s.")
        known = self.value(ray.get(about))
        entries = {
            kind: {name: held[name] for name in held if name not in known.get(kind, ())}
            for kind, held in registries().items()
        }
        if any(entries.values()):
            self.value(ray.get(actor.learn.remote(_sent(entries))))
        return actor

    def value(self, reply: Reply) -> Any:
        """What a worker answered; its sentence is raised, its warnings are passed on."""
        self.warn(reply.warnings)
        if reply.error:
            raise FaithscopeError(reply.error, reason=reply.reason)
        return reply.value

    def warn(self, texts: Sequence[str]) -> None:
        """Pass warnings on, each of them once."""
        for text in texts:
            if text not in self._told:
                self._told.add(text)
                warn(text)

    # Running

    def run(self, planned: Planned, scheduler: Scheduler, keep_every: float) -> None:
        """Run whatever the scheduler has to do of a plan."""
        if scheduler.is_over:
            return
        root, store = scheduler.store.root, scheduler.store
        job = Job(
            next(_JOBS),
            str(root.absolute() if isinstance(root, Path) else root),
            planned.plan,
            is_lasting=store.is_lasting,
            uses_store=any(task.makes for task in scheduler.tasks),
            keep_every=keep_every,
        )
        self._runs = True
        try:
            shift = Shift(self, scheduler, job, ray.put(self.ask(planned.steps, "kit")))
            shift.work()
            shift.end()
        except BaseException:
            self._planner = None
            _dismiss(self.actors)
            raise
        finally:
            self._runs = False
        self.release()

    @property
    def planner(self) -> Any:
        """The worker that planned, None if it is gone."""
        return self._planner


@dataclass(frozen=True, eq=False)
class OnRay:
    """Runs one plan on Ray: an executor."""

    crew: Crew
    planned: Planned

    @property
    def workers(self) -> int:
        """How many workers there are to be."""
        return self.crew.workers

    def measure(self) -> Mapping[str, float]:
        """Seconds that a unit of cost takes on one worker."""
        found: Mapping[str, float] = self.crew.ask(self.planned.steps, "measure")
        return found

    def check_inputs(self, tasks: Iterable[Task], inputs: Mapping[str, str]) -> None:
        """Refuse data that are not those of a finished run, whose tasks had these inputs."""
        self.crew.ask(self.planned.steps, "check_inputs", list(tasks), inputs)

    def run(self, scheduler: Scheduler, keep_every: float) -> None:
        """Run whatever the scheduler has to do."""
        self.crew.run(self.planned, scheduler, keep_every)


def _sent(entries: Mapping[str, Mapping[str, Any]]) -> Sent:
    for kind, held in entries.items():
        for name, item in held.items():
            try:
                packed(item)
            except Exception as error:
                raise FaithscopeError(
                    f"The {kind} '{name}' cannot be sent to the workers on Ray ({said(error)}): "
                    "define it at the top of a module that they can import."
                ) from None
    return packed(entries)
