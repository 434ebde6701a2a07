"""Two runs against each other: the paired difference of every score, and what it means.

Samples are paired by name. Only one thing may differ between the runs (the model, the data, or one
choice of the protocol), since else nobody could say what a difference comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError, choose, unknown
from faithscope.result import Result, images_needed, judge, named
from faithscope.studies.runs import load_results
from faithscope.verdicts.compare_roar import RoarComparison, compare_roar
from faithscope.verdicts.pairing import intact, other_answers, shared_samples
from faithscope.verdicts.sensitivity import reads_k
from faithscope.verdicts.statistics import bootstrap_interval, effect_size, holm, paired_p_values

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult

Row = dict[str, Any]
Source: TypeAlias = "Result | RoarResult | str | Path"
"""A result, or the folder of a run."""

KINDS = (
    "better on every metric",
    "better on some metrics",
    "better on some metrics and worse on others",
    "worse on some metrics",
    "worse on every metric",
    "not told apart",
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The second run against the first, on the methods, metrics and samples that both have.

    `differs` says in words what differs between the runs, `notes` what else a reader must know;
    `only_first` and `only_second` count the samples that one run has alone, and `lone_methods` and
    `lone_metrics` name what is left out for that reason.
    """

    first: Result
    second: Result
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    samples: tuple[str, ...]
    only_first: int
    only_second: int
    lone_methods: tuple[str, ...]
    lone_metrics: tuple[str, ...]
    differs: tuple[str, ...]
    notes: tuple[str, ...]

    unit = "image"

    def __repr__(self) -> str:
        return (
            f"Comparison({len(self.methods)} methods, {len(self.metrics)} metrics on "
            f"{len(self.samples)} shared images: {'; '.join(self.differs) or 'nothing differs'})"
        )

    def summary(self) -> pa.Table:
        """Method × metric: both means, their difference with its interval, the test, the verdict.

        `first` and `second` are means over the samples that have both scores, `difference` is
        second − first with its 95 % interval, `p` the paired test, Holm-adjusted over the whole
        table, `d_z` the effect size; `verdict` says whether the second is "better", "worse" or the
        "same", and is "" where the samples are too few to say.
        """
        return pa.Table.from_pylist(self.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """The table's rows."""
        cubes = [_cube(result, self) for result in (self.first, self.second)]
        rows, differences = [], []
        for i, method in enumerate(self.methods):
            for j, metric in enumerate(self.metrics):
                pair = cubes[0][i, j], cubes[1][i, j]
                differences.append(pair[1] - pair[0])
                who = {"method": method, "metric": metric, "random": self.is_random(method)}
                rows.append({**who, **_paired(*pair)})
        adjusted = holm(paired_p_values(np.stack(differences, axis=1)))
        enough = images_needed(int((~np.isnan(adjusted)).sum()))
        for row, p_value in zip(rows, adjusted, strict=True):
            better = self.first.manifest["metrics"][row["metric"]]["higher_is_better"]
            verdict = judge(row["difference"], p_value, better) if row["n"] >= enough else ""
            row["p"] = float(p_value)
            row["verdict"] = "same" if _unchanged(row) else verdict
        return rows

    @property
    def enough(self) -> int:
        """The fewest shared samples with which any difference of the table can be significant."""
        return images_needed(sum(not np.isnan(row["p"]) for row in self.rows))

    def is_random(self, method: str) -> bool:
        """Whether a method is random attribution, whose change is not an explanation's."""
        return bool(self.first.manifest["methods"][method].get("random"))

    @property
    def shared(self) -> int:
        """How many samples both runs have."""
        return len(self.samples)

    @property
    def names(self) -> list[str]:
        """What a condition may call a method."""
        return [*self.methods, *self.lone_methods]

    @property
    def lost_methods(self) -> list[str]:
        """Explanation methods that the second run should have and does not."""
        cards = self.first.manifest["methods"]
        return [name for name in self.lone_methods if name in cards and not cards[name]["random"]]

    @property
    def lost_metrics(self) -> list[str]:
        """Metrics that the second run should have and does not."""
        return [name for name in self.lone_metrics if name in self.first.metrics]

    def explained(self) -> list[Row]:
        """The rows of explanation methods, without random attribution."""
        return [row for row in self.rows if not row["random"]]

    def headline(self) -> str:
        """The comparison in one sentence."""
        rows = self.explained()
        images = f"{len(self.samples)} shared image{'s' * (len(self.samples) > 1)}"
        if not rows:
            return f"Only random attribution is in both runs ({images})."
        if not any(row["n"] for row in rows):
            return f"No score to compare: of {images} none has one in both runs."
        if all(map(_unchanged, rows)):
            return f"Nothing changed on {images}: every difference is 0."
        judged = [row for row in rows if row["verdict"]]
        if not judged:
            return (
                f"{images} {'are' if len(self.samples) > 1 else 'is'} too few for a verdict: "
                f"{_comparisons(len(self.rows))} at least {self.enough}."
            )
        kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
        by_method = _by_method(judged)
        for method, own in by_method.items():
            kinds[_kind([row["verdict"] for row in own], len(self.metrics))].append(method)
        said = [f"{len(names)} {kind}{named(names)}" for kind, names in kinds.items() if names]
        if len(kinds["not told apart"]) == len(by_method):
            said = ["none can be told apart on any metric"]
        methods = len(by_method)
        return (
            f"{methods} method{'s' * (methods > 1)} on {images}, the second run against the "
            f"first: {', '.join(said)}."
        )

    def sentences(self) -> list[str]:
        """One sentence per method: on which metrics it is better or worse in the second run."""
        judged = {row["method"] for row in self.explained() if row["verdict"]}
        said = [
            _sentence(method, rows)
            for method, rows in _by_method(self.explained()).items()
            if method in judged
        ]
        moved = [
            f"{row['method']} on {_moved(row)}"
            for row in self.rows
            if row["random"] and row["verdict"] in ("better", "worse")
        ]
        if moved:
            said.append(
                f"Random attribution moved too, {', '.join(moved)}: part of a change may be the "
                "measure's, not the explanation's."
            )
        return said


def compare(
    first: Source,
    second: Source,
    *,
    methods: Iterable[str] | None = None,
    metrics: Iterable[str] | None = None,
    allow: Iterable[str] = (),
) -> Comparison | RoarComparison:
    """Compare two runs, given as results or folders, on what both have.

    Runs over images may differ in the model, the data or one choice of the protocol. `allow` names
    choices ("fill", "k", "model", "data", …) that may differ besides. `methods` and `metrics`
    choose some of those that both runs have; p-values are adjusted over what is chosen. Two ROAR
    runs are compared seed by seed, see `compare_roar`.
    """
    one, other = _load(first), _load(second)
    if isinstance(one, Result) and isinstance(other, Result):
        return _compare_images(one, other, methods, metrics, _names(allow))
    if isinstance(one, Result) or isinstance(other, Result):
        raise FaithscopeError(
            "One run is over images and one of ROAR: compare two runs of the same kind."
        )
    if _names(allow):
        raise FaithscopeError("Of two ROAR runs only the model may differ: leave --allow out.")
    return compare_roar(
        one,
        other,
        methods=None if methods is None else _names(methods),
        metrics=None if metrics is None else _names(metrics),
    )


def _compare_images(
    first: Result,
    second: Result,
    methods: Iterable[str] | None,
    metrics: Iterable[str] | None,
    allow: Sequence[str],
) -> Comparison:
    chosen_methods, lone_methods = _shared("method", first.methods, second.methods, methods)
    chosen_metrics, lone_metrics = _shared("metric", first.metrics, second.metrics, metrics)
    axes = _axes(first, second, chosen_metrics)
    allowed = _check_differences(first, second, axes, allow)
    samples = tuple(shared_samples(first, second))
    if not samples:
        raise FaithscopeError(
            f"The runs have no sample in common ('{_samples(first)[0]}' … and "
            f"'{_samples(second)[0]}' …): "
            "compare runs over the same images, which are matched by name."
        )
    strangers = _strangers(first, second, samples, axes)
    if strangers and "data" not in allowed:
        raise FaithscopeError(
            f"{strangers} of {len(samples)} images have the same name in both runs and are not the "
            "same, by their label or the model's answer: compare runs over the same images (the "
            "same data and limit), or allow it by name, as in --allow data."
        )
    _check_directions(first, second, chosen_metrics)
    return Comparison(
        first,
        second,
        methods=chosen_methods,
        metrics=chosen_metrics,
        samples=samples,
        only_first=first.samples.num_rows - len(samples),
        only_second=second.samples.num_rows - len(samples),
        lone_methods=lone_methods,
        lone_metrics=lone_metrics,
        differs=tuple(_in_words(first, second, axes)),
        notes=tuple(_notes(first, second, samples, strangers, axes)),
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


def written_p(p_value: float) -> str:
    """A p-value in words.

    >>> written_p(0.03), written_p(0.0001)
    ('p = 0.030', 'p < 0.001')
    """
    if np.isnan(p_value):
        return "no p"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _load(source: Source) -> Result | RoarResult:
    if not isinstance(source, str | Path):
        return source
    results: dict[str, Any] = {**load_results(source).results}
    if len(results) > 1:
        raise FaithscopeError(
            f"'{source}' holds {len(results)} runs: give the folder of one of them "
            f"({', '.join(results)})."
        )
    found: Result | RoarResult = next(iter(results.values()))
    return found


def _names(given: Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _samples(result: Result) -> list[str]:
    samples: list[str] = result.samples["sample"].to_pylist()
    return samples


def _cube(result: Result, chosen: Comparison) -> NDArray[np.float64]:
    """The scores that are compared: [methods, metrics, samples]."""
    methods = [result.methods.index(method) for method in chosen.methods]
    metrics = [result.metrics.index(metric) for metric in chosen.metrics]
    place = {sample: i for i, sample in enumerate(_samples(result))}
    samples = [place[sample] for sample in chosen.samples]
    cube: NDArray[np.float64] = result.cube[np.ix_(methods, metrics, samples)]
    return cube


def _paired(first: NDArray[np.float64], second: NDArray[np.float64]) -> Row:
    """Means, their difference with its interval, and the effect size, of the whole pairs."""
    difference = second - first
    known = ~np.isnan(difference)
    low, high = bootstrap_interval(difference[known])
    means = [float(v[known].mean()) if known.any() else np.nan for v in (first, second, difference)]
    return {
        **dict(zip(("first", "second", "difference"), means, strict=True)),
        "ci_low": low,
        "ci_high": high,
        "p": np.nan,
        "d_z": float(effect_size(difference).d_z),
        "n": int(known.sum()),
    }


def _unchanged(row: Row) -> bool:
    """Whether every single pair is equal, which few samples are enough to see."""
    alone = row["n"] == 1
    return bool(row["difference"] == 0 and (alone or row["ci_low"] == 0 == row["ci_high"]))


# What differs between the runs


def _axes(first: Result, second: Result, metrics: Iterable[str]) -> dict[str, str]:
    """What a difference of scores can come from, in words: the model, the data, the protocol.

    The protocol's K is a choice only of a SaCo that does not name its own.
    """
    axes = {}
    models = [_model(result) for result in (first, second)]
    if changed := [key for key in models[0] if models[0][key] != models[1].get(key)]:
        axes["model"] = _model_in_words(models, changed)
    data = [result.manifest["data"] for result in (first, second)]
    if all(data[0][key] != data[1][key] for key in ("name", "fingerprint")):
        axes["data"] = f"data: {data[0]['name']} → {data[1]['name']}"
    protocols = [result.manifest["protocol"] for result in (first, second)]
    for key in dict.fromkeys([*protocols[0], *protocols[1]]):
        values = [protocol.get(key, "not told") for protocol in protocols]
        matters = key != "k" or any(map(reads_k, metrics))
        if values[0] != values[1] and matters:
            axes[key] = f"{key}: {values[0]} → {values[1]}"
    return axes


def _model(result: Result) -> Row:
    """What is known of a model, as a saved run has it: lists, no tuples."""
    card: Row = json.loads(json.dumps(result.manifest["model"]))
    return card


def _model_in_words(models: Sequence[Mapping[str, Any]], changed: Sequence[str]) -> str:
    if "name" in changed:
        return f"model: {models[0]['name']} → {models[1]['name']}"
    if "fingerprint" in changed:
        prints = [
            f"{'random ' * (model['weights'] == 'random')}{model['fingerprint'][:8]}"
            for model in models
        ]
        return f"weights of {models[0]['name']}: {prints[0]} → {prints[1]}"
    return f"model's {', '.join(changed)}"


def _in_words(first: Result, second: Result, axes: Mapping[str, str]) -> list[str]:
    versions = [
        result.manifest.get("versions", {}).get("faithscope", "?") for result in (first, second)
    ]
    changed = [f"faithscope: {versions[0]} → {versions[1]}"] if versions[0] != versions[1] else []
    return [*axes.values(), *changed]


def _check_differences(
    first: Result, second: Result, axes: Mapping[str, str], allow: Sequence[str]
) -> set[str]:
    """Refuse runs that differ in more than one thing, those allowed by name aside."""
    protocol = first.manifest["protocol"].keys() | second.manifest["protocol"].keys()
    valid = ["model", "data", *protocol]
    allowed = {choose("choice to allow", name.strip(), valid) for name in allow}
    free = [axis for axis in axes if axis not in allowed]
    if len(free) > 1:
        words = "; ".join(axes[axis] for axis in free)
        others = [axis for axis in free if axis != "model"][-(len(free) - 1) :]
        raise FaithscopeError(
            f"The runs differ in more than one thing ({words}), so that a difference could come "
            "from any: compare runs that differ in one, or allow the others by name, as in "
            f"--allow {','.join(others)}."
        )
    return allowed


def _strangers(
    first: Result, second: Result, samples: Sequence[str], axes: Mapping[str, str]
) -> int:
    """How many samples of one name are visibly different images.

    Images of an array are named by their place, which may hold another image in another subset.
    Labels tell if the classes are the same, and the intact answers if model and target are.
    """
    classes = [_model(result).get("classes") for result in (first, second)]
    columns = [intact(result, samples) for result in (first, second)]
    differ = np.zeros(len(samples), dtype=bool)
    if classes[0] == classes[1]:
        label, other = columns[0]["label"], columns[1]["label"]
        differ |= (label >= 0) & (other >= 0) & (label != other)
    if not axes.keys() & {"model", "data", "target", "precision"}:
        differ |= other_answers(first, second, samples)
    return int(differ.sum())


def _notes(
    first: Result,
    second: Result,
    samples: Sequence[str],
    strangers: int,
    axes: Mapping[str, str],
) -> list[str]:
    """What a reader of the numbers must know besides."""
    notes = []
    data = [result.manifest["data"] for result in (first, second)]
    whole = len(samples) == first.samples.num_rows == second.samples.num_rows
    if strangers:
        notes.append(
            f"{strangers} of {len(samples)} images of the same name are not the same image."
        )
    elif whole and data[0]["fingerprint"] != data[1]["fingerprint"]:
        notes.append(
            "The images have the same names but another fingerprint: their pixels may differ "
            "(another model's preprocessing, other files, another order)."
        )
    targets = [intact(result, samples)["target"] for result in (first, second)]
    if others := int((targets[0] != targets[1]).sum()):
        notes.append(
            f"For {others} of {len(samples)} images the runs explain different classes"
            f"{', each that of its own model' * ('model' in axes)}."
        )
    return notes


# What both runs have


def _shared(
    kind: str, first: Sequence[str], second: Sequence[str], wanted: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that both runs have, or those wanted of them; and those of one run alone."""
    both = [name for name in first if name in second]
    if not both:
        raise FaithscopeError(
            f"The runs have no {kind} in common: the first has {', '.join(first)}, the second "
            f"{', '.join(second)}."
        )
    if wanted is not None:
        found = [find_name(f"{kind} of both runs", name, both) for name in _names(wanted)]
        if not found:
            raise FaithscopeError(f"No {kind}s given. Valid: {', '.join(both)}.")
        return tuple(dict.fromkeys(found)), ()
    return tuple(both), tuple(name for name in dict.fromkeys([*first, *second]) if name not in both)


def _check_directions(first: Result, second: Result, metrics: Iterable[str]) -> None:
    for metric in metrics:
        ways = {r.manifest["metrics"][metric]["higher_is_better"] for r in (first, second)}
        if len(ways) > 1:
            raise FaithscopeError(
                f"The runs do not agree whether a higher '{metric}' is better: it is not the same "
                "metric, so leave it out of --metrics or rename one."
            )


# In words


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    return by_method


def _kind(verdicts: Sequence[str], metrics: int) -> str:
    """What a method's verdicts come to, one of `KINDS`."""
    if {"better", "worse"} <= set(verdicts):
        return "better on some metrics and worse on others"
    for word in ("better", "worse"):
        if word in verdicts:
            every = verdicts.count(word) == metrics
            return f"{word} on {'every metric' if every else 'some metrics'}"
    return "not told apart"


def _comparisons(number: int) -> str:
    return "1 comparison needs" if number == 1 else f"{number} comparisons need"


def _moved(row: Row) -> str:
    return f"{row['metric']} ({row['first']:.3f} → {row['second']:.3f})"


def _sentence(method: str, rows: Sequence[Row]) -> str:
    words = {
        "better": "is better on",
        "worse": "is worse on",
        "same": "cannot be told apart on",
        "": "cannot be judged on",
    }
    by = {verdict: [row for row in rows if row["verdict"] == verdict] for verdict in words}
    if all(map(_unchanged, rows)):
        return f"{method} did not change."
    if len(by["same"]) == len(rows) > 1:
        return f"{method} {words['same']} any metric."
    said = [
        f"{words[verdict]} "
        + ", ".join(_moved(row) if verdict in ("better", "worse") else row["metric"] for row in own)
        for verdict, own in by.items()
        if own
    ]
    return f"{method} " + "; ".join(said) + "."
