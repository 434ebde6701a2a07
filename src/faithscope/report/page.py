"""The page of a run: one HTML file that needs nothing else, for a person to read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from faithscope.errors import FaithscopeError
from faithscope.perturb import FILLS
from faithscope.report.gallery import MOST_BYTES, colour_table, make_gallery
from faithscope.report.plots import Plot, plots_of, sensitivity
from faithscope.report.style import number
from faithscope.result import Result
from faithscope.runs.files import write_output
from faithscope.verdicts.sensitivity import sensitivity_rows
from faithscope.version import __version__

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "target": {
        "predicted": "The watched class is the one the model predicts for the intact image.",
        "label": "The watched class is the true one.",
        "given": "The watched class was asked for.",
    },
    "k": {
        "auto": "SaCo's number of groups is chosen per map from 5, 10 and 20.",
        "": "SaCo compares this many groups of units.",
    },
    "units": {
        "pixels": "Single pixels are ranked and removed.",
        "patches": "Whole patches are ranked and removed.",
    },
    "upsample": {
        "bilinear": "Patch maps become pixel maps by smooth interpolation.",
        "nearest": "Patch maps become pixel maps by repeating each value over its patch.",
    },
    "ties": {
        "ascending": "Of units with equal salience the first in reading order ranks higher.",
        "descending": "Of units with equal salience the last in reading order ranks higher.",
    },
    "group": {
        "sum": "A SaCo group weighs the sum of its units' salience, as in the paper.",
        "mean": "A SaCo group weighs the mean of its units' salience.",
    },
    "random_draws": {"": "Random attribution is drawn so often, and averaged per image."},
    "seed": {"": "Everything random is drawn from this seed."},
    "precision": {"": "Number format in which the perturbed images were run."},
}
"""What a choice of protocol means, by its value; "" stands for any other value."""

VERDICTS: Mapping[str, tuple[str, str]] = {
    "better": ("▲ better", "better than {matched}"),
    "worse": ("▼ worse", "worse than {matched}"),
    "same": ("○ not told apart", "cannot be told from {matched}"),
}


MOST_CLASSES = 10
"""As many of the watched classes are named."""


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


COSTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "response_passes": ("perturbed passes", "{:,}".format),
    "explanation_passes": ("explanation passes", "{:,}".format),
    "seconds": ("time", duration),
    "explain_seconds": ("of it explaining", duration),
    "passes_per_second": ("speed", "{:,.0f} perturbed passes per second".format),
    "batch_size": ("batch size", "{:,}".format),
    "shard": ("images planned together", "{:,}".format),
    "batch_halvings": ("batch halved for memory", "{:,} times".format),
    "fp16_deviation": ("fp16 against fp32", "{:.2g} at most, in a log-probability".format),
}
"""How an entry of the manifest's costs is called and written."""


TITLES: Mapping[str, str] = {
    "intervals": "How sure the scores are",
    "radar": "Profiles",
    "curves": "What happens when the most relevant units go",
    "correlations": "Do the metrics agree?",
    "k_choice": "Does the number of groups matter?",
    "sensitivity": "What the choices of the protocol move",
}
"""Plots of a run in the order of the page, and their headings."""


