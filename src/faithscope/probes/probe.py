"""What a way of probing is: a plan from a request, tasks from a plan, a run from their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from faithscope.request import Given
from faithscope.runs.executor import Planned
from faithscope.runs.plan import Plan
from faithscope.runs.run import Run
from faithscope.runs.scheduler import Answers, StoppingRule
from faithscope.runs.task import Task


class Probe(Protocol):
    """A way of probing; it knows no other one."""

    unit: str
    """The unit of cost in which progress is shown."""
    keeps_tasks: bool
    """Whether the files of finished tasks stay when the tables are whole."""

    def check(self, request: Any, given: Given) -> None:
        """Refuse what can be seen to be wrong without a model and without data."""

    def tasks(self, plan: Plan) -> Sequence[Task]:
        """The tasks of a plan, as far as they are known without data."""

    def join(self, plan: Plan, runs: Sequence[Run]) -> Run:
        """Finished runs of other seeds as one, by a plan of all their seeds."""

    def prepare(self, request: Any, given: Given) -> Planned:
        """Check a request; nothing is computed before everything that can be checked is."""

    def adopt(self, planned: Planned, there: Plan | None, request: Any) -> Planned:
        """Keep a run in a folder: what was left open is as the plan there, if any, chose it."""

    def rule(self, plan: Plan) -> StoppingRule | None:
        """When to stop early."""

    def collect(self, planned: Planned, answers: Answers) -> Run:
        """The finished tasks as one run."""

    def rescore(self, run: Run, changes: dict[str, Any], given: Given) -> Run:
        """The same run with other metrics, from what it has kept, without the model."""
