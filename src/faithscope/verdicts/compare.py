"""Two runs against each other: the paired difference of every score, and what it means.

Samples are paired by name, trainings by seed. Only one thing may differ between the runs (the
model, the data, or one option), since else nobody could say what a difference comes from; which
options may differ at all is declared with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, choose, unknown
from faithscope.request import options
from faithscope.runs.cards import ModelCard
from faithscope.verdicts.findings import Findings, Series
from faithscope.verdicts.pairing import intact, other_answers
from faithscope.verdicts.replicates import Replicate
from faithscope.verdicts.sentences import counted, kind_of, kinds_in_words
from faithscope.verdicts.statistics import effect_size

Array = NDArray[np.float64]
Row = dict[str, Any]

RECIPE = ("epochs", "batch_size", "learning_rate")
"""Options that come with another model, and are then no difference of their own."""


@dataclass(frozen=True, eq=False)
class Differences:
    """The second run against the first, on the methods, metrics and replicates that both have.

    `differs` says in words what differs between the runs, `notes` what else a reader must know;
    `only_first` and `only_second` count the samples or seeds that one run has alone, and
    `lone_methods` and `lone_metrics` name what is left out for that reason.
    """

    first: Findings
    second: Findings
    series: tuple[Series, ...]
    metrics: tuple[str, ...]
    replicates: tuple[Any, ...]
    lone_methods: tuple[str, ...]
    lone_metrics: tuple[str, ...]
    differs: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.series)} methods, {len(self.metrics)} metrics on "
            f"{self.shared}: {'; '.join(self.differs) or 'nothing differs'})"
        )

    @property
    def replicate(self) -> Replicate:
        """The statistics of what is paired."""
        return self.first.replicate

    @property
    def shared(self) -> str:
        """How many samples or seeds both runs have, in words."""
        return counted(len(self.replicates), f"shared {self.replicate.word}")

    @property
    def only_first(self) -> int:
        """Samples or seeds of the first run alone."""
        return len(self.first.replicates) - len(self.replicates)

    @property
    def only_second(self) -> int:
        """Samples or seeds of the second run alone."""
        return len(self.second.replicates) - len(self.replicates)

    @property
    def methods(self) -> tuple[str, ...]:
        """What is compared, by name: a method, or METHOD/PROCEDURE."""
        return tuple(series.label for series in self.series)

    def summary(self) -> pa.Table:
        """Method × metric: both means, their difference with its interval, the test, the verdict.

        `first` and `second` are means over what has both scores, `difference` is second − first
        with its 95 % interval, `p` the paired test, Holm-adjusted over the whole table (NaN over
        seeds, which are judged by their intervals), `d_z` the effect size; `verdict` says whether
        the second is "better", "worse" or the "same", and is "" where there is too little to say.
        """
        return pa.Table.from_pylist(self.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """The table's rows."""
        cubes = [_cube(found, self) for found in (self.first, self.second)]
        rows, differences, directions = list[Row](), list[Array](), list[bool]()
        for i, series in enumerate(self.series):
            for j, metric in enumerate(self.metrics):
                pair = cubes[0][i, j], cubes[1][i, j]
                if self.replicate.word == "seed" and np.isnan(pair[0]).all():
                    continue  # a metric that is not defined for the method
                differences.append(pair[1] - pair[0])
                directions.append(self.first.manifest.metrics[metric].higher_is_better)
                who = {"method": series.method, "procedure": series.procedure, "metric": metric}
                rows.append({**who, "random": self.is_random(series), **self._paired(*pair)})
        intervals = self.replicate.intervals(differences)
        tested = self.replicate.test(differences, directions)
        forbidden = self.first.forbids_verdicts or self.second.forbids_verdicts
        for row, pairs, (low, high), p_value, verdict in zip(
            rows, differences, intervals, tested.p, tested.verdicts, strict=True
        ):
            row.update(ci_low=low, ci_high=high, p=p_value)
            is_equal = row["n"] > 0 and not np.nan_to_num(pairs).any()
            row["verdict"] = "same" if is_equal else "" if forbidden else verdict
        return rows

    def _paired(self, first: Array, second: Array) -> Row:
        """Means, their difference and the effect size, of the whole pairs; tests come later."""
        difference = second - first
        known = ~np.isnan(difference)
        means = [
            float(values[known].mean()) if known.any() else np.nan
            for values in (first, second, difference)
        ]
        return {
            **dict(zip(("first", "second", "difference"), means, strict=True)),
            **dict.fromkeys(("ci_low", "ci_high", "p"), np.nan),
            "d_z": float(effect_size(difference).d_z),
            "n": int(known.sum()),
        }

    @property
    def enough(self) -> int:
        """The fewest shared samples or seeds with which any difference can be significant."""
        return self.replicate.needed(sum(row["n"] > 1 for row in self.rows))

    def is_random(self, series: Series) -> bool:
        """Whether a method is random attribution, whose change is not an explanation's."""
        return self.first.manifest.methods[series.method].is_random

    @property
    def lost(self) -> list[str]:
        """Methods and metrics of the first run that the second should have and does not."""
        own = self.first.manifest.methods
        methods = [
            series.label
            for series in self.first.series
            if series.label in self.lone_methods and not own[series.method].is_random
        ]
        return [*methods, *(name for name in self.lone_metrics if name in self.first.metrics)]

    def explained(self) -> list[Row]:
        """The rows of explanation methods, without random attribution."""
        return [row for row in self.rows if not row["random"]]

    def headline(self) -> str:
        """The comparison in one sentence."""
        rows = self.explained()
        if not rows:
            return f"Only random attribution is in both runs ({self.shared})."
        if not any(row["n"] for row in rows):
            return f"No score to compare: of {self.shared} none has one in both runs."
        if all(map(_unchanged, rows)):
            return f"Nothing changed on {self.shared}: every difference is 0."
        judged = [row for row in rows if row["verdict"]]
        if not judged or len(self.replicates) < self.enough:
            are = "is" if len(self.replicates) == 1 else "are"
            return f"{self.shared} {are} too few for a verdict: it needs at least {self.enough}."
        kinds: dict[str, list[str]] = {}
        by_method = _by_series(judged)
        for label, own in by_method.items():
            known = sum(_label(row) == label for row in rows)
            kinds.setdefault(kind_of([row["verdict"] for row in own], known), []).append(label)
        said = kinds_in_words(kinds, list(dict.fromkeys(row["metric"] for row in rows)))
        return (
            f"{counted(len(by_method), 'method')} on {self.shared}, the second run against the "
            f"first: {', '.join(said)}."
        )

    def sentences(self) -> list[str]:
        """One sentence per method: on which metrics it is better or worse in the second run."""
        judged = {_label(row) for row in self.explained() if row["verdict"]}
        said = [
            _sentence(label, rows)
            for label, rows in _by_series(self.explained()).items()
            if label in judged
        ]
        moved = [
            f"{_label(row)} on {_moved(row)}"
            for row in self.rows
            if row["random"] and row["verdict"] in ("better", "worse")
        ]
        if moved:
            said.append(
                f"Random attribution changed, too, {', '.join(moved)}: part of a change may come "
                "from the metric, not from the explanation."
            )
        return said


