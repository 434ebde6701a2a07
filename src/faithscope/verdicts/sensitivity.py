"""What the choices of a protocol move: a metric under two fills, two K's, two rules for ties.

Everything is read from the results and their manifests, so a folder of finished runs is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from faithscope.runs.cards import MetricCard
from faithscope.verdicts.findings import Findings, Series
from faithscope.verdicts.pairing import other_answers, shared_samples
from faithscope.verdicts.statistics import (
    Agreement,
    Sensitivity,
    rank_agreements,
    sensitivities,
    share_flipped,
)

Array = NDArray[np.float64]
Row = dict[str, Any]

AXES = ("fill", "units", "side", "upsample", "ties", "group", "k", "seed")
"""Choices of which two runs may differ in one; runs that differ in anything else stay apart."""


def sensitivity_rows(results: Mapping[str, Findings]) -> list[Row]:
    """What each choice moves: its first value, in the order of the results, against the others.

    One row per metric: `absolute` and `signed` mean change of a score, the signed one with its
    interval; `flipped`, the share of pairs of methods whose order of means, from better to worse,
    changes; and `agreement`, the rank correlation over methods, sample by sample, with its
    interval. Random attribution is one of the methods.
    """
    settings = [_settings(result) for result in results.values()]
    runs = list(zip(settings, results.values(), strict=True))
    moves = [*_across_runs(runs), *_across_ks(runs), *_within_runs(runs)]
    changes = sensitivities([(move.first, move.second) for move in moves])
    agreements = rank_agreements([(move.first, move.alike) for move in moves])
    return [_row(*each) for each in zip(moves, changes, agreements, strict=True)]


def ks_of(found: Findings) -> list[dict[str, str]]:
    """The K's that a SaCo was computed with, for each that differs in its K alone: label by K.

    A metric that does not name its K has that of the protocol.
    """
    families: dict[str, dict[str, str]] = {}
    for label, card in found.manifest.metrics.items():
        if card.groups_units:
            families.setdefault(card.family, {}).setdefault(_k(found, card), label)
    return list(families.values())


def _k(found: Findings, card: MetricCard) -> str:
    """The K of a metric, its own or the protocol's."""
    k = card.options.get("k", found.manifest.protocol["k"])
    return str(k[0] if isinstance(k, tuple) else k)


def distinguishing_labels(results: Mapping[str, Findings]) -> dict[str, str]:
    """How each run differs from the others; their own names if that is not enough."""
    settings = [_settings(result) for result in results.values()]
    runs = list(zip(settings, results.values(), strict=True))
    labels = [_where(each, runs) for each in settings]
    clear = all(label and labels.count(label) == 1 for label in labels)
    return dict(zip(results, labels if clear else results, strict=True))


def across_models(results: Mapping[str, Findings]) -> dict[str, dict[str, Findings]]:
    """Runs by model that differ in nothing else, by what sets them apart from the rest."""
    runs = [(_settings(result), result) for result in results.values()]
    found = {}
    for group in _alike(runs, but="model"):
        models = {_model_name(settings["model"], runs): result for settings, result in group}
        if len(models) == len(group) > 1:  # or a run is there twice
            found[_where(group[0][0], runs, "model")] = models
    return found


def _settings(result: Findings) -> dict[str, Any]:
    """Everything that must be equal for two scores to mean the same."""
    manifest = result.manifest
    return {
        "model": (manifest.model.name, manifest.model.fingerprint),
        "data": manifest.data.name,
        **manifest.protocol,
    }


Runs = Sequence[tuple[dict[str, Any], Findings]]


class Move(NamedTuple):
    """The scores [methods, samples] of one metric under two settings of a choice.

    `opposed` if of one score more is better, of the other less.
    """

    where: str
    axis: str
    settings: tuple[Any, Any]
    metric: str
    first: Array
    second: Array
    opposed: bool = False

    @property
    def alike(self) -> Array:
        """The second scores, turned around if they must be to mean the same."""
        return -self.second if self.opposed else self.second


