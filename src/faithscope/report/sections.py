"""The sections of a page: each is a small function of a run, shown if its tables are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from faithscope.perturb import FILLS
from faithscope.report import lines, plots
from faithscope.report.gallery import MOST_BYTES, Gallery, make_gallery
from faithscope.report.masked_image import masked_image
from faithscope.report.style import Plot
from faithscope.report.table import Table, duration
from faithscope.report.tables import sample_word, scores_table, sensitivity_of, written
from faithscope.report.texts import Text, is_masked_whole, masked_texts, what_colours_mean
from faithscope.report.trainings import (
    HOW,
    clips,
    curves_table,
    majority_table,
    racu_table,
    relative,
    time_table,
    trained,
    why_no_ends,
    without_racu,
)
from faithscope.report.words import Explained
from faithscope.request import options
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import (
    PROCEDURES,
    TEST_METRICS,
    counted,
    failed_line,
    metric_verdicts,
    percent,
    precision_notes,
    test_score,
)

Fact = tuple[str, str, str]
"""A name, a value and what it means."""

MOST_CLASSES = 10
"""As many of the target classes are named."""
COSTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("time", duration),
    "explain_seconds": ("of which explaining", duration),
    "response_passes": ("perturbed passes", "{:,}".format),
    "explanation_passes": ("explanation passes", "{:,}".format),
    "passes_per_second": ("speed", "{:,.0f} perturbed passes per second".format),
    "batch_halvings": ("batch halved (out of memory)", "{:,} times".format),
    "fp16_deviation": ("fp16 against fp32", "{:.2g} at most, in a log-probability".format),
    "trainings": ("trainings", "{:,}".format),
    "training_seconds": ("of the time training", duration),
    "explaining_seconds": ("of the time explaining", lambda by: duration(sum(by.values()))),
    "packs": ("packs of trainings", "{:,}".format),
}
"""How an entry of a run's cost is called and written."""


@dataclass(frozen=True, eq=False)
class Section:
    """A part of a page: a title and, in this order, whatever it has."""

    title: str
    note: str = ""
    plot: Plot | None = None
    table: Table | None = None
    texts: Sequence[Text] = ()
    explained: Sequence[Explained] = ()
    gallery: Gallery | None = None
    facts: Sequence[Fact] = ()
    folded: Sequence[str] = ()
    """Lines that are shown on demand."""
    summary: str = ""
    """What stands for them until then."""


def sections_of(
    found: Findings, *, is_alone: bool = True, most_bytes: int = MOST_BYTES
) -> list[Section]:
    """Everything that a page shows of one run; of several, what they move stands above them."""
    made: list[Section | None] = []
    if found.trainings.num_rows:
        made += [
            racu({"": found}),
            _of(lines.performance(found)),
            texts(found),
            _of(masked_image(found)),
            _of(lines.sparsity(found)),
            levels(found),
            both_ends({"": found}),
        ]
    made.append(scores(found))
    if found.samples.num_rows:
        made += [_of(draw(found)) for draw in plots.OF_SAMPLES]
        made += [sensitivity({"": found}) if is_alone else None, gallery(found, most_bytes)]
    made += [time({"": found}), metrics(found), protocol(found), about(found), cost(found)]
    return [section for section in made if section is not None]


def overview(results: Mapping[str, Findings]) -> list[Section]:
    """What several runs show together."""
    made = (make(results) for make in (sensitivity, racu, both_ends))
    return [section for section in made if section is not None]


def _of(plot: Plot | None) -> Section | None:
    return None if plot is None else Section(plot.title, plot=plot)


def _own(table: Table | None, results: Mapping[str, Findings]) -> Table | None:
    """A table of a single run needs no data set and model."""
    return table.without(2) if table is not None and len(results) == 1 else table


# Of several runs, or of one


def sensitivity(results: Mapping[str, Findings]) -> Section | None:
    """How the choices of the protocol change the scores."""
    return _of(plots.sensitivity(sensitivity_of(results), sample_word(results)))


def racu(results: Mapping[str, Findings]) -> Section | None:
    """RACU in the layout of the paper."""
    table = _own(racu_table(results), results)
    if table is None:
        return None
    one, *_ = relative(results).values()
    clipped = all(map(clips, relative(results).values()))
    parts = (
        f"In %: {HOW}; ▲ better, ▼ worse than random masking, ○ no significant difference "
        f"({one.replicate.how}).",
        "The RACU of a seed is kept within −100 % and 100 %." if clipped else "",
        f"{why_no_ends(table.records)}."[2:],
        without_racu(results) if len(results) > 1 else "",
    )
    return Section("Faithfulness (RACU)", " ".join(filter(None, parts)), table=table)


def both_ends(results: Mapping[str, Findings]) -> Section | None:
    """The most common class, and models of unmasked and of fully masked data."""
    whole = [found for found in trained(results).values() if is_masked_whole(found)]
    if not whole:
        return None
    note = _masked_note(whole[0]) if len(results) == 1 else ""
    table = _own(majority_table(results), results)
    return Section("With nothing and with everything masked", note, table=table)