def compare_findings(
    first: Findings,
    second: Findings,
    *,
    methods: Iterable[str] | None = None,
    metrics: Iterable[str] | None = None,
    allow: Iterable[str] = (),
) -> Differences:
    """Compare two runs on what both have.

    `allow` names options ("fill", "k", "model", "data", …) that may differ besides the one thing
    compared. `methods` and `metrics` choose some of those that both runs have; p-values are
    adjusted over what is chosen.
    """
    if first.manifest.kind != second.manifest.kind:
        raise FaithscopeError(
            "One run perturbs inputs and one retrains models: compare two runs of the same kind."
        )
    own, theirs = ({s.label: s for s in found.series} for found in (first, second))
    chosen, lone_methods = _shared("method", list(own), list(theirs), methods, _spellings(own))
    chosen_metrics, lone_metrics = _shared("metric", first.metrics, second.metrics, metrics)
    axes = _axes(first, second, chosen_metrics)
    shared = _replicates(first, second)
    allowed = _check_differences(first, axes, _names(allow))
    strangers = _strangers(first, second, shared, axes)
    if strangers and "data" not in allowed:
        word = first.replicate.word
        raise FaithscopeError(
            f"{strangers} of {len(shared)} {word}s have the same name in both runs and are not the "
            f"same, by their label or the model's answer: compare runs over the same {word}s (the "
            "same data and limit), or allow it by name: --allow data."
        )
    _check_directions(first, second, chosen_metrics)
    if first.procedures and first.trained.metric != second.trained.metric:
        raise FaithscopeError(
            f"The runs differ in their test metric ({first.trained.metric} → "
            f"{second.trained.metric}): compare runs of the same."
        )
    return Differences(
        first,
        second,
        series=tuple(own[label] for label in chosen),
        metrics=chosen_metrics,
        replicates=tuple(shared),
        lone_methods=lone_methods,
        lone_metrics=lone_metrics,
        differs=tuple(_in_words(first, second, axes)),
        notes=tuple(_notes(first, second, shared, strangers, axes)),
    )


