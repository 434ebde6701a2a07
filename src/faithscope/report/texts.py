"""Example texts of a run, masked step by step: every word coloured by the scores that decide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from faithscope.report.words import MOST_WORDS, Word, look_of, plain_word
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import PROCEDURES

Row = Mapping[str, Any]

FIRST_WORDS = 6
"""Words of an example by which it is chosen."""
UNKNOWN = ("[UNK]", "<unk>")
"""What stands for a word that a model does not know."""
DECIDING = {
    "recursive": "those of the model trained at the level before",
    "roar": "always those of the model of the unmasked texts",
}
"""Of which model the scores are, by procedure."""


class Masking(NamedTuple):
    """A text under one measure, by level; of a long one so many words are not shown."""

    title: str
    steps: dict[str, list[Word]]
    hidden: int


class Text(NamedTuple):
    """A text: what it is chosen by, what is known of it, and how every measure masks it."""

    name: str
    about: str
    maskings: list[Masking]


def masked_texts(found: Findings) -> list[Text]:
    """The example texts, those with the fewest unknown words first."""

    def place(row: Row) -> tuple[int, int]:
        return row["seed"], row["index"]

    rows = sorted((row for row in found.examples.to_pylist() if row["words"]), key=place)
    groups = [list(own) for _, own in groupby(rows, key=place)]
    groups.sort(key=lambda own: sum(word in UNKNOWN for word in own[0]["words"]))
    return [Text(_name(own[0]), _about(own[0]), list(_maskings(found, own))) for own in groups]


def _maskings(found: Findings, rows: Sequence[Row]) -> Iterator[Masking]:
    """One text under every measure, by either procedure or by both if they agree."""
    for measure in found.methods:
        steps = {
            name: {
                row["k"]: row
                for row in sorted(rows, key=lambda row: int(row["k"]))
                if (row["measure"], row["procedure"]) == (measure, name)
            }
            for name in PROCEDURES
            if name in found.procedures
        }
        same = {
            str([(r["k"], r["masked"], r["scores"]) for r in s.values()]) for s in steps.values()
        }
        both = len(steps) > len(same) == 1
        for name, own in list(steps.items())[: 1 if both else None]:
            if own:
                title = f"{measure}, {'both procedures' if both else PROCEDURES[name]}"
                hidden = len(next(iter(own.values()))["eligible"]) - MOST_WORDS
                yield Masking(title, _steps(own, found.trained.is_relative), max(0, hidden))


def _steps(rows: Mapping[int, Row], is_relative: bool) -> dict[str, list[Word]]:
    """One line per level: each word coloured by its score, masked before or masked just now.

    The colours are those of the scores that decided what is masked in this step; the strongest is
    that of the most important word still to be seen.
    """
    steps, before = {}, set[int]()
    for k, row in rows.items():
        gone = set(row["masked"])
        scores = {at: value for at, value in enumerate(row["scores"]) if math.isfinite(value)}
        seen = [abs(scores.get(at, 0.0)) for at in row["eligible"] if at not in before]
        top = max(seen, default=0.0)
        steps[f"{k} %" if is_relative else str(k)] = [
            _word(row["words"][at], scores.get(at), top, at in gone, at in before)
            for at in row["eligible"][:MOST_WORDS]
        ]
        before = gone
    return steps


def _word(word: str, value: float | None, top: float, gone: bool, before: bool) -> Word:
    if before:
        return Word(plain_word(word), "gone")
    share = 0.0 if value is None or not top else abs(value) / top
    shade = look_of("plain", share)
    said = "" if value is None else f"importance {value:.3g}"
    return Word(plain_word(word), f"{shade} new" if gone else shade, said)


def _name(row: Row) -> str:
    """The number of a text and its first words, which distinguish it from the others."""
    words = [plain_word(row["words"][at]) for at in row["eligible"]]
    beginning = " ".join(words[:FIRST_WORDS]) + " …" * (len(words) > FIRST_WORDS)
    return f"{row['index'] + 1:,}: {beginning}"


def _about(row: Row) -> str:
    said = f"Text {row['index'] + 1:,} of the {row['split']} split, of class “{row['label']}”, "
    said += f"with seed {row['seed']}."
    if row["auxiliary"]:
        said += f" With it the model reads “{' '.join(row['auxiliary'])}”, which is never masked."
    return said


def what_colours_mean(found: Findings) -> str:
    """Of which model the scores are that colour a row."""
    own = [name for name in DECIDING if name in found.procedures]
    scores = ", ".join(f"by {PROCEDURES[name]} {DECIDING[name]}" for name in own)
    rest = " The last row masks what is left, unranked." if is_masked_whole(found) else ""
    return (
        "The more important a word is by the measure, the stronger its colour. Colours are scaled "
        f"within a row. They are the scores that decide what is masked in it: {scores}.{rest}"
    )


def is_masked_whole(found: Findings) -> bool:
    """Whether models of fully masked texts were trained."""
    return found.trained.is_relative and 100 in found.trained.levels
