"""A ROAR study: the YAML of a study with `kind: roar`; each data set with each model is a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from faithscope.errors import FaithscopeError, unknown
from faithscope.methods.text import resolve_measures
from faithscope.probes.retrain.jobs import PROCEDURES, jobs_of
from faithscope.probes.retrain.learners import check_model, check_recipe
from faithscope.probes.retrain.result import RoarResult
from faithscope.probes.retrain.roar import Roar, prepare_roar
from faithscope.studies.runs import RoarRuns


@dataclass(frozen=True)
class RoarCell:
    """One run of a ROAR study."""

    data: str
    model: str

    @property
    def label(self) -> str:
        """A name that is a folder name, too.

        >>> RoarCell("babi:data/babi(task=1)", "bilstm").label
        'bilstm_babi-data-babi-task=1'
        """
        parts = (re.sub(r"[^\w.=-]+", "-", part).strip("-") for part in (self.model, self.data))
        return "_".join(parts)


@dataclass(frozen=True)
class RoarStudy:
    """What to retrain: every model on every data set. None is the paper's choice."""

    name: str
    datasets: tuple[str, ...]
    models: tuple[str, ...] = ("bilstm",)
    measures: tuple[str, ...] = ("all",)
    seeds: int | tuple[int, ...] = 5
    levels: tuple[int, ...] | None = None
    strategy: str = "relative"
    procedures: tuple[str, ...] = PROCEDURES
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    limit: int | None = None
    clip: bool = True
    specials: bool = True

    def cells(self) -> Iterator[RoarCell]:
        """Every data set with every model."""
        return (RoarCell(*pair) for pair in product(self.datasets, self.models))

    def prepare(self, cell: RoarCell, out: Path | None = None, device: str = "auto") -> Roar:
        """Check one of the runs and encode its texts."""
        shared = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("name", "datasets", "models")
        }
        shared["measures"] = shared["measures"][0] if len(self.measures) == 1 else self.measures
        return prepare_roar(cell.data, cell.model, **shared, out=out, device=device)


Runner = Callable[[RoarCell, Roar], RoarResult]

_LISTS = ("datasets", "models", "measures", "procedures", "levels", "seeds")
_TEXTS = ("name", "datasets", "models", "measures", "procedures", "strategy")


def make_roar_study(content: Mapping[str, Any]) -> RoarStudy:
    """Check every key and value of a ROAR study."""
    known = [field.name for field in fields(RoarStudy)]
    for key in content:
        if key not in known:
            raise unknown("key of a ROAR study", str(key), known)
    if not content.get("datasets"):
        raise FaithscopeError(
            "A ROAR study needs 'datasets': for example datasets: [bundled:babi1]."
        )
    study = RoarStudy(**{key: _checked(key, value) for key, value in content.items()})
    seeds = range(study.seeds) if isinstance(study.seeds, int) else study.seeds
    jobs_of(resolve_measures(study.measures), seeds, study.levels, study.procedures, study.strategy)
    check_recipe(
        epochs=study.epochs, batch_size=study.batch_size, learning_rate=study.learning_rate
    )
    for model in study.models:
        check_model(model)
    labels = [cell.label for cell in study.cells()]
    for label in labels:
        if labels.count(label) > 1:
            raise FaithscopeError(
                f"Two runs of the study would both be called '{label}': name each data set and "
                "model once."
            )
    return study


def _checked(key: str, value: Any) -> Any:
    """One value in its kind; what the names and numbers may be is checked by who uses them."""
    if value is None and key in ("levels", "epochs", "batch_size", "learning_rate", "limit"):
        return None
    if key in _LISTS and not (key == "seeds" and isinstance(value, int)):
        items = value if isinstance(value, list) else [value]
        if not items:
            raise FaithscopeError(f"The study's '{key}' is empty: give at least one value.")
        return tuple(_checked_item(key, item) for item in items)
    return _checked_item(key, value)


def _checked_item(key: str, value: Any) -> Any:
    if key in _TEXTS:
        if not isinstance(value, str) or not value:
            raise FaithscopeError(f"The study's '{key}' must be text, got {value!r}.")
        if key == "name" and not re.fullmatch(r"[\w][\w .-]*", value):
            raise FaithscopeError(f"The study's 'name' must be a plain word, got {value!r}.")
    elif key in ("clip", "specials"):
        if not isinstance(value, bool):
            raise FaithscopeError(f"The study's '{key}' must be true or false, got {value!r}.")
    elif key in ("seeds", "levels", "limit"):
        least = 1 if key == "limit" else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise FaithscopeError(
                f"The study's '{key}' must be whole numbers of at least {least}, got {value!r}."
            )
    return value


def run_roar_study(
    study: RoarStudy, out: str | Path, *, device: str = "auto", run: Runner | None = None
) -> RoarRuns:
    """Run every cell into a folder of its own below `out`; what is finished is not run again."""
    results = {}
    for cell in study.cells():
        roar = study.prepare(cell, Path(out) / cell.label, device)
        results[cell.label] = run(cell, roar) if run else roar.run()
    return RoarRuns(results, name=study.name)