def find_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """The valid name that `name` means, blanks aside; else the error that lists them.

    >>> find_name("metric", "saco(k = 5)", ["saco(k=5)"])
    'saco(k=5)'
    """
    names = {"".join(known.split()): known for known in valid}
    if "".join(name.split()) not in names:
        raise unknown(kind, name, names.values())
    return names["".join(name.split())]


def _names(given: Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _cube(found: Findings, chosen: Differences) -> Array:
    """The scores that are compared: [series, metrics, replicates]."""
    series = [found.series.index(one) for one in chosen.series]
    metrics = [found.metrics.index(metric) for metric in chosen.metrics]
    place = {name: i for i, name in enumerate(found.replicates)}
    own = [place[name] for name in chosen.replicates]
    cube: Array = found.cube[np.ix_(series, metrics, own)]
    return cube


def _unchanged(row: Row) -> bool:
    """Whether every single pair is equal, which few samples are enough to see."""
    few = np.isnan(row["ci_low"])
    is_zero = row["difference"] == 0 and row["verdict"] == "same"
    return bool(is_zero and (few or row["ci_low"] == 0 == row["ci_high"]))


# What differs between the runs


def _axes(first: Findings, second: Findings, metrics: Iterable[str]) -> dict[str, str]:
    """What a difference of scores can come from, in words: the model, the data, an option.

    The protocol's K is a choice only of a SaCo that does not name its own.
    """
    axes = {}
    manifests = first.manifest, second.manifest
    models = [manifest.model for manifest in manifests]
    if words := _model_in_words(*models):
        axes["model"] = words
    data = [manifest.data for manifest in manifests]
    if data[0].fingerprint == data[1].fingerprint:
        pass
    elif data[0].name == data[1].name and not first.samples.num_rows:
        axes["data"] = f"data: other {first.trained.card.sample}s of the name {data[0].name}"
    elif data[0].name != data[1].name:
        axes["data"] = f"data: {data[0].name} → {data[1].name}"
    known = options(type(first.manifest.plan.request))
    cards = first.manifest.metrics
    for name in manifests[0].protocol:
        values = [_shown(manifest.protocol.get(name)) for manifest in manifests]
        read = name != "k" or any(cards[metric].reads_k for metric in metrics)
        own = not (name in RECIPE and "model" in axes)
        if values[0] != values[1] and read and own and known[name].differs != "freely":
            axes[name] = f"{name}: {values[0]} → {values[1]}"
    return axes


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _model_in_words(first: ModelCard, second: ModelCard) -> str:
    """In what two models differ; "" if they are the same."""
    if first.name != second.name:
        return f"model: {first.name} → {second.name}"
    if first.fingerprint != second.fingerprint:
        prints = [
            f"{'random ' * (model.weights == 'random')}{model.fingerprint[:8]}"
            for model in (first, second)
        ]
        return f"weights of {first.name}: {prints[0]} → {prints[1]}"
    ignored = {"recipe", "device"}
    changed = [
        name
        for name in ModelCard.model_fields
        if name not in ignored and getattr(first, name) != getattr(second, name)
    ]
    return f"model's {', '.join(changed)}" if changed else ""


def _in_words(first: Findings, second: Findings, axes: Mapping[str, str]) -> list[str]:
    versions = [found.manifest.versions.get("faithscope", "?") for found in (first, second)]
    changed = [f"faithscope: {versions[0]} → {versions[1]}"] if versions[0] != versions[1] else []
    compiles = [getattr(held.manifest.plan.request, "compile", False) for held in (first, second)]
    if compiles[0] != compiles[1]:
        changed.append(f"compile: {compiles[0]} → {compiles[1]} (rounding)".lower())
    return [*axes.values(), *changed]


def _check_differences(first: Findings, axes: Mapping[str, str], allow: Sequence[str]) -> set[str]:
    """Refuse runs that differ in more than one thing, those allowed by name aside."""
    known = options(type(first.manifest.plan.request))
    valid = ["model", "data", *first.manifest.protocol]
    allowed = {choose("option to allow", name.strip(), valid) for name in allow}
    for name, words in axes.items():
        if known[name].differs == "never":
            raise FaithscopeError(
                f"The runs differ in their {name} ({words}), so their numbers do not mean the "
                "same: compare runs of the same."
            )
    free = [axis for axis in axes if axis not in allowed]
    if len(free) > 1:
        words = "; ".join(axes[axis] for axis in free)
        others = [axis for axis in free if axis != "model"][-(len(free) - 1) :]
        raise FaithscopeError(
            f"The runs differ in more than one thing ({words}), so that a difference could come "
            "from any: compare runs that differ in one, or allow the others by name: "
            f"--allow {','.join(others)}."
        )
    return allowed


def _replicates(first: Findings, second: Findings) -> list[Any]:
    """The samples or seeds that both runs have."""
    theirs = set(second.replicates)
    shared = [name for name in first.replicates if name in theirs]
    if not shared:
        word = first.replicate.word
        raise FaithscopeError(
            f"The runs have no {word} in common ('{first.replicates[0]}' … and "
            f"'{second.replicates[0]}' …): compare runs over the same {word}s, which are paired."
        )
    return shared


def _strangers(
    first: Findings, second: Findings, samples: Sequence[Any], axes: Mapping[str, str]
) -> int:
    """How many samples of one name are visibly different.

    Those of an array or list are named by their place, where another subset has another sample.
    Labels tell if the classes are the same, and the intact answers if model and target are.
    """
    if not first.samples.num_rows:
        return 0
    classes = [found.manifest.model.classes for found in (first, second)]
    columns = [intact(found, samples) for found in (first, second)]
    differ = np.zeros(len(samples), dtype=bool)
    if classes[0] == classes[1]:
        label, other = columns[0]["label"], columns[1]["label"]
        differ |= (label >= 0) & (other >= 0) & (label != other)
    if not axes.keys() & {"model", "data", "target", "precision"}:
        differ |= other_answers(first, second, samples)
    return int(differ.sum())


def _notes(
    first: Findings,
    second: Findings,
    samples: Sequence[Any],
    strangers: int,
    axes: Mapping[str, str],
) -> list[str]:
    """What a reader of the numbers must know besides."""
    notes: list[str] = []
    if not first.samples.num_rows:
        return notes
    data, word = [found.manifest.data for found in (first, second)], first.replicate.word
    whole = len(samples) == len(first.replicates) == len(second.replicates)
    if strangers:
        notes.append(
            f"{strangers} of {len(samples)} {word}s of the same name are not the same {word}."
        )
    elif whole and data[0].fingerprint != data[1].fingerprint:
        content = "words" if word == "text" else "pixels"
        notes.append(
            f"The {word}s have the same names but another fingerprint: their {content} may differ "
            "(another model's preprocessing, other files, another order)."
        )
    targets = [intact(found, samples)["target"] for found in (first, second)]
    if others := int((targets[0] != targets[1]).sum()):
        notes.append(
            f"For {others} of {len(samples)} {word}s the runs explain different classes"
            f"{', each that of its own model' * ('model' in axes)}."
        )
    return notes


# What both runs have


def _spellings(series: Mapping[str, Series]) -> dict[str, list[str]]:
    """What a series may be called: by its label, or by its method, whatever the procedure."""
    found: dict[str, list[str]] = {}
    for label, one in series.items():
        for name in dict.fromkeys((label, one.method)):
            found.setdefault(name, []).append(label)
    return found


def _shared(
    kind: str,
    first: Sequence[str],
    second: Sequence[str],
    wanted: Iterable[str] | None,
    spellings: Mapping[str, list[str]] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that both runs have, or those wanted of them; and those of one run alone."""
    both = [name for name in first if name in second]
    if not both:
        raise FaithscopeError(
            f"The runs have no {kind} in common: the first has {', '.join(first)}, the second "
            f"{', '.join(second)}."
        )
    if wanted is not None:
        known = {
            name: [label for label in labels if label in both]
            for name, labels in (spellings or {name: [name] for name in both}).items()
        }
        valid = [name for name, labels in known.items() if labels]
        found = [
            label
            for name in _names(wanted)
            for label in known[find_name(f"{kind} of both runs", name, valid)]
        ]
        if not found:
            raise FaithscopeError(f"No {kind}s given. Valid: {', '.join(both)}.")
        return tuple(dict.fromkeys(found)), ()
    return tuple(both), tuple(name for name in dict.fromkeys([*first, *second]) if name not in both)


def _check_directions(first: Findings, second: Findings, metrics: Iterable[str]) -> None:
    for metric in metrics:
        ways = {found.manifest.metrics[metric].higher_is_better for found in (first, second)}
        if len(ways) > 1:
            raise FaithscopeError(
                f"The runs do not agree whether a higher '{metric}' is better: it is not the same "
                "metric, so leave it out of --metrics or rename one."
            )


# In words


def _label(row: Row) -> str:
    return Series(row["method"], row["procedure"]).label


def _by_series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_series: dict[str, list[Row]] = {}
    for row in rows:
        by_series.setdefault(_label(row), []).append(row)
    return by_series


def _moved(row: Row) -> str:
    return f"{row['metric']} ({row['first']:.3f} → {row['second']:.3f})"


def _sentence(label: str, rows: Sequence[Row]) -> str:
    words = {
        "better": "is better on",
        "worse": "is worse on",
        "same": "shows no significant difference on",
        "": "cannot be judged on",
    }
    by = {verdict: [row for row in rows if row["verdict"] == verdict] for verdict in words}
    if all(map(_unchanged, rows)):
        return f"{label} did not change."
    if len(by["same"]) == len(rows) > 1:
        return f"{label} {words['same']} any metric."
    said = [
        f"{words[verdict]} "
        + ", ".join(_moved(row) if verdict in ("better", "worse") else row["metric"] for row in own)
        for verdict, own in by.items()
        if own
    ]
    return f"{label} " + "; ".join(said) + "."