def write_page(
    results: Result | Mapping[str, Result],
    path: str | Path,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write a run, or the runs of a study by name, as one self-contained HTML page.

    Args:
        results: the run, or several.
        path: the file to write.
        title: what the page is about; by default the model and the data.
        notes: warnings to show at its top.
    """
    text = render_page(results, title=title, notes=notes)
    return write_output(Path(path), text.encode("utf-8", "backslashreplace"), "page")


def render_page(
    results: Result | Mapping[str, Result],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The text of the page."""
    if isinstance(results, Result):
        results = {"run": results}
    if not results:
        raise FaithscopeError("There is no finished run to show: give at least one.")
    first = next(iter(results.values())).manifest
    moved = sensitivity(sensitivity_rows(results))
    shared = () if moved is None else (moved,)
    alone = len(results) == 1
    return fill_template(
        "page.html.j2",
        plain_colours=colour_table("plain"),
        signed_colours=colour_table("signed"),
        title=title or f"{first['model']['name']} on {first['data']['name']}",
        notes=list(notes),
        varied=_varied(results),
        sensitivity=None if moved is None or alone else _drawing(moved),
        runs=[
            _run(result, place, label, MOST_BYTES // len(results), shared if alone else ())
            for place, (label, result) in enumerate(results.items())
        ],
    )


def fill_template(name: str, **values: Any) -> str:
    """A page of ours: a template with what every page shares, its style and its script."""
    environment = Environment(
        loader=PackageLoader("faithscope", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(name).render(
        style=Markup(_source("page.css")),
        script=Markup(script),
        script_hash=digest,
        version=__version__,
        **values,
    )


def _run(
    result: Result, place: int, label: str, most_bytes: int, more: Sequence[Plot]
) -> dict[str, Any]:
    """Everything the page says of one run."""
    manifest = result.manifest
    gallery = make_gallery(result, most_bytes=most_bytes)
    plots = {plot.name: plot for plot in (*plots_of(result), *more)}
    return {
        "id": f"run-{place}",
        "label": label,
        "result": result,
        "headline": result.headline(),
        "created": moment(manifest["created"]),
        "compared": bool(result.verdicts()),
        "facts": _facts(result),
        "rows": _table(result),
        "metric_verdicts": result.metric_verdicts(),
        "plots": [_drawing(plots[name]) for name in TITLES if name in plots],
        "gallery": gallery,
        "gallery_data": _json(gallery.data) if gallery else "",
        "method_choices": list(enumerate(result.methods)),
        "metric_choices": [
            (i, f"{name} {result.arrow(name)}") for i, name in enumerate(result.metrics)
        ],
        "flag_choices": [(f"is:{flag}", flag) for flag in (gallery.flags if gallery else ())],
        "metrics": [
            (f"{name} {result.arrow(name)}", card["equation"], card["paper"])
            for name, card in manifest["metrics"].items()
        ],
        "protocol": [
            (key, value, _meaning(key, value)) for key, value in manifest["protocol"].items()
        ],
        "data": _data(result),
        "cost": _cost(manifest),
    }


def _drawing(plot: Plot) -> dict[str, Any]:
    return {
        "title": TITLES.get(plot.name, plot.name),
        "svg": Markup(plot.svg()),
        "caption": plot.caption,
    }


def _json(data: Any) -> Markup:
    """Data for the script of the page; no sign in it can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _varied(results: Mapping[str, Result]) -> str:
    """In what the runs differ, in words."""
    settings = [
        {
            "model": result.manifest["model"]["name"],
            "data": result.manifest["data"]["name"],
            **result.manifest["protocol"],
        }
        for result in results.values()
    ]
    different = {
        key: list(dict.fromkeys(str(each[key]) for each in settings)) for key in settings[0]
    }
    told = [f"{key} {', '.join(values)}" for key, values in different.items() if len(values) > 1]
    return "; ".join(told) or ", ".join(results)


def _source(name: str) -> str:
    return (resources.files("faithscope.report") / name).read_text("utf-8")


def _facts(result: Result) -> list[str]:
    """The size of the run, in a few words each."""
    images = result.manifest["data"]["images"]
    passes = result.manifest["cost"]["response_passes"]
    seconds = result.manifest["cost"]["seconds"]
    baselines = [card for card in result.manifest["methods"].values() if card["random"]]
    methods = count(len(result.methods) - len(baselines), "method")
    return [
        count(images, "image"),
        f"{methods} and random attribution" if baselines else methods,
        count(len(result.metrics), "metric"),
        f"{count(passes, 'model pass', 'model passes')} in {duration(seconds)}",
    ]


def _table(result: Result) -> list[dict[str, Any]]:
    """One row per method: its name, what it is compared with, a cell per metric."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in result.summary().to_pylist():
        cells.setdefault(row["method"], []).append(_cell(row))
    cards = result.manifest["methods"]
    return [
        {
            "method": method,
            "name": breakable(method),
            "granularity": cards[method]["granularity"],
            "matched": cards[method]["matched_random"],
            "cells": cells[method],
        }
        for method in result.methods
    ]


def breakable(name: str) -> Markup:
    """A name that a narrow column may break after a sign."""
    return Markup("<wbr>").join(re.split(r"(?<=[_:])|(?=\()", name))


def _cell(row: Mapping[str, Any]) -> dict[str, Any]:
    mark, said = VERDICTS.get(row["verdict"], ("", ""))
    said = said.format(matched=row["matched_random"])
    if said:
        difference = f"mean difference {row['difference']:+.3f}"
        said = f"{said}: {difference}, adjusted p = {row['p_vs_random']:.2g}"
    known = row["n"] > 0
    return {
        "value": row["mean"] if known else "",
        "mean": number(row["mean"]) if known else "—",
        "interval": ""
        if math.isnan(row["ci_low"])
        else f"[{number(row['ci_low'])}, {number(row['ci_high'])}]",
        "verdict": row["verdict"],
        "mark": mark,
        "said": said,
        "flagged": row["flagged"],
    }


def _meaning(key: str, value: Any) -> str:
    if key == "fill" and value in FILLS:
        return f"Removed units are replaced: {FILLS[value].summary}."
    known = MEANINGS.get(key, {})
    return known.get(str(value), known.get("", ""))


def _data(result: Result) -> list[tuple[str, str, str]]:
    data, model = result.manifest["data"], result.manifest["model"]
    rows = [
        ("model", f"{model['name']} ({model['dtype']})"),
        ("weights", model["fingerprint"]),
        ("data", data["name"]),
        ("images", f"{data['images']:,} used, {len(data['skipped']):,} left out"),
        ("images' hash", data["fingerprint"]),
        ("watched classes", _watched(result)),
    ]
    if data["accuracy"] is not None:
        rows.append(("accuracy", f"{100 * data['accuracy']:.1f} % of the intact images"))
    return [(name, value, "") for name, value in rows]


def _watched(result: Result) -> str:
    """The classes whose probability was watched, the most frequent ones by name."""
    counts = Counter(result.samples["target"].to_pylist())
    names = result.manifest["model"]["classes"]
    common = [
        f"{names[target] if names and target < len(names) else target} ({times:,})"
        for target, times in counts.most_common(MOST_CLASSES)
    ]
    others = len(counts) - len(common)
    return ", ".join(common) + (f" and {others:,} more" if others else "")


def _cost(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the run cost, where and with what; an unknown entry is shown as it stands."""
    rows = []
    for key, value in manifest["cost"].items():
        name, form = COSTS.get(key, (key.replace("_", " "), str))
        if value is not None:
            rows.append((name, form(value), ""))
    for name in ("machine", "versions"):
        said = ", ".join(f"{part} {value}" for part, value in manifest[name].items())
        rows.append((name, said, ""))
    return rows


def count(number: int, one: str, many: str | None = None) -> str:
    """A number of things."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def moment(created: str) -> str:
    """A time as people write it."""
    when = datetime.fromisoformat(created)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
