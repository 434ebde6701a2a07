"""What is run, planned and ready, and where: in this process (`local.py`) or on Ray (`ray.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from faithscope.runs.plan import Plan
from faithscope.runs.scheduler import Scheduler
from faithscope.runs.task import Task, Worker


@dataclass(frozen=True, eq=False)
class Planned:
    """A checked plan, and the worker that was made ready on the way to it.

    The worker is None where it is in another process.
    """

    plan: Plan
    worker: Worker | None
    tasks: Sequence[Task] | Iterator[Task]
    """A stream where data can be read only once, in order."""
    known: Any = None
    """What the probe needs to know of model and data when it collects the answers."""
    expected: float = 0.0
    """Of a stream: its cost in the main unit, as far as is known."""
    steps: tuple[Any, ...] = ()
    """How it was made in another process, for one that must make it once more."""


class Executor(Protocol):
    """Where tasks are run."""

    @property
    def workers(self) -> int:
        """How many tasks it can compute at a time."""

    def measure(self) -> Mapping[str, float]:
        """Seconds that a unit of cost takes on one worker, by a small sample of the work."""

    def check_inputs(self, tasks: Iterable[Task], inputs: Mapping[str, str]) -> None:
        """Refuse data that are not those of a finished run, whose tasks had these inputs."""

    def run(self, scheduler: Scheduler, keep_every: float) -> None:
        """Run whatever the scheduler has to do, keeping states every so many seconds."""
