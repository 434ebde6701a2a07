"""What there is to choose from, as plain data: methods, metrics, measures, models … by name.

Read from the registries, with everything imported that fills them; `faithscope list` reads what
`make docs` wrote of it to catalog.json.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from faithscope.data import SOURCES as DATA
from faithscope.data.text_samples import BUNDLED
from faithscope.data.text_sources import OPTIONS as TEXT_OPTIONS
from faithscope.data.text_sources import TEXT_SOURCES
from faithscope.methods import METHODS, Method
from faithscope.metrics import METRICS, BaseMetric
from faithscope.models import SOURCES, bundled_models
from faithscope.perturb import DEFAULTS, FILLS
from faithscope.probes.retrain.learners import TRAINED_MODELS
from faithscope.registry import Registry

Entry = dict[str, Any]


def list_methods() -> list[Entry]:
    """Every registered method of images, and the door to captum's."""
    captum = {
        "name": "captum:CLASS",
        "summary": "Any attribution class of captum that needs only a model and a target.",
        "example": "captum:Saliency",
    }
    return [*map(_method, METHODS.values()), captum]


def list_measures() -> list[Entry]:
    """Every registered method of text."""
    return [*map(_method, METHODS.of("text").values())]


def list_metrics() -> list[Entry]:
    """Every registered metric."""
    return [*map(_metric, METRICS.values())]


def list_fills() -> list[Entry]:
    """What can stand in the place of a removed unit, of images and of texts."""
    return [
        {"name": fill.name, "of": f"{modality}s", "summary": fill.summary}
        for modality in DEFAULTS
        for fill in FILLS.of(modality).values()
    ]


def list_models() -> list[Entry]:
    """The models that come with the package, and where others come from."""
    bundled = SOURCES.note("bundled")[0]
    entries = [{"name": f"bundled:{name}", "summary": bundled} for name in bundled_models()]
    return [*entries, *(_source(SOURCES, name, "NAME") for name in SOURCES if name != "bundled")]


def list_data() -> list[Entry]:
    """Where images come from, and the bundled texts; `list_texts` has where others come from."""
    folder = {"name": "FOLDER", "summary": "Images, labelled by class folders if there are any."}
    texts = [{"name": f"bundled:{name}", "summary": BUNDLED[name]} for name in BUNDLED]
    return [folder, *(_source(DATA, name, "…") for name in DATA), *texts]


def list_texts() -> list[Entry]:
    """Where texts come from."""
    own = {**_source(TEXT_SOURCES, "file", "…"), "name": "FILE or FOLDER"}
    own.pop("example")
    others = [_source(TEXT_SOURCES, name, "…") for name in TEXT_SOURCES if name != "file"]
    options = {name: dict(TEXT_OPTIONS.get(name, {})) for name in ("file", *TEXT_SOURCES)}
    return [
        {**own, "options": options["file"]},
        *({**entry, "options": options[entry["name"].partition(":")[0]]} for entry in others),
    ]


def list_trained_models() -> list[Entry]:
    """What ROAR can train."""
    return [{"name": name, "summary": summary} for name, summary in TRAINED_MODELS.items()]


def _source(registry: Registry[Any], name: str, what: str) -> Entry:
    summary, example = registry.note(name)
    entry = {"name": f"{name}:{what}", "summary": summary, "example": example}
    return entry if example else {**entry, "example": f"{name}:NAME"}


CATALOGUES: Mapping[str, Callable[[], list[Entry]]] = {
    "methods": list_methods,
    "metrics": list_metrics,
    "fills": list_fills,
    "models": list_models,
    "data": list_data,
    "measures": list_measures,
    "texts": list_texts,
    "text models": list_trained_models,
}


def _method(method: Method) -> Entry:
    return {
        "name": method.name,
        "summary": method.summary,
        "granularity": method.granularity,
        "needs": sorted(method.needs),
        "options": method.defaults,
        "choices": {option: list(values) for option, values in method.choices.items()},
        "in_papers": method.in_papers,
        "is_random": method.is_random,
    }


def _metric(metric: type[BaseMetric]) -> Entry:
    return {
        "name": metric.name,
        "probe": metric.probe,
        "summary": (inspect.getdoc(metric) or "").partition("\n")[0],
        "higher_is_better": metric.higher_is_better,
        "bounds": [bound if math.isfinite(bound) else None for bound in metric.bounds],
        "options": {
            field.name: None if field.default is MISSING else field.default
            for field in fields(metric)
        },
        "paper": metric.paper,
        "equation": metric.equation,
        "in_papers": metric.in_papers,
    }
