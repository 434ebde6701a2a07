"""The gallery of a page: every image or text that was kept, its maps, scores and removals, as data.

The script of the page draws it. Numbers are rounded to what an eye can tell, maps are bytes.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faithscope.report.removal import Removal, labels_of, removal_groups
from faithscope.report.style import colours
from faithscope.report.words import MOST_WORDS, STEPS, plain_word
from faithscope.runs.checks import words_of
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.statistics import spearman

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]

MOST_BYTES = 26_000_000
"""Of galleries in one page; larger maps are halved first, then samples are left out."""
SMALL_SIDE = 28
"""Maps are not halved below this side."""


@dataclass(frozen=True, eq=False)
class Picture:
    """What the gallery shows of one sample: itself as it was kept, bytes of its maps by method."""

    kind: str
    content: bytes
    maps: Mapping[str, tuple[str, Bytes]]

    def itself(self) -> dict[str, Any]:
        """An image as a file, a text as its words."""
        if self.kind != "text":
            return {"image": f"data:image/{self.kind};base64,{_text(self.content)}"}
        words, second = words_of(self.content)
        return {"words": [plain_word(word) for word in words], "second": second}

    def halved(self) -> Picture:
        """The same with large maps of half the side."""
        return Picture(
            self.kind, self.content, {name: (k, _halved(v)) for name, (k, v) in self.maps.items()}
        )


@dataclass(frozen=True, eq=False)
class Gallery:
    """Everything the script needs (`data`), what can be chosen, and how many samples there are."""

    data: Mapping[str, Any]
    classes: Mapping[int, str]
    flags: Sequence[str]
    has_labels: bool
    shown: int
    kept: int
    is_halved: bool


def make_gallery(found: Findings, *, most_bytes: int = MOST_BYTES) -> Gallery | None:
    """Gather what the gallery shows; None for a run that kept no pictures."""
    pictures = _pictures(found)
    if not pictures:
        return None
    cards = found.manifest.methods
    samples = found.samples.to_pylist()
    places = {sample["sample"]: place for place, sample in enumerate(samples)}
    kept = [sample for sample in samples if sample["sample"] in pictures]
    flags = _flags(found)
    sacos = labels_of(found, "saco")
    removals = [
        {method: removal.averaged() for method, removal in removal_groups(found, label).items()}
        for label in sacos
    ]

    def entry(sample: Mapping[str, Any], picture: Picture) -> dict[str, Any]:
        return _entry(found, places[sample["sample"]], sample, picture, flags, removals)

    entries = [entry(sample, pictures[sample["sample"]]) for sample in kept]
    word = found.manifest.sample
    is_halved = bool(_sizes(entries)[-1] > most_bytes) and word == "image"
    if is_halved:
        entries = [entry(sample, pictures[sample["sample"]].halved()) for sample in kept]
    fitting = max(1, int((_sizes(entries) <= most_bytes).sum()))
    entries, shown = entries[:fitting], kept[:fitting]
    known = {flag for entry in entries for own in entry["flags"].values() for flag in own}
    classes = _classes(found, shown)
    data = {
        "sample": word,
        "most_words": MOST_WORDS,
        "steps": STEPS,
        "methods": found.methods,
        "random": [card.is_random for card in cards.values()],
        "matched": [
            found.methods.index(card.matched_random) if card.matched_random else -1
            for card in cards.values()
        ],
        "draws": [card.draws for card in cards.values()],
        "metrics": [
            {"name": name, "up": card.higher_is_better}
            for name, card in found.manifest.metrics.items()
        ],
        "sacos": [found.metrics.index(label) for label in sacos],
        "classes": classes,
        "samples": entries,
    }
    return Gallery(
        data=data,
        classes={
            target: classes[str(target)]
            for target in sorted({s["target"] for s in shown if s["target"] >= 0})
        },
        flags=sorted(known),
        has_labels=any(sample["label"] >= 0 for sample in shown),
        shown=len(entries),
        kept=len(kept),
        is_halved=is_halved,
    )


def colour_table(kind: str) -> str:
    """256 colours of a scale, three bytes each, as the figures use them; in base64."""
    ramp = (np.arange(256) - 128) / 127 if kind == "signed" else np.arange(256) / 255
    return _text((255 * colours(ramp.clip(-1, 1), kind)).round().astype(np.uint8).tobytes())


def _pictures(found: Findings) -> dict[str, Picture]:
    """By sample, in the order of the run."""
    pictures: dict[str, Picture] = {}
    maps: dict[str, tuple[str, Bytes]] = {}
    for row in found.pictures.to_pylist():
        if row["method"] == "":
            maps = {}
            pictures[row["sample"]] = Picture(row["kind"], row["content"], maps)
        else:
            values = np.frombuffer(row["content"], np.uint8).reshape(row["height"], row["width"])
            maps[row["method"]] = (row["kind"], values)
    return pictures


def _sizes(entries: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
    """Bytes of the first entry, of the first two, and so on."""
    return np.cumsum([len(json.dumps(entry)) for entry in entries])


def _halved(values: Bytes) -> Bytes:
    height, width = values.shape
    if max(height, width) <= SMALL_SIDE or min(height, width) < 2:
        return values
    even = values[: height // 2 * 2, : width // 2 * 2].astype(np.float64)
    means = even.reshape(height // 2, 2, width // 2, 2).mean((1, 3))
    halved: Bytes = means.round().astype(np.uint8)
    return halved


def _entry(
    found: Findings,
    place: int,
    sample: Mapping[str, Any],
    picture: Picture,
    flags: Mapping[str, Mapping[str, list[str]]],
    removals: Sequence[Mapping[str, Removal]],
) -> dict[str, Any]:
    own = [method for method, card in found.manifest.methods.items() if not card.is_random]
    return {
        "id": sample["sample"],
        "label": sample["label"],
        "target": sample["target"],
        "predicted": sample["predicted"],
        "p": _rounded(math.exp(sample["log_p0"])),
        **picture.itself(),
        "maps": [_map(*picture.maps[m]) if m in picture.maps else None for m in found.methods],
        "scores": [[_rounded(v) for v in row] for row in found.cube[:, :, place]],
        "flags": flags.get(sample["sample"], {}),
        "disagreement": _rounded(disagreement([picture.maps[m] for m in own if m in picture.maps])),
        "groups": [
            [_groups(by_method.get(method), place) for method in found.methods]
            for by_method in removals
        ],
        "curves": [_curve(removals, method, place) for method in found.methods],
    }


def _map(kind: str, values: Bytes) -> list[Any]:
    return [kind, *values.shape, _text(values.tobytes())]


def _groups(removal: Removal | None, place: int) -> dict[str, Any] | None:
    """Salience and drop of every group of one map."""
    if removal is None or not (k := int(removal.k[0, place])):
        return None
    return {
        "salience": [_rounded(value) for value in _shares(removal.salience[0, place, :k])],
        "drop": [_rounded(value) for value in removal.drop[0, place, :k]],
    }


def _curve(
    removals: Sequence[Mapping[str, Removal]], method: str, place: int
) -> list[float | None] | None:
    """Confidence while one group after the other goes, which no SaCo's K changes."""
    if not removals or method not in removals[0]:
        return None
    curve = removals[0][method].curve[0, place]
    return None if np.isnan(curve).any() else [_rounded(value) for value in curve]


