"""The page of ROAR runs: one HTML file, in the style and with the script of every page of ours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from faithscope.errors import FaithscopeError
from faithscope.probes.retrain.verdict import METRICS, PROCEDURES, in_words, score
from faithscope.report.page import VERDICTS, breakable, count, duration, fill_template, moment
from faithscope.report.roar_figures import roar_plots, written_legend
from faithscope.report.roar_rows import (
    NO_ENDS,
    Row,
    curve_rows,
    ends_sentence,
    majority_rows,
    racu_rows,
    run_labels,
    time_rows,
)
from faithscope.report.roar_tables import (
    curves_table,
    majority_table,
    racu,
    racu_table,
    time_table,
)
from faithscope.report.tables import Table
from faithscope.runs.files import write_output

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

TITLES = {
    "curves": "What masking the most important words costs",
    "sparsity": "How few words hold the importance",
}
"""Plots of a run and their headings."""
SHADES = 6
"""Colours of words, from the least to the most important."""
MOST_WORDS = 120
"""Words of an example that are shown."""
FIRST_WORDS = 6
"""Words of an example by which it is chosen."""
UNKNOWN = ("[UNK]", "<unk>")
"""What stands for a word that a model does not know."""
DIFFERING = {"levels": "levels", "seeds": "seeds", "procedures": "procedures", "clip": "clipping"}
"""Choices that runs of one page may differ in, and what they are called."""

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "strategy": {
        "relative": "Levels are percentages of a text's tokens, rounded down.",
        "count": "Levels are numbers of tokens.",
    },
    "levels": {"": "How much is masked when a new model is trained."},
    "procedures": {
        "": "ROAR ranks the tokens once, by the model of the unmasked texts; Recursive ROAR ranks "
        "them again at each level, by the model trained there."
    },
    "seeds": {"": "Each is a model of its own: its first weights and the order of its batches."},
    "specials": {
        "True": "Sparsity counts special tokens, too, as the paper's program does.",
        "False": "Sparsity counts the tokens that can be masked.",
    },
    "clip": {
        "True": "The RACU of a seed is kept within −100 % and 100 %.",
        "False": "The RACU of a seed is taken as it is.",
    },
}
"""What a choice of protocol means, by its value; "" stands for any other value."""


def write_roar_page(
    results: RoarResult | Mapping[str, RoarResult],
    path: str | Path,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write a ROAR run, or several by name, as one self-contained HTML page."""
    text = render_roar_page(results, title=title, notes=notes)
    return write_output(Path(path), text.encode("utf-8", "backslashreplace"), "page")


