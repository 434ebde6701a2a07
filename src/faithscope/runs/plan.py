"""The plan of a run: the request with nothing left open.

The same plan on the same kind of device gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from faithscope.errors import FaithscopeError
from faithscope.hashing import canonical, digest
from faithscope.request import KINDS, Perturb, Retrain, options
from faithscope.runs.cards import Left, MethodCard, MetricCard, Named, Recipe, Typed, Whole
from faithscope.runs.files import as_json

FORMAT = 4
"""Of the files of a run; others are refused."""
SECTIONS = ("model", "data", "methods", "metrics")
"""Options that a plan and a manifest have sections of their own for."""


class Plan(Typed):
    """Everything that decides the numbers, written before anything is computed."""

    format: int = FORMAT
    request: Annotated[Perturb | Retrain, Field(discriminator="kind")]
    model: Named
    data: Named
    methods: tuple[MethodCard, ...]
    metrics: tuple[MetricCard, ...]
    left_out: tuple[Left, ...] = ()
    given: dict[str, str] = Field(default_factory=dict)
    """Fingerprints of maps and classes that were given."""
    recipe: Recipe | None = None
    threads: Whole = 0
    """Of a CPU, on which the last bits depend; 0 on a GPU."""
    shard: Whole = 0
    """Samples that are planned together."""
    explain_batch: Whole = 0
    """Those that are explained together, if not as many as a batch has, but 32 at most."""
    pack_size: Whole = 0
    """Models that are trained together at most."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Seeds that are planned together; runs that were joined keep their own."""

    @field_validator("request")
    @classmethod
    def _says_its_output(cls, held: Perturb | Retrain) -> Perturb | Retrain:
        """Runs that are older than the option `output` are of the softmax."""
        is_older = isinstance(held, Perturb) and held.output == "auto"
        return held.model_copy(update={"output": "softmax"}) if is_older else held

    @model_validator(mode="after")
    def _is_whole(self) -> Plan:
        """What is said in several places agrees; of trainings nothing is left open."""
        for cards in (self.methods, self.metrics):
            if not cards or len({card.label for card in cards}) < len(cards):
                raise ValueError("its methods or metrics are missing or named twice")
        if isinstance(self.request, Retrain):
            seeds = tuple(seed for group in self.groups for seed in group)
            if seeds != self.request.seeds or len({*seeds}) < len(seeds) or () in self.groups:
                raise ValueError("its seeds are not those of its groups")
            levels = self.request.levels or ()
            if len(levels) < 2 or levels != tuple(sorted({*levels})) or levels[0] != 0:
                raise ValueError("its levels do not rise from 0")
            if not self.pack_size or "random" not in {card.label for card in self.methods}:
                raise ValueError("its pack size or random measure is missing")
        return self

    @property
    def kind(self) -> str:
        """How faithfulness is probed."""
        return self.request.kind

    @property
    def modality(self) -> Literal["image", "text"]:
        """What is explained."""
        return "image" if self.request.units in ("pixels", "patches") else "text"

    @property
    def protocol(self) -> dict[str, Any]:
        """The options that decide what a number means, beside model, data, methods and metrics."""
        return {
            name: getattr(self.request, name)
            for name, option in options(type(self.request)).items()
            if option.role == "protocol"
            and name not in SECTIONS
            and option.modality in ("", self.modality)
        }

    def content(self) -> dict[str, Any]:
        """What is written: no option that is a matter of running alone."""
        running = {
            name for name, held in options(type(self.request)).items() if held.role == "running"
        }
        content = self.model_dump(mode="json", exclude={"request": running})
        if not self.explain_batch:  # as plans from before there was a choice
            del content["explain_batch"]
        return content

    def without_seeds(self) -> dict[str, Any]:
        """The same of runs that can be joined: all but which seeds they are of."""
        content: dict[str, Any] = json.loads(canonical(self.content()))
        content.pop("groups")
        content["request"].pop("seeds", None)
        return content

    @property
    def mark(self) -> str:
        """By which the files of a task are known to be of this run, or of one joined to it."""
        return digest(canonical(self.without_seeds()))

    @staticmethod
    def read(content: dict[str, Any]) -> Plan:
        """What `content` gave; a ValueError if it is no plan of this version."""
        check_format(content)
        check_kept(content)
        return Plan.model_validate_json(as_json(content))

    def card(self, label: str) -> MethodCard:
        """The card of a method."""
        return next(card for card in self.methods if card.label == label)


def check_kept(plan: Any) -> None:
    """Refuse options that are a matter of running alone, which no plan holds, with a ValueError."""
    held = plan.get("request") if isinstance(plan, dict) else None
    request: dict[str, Any] = held if isinstance(held, dict) else {}
    kind = KINDS.get(str(request.get("kind")))
    for name, option in options(kind).items() if kind is not None else ():
        if option.role == "running" and name in request:
            raise ValueError(f"its request holds '{name}', which is not kept")


def check_format(content: dict[str, Any]) -> None:
    """Refuse what another version wrote, with a ValueError."""
    found = content.get("format")
    if found != FORMAT:
        raise ValueError(f"it has format {found}, this faithscope reads {FORMAT}")


def check_same(there: Plan, here: Plan, where: object) -> None:
    """Refuse a folder that holds another run, naming what differs."""
    found = list(differences(there.content(), here.content()))
    asked = [one.removeprefix("request ") for one in found if one.startswith("request ")]
    if not any(one.startswith("data ") for one in asked):
        asked += [one for one in found if asked and one.startswith("data fingerprint ")]
    differing = asked or found  # the rest follows from what was asked for
    if there.kind != here.kind:  # of which all else follows
        differing = list(differences(there.kind, here.kind, "kind"))
    if differing:
        raise FaithscopeError(
            f"'{where}' holds another run ({'; '.join(differing[:3])}): choose another folder, or "
            "remove it."
        )


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """What differs between two plans, in words; options first."""
    there, here = _by_label(there, here), _by_label(here, there)
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}, key=lambda key: (key != "request", key)):
            yield from differences(there.get(key), here.get(key), f"{name} {key}".strip())
    elif there != here:
        yield f"{name} is {_short(there)} there and {_short(here)} here"


def _by_label(cards: Any, others: Any) -> Any:
    """Cards by their labels, where both lists have the same, so that it is said what differs."""
    lists = isinstance(cards, list) and isinstance(others, list)
    held = [*cards, *others] if lists else []
    if not held or not all(isinstance(one, dict) and "label" in one for one in held):
        return cards
    mine, yours = ([one["label"] for one in part] for part in (cards, others))
    return dict(zip(mine, cards, strict=True)) if mine == yours else cards


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "label" in value[0]:
        value = [card["label"] for card in value]
    text = canonical(value).decode() if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else f"{text[:57]}…"