def _shares(salience: Array) -> Array:
    """Salience of groups with the largest size as 1."""
    largest = np.abs(salience).max()
    shares: Array = salience / largest if largest > 0 else salience
    return shares


def disagreement(maps: Iterable[tuple[str, Bytes]]) -> float:
    """How differently maps rank the same sample: 1 - their mean rank correlation, pair by pair.

    Maps are compared on the coarsest grid among them. 0 if they agree; 1 for unrelated maps; NaN
    with fewer than two maps that rank anything.

    >>> rising = ("plain", np.array([[0, 80, 255]], np.uint8))
    >>> falling = ("plain", np.array([[255, 80, 0]], np.uint8))
    >>> disagreement([rising, rising]), disagreement([rising, falling])
    (0.0, 2.0)
    """
    usable = [values.astype(np.float64) for kind, values in maps if kind in ("plain", "signed")]
    if len(usable) < 2:
        return math.nan
    grid = min((values.shape for values in usable), key=math.prod)
    coarse = np.stack([_pooled(values, grid).ravel() for values in usable])
    first, second = zip(*combinations(range(len(coarse)), 2), strict=True)
    with np.errstate(invalid="ignore"):
        alike = spearman(coarse[list(first)].T, coarse[list(second)].T)
    return float(1 - np.nanmean(alike)) if not np.isnan(alike).all() else math.nan


def _pooled(values: Array, grid: tuple[int, ...]) -> Array:
    """Average over the cells of a coarser grid."""
    for axis, size in enumerate(grid):
        edges = np.arange(size) * values.shape[axis] // size
        widths = np.diff([*edges, values.shape[axis]])
        shape = [-1 if other == axis else 1 for other in range(2)]
        values = np.add.reduceat(values, edges, axis=axis) / widths.reshape(shape)
    return values


def _flags(found: Findings) -> dict[str, dict[str, list[str]]]:
    """By sample and method, what its scores are flagged with."""
    flags: dict[str, dict[str, list[str]]] = {}
    for sample, method, marks in found.marks:
        by_method = flags.setdefault(sample, {}).setdefault(method, [])
        by_method += [flag for flag in marks.split(",") if flag not in by_method]
    return flags


def _classes(found: Findings, samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names of the classes that occur."""
    names = found.manifest.model.classes or ()
    numbers = {sample[key] for sample in samples for key in ("label", "target", "predicted")}
    return {
        str(number): str(names[number]) if number < len(names) else f"class {number}"
        for number in sorted(numbers)
        if number >= 0
    }


def _rounded(value: float) -> float | None:
    return None if not math.isfinite(value) else round(float(value), 6)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
