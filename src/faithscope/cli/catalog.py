"""What there is to choose from, as plain data: methods, metrics, measures, models … by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from faithscope.data import SOURCES as DATA
from faithscope.data.text_sources import OPTIONS as TEXT_OPTIONS
from faithscope.data.text_sources import TEXT_SOURCES
from faithscope.methods import METHODS, Method
from faithscope.methods.text import TOKEN_METHODS, TokenMethod
from faithscope.metrics import METRICS, Metric
from faithscope.models import BUNDLE, SOURCES
from faithscope.perturb import FILLS
from faithscope.probes.retrain.learners import TEXT_MODELS
from faithscope.registry import format_spec

Entry = dict[str, Any]


def list_methods() -> list[Entry]:
    """Every registered method, and the door to captum's."""
    captum = {
        "name": "captum:CLASS",
        "summary": "Any attribution class of captum that needs only a model and a target.",
        "example": "captum:Saliency",
    }
    return [*map(_method, METHODS.values()), captum]


def list_metrics() -> list[Entry]:
    """Every registered metric."""
    return [*map(_metric, METRICS.values())]


def list_fills() -> list[Entry]:
    """What can stand in the place of a removed unit."""
    return [{"name": fill.name, "summary": fill.summary} for fill in FILLS.values()]


def list_models() -> list[Entry]:
    """The models that come with the package, and where others come from."""
    suffix = ".safetensors"
    files = sorted(file.name for file in BUNDLE.iterdir() if file.name.endswith(suffix))
    entries: list[Entry] = [
        {"name": f"bundled:{file.removesuffix(suffix)}", "summary": "Comes with faithscope."}
        for file in files
    ]
    sources = {
        "timm": ("Any image classifier of timm.", "timm:vit_base_patch16_224"),
        "hf": ("Any image classifier on Hugging Face.", "hf:google/vit-base-patch16-224"),
        "torchvision": ("Any classifier of torchvision.", "torchvision:vit_b_16"),
        "file": ("Your weights, their card (.json) beside them.", "file:my.safetensors"),
    }
    for source in SOURCES:
        if source in sources:
            summary, example = sources[source]
            entries.append({"name": f"{source}:NAME", "summary": summary, "example": example})
        elif source != "bundled":
            entries.append({"name": f"{source}:NAME", "summary": "From a plugin."})
    return entries


def list_data() -> list[Entry]:
    """Where images come from."""
    known = {
        "bundled": ("200 test images of CIFAR-10.", "bundled:cifar10"),
        "cifar10": ("CIFAR-10 through torchvision.", "cifar10:FOLDER(split=train)"),
        "cifar100": ("CIFAR-100 through torchvision.", "cifar100:FOLDER"),
        "imagenet": ("ImageNet: val/ with class folders by WordNet id.", "imagenet:FOLDER"),
        "hf": ("Hugging Face datasets, of the hub or saved.", "hf:OWNER/NAME(split=test)"),
        "array": ("Arrays, pixels or normalised.", "array:FILE.npz(images=x, labels=y)"),
    }
    folder = {"name": "FOLDER", "summary": "Images, labelled by class folders if there are any."}
    entries = [folder]
    for source in DATA:
        summary, example = known.get(source, ("From a plugin.", f"{source}:NAME"))
        entries.append({"name": f"{source}:…", "summary": summary, "example": example})
    return entries


def list_measures() -> list[Entry]:
    """Every registered measure for text."""
    return [*map(_measure, TOKEN_METHODS.values())]


