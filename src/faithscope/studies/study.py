"""A study: one YAML file that says what to measure, validated before anything runs.

Some keys are axes: they take one value or several, and every combination is a *cell*, evaluated by
itself. Several K's are one cell, since they share maps and most perturbed inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from faithscope.errors import FaithscopeError, choose, unknown
from faithscope.methods import resolve_methods
from faithscope.metrics import SaCo, check_k, resolve_metrics
from faithscope.perturb import FILLS, TIES, UNITS, UPSAMPLES

if TYPE_CHECKING:
    from faithscope.studies.roar import RoarStudy

KINDS = ("images", "roar")
"""What a study is of; without a word about it, of images."""
_MODEL_KEYS = ("name", "checkpoint", "pretrained", "device")


@dataclass(frozen=True)
class Cell:
    """One evaluation of a study."""

    model: Mapping[str, Any]
    data: str
    fill: str
    units: str
    upsample: str
    ties: str
    seed: int

    @property
    def label(self) -> str:
        """A name that is a folder name, too."""
        model = self.model["name"]
        if "checkpoint" in self.model:
            model = f"{model}-{Path(self.model['checkpoint']).stem}"
        parts = (model, self.data, self.fill, self.units, self.upsample, self.ties, self.seed)
        return "_".join(re.sub(r"[^\w.=-]+", "-", str(part)).strip("-") for part in parts)


@dataclass(frozen=True)
class Study:
    """What to measure. `models`, `data`, `fills`, `units`, `upsample`, `ties`, `seeds` are axes."""

    name: str
    models: tuple[Mapping[str, Any], ...]
    data: tuple[str, ...]
    methods: tuple[str, ...] = ("all",)
    metrics: tuple[str, ...] = ("all",)
    k: tuple[int | str, ...] = (10,)
    fills: tuple[str, ...] = ("mean",)
    units: tuple[str, ...] = ("pixels",)
    upsample: tuple[str, ...] = ("bilinear",)
    ties: tuple[str, ...] = ("ascending",)
    seeds: tuple[int, ...] = (0,)
    group: str = "sum"
    target: str | int = "predicted"
    random_draws: int = 3
    precision: str = "auto"
    batch_size: int | str = "auto"
    limit: int | None = None
    tolerance: float | None = None

    def cells(self) -> Iterator[Cell]:
        """Every combination of the axes, models outermost."""
        axes = (self.models, self.data, self.fills, self.units, self.upsample, self.ties)
        for values in product(*axes, self.seeds):
            yield Cell(*values)

    def all_metrics(self) -> list[Any]:
        """The metrics, those that have a K once for each."""
        chosen = resolve_metrics(list(self.metrics))
        if len(self.k) == 1:
            return list(chosen)
        spread: list[Any] = []
        for metric in chosen:
            if isinstance(metric, SaCo) and metric.k is None:
                spread += [replace(metric, k=k) for k in self.k]
            else:
                spread.append(metric)
        return spread


_AXES = ("models", "data", "methods", "metrics", "k", "fills", "units", "upsample", "ties", "seeds")
_CHOICES: dict[str, Iterable[str]] = {
    "fills": FILLS,
    "units": UNITS,
    "upsample": UPSAMPLES,
    "ties": TIES,
}
_NUMBERS = {"seeds": 0, "random_draws": 0, "limit": 1}


def load_study(path: str | Path, changes: Mapping[str, Any] | None = None) -> Study | RoarStudy:
    """Read a study from YAML, with some keys changed; what is wrong is said in one sentence.

    One with `kind: roar` is a ROAR study (studies/roar.py).
    """
    file = Path(path)
    try:
        content = read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FaithscopeError(
            f"The study '{path}' cannot be read ({error.strerror}): check the path."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FaithscopeError(f"The study '{path}' is not YAML ({reason}).") from None
    if not isinstance(content, dict):
        raise FaithscopeError(f"The study '{path}' must hold keys and values, such as 'models: …'.")
    content = {"name": file.stem, **content, **(changes or {})}
    if "kind" not in content:
        return make_study(content)
    choose("kind of study", content["kind"], KINDS)
    if content.pop("kind") == "images":
        return make_study(content)
    from faithscope.studies.roar import make_roar_study

    return make_roar_study(content)


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which a key may be given once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key '{key}' is given twice")
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """Read YAML safely; keys that are given twice are an error."""
    return yaml.load(text, _UniqueKeys)  # a SafeLoader


def make_study(content: Mapping[str, Any]) -> Study:
    """Check every key and value of a study."""
    known = [field.name for field in fields(Study)]
    for key in content:
        if key not in known:
            raise unknown("key of a study", str(key), known)
    for key in ("models", "data"):
        if not content.get(key):
            raise FaithscopeError(f"A study needs '{key}': for example {key}: [{_EXAMPLES[key]}].")
    checked: dict[str, Any] = {}
    for key, value in content.items():
        if key in _AXES:
            items = value if isinstance(value, list) else [value]
            if not items:
                raise FaithscopeError(f"The study's '{key}' is empty: give at least one value.")
            checked[key] = tuple(_checked(key, item) for item in items)
            if len({repr(item) for item in checked[key]}) < len(checked[key]):
                raise FaithscopeError(f"The study's '{key}' names something twice: name it once.")
        else:
            checked[key] = _checked(key, value)
    study = Study(**checked)
    resolve_methods(list(study.methods))
    study.all_metrics()
    labels = [cell.label for cell in study.cells()]
    for label in labels:
        if labels.count(label) > 1:
            raise FaithscopeError(
                f"Two runs of the study would both be called '{label}': rename a checkpoint or "
                "data folder, or name the model once."
            )
    return study


_EXAMPLES = {"models": "bundled:cifar10_vit", "data": "bundled:cifar10"}


def _checked(key: str, value: Any) -> Any:
    """One value of a key."""
    if key == "models":
        return _model(value)
    if key == "k":
        check_k(value)
        return value
    if key in _CHOICES:
        return choose(key, value, _CHOICES[key])
    if key in _NUMBERS:
        if value is None and key == "limit":
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < _NUMBERS[key]:
            raise FaithscopeError(
                f"The study's '{key}' must be a whole number of at least {_NUMBERS[key]}, got "
                f"{value!r}."
            )
        return value
    if key == "tolerance":
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and (not real or not 0 < value < 2):
            raise FaithscopeError(
                f"The study's 'tolerance' must be a number above 0 and below 2, got {value!r}."
            )
        return value
    if key in ("target", "batch_size") and isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value:
        raise FaithscopeError(f"The study's '{key}' must be text, got {value!r}.")
    if key == "name" and not re.fullmatch(r"[\w][\w .-]*", value):
        raise FaithscopeError(f"The study's 'name' must be a plain word, got {value!r}.")
    return value


def _model(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise FaithscopeError(
            f"A model of a study is a name, or has one (name: …, checkpoint: …), got {value!r}."
        )
    for key, given in value.items():
        if key not in _MODEL_KEYS:
            raise unknown("key of a model in a study", str(key), _MODEL_KEYS)
        kind = bool if key == "pretrained" else str
        if not isinstance(given, kind):
            words = "true or false" if kind is bool else "text"
            raise FaithscopeError(f"A model's '{key}' must be {words}, got {given!r}.")
    return value
