"""The page of a run or of several: one HTML file that needs nothing else, for a person to read."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from faithscope.errors import FaithscopeError
from faithscope.markup import keep_together
from faithscope.report.gallery import MOST_BYTES, colour_table
from faithscope.report.sections import (
    Section,
    about,
    cost,
    facts,
    overview,
    protocol,
    sections_of,
)
from faithscope.report.style import Plot
from faithscope.report.tables import choices_of, written
from faithscope.report.trainings import mixed
from faithscope.report.words import Explained, looks_of, readable, word_styles
from faithscope.request import Place, as_place
from faithscope.runs.files import write_output
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import ends_sentence, headline, stopping, verdicts, warnings
from faithscope.version import __version__


def write_page(
    results: Findings | Mapping[str, Findings],
    path: str | Place,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Place:
    """Write a run, or the runs of a study by name, as one self-contained HTML page.

    Args:
        results: the run, or several.
        path: the file to write.
        title: what the page is about; by default the model and the data.
        notes: warnings to show at its top.
    """
    text = render_page(results, title=title, notes=notes)
    return write_output(as_place(path), text.encode("utf-8", "backslashreplace"), "page")


def write_explained(
    found: Findings,
    path: str | Place,
    *,
    title: str,
    texts: Sequence[str],
    explained: Sequence[Explained],
    story: Plot | None = None,
) -> Place:
    """Write what each method says about one text as a page of its own.

    Args:
        found: the evaluation of the text.
        path: the file to write.
        title: what is explained.
        texts: the text, or both of a pair.
        explained: its words by method.
        story: how the scores come about.
    """
    note = (
        "SaCo says whether the words that a method calls salient are those that the model needs: "
        "1 is the right order, −1 the wrong one. Random salience averages 0 over many texts, not "
        "on each. Point at a word to see its salience."
    )
    parts = [Section("Method by method", note, explained=explained)]
    parts += [] if story is None else [Section(story.title, plot=story)]
    run = {
        **_about(found, "run-0", title),
        "headline": title,
        "said": [f"“{readable(text)}”" for text in texts],
        "warnings": warnings(found),
        "facts": choices_of(found),
        "verdicts": [],
        "sections": [*parts, protocol(found), about(found), cost(found)],
    }
    text = _render([run], title=title)
    return write_output(as_place(path), text.encode("utf-8", "backslashreplace"), "page")


def render_page(
    results: Findings | Mapping[str, Findings],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The text of the page."""
    runs = {"run": results} if isinstance(results, Findings) else results
    if not runs:
        raise FaithscopeError("There is no finished run to show: give at least one.")
    first = next(iter(runs.values())).manifest
    return _render(
        [_run(found, place, label, len(runs)) for place, (label, found) in enumerate(runs.items())],
        title=title or f"{first.model.name} on {first.data.name}",
        notes=[*notes, *mixed(runs)],
        varied=_varied(runs),
        overview=overview(runs) if len(runs) > 1 else (),
    )


def _render(
    runs: Sequence[Mapping[str, Any]],
    *,
    title: str,
    notes: Sequence[str] = (),
    varied: str = "",
    overview: Sequence[Section] = (),
) -> str:
    """The page with everything that it needs."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            style=Markup(f"{_source('page.css')}\n{word_styles()}"),
            script=Markup(script),
            script_hash=digest,
            version=__version__,
            plain_colours=colour_table("plain"),
            signed_colours=colour_table("signed"),
            title=title,
            notes=list(notes),
            varied=varied,
            overview=overview,
            runs=runs,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("faithscope", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=keep_together,
    )
    environment.filters["json"] = _json
    environment.globals["looks_of"] = looks_of
    return environment


def _run(found: Findings, place: int, label: str, runs: int) -> dict[str, Any]:
    """Everything the page says of one run."""
    manifest, head = found.manifest, headline(found)
    said = [ends_sentence(found)] if found.trainings.num_rows else []
    if manifest.stopping is not None:
        said.append(stopping(manifest.stopping, manifest.sample))
    return {
        **_about(found, f"run-{place}", label),
        "headline": head,
        "said": said,
        "warnings": [line for line in warnings(found) if line not in head],
        "facts": facts(found),
        "verdicts": verdicts(found),
        "sections": sections_of(found, is_alone=runs == 1, most_bytes=MOST_BYTES // runs),
    }


def _about(found: Findings, place: str, label: str) -> dict[str, Any]:
    """What is run on what, and when."""
    manifest = found.manifest
    names = {"model": manifest.model.name, "data": manifest.data.name}
    return {"id": place, "label": label, **names, "created": _moment(manifest.created)}


def _json(data: Any) -> Markup:
    """Data for the script of the page; no sign in it can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _varied(results: Mapping[str, Findings]) -> str:
    """In what the runs differ, in words, of the options that all of them have."""
    settings = []
    for found in results.values():
        names = {"model": found.manifest.model.name, "data": found.manifest.data.name}
        settings.append({**names, **found.manifest.protocol})
    varied = []
    for key in (key for key in settings[0] if all(key in each for each in settings)):
        values = list(dict.fromkeys(written(each[key]) for each in settings))
        if len(values) > 1:
            between = " / " if any(", " in value for value in values) else ", "
            varied.append(f"{key} {between.join(values)}")
    return "; ".join(varied) or ", ".join(results)


def _source(name: str) -> str:
    return (resources.files("faithscope.report") / name).read_text("utf-8")


def _moment(created: str) -> str:
    """A time as people write it."""
    when = datetime.fromisoformat(created)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
