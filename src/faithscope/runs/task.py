"""Tasks: the pieces of a run, made from its plan alone, and what a worker does with one.

A task is a few hundred bytes of plain values. A worker, one per device, takes it through three
stages: `load` (CPU), `compute` (device; it may leave tensors there, and must not wait for them) and
`finish` (CPU), which ends in rows of tables and artifacts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from faithscope.models.tensor_files import Tensors


@dataclass(frozen=True)
class Artifact:
    """Tensors that a task leaves for others; gone when the last of them is done, if not kept."""

    name: str
    is_kept: bool = False


@dataclass(frozen=True)
class Task:
    """One piece of a run.

    Args:
        id: a name that can be a file's.
        kind: what is to be done, for the worker.
        arguments: positions, names, numbers: plain values.
        needs: the tasks that must be done before.
        reads: artifacts of theirs.
        makes: artifacts for others.
        cost: what it takes, by unit, as in {"model passes": 288.0}.
        rereads: whether its input comes from outside, so that a resume looks whether it changed;
            such a task reads no artifacts.
    """

    id: str
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    makes: tuple[Artifact, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    rereads: bool = False


@dataclass(frozen=True, eq=False)
class Loaded:
    """The input of a task, the hash by which a change is noticed, and what to name it by."""

    value: Any
    digest: str = ""
    near: str = ""


Tables = Mapping[str, pa.Table]
"""Rows by the name of their table."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a task: the hash of its input, its rows, and the hashes of its artifacts."""

    input: str = ""
    tables: Tables = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    near: str = ""
    """What to name the input by, if it has changed."""


class Context(Protocol):
    """What a stage may ask for beside its input."""

    def report(self, doing: str, done: float = 0.0) -> None:
        """Say what is going on, and how much of the task's main unit was just done."""

    def read(self, artifact: str) -> tuple[Tensors, Mapping[str, str]]:
        """The tensors of an artifact and what they say of themselves."""

    def write(self, artifact: str, tensors: Tensors, about: Mapping[str, str]) -> None:
        """Leave an artifact for other tasks."""

    def kept(self) -> tuple[Tensors, Mapping[str, str]] | None:
        """How far this very task was, when it was stopped."""

    def keep(self, state: Callable[[], Tensors], about: Mapping[str, str]) -> None:
        """Keep how far the task is, if the last time is long enough ago."""


class Worker(Protocol):
    """Does tasks on one device; holds the model, and caches that change no bit."""

    def load(self, task: Task, context: Context) -> Loaded | None:
        """Read the input of a task; None if the data has ended, and with it the tasks."""

    def compute(self, task: Task, value: Any, context: Context) -> Any:
        """Do the work."""

    def finish(self, task: Task, computed: Any, context: Context) -> Tables:
        """Fetch what came out, and make rows of it."""

    def measure(self) -> Mapping[str, float]:
        """Seconds that a unit of cost takes here, by a small sample of the work."""
