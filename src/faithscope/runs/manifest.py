"""The manifest of a run: everything needed to judge and to repeat it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from faithscope.runs.cards import (
    Cost,
    DataCard,
    Doubt,
    Machine,
    MethodCard,
    MetricCard,
    ModelCard,
    Stopping,
    Typed,
)
from faithscope.runs.files import as_json
from faithscope.runs.plan import FORMAT, Plan, check_format, check_kept


def _moment(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class Manifest(Typed):
    """What was run, on what, with what, at which cost, and which files hold the numbers."""

    format: int = FORMAT
    created: Annotated[str, AfterValidator(_moment)]
    plan: Plan
    model: ModelCard
    data: DataCard
    methods: dict[str, MethodCard]
    metrics: dict[str, MetricCard]
    cost: Cost
    machine: Machine
    versions: dict[str, str]
    stopping: Stopping | None = None
    doubts: tuple[Doubt, ...] = ()
    inputs: dict[str, str] = Field(default_factory=dict)
    """The hash of the input of each task that reads data, by the task."""
    files: dict[str, str] = Field(default_factory=dict)
    """The hash of each file of the run, by its name."""

    @model_validator(mode="after")
    def _is_whole(self) -> Manifest:
        """What is said in several places agrees."""
        for name in ("methods", "metrics"):
            planned = [card.label for card in getattr(self.plan, name)]
            held = getattr(self, name)
            if [*held] != planned or [card.label for card in held.values()] != planned:
                raise ValueError(f"its {name} are not those of its plan")
        random = {None, *(label for label, card in self.methods.items() if card.is_random)}
        if not {card.matched_random for card in self.methods.values()} <= random:
            raise ValueError("it compares with a random method that is none of its own")
        if (self.data.splits is not None) != (self.kind == "retrain"):
            raise ValueError("its data is not of its kind")
        return self

    @property
    def kind(self) -> str:
        """How faithfulness was probed."""
        return self.plan.kind

    @property
    def sample(self) -> str:
        """What one of the samples is called."""
        return self.plan.modality

    @property
    def protocol(self) -> dict[str, Any]:
        """The options that decide what a number means."""
        return self.plan.protocol

    def content(self) -> dict[str, Any]:
        """What is written."""
        return {**self.model_dump(mode="json", exclude={"plan"}), "plan": self.plan.content()}

    @staticmethod
    def read(content: dict[str, Any]) -> Manifest:
        """What `content` gave; a ValueError if it is no manifest of this version."""
        check_format(content)
        check_kept(content.get("plan"))
        return Manifest.model_validate_json(as_json(content))