def time(results: Mapping[str, Findings]) -> Section | None:
    """What one step takes."""
    table = _own(time_table(results), results)
    return None if table is None else Section("Compute time", f"{table.caption}.", table=table)


# Of one run


def scores(found: Findings) -> Section:
    """Every mean with its interval."""
    note = f"Mean over {found.replicate.word}s with its 95 % interval."
    if any(row["verdict"] for row in found.rows):
        note += (
            " ▲ better, ▼ worse than the matched random method, ○ no significant difference "
            f"({found.replicate.how})."
        )
    sentences, summary = metric_verdicts(found), "What each metric shows"
    return Section("Scores", note, table=scores_table(found), folded=sentences, summary=summary)


def texts(found: Findings) -> Section | None:
    """A few texts, masked step by step."""
    held = masked_texts(found)
    title = "One text, masked step by step"
    return Section(title, what_colours_mean(found), texts=held) if held else None


def levels(found: Findings) -> Section | None:
    """Performance at every level, as narrow as can be: bare numbers over units."""
    table, curves = curves_table({"": found}), found.trained
    if table is None:
        return None
    single = len(curves.procedures) == 1
    table = table.without(3 if single else 2)
    heads = (*table.heads[: table.names], *map(str, curves.levels))
    units = curves.card.units
    over = f"% of the {units} masked" if curves.is_relative else f"{units} masked"
    unit = "" if curves.metric == "cross_entropy" else ", in %"
    means = "mean over seeds" if len(curves.seeds) > 1 else "of one seed"
    metric = TEST_METRICS[curves.metric]
    note = (
        f"{metric[0].upper()}{metric[1:]} on the test split{unit}: {means}. The {units} that a "
        "measure calls most important are masked, and a new model is trained."
    )
    note += f" By {PROCEDURES[curves.procedures[0]]}." if single else ""
    table = replace(table, heads=heads, over=over)
    return Section("Performance at every level", note, table=table)


def _masked_note(found: Findings) -> str:
    """What a model of fully masked data can still know."""
    more = "what it scores above the most common class alone comes from"
    if found.manifest.data.images is not None:
        fill = found.manifest.protocol["fill"]
        return (
            f"A model of which every {found.trained.card.unit} is masked still sees what the fill "
            f"'{fill}' keeps of an image: {more} that."
        )
    if any(found.examples["auxiliary"].to_pylist()):
        return (
            "A model whose every token is masked still reads the second text, which is never "
            f"masked, and the length of the first: {more} these."
        )
    second = "" if found.examples.num_rows else ", and a second text if it reads one"
    return f"A model that sees only masks can know the length of a text{second}: {more} that."


def gallery(found: Findings, most_bytes: int) -> Section:
    """Every image or text that was kept."""
    held, word = make_gallery(found, most_bytes=most_bytes), found.manifest.sample
    title = f"{word.capitalize()} by {word}"
    if held is None:
        return Section(
            title, f"This run kept no {word}s to look at: pictures=200 keeps the first 200."
        )
    notes = []
    if held.shown < held.kept:
        notes.append(
            f"The first {held.shown:,} of {held.kept:,} {word}s that were kept are here: more "
            "would make the page too large."
        )
    if held.is_halved:
        notes.append("Large maps are shown at half their size, to keep the page small.")
    if held.kept < found.samples.num_rows:
        notes.append(
            f"The first {held.kept:,} of {found.samples.num_rows:,} {word}s were kept to be looked "
            "at."
        )
    notes += precision_notes(found)
    return Section(title, " ".join(notes), gallery=held)


def metrics(found: Findings) -> Section:
    """What every metric computes, and where it comes from."""
    cards = found.manifest.metrics.items()
    facts = [(f"{name} {found.arrow(name)}", card.equation, card.paper) for name, card in cards]
    return Section("Metrics", facts=facts)


def protocol(found: Findings) -> Section:
    """The options that decide what a number means."""
    facts = []
    if (about := found.manifest.data.splits) is not None:
        best = TEST_METRICS[about.selection]
        chosen = f"The epoch with the best {best} on the validation split is tested."
        facts.append(("metric", TEST_METRICS[about.metric], chosen))
    known = options(type(found.manifest.plan.request))
    for name, value in found.manifest.protocol.items():
        if name == "specials" and not found.sparsity.num_rows:
            continue
        summary = FILLS[value].summary if name == "fill" and value in FILLS else ""
        is_told = summary or name != "fill" or value is None
        meaning = known[name].meaning(value) if is_told else ""
        words = meaning.format(sample=found.manifest.sample, summary=summary)
        facts.append((name, written(value), words))
    return Section("Protocol", facts=facts)