def list_texts() -> list[Entry]:
    """Where texts come from."""
    known = {
        "babi": ("bAbI: the folder of tasks_1-20_v1-2; tasks 1, 2, 3.", "babi:FOLDER(task=1)"),
        "sst": ("Stanford Sentiment Treebank: train.txt, dev.txt, test.txt.", "sst:FOLDER"),
        "imdb": ("IMDB reviews: the folder aclImdb.", "imdb:FOLDER"),
        "snli": ("Stanford natural language inference: snli_1.0.", "snli:FOLDER"),
        "mimic": ("MIMIC-III: anemia or diabetes.", "mimic:FOLDER(subset=diabetes)"),
        "hf": ("Hugging Face datasets, of the hub or saved.", "hf:OWNER/NAME(text=sentence)"),
        "bundled": ("A small bAbI-1 that comes with faithscope.", "bundled:babi1"),
    }
    own = "Your own texts: .csv, .tsv, .jsonl with text, label (and text2), or a folder of them."
    options = {"options": dict(TEXT_OPTIONS["file"])}
    entries: list[Entry] = [{"name": "FILE or FOLDER", "summary": own, **options}]
    for source in TEXT_SOURCES:
        if source == "file":
            continue
        summary, example = known.get(source, ("From a plugin.", f"{source}:NAME"))
        own_options = {"options": dict(TEXT_OPTIONS.get(source, {}))}
        entry = {"name": f"{source}:…", "summary": summary, "example": example, **own_options}
        entries.append(entry)
    return entries


def list_text_models() -> list[Entry]:
    """What ROAR can train."""
    return [{"name": name, "summary": summary} for name, summary in TEXT_MODELS.items()]


CATALOGUES: Mapping[str, Callable[[], list[Entry]]] = {
    "methods": list_methods,
    "metrics": list_metrics,
    "fills": list_fills,
    "models": list_models,
    "data": list_data,
    "measures": list_measures,
    "texts": list_texts,
    "text models": list_text_models,
}


def title(entry: Entry) -> str:
    """The name of an entry and, for a metric, which way is better."""
    if "higher_is_better" not in entry:
        return str(entry["name"])
    return f"{entry['name']} {'↑' if entry['higher_is_better'] else '↓'}"


def traits(entry: Entry) -> str:
    """Everything but name and summary, in words, on a few lines.

    >>> traits({"granularity": "pixel", "needs": ["gradient"], "options": {"steps": 50}})
    'pixel map · reads gradient · steps=50'
    """
    short = [
        f"{entry['granularity']} map" if "granularity" in entry else "",
        f"reads {', '.join(entry['needs'])}" if entry.get("needs") else "",
        _range(entry["bounds"]) if "bounds" in entry else "",
        ", ".join(options(entry)),
        "in 'all'" if entry.get("in_papers") else "",
        f"for example {entry['example']}" if "example" in entry else "",
    ]
    lines = [entry.get("equation", ""), " · ".join(filter(None, short)), entry.get("paper", "")]
    return "\n".join(filter(None, lines))


def options(entry: Entry) -> list[str]:
    """Every option with its default and, after it, the other values it may have.

    >>> options({"options": {"at": "tokens"}, "choices": {"at": ["tokens", "pixels"]}})
    ['at=tokens|pixels']
    """
    said = []
    for name, default in entry.get("options", {}).items():
        others = [value for value in entry.get("choices", {}).get(name, ()) if value != default]
        said.append("|".join([format_spec("", {name: default})[1:-1], *others]))
    return said


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


def _measure(measure: TokenMethod) -> Entry:
    return {
        "name": measure.name,
        "summary": measure.summary,
        "needs": sorted(measure.needs),
        "options": measure.defaults,
        "choices": {"scaling": ["code", "paper"]} if "scaling" in measure.defaults else {},
        "in_papers": measure.in_papers,
        "is_random": measure.is_random,
    }


def _metric(metric: type[Metric]) -> Entry:
    return {
        "name": metric.name,
        "summary": (inspect.getdoc(metric) or "").partition("\n")[0],
        "higher_is_better": metric.higher_is_better,
        "bounds": list(metric.bounds),
        "options": {
            field.name: None if field.default is MISSING else field.default
            for field in fields(metric)
        },
        "paper": metric.paper,
        "equation": metric.equation,
        "in_papers": metric.in_papers,
    }


def _range(bounds: list[float]) -> str:
    low, high = (f"{bound:g}".replace("inf", "∞").replace("-", "−") for bound in bounds)
    return f"{low} … {high}"