def _across_runs(runs: Runs) -> Iterator[Move]:
    for axis in AXES:
        for (settings, left), *others in _alike(runs, but=axis):
            for others_settings, right in others:
                pair = settings[axis], others_settings[axis]
                samples = shared_samples(left, right)
                if pair[0] == pair[1] or not samples or other_answers(left, right, samples).any():
                    continue
                methods = [method for method in left.methods if method in right.methods]
                for metric in left.metrics:
                    card = left.manifest.metrics[metric]
                    if metric not in right.metrics or (axis == "k" and not card.reads_k):
                        continue
                    one, two = (_values(r, metric, methods, samples) for r in (left, right))
                    yield Move(_where(settings, runs, axis), axis, pair, metric, one, two)


def _alike(runs: Runs, *, but: str) -> list[list[tuple[dict[str, Any], Findings]]]:
    """Runs that differ in one choice at most, together; the first value comes first."""
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], Findings]]] = {}
    for settings, result in runs:
        if but not in settings:
            continue
        rest = tuple(value for name, value in sorted(settings.items()) if name != but)
        groups.setdefault(rest, []).append((settings, result))
    return list(groups.values())


def _across_ks(runs: Runs) -> Iterator[Move]:
    for settings, result in runs:
        for labels in ks_of(result):
            (first, label), *others = labels.items()
            name = result.manifest.metrics[label].family
            for other, other_label in others:
                one, two = (_values(result, metric) for metric in (label, other_label))
                yield Move(_where(settings, runs), "k", (first, other), name, one, two)


def _within_runs(runs: Runs) -> Iterator[Move]:
    for settings, result in runs:
        where = _where(settings, runs)
        if {"aopc", "comprehensiveness"} <= set(result.metrics):
            one, two = (_values(result, metric) for metric in ("aopc", "comprehensiveness"))
            pair = ("most relevant first", "least relevant first")
            yield Move(where, "removal order", pair, "aopc", one, two, opposed=True)
        if {"random", "random_patch"} <= set(result.methods):
            for metric in result.metrics:
                pair = ("random", "random_patch")
                one, two = (result.scores_of(Series(name), metric)[None] for name in pair)
                yield Move(where, "random attribution", pair, metric, one, two)


def _where(settings: Mapping[str, Any], runs: Runs, but: str = "") -> str:
    """How a run differs from the others, in words."""
    words = []
    for name, value in settings.items():
        if name != but and any(other.get(name) != value for other, _ in runs):
            words.append(_model_name(value, runs) if name == "model" else f"{name}={value}")
    return ", ".join(words)


def _model_name(model: tuple[str, str], runs: Runs) -> str:
    """The name, with the weights' fingerprint if another model has the same."""
    name, fingerprint = model
    namesakes = {other["model"][1] for other, _ in runs if other["model"][0] == name}
    return name if len(namesakes) == 1 else f"{name} ({fingerprint[:8]})"


def _values(
    result: Findings,
    metric: str,
    methods: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
) -> Array:
    """Scores [methods, samples], of all of them or of some in this order."""
    values: Array = result.cube[:, result.metrics.index(metric)]
    if methods is not None:
        values = values[[result.methods.index(method) for method in methods]]
    if samples is not None:
        place = {sample: i for i, sample in enumerate(result.samples["sample"].to_pylist())}
        values = values[:, [place[sample] for sample in samples]]
    return values


def _row(move: Move, change: Sensitivity, agreement: Agreement) -> Row:
    return {
        "where": move.where,
        "axis": move.axis,
        "first": str(move.settings[0]),
        "second": str(move.settings[1]),
        "metric": move.metric,
        "samples": move.first.shape[1],
        "absolute": change.absolute,
        "signed": change.signed,
        "signed_low": change.low,
        "signed_high": change.high,
        "flipped": share_flipped(move.first, move.alike),
        "agreement": agreement.mean,
        "agreement_low": agreement.low,
        "agreement_high": agreement.high,
    }