def render_roar_page(
    results: RoarResult | Mapping[str, RoarResult],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The text of the page."""
    if not isinstance(results, Mapping):
        results = {"run": results}
    if not results:
        raise FaithscopeError("There is no finished run to show: give at least one.")
    first = next(iter(results.values())).manifest
    text = fill_template(
        "roar.html.j2",
        title=title or f"{first['model']['name']} on {first['data']['name']}",
        notes=[*notes, *_mixed(results)],
        no_racu=_no_racu(results),
        breakable=breakable,
        why_no_ends=_why_no_ends,
        racu_table=_racu_table(results) if len(results) > 1 else None,
        majority_table=(
            majority_table(majority_rows(results), run_labels(results))
            if any(_is_masked_whole(result) for result in results.values())
            else None
        ),
        runs=[_run(result, place, name) for place, (name, result) in enumerate(results.items())],
    )
    # A number and its sign stay on one line; the script must stay as its hash says.
    page, mark, script = text.rpartition("<script>")
    return re.sub(r"(?<=[\d\]]) (?=%)", "\N{NO-BREAK SPACE}", page) + mark + script


def _run(result: RoarResult, place: int, label: str) -> dict[str, Any]:
    """Everything the page says of one run."""
    manifest, alone = result.manifest, {label: result}
    labels = run_labels(alone)
    return {
        "id": f"run-{place}",
        "label": label,
        "model": manifest["model"]["name"],
        "data": manifest["data"]["name"],
        "created": moment(manifest["created"]),
        "headline": result.headline(),
        "ends": ends_sentence(result),
        "warnings": list(result.warnings()),
        "facts": _facts(result),
        "racu": _short(_racu_table(alone)),
        "plots": [
            {
                "title": TITLES[plot.name],
                "svg": Markup(plot.svg()),
                "caption": plot.caption,
                "legend": written_legend(result, plot),
            }
            for plot in roar_plots(result, legend=False)
        ],
        "texts": _texts(result),
        "shades": SHADES,
        "colours_note": _colours_note(result),
        "curves": _levels(_short(curves_table(curve_rows(alone), labels)), result),
        "curves_note": _curves_note(result),
        "over": "% of the tokens masked" if result.is_relative else "tokens masked",
        "majority": _short(majority_table(majority_rows(alone), labels)),
        "masked_note": _masked_note(result),
        "time": _short(time_table(time_rows(alone), labels)),
        "protocol": _protocol(result),
        "about": _about(result),
        "cost": _cost(manifest),
    }


def _mixed(results: Mapping[str, RoarResult]) -> list[str]:
    """Say so if the numbers of different runs do not mean quite the same."""
    relative = {run: r.manifest["protocol"] for run, r in results.items() if r.is_relative}
    protocols = list(relative.values())
    differing = [
        said
        for key, said in DIFFERING.items()
        if any(protocol[key] != protocols[0][key] for protocol in protocols)
    ]
    if not differing:
        return []
    which = "These runs" if len(relative) == len(results) else f"Of these runs {in_words(relative)}"
    return [f"{which} differ in {in_words(differing)}: compare their RACU with care."]


def _no_racu(results: Mapping[str, RoarResult]) -> str:
    """Which runs the table of RACU leaves out, and why."""
    few = [run for run, result in results.items() if not result.is_relative]
    if not few:
        return ""
    have = "masks a few tokens and has" if len(few) == 1 else "mask a few tokens and have"
    return f"{in_words(few)} {have} no RACU, which is relative to masking everything."


def _racu_table(results: Mapping[str, RoarResult]) -> Table | None:
    rows = racu_rows(results)
    return racu_table(rows, run_labels(results), _racu_cell) if rows else None


def _why_no_ends(table: Table) -> str:
    """What the caption of a table says of means without an interval."""
    _, why, where = table.caption.partition(NO_ENDS)
    return f" {why}{where}." if why else ""


def _racu_cell(row: Row) -> str:
    """Mean, interval and verdict of a cell, as HTML."""
    mean, *ends = racu(row).split(" ")
    mark, said = VERDICTS.get(row["verdict"], ("", ""))
    title = said.format(matched="random masking")
    cell = Markup("{}").format(mean)
    if ends:
        cell += Markup("<small>{}</small>").format(" ".join(ends))
    if mark:
        form = '<small class="{}" title="{}">{}</small>'
        cell += Markup(form).format(row["verdict"], title, mark)
    return cell


def _short(table: Table | None) -> Table | None:
    """Leave the data set and the model out of the table of a single run."""
    return None if table is None else _without(table, 2)


def _without(table: Table, columns: int) -> Table:
    """A table less its first columns."""
    rows = tuple(row[columns:] for row in table.rows)
    return replace(table, heads=table.heads[columns:], rows=rows, names=table.names - columns)


def _levels(table: Table | None, result: RoarResult) -> Table | None:
    """Curves as narrow as can be: bare numbers over tokens, no column of a single procedure."""
    if table is None:
        return None
    if len(result.procedures) == 1:
        table = _without(table, 1)
    names = table.heads[: table.names]
    return replace(table, heads=(*names, *(f"{k}" for k in result.levels)))


def _curves_note(result: RoarResult) -> str:
    """What the numbers of the table of curves are."""
    unit = "" if result.metric == "cross_entropy" else ", in %"
    means = "mean over seeds" if len(result.seeds) > 1 else "of one seed"
    by = f" By {PROCEDURES[result.procedures[0]]}." if len(result.procedures) == 1 else ""
    return (
        f"{_capital(METRICS[result.metric])} on the test split{unit}: {means}. The tokens that a "
        f"measure calls most important are masked, and a new model is trained.{by}"
    )


def _is_masked_whole(result: RoarResult) -> bool:
    """Whether models of fully masked texts were trained."""
    return result.is_relative and 100 in result.levels


def _masked_note(result: RoarResult) -> str:
    """What a model of fully masked texts can still know; "" where no text was fully masked."""
    if not _is_masked_whole(result):
        return ""
    more = "what it scores above the largest class alone comes from"
    if any(example["auxiliary"] for example in result.examples):
        return (
            "A model whose every token is masked still reads the second text, which is never "
            f"masked, and the length of the first: {more} these."
        )
    second = "" if result.examples else ", and a second text if it reads one"
    return f"A model that sees only masks can know the length of a text{second}: {more} that."


def _facts(result: RoarResult) -> list[str]:
    """The size of the run, in a few words each."""
    data, protocol, cost = (result.manifest[key] for key in ("data", "protocol", "cost"))
    measures = [name for name in protocol["measures"] if name != "random"]
    return [
        f"{count(len(measures), 'measure')} and random masking",
        count(len(protocol["seeds"]), "seed"),
        f"{count(len(protocol['levels']), 'level')} of masking",
        f"{count(cost['trainings'], 'training')} in {duration(cost['seconds'])}",
        f"{count(data['sizes'].get('test', 0), 'test text')}",
    ]


def _texts(result: RoarResult) -> list[dict[str, Any]]:
    """The example texts, those with the fewest words that the model does not know first."""
    kept = sorted(result.examples, key=lambda e: (e["seed"], e["index"]))
    groups = [list(own) for _, own in groupby(kept, key=lambda e: (e["seed"], e["index"]))]
    groups.sort(key=lambda own: sum(word in UNKNOWN for word in own[0]["words"]))
    return [
        {
            "name": f"{own[0]['index'] + 1:,}: {_beginning(own[0])}",
            "about": _about_example(own[0]),
            "measures": list(_measures(result, own)),
        }
        for own in groups
    ]


def _measures(result: RoarResult, kept: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One text under every measure, by either procedure or by both if they agree."""
    for measure in result.measures:
        own = {e["procedure"]: e for e in kept if e["measure"] == measure}
        found = [name for name in PROCEDURES if name in own]
        if len(found) > 1 and len({str(own[name]["levels"]) for name in found}) == 1:
            found = found[:1]
        for name in found:
            both = len(own) > len(found)
            yield {
                "title": f"{measure}, {'both procedures' if both else PROCEDURES[name]}",
                "steps": list(_steps(result, own[name])),
                "hidden": max(0, len(own[name]["eligible"]) - MOST_WORDS),
            }


def _colours_note(result: RoarResult) -> str:
    """Of which model the scores are that colour a row."""
    of = {
        "recursive": "those of the model trained at the level before",
        "roar": "always those of the model of the unmasked texts",
    }
    scores = [f"by {PROCEDURES[name]} {of[name]}" for name in of if name in result.procedures]
    rest = " The last row masks what is left, unranked." if _is_masked_whole(result) else ""
    return (
        "Colours are scaled within a row. They are the scores that decide what is masked in it: "
        f"{', '.join(scores)}.{rest}"
    )


def _beginning(example: Mapping[str, Any]) -> str:
    """The first words of a text, which tell it from the others."""
    words = [_plain(example["words"][at]) for at in example["eligible"]]
    return " ".join(words[:FIRST_WORDS]) + " …" * (len(words) > FIRST_WORDS)


def _about_example(example: Mapping[str, Any]) -> str:
    said = f"Text {example['index'] + 1:,} of the {example['split']} split, of class "
    said += f"“{example['label']}”, with seed {example['seed']}."
    if example["auxiliary"]:
        said += (
            f" With it the model reads “{' '.join(example['auxiliary'])}”, which is never masked."
        )
    return said


def _steps(result: RoarResult, example: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One line per level: each word coloured by its score, masked before or masked just now.

    The colours are those of the scores that decided what is masked in this step; the strongest is
    that of the most important word still to be seen.
    """
    relative = result.is_relative
    shown = example["eligible"][:MOST_WORDS]
    before: set[int] = set()
    for level in example["levels"]:
        gone = set(level["masked"])
        scores = {at: value for at, value in enumerate(level["scores"]) if math.isfinite(value)}
        seen = [abs(scores.get(at, 0.0)) for at in example["eligible"] if at not in before]
        top = max(seen, default=0.0)
        yield {
            "level": f"{level['k']} %" if relative else f"{level['k']}",
            "words": [
                _word(example["words"][at], scores.get(at), top, at in gone, at in before)
                for at in shown
            ],
        }
        before = gone


def _word(word: str, value: float | None, top: float, gone: bool, before: bool) -> dict[str, str]:
    share = 0.0 if value is None or not top else abs(value) / top
    shade = f"shade-{min(SHADES - 1, math.ceil(share * SHADES - 0.5))}"
    look = "gone" if before else f"{shade} new" if gone else shade
    known = value is not None and not before
    return {"text": _plain(word), "look": look, "said": f"importance {value:.3g}" if known else ""}


def _plain(word: str) -> str:
    """A word without the signs by which tokenizers mark its beginning."""
    return word.lstrip("Ġ▁") or word


def _protocol(result: RoarResult) -> list[tuple[str, str, str]]:
    data, protocol = result.manifest["data"], result.manifest["protocol"]
    metric = METRICS[data["metric"]]
    chosen = METRICS[data["selection"]]
    rows = [
        ("metric", metric, f"The epoch with the best {chosen} on the validation split is tested.")
    ]
    for key, value in protocol.items():
        if key == "clip" and not result.is_relative:
            continue  # of RACU, which this run has not
        known = MEANINGS.get(key, {})
        rows.append((key, _written(value), known.get(str(value), known.get("", ""))))
    return rows


def _about(result: RoarResult) -> list[tuple[str, str, str]]:
    data, model = result.manifest["data"], result.manifest["model"]
    majority = data["majority"]
    sizes = ", ".join(f"{name} {number:,}" for name, number in data["sizes"].items())
    rows = [
        ("model", model["name"], ""),
        ("parameters", f"{model['parameters']:,}", ""),
        (
            "training",
            ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in model["recipe"].items()),
            "",
        ),
        ("data", data["name"], " ".join(data.get("notes") or ())),
        *_vectors(result),
        ("texts", sizes, ""),
        ("mean length", f"{data['mean_length']:.1f} tokens, special ones included", ""),
        ("vocabulary", f"{data['vocabulary']:,} entries", ""),
        ("classes", _written(data["classes"]), ""),
        (
            "largest class",
            f"{majority['class']}, alone it would score {score(data['metric'], majority['score'])}",
            "",
        ),
        ("fingerprint", str(data["fingerprint"]), ""),
    ]
    if truncated := _truncated(data.get("truncated")):
        rows.append(("cut to the model's length", truncated, ""))
    return rows


def _vectors(result: RoarResult) -> list[tuple[str, str, str]]:
    """What a word's embedding starts from; nothing of a pretrained model, or of an older run."""
    data, model = result.manifest["data"], result.manifest["model"]
    if "vectors" not in data or model["name"].startswith("hf:"):
        return []
    if (found := data["vectors"]) is None:
        return [("word vectors", "none: embeddings drawn at random", "")]
    said = f"{found['size']:,} numbers each, for {found['words']:,} words of the vocabulary"
    return [("word vectors", said, "")]


def _truncated(counts: Any) -> str:
    if not isinstance(counts, Mapping):
        return f"{counts:,}" if counts else ""
    return ", ".join(f"{name} {number:,}" for name, number in counts.items() if number)


def _cost(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    cost, device = manifest["cost"], manifest["model"].get("device", "")
    explaining = sum(cost["explaining_seconds"].values())
    rows = [
        ("time", duration(cost["seconds"]), ""),
        ("trainings", f"{cost['trainings']:,}, {duration(cost['training_seconds'])} in all", ""),
        ("explaining", duration(explaining), ""),
        ("device", str(device), ""),
    ]
    for name in ("machine", "versions"):
        said = ", ".join(f"{part} {value}" for part, value in manifest[name].items())
        rows.append((name, said, ""))
    return rows


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