def about(found: Findings) -> Section:
    """The model and the data."""
    model, data = found.manifest.model, found.manifest.data
    dtype = f" ({model.dtype})" if model.dtype else ""
    rows = [("model", f"{model.name}{dtype}"), ("weights", model.fingerprint)]
    if model.parameters is not None:
        rows.append(("parameters", f"{model.parameters:,}"))
    if model.recipe is not None:
        recipe = model.recipe.model_dump().items()
        parts = (f"{name.replace('_', ' ')} {written(value)}" for name, value in recipe)
        rows.append(("training", ", ".join(parts)))
    rows += [
        ("data", data.name),
        *_texts(found),
        *_pixels(found),
        *_samples(found),
        ("hash", data.fingerprint),
    ]
    notes = " ".join(data.splits.notes) if data.splits is not None else ""
    return Section(
        "Model and data",
        facts=[(name, text, notes * (name == "data")) for name, text in rows if text],
        folded=[
            *(f"{item.name}: {item.why}" for item in data.skipped),
            *(failed_line(item) for item in data.failed),
        ],
        summary=f"{len(data.skipped)} left out, {len({item.sample for item in data.failed})} failed"
        if data.failed
        else f"{len(data.skipped)} left out",
    )


def _samples(found: Findings) -> list[tuple[str, str]]:
    """Images or texts whose model was given."""
    data, word = found.manifest.data, found.manifest.sample
    if not found.samples.num_rows:
        return []
    rows = [
        (f"{word}s", f"{data.samples:,} used, {len(data.skipped):,} left out"),
        ("target classes", _watched(found)),
    ]
    if data.accuracy is not None:
        rows.append(("accuracy", f"{percent(data.accuracy)} of the intact {word}s"))
    return rows


def _watched(found: Findings) -> str:
    """The classes whose probability was watched, the most frequent ones by name."""
    counts = Counter(found.samples["target"].to_pylist())
    names = found.manifest.model.classes or ()
    common = [
        f"{names[target] if target < len(names) else target} ({times:,})"
        for target, times in counts.most_common(MOST_CLASSES)
        if target >= 0
    ]
    others = len(counts) - len(common)
    return ", ".join(common) + (f" and {others:,} more" if others else "")


def _texts(found: Findings) -> list[tuple[str, str]]:
    card = found.manifest.data.texts
    if card is None:
        return []
    random = found.manifest.model.weights == "random"
    vectors = "none: embeddings drawn at random" if random else ""
    score = test_score(card.metric, card.majority.score)
    if (held := card.vectors) is not None:
        vectors = f"{held.size:,} numbers each, for {held.words:,} words of the vocabulary"
    return [
        ("word vectors", vectors),
        ("texts", _listed(card.sizes)),
        ("mean length", f"{card.mean_length:.1f} tokens, special ones included"),
        ("vocabulary", f"{card.vocabulary:,} entries"),
        ("classes", ", ".join(card.classes)),
        ("most common class", f"{card.majority.label}, alone it would score {score}"),
        ("cut to the model's length", _listed(card.truncated)),
    ]


def _pixels(found: Findings) -> list[tuple[str, str]]:
    """Images that models were trained on."""
    card = found.manifest.data.images
    if card is None:
        return []
    score = test_score(card.metric, card.majority.score)
    return [
        ("images", _listed(card.sizes)),
        ("size", f"{card.width}×{card.height} pixels, {counted(card.channels, 'colour')}"),
        ("classes", ", ".join(card.classes)),
        ("most common class", f"{card.majority.label}, alone it would score {score}"),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items() if number)


def cost(found: Findings) -> Section:
    """What the run took, where and with what."""
    manifest, plan = found.manifest, found.manifest.plan
    rows = [
        (name, form(value))
        for key, (name, form) in COSTS.items()
        if (value := getattr(manifest.cost, key)) is not None
    ]
    for name, option in options(type(plan.request)).items():
        value = getattr(plan.request, name)
        if option.role == "plan" and value is not False:
            rows.append((name.replace("_", " "), written(value)))
    rows += [
        (f"{manifest.sample}s per task", f"{plan.shard:,}" * bool(plan.shard)),
        ("models trained together", f"{plan.pack_size:,} at most" * bool(plan.pack_size)),
        ("device", manifest.model.device or ""),
    ]
    parts = {"machine": manifest.machine.model_dump(), "versions": manifest.versions}
    rows += [
        (name, ", ".join(f"{key} {written(value)}" for key, value in held.items() if value != ()))
        for name, held in parts.items()
    ]
    return Section("Cost and versions", facts=[(name, text, "") for name, text in rows if text])


def facts(found: Findings) -> list[str]:
    """The size of the run, in a few words each."""
    manifest, spent = found.manifest, found.manifest.cost
    own = sum(not card.is_random for card in manifest.methods.values())
    random = " and random" if own < len(found.methods) else ""
    said = [
        counted(len(found.replicates), found.replicate.word),
        f"{counted(own, 'method')}{random}",
        counted(len(found.metrics), "metric"),
    ]
    took = duration(spent.seconds)
    if spent.response_passes is not None:
        passes = counted(spent.response_passes, "model pass", "model passes")
        said.append(f"{passes} in {took}")
    if spent.trainings is not None:
        said += [
            f"{counted(len(found.trained.levels), 'level')} of masking",
            f"{counted(spent.trainings, 'training')} in {took}",
            counted(found.trained.tested, f"test {found.trained.card.sample}"),
        ]
    return said
