"""The page of a run: one HTML file that needs nothing else, for a person to read."""

from __future__ import annotations

import base64
import hashlib
import math
import mimetypes
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
from faithscope.report.plots import draw_curves, draw_intervals
from faithscope.results import Result

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
    "seed": {"": "Everything random is drawn from this seed."},
    "precision": {"": "Number format in which the perturbed images were run."},
}
"""What a choice of protocol means, by its value; "" stands for any other value."""

VERDICTS: Mapping[str, tuple[str, str]] = {
    "better": ("▲ better", "better than {matched}"),
    "worse": ("▼ worse", "worse than {matched}"),
    "same": ("≈ random", "cannot be told from {matched}"),
}


MOST_CLASSES = 10
"""As many of the watched classes are named."""


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


COSTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "response_passes": ("perturbed passes", "{:,}".format),
    "explanation_passes": ("explanation passes", "{:,}".format),
    "seconds": ("time", _duration),
    "explain_seconds": ("of it explaining", _duration),
    "passes_per_second": ("speed", "{:,.0f} perturbed passes per second".format),
    "batch_size": ("batch size", "{:,}".format),
    "shard": ("images planned together", "{:,}".format),
    "batch_halvings": ("batch halved for memory", "{:,} times".format),
    "fp16_deviation": ("fp16 against fp32", "{:.2g} at most, in a log-probability".format),
}
"""How an entry of the manifest's costs is called and written."""


def write_page(result: Result, path: str | Path, *, pictures: Sequence[str | Path] = ()) -> Path:
    """Write a run as one self-contained HTML page.

    Args:
        result: the run.
        path: the file to write.
        pictures: image files to show, as `draw_explanations` writes them; they are copied into
            the page.
    """
    file = Path(path)
    text = render_page(result, pictures=pictures)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FaithscopeError(
            f"The page cannot be written to '{file}' ({error.strerror}): give another path."
        ) from None
    return file


def render_page(result: Result, *, pictures: Sequence[str | Path] = ()) -> str:
    """The text of the page."""
    environment = Environment(
        loader=PackageLoader("faithscope", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    manifest = result.manifest
    return environment.get_template("page.html.j2").render(
        style=Markup(_source("page.css")),
        script=Markup(script),
        script_hash=digest,
        result=result,
        manifest=manifest,
        compared=bool(result.verdicts()),
        facts=_facts(result),
        rows=_table(result),
        intervals=Markup(draw_intervals(result)),
        curves=Markup(draw_curves(result)),
        pictures=[_picture(Path(picture)) for picture in pictures],
        protocol=[
            (key, value, _meaning(key, value)) for key, value in manifest["protocol"].items()
        ],
        data=_data(result),
        cost=_cost(manifest["cost"]),
        created=_moment(manifest["created"]),
    )


def _source(name: str) -> str:
    return (resources.files("faithscope.report") / name).read_text("utf-8")


def _facts(result: Result) -> list[str]:
    """The size of the run, in a few words each."""
    images = result.manifest["data"]["images"]
    passes = result.manifest["cost"]["response_passes"]
    seconds = result.manifest["cost"]["seconds"]
    baselines = [card for card in result.manifest["methods"].values() if card["random"]]
    methods = _count(len(result.methods) - len(baselines), "method")
    return [
        _count(images, "image"),
        f"{methods} and random attribution" if baselines else methods,
        _count(len(result.metrics), "metric"),
        f"{_count(passes, 'model pass', 'model passes')} in {_duration(seconds)}",
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
            "name": Markup("<wbr>").join(re.split(r"(?<=[_:])|(?=\()", method)),
            "granularity": cards[method]["granularity"],
            "matched": cards[method]["matched_random"],
            "cells": cells[method],
        }
        for method in result.methods
    ]


def _cell(row: Mapping[str, Any]) -> dict[str, Any]:
    mark, said = VERDICTS.get(row["verdict"], ("", ""))
    said = said.format(matched=row["matched_random"])
    if said:
        difference = f"mean difference {row['difference']:+.3f}"
        said = f"{said}: {difference}, adjusted p = {row['p_vs_random']:.2g}"
    known = row["n"] > 0
    return {
        "value": row["mean"] if known else "",
        "mean": f"{row['mean']:.3f}" if known else "—",
        "interval": ""
        if math.isnan(row["ci_low"])
        else f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]",
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


def _data(result: Result) -> list[tuple[str, str]]:
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
    return rows


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


def _cost(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the run cost; an entry this version does not know is shown as it stands."""
    rows = []
    for key, value in cost.items():
        name, form = COSTS.get(key, (key.replace("_", " "), str))
        if value is not None:
            rows.append((name, form(value)))
    return rows


def _picture(file: Path) -> dict[str, str]:
    """An image file as a data address and its name."""
    kind, _ = mimetypes.guess_type(file.name)
    if kind is None or not kind.startswith("image/"):
        raise FaithscopeError(f"'{file}' cannot be shown in a page: give a .png, .jpg or .svg.")
    try:
        content = base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise FaithscopeError(
            f"The picture '{file}' cannot be read ({error.strerror}): draw it first."
        ) from None
    return {"address": f"data:{kind};base64,{content}", "name": file.stem}


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _moment(created: str) -> str:
    moment = datetime.fromisoformat(created)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
