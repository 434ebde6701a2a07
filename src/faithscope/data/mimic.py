"""MIMIC-III discharge summaries: acute or chronic anemia, diabetes or not (ROAR.md §1.6).

The folder holds the official DIAGNOSES_ICD.csv.gz and NOTEEVENTS.csv.gz; diabetes also needs the
three lists {train,dev,test}_50_hadm_ids.csv of github.com/successar/AttentionExplanation.
Nothing of the data is written anywhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.text import TextData, Texts, WordVectors
from faithscope.data.text_files import existing_folder, find_file, need_columns, open_text, read_csv
from faithscope.data.vocabulary import frequent_words
from faithscope.data.words import need_library, spacy_words, without_digits
from faithscope.errors import FaithscopeError, choose

DIAGNOSES, NOTES = "DIAGNOSES_ICD.csv", "NOTEEVENTS.csv"
SUBSETS = {"anemia": ("chronic", "acute"), "diabetes": ("negative", "positive")}
MIN_DF = 5
LONGEST_ANEMIA = 4000  # words
VECTOR_SIZE = 300
REMOVED = re.compile(r"\[\s*\*\s*\*.*?(?:\*\s*){2}\]")  # [**what would identify someone**]
REPEATED = re.compile(r"([^A-Za-z0-9])(?:\s*\1)+\s*")  # a line of signs, - - -

Stay = tuple[int, int]
"""A patient's stay in hospital: SUBJECT_ID and HADM_ID."""


@dataclass(frozen=True)
class Summary:
    """What was written of a stay, normalised, and its ICD-9 codes."""

    stay: Stay
    text: str
    codes: tuple[str, ...]

    def has(self, code: str) -> bool:
        """Whether a diagnosis begins with this code."""
        return any(own.startswith(code) for own in self.codes)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the normalised text."""
        return tuple(self.text.split(" "))


@dataclass(frozen=True)
class Labelled:
    """A summary and its class."""

    summary: Summary
    label: int


def load_mimic(name: str, options: Mapping[str, Any]) -> TextData:
    """MIMIC-III from its folder; options: subset (anemia or diabetes), vectors (a file).

    Without a file of vectors, Word2Vec is trained on all summaries, as in the paper.
    """
    subset = choose("subset of MIMIC", options.get("subset", "anemia"), SUBSETS)
    folder = existing_folder(name)
    cut = _anemia if subset == "anemia" else _diabetes(folder)
    summaries = read_summaries(folder)
    train, validation, test = cut(summaries)
    vocabulary = frequent_words((item.summary.words for item in train), MIN_DF)
    vectors = None if options.get("vectors") else train_vectors(summaries)
    if vectors is not None:
        known = {word: vectors.vectors[word] for word in vocabulary if word in vectors.vectors}
        vectors = WordVectors(known, size=vectors.size, normal=True)
    longest = LONGEST_ANEMIA if subset == "anemia" else None
    return TextData(
        name=f"mimic-{subset}",
        kind="mimic",
        train=_texts(train, longest),
        validation=_texts(validation, longest),
        test=_texts(test, longest),
        classes=SUBSETS[subset],
        metric="macro_f1",
        selection="auroc",
        min_df=MIN_DF,
        vectors=vectors,
        vocabulary=tuple(sorted(vocabulary)),  # counted before long summaries are left out
    )


# The files


def read_summaries(folder: Path) -> list[Summary]:
    """Stays with both diagnoses and discharge summaries, by number."""
    files = [find_file(folder, name) for name in (DIAGNOSES, NOTES)]  # both, before long work
    codes, notes = read_codes(files[0]), read_notes(files[1])
    stays = sorted(codes.keys() & notes.keys())
    if not stays:
        raise FaithscopeError(
            f"No stay in '{folder}' has both diagnoses and a discharge summary: are {DIAGNOSES} "
            f"and {NOTES} of the same release?"
        )
    return [Summary(stay, normalise(notes[stay]), codes[stay]) for stay in stays]


def read_codes(file: Path) -> dict[Stay, tuple[str, ...]]:
    """The ICD-9 codes of every stay, with a full stop after three characters."""
    found: dict[Stay, list[str]] = defaultdict(list)
    for stay, row in _complete_rows(file, ("ICD9_CODE",)):
        code = row["ICD9_CODE"]
        found[stay].append(f"{code[:3]}.{code[3:]}")
    return {stay: tuple(codes) for stay, codes in found.items()}


def read_notes(file: Path) -> dict[Stay, str]:
    """The discharge summaries of every stay: reports by date, then addenda by date."""
    columns = ("CATEGORY", "CHARTDATE", "DESCRIPTION", "TEXT")
    found: dict[Stay, list[tuple[bool, str, str]]] = defaultdict(list)
    for stay, row in _complete_rows(file, columns):
        if row["CATEGORY"] == "Discharge summary":
            part = (row["DESCRIPTION"] != "Report", row["CHARTDATE"], row["TEXT"])
            found[stay].append(part)
    ordered = {stay: sorted(parts, key=lambda part: part[:2]) for stay, parts in found.items()}
    return {stay: " ".join(part[2] for part in parts).strip() for stay, parts in ordered.items()}


def normalise(text: str) -> str:
    """Names that were removed as <DE>, repeated signs once, words with digits as [DIGITS].

    >>> normalise("Seen  by [**Last Name 12**] ----- at 5 pm")
    'seen by < de > - at [DIGITS] pm'
    """
    once = REPEATED.sub(r"\1 ", REMOVED.sub(" <DE> ", text))
    return " ".join(without_digits(spacy_words(" ".join(once.split()))))


def mimic_words(text: str) -> tuple[str, ...]:
    """The words of a summary."""
    return tuple(normalise(text).split())


def _complete_rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[Stay, Mapping[str, str]]]:
    """The rows that have a stay and a value in each of these columns."""
    needed = ("SUBJECT_ID", "HADM_ID", *columns)
    for place, row in enumerate(read_csv(file), 1):
        if place == 1:
            need_columns(file, row, needed)
        if not all(row[name] for name in needed):
            continue
        try:
            yield (int(float(row["SUBJECT_ID"])), int(float(row["HADM_ID"]))), row
        except ValueError:
            raise FaithscopeError(
                f"Row {place} of '{file}' has a SUBJECT_ID or HADM_ID that is not a number: check "
                "that it is the official file."
            ) from None


# The two tasks

Cut = tuple[list[Labelled], list[Labelled], list[Labelled]]


def _anemia(summaries: Sequence[Summary]) -> Cut:
    """Acute (285.1) against chronic (285.2) anemia, where it is one of the two."""
    library = need_library("sklearn.model_selection", purpose="MIMIC's cut", extra="mimic")
    chosen = [item for item in summaries if item.has("285.1") != item.has("285.2")]
    rows = [Labelled(item, int(item.has("285.1"))) for item in chosen]
    try:
        rest, test = _cut(library, rows, 0.2, 12939)
        train, validation = _cut(library, rest, 0.15, 13448)
    except ValueError as error:
        raise FaithscopeError(
            f"{len(rows)} summaries with anemia are too few to cut into train, validation and "
            f"test ({error}): give the whole of MIMIC-III."
        ) from None
    return train, validation, test


def _cut(
    library: Any, rows: list[Labelled], share: float, seed: int
) -> tuple[list[Labelled], list[Labelled]]:
    labels = [row.label for row in rows]
    first, second = library.train_test_split(
        rows, stratify=labels, test_size=share, random_state=seed
    )
    return first, second


def _diabetes(folder: Path) -> Callable[[Sequence[Summary]], Cut]:
    """Diabetes (250.00) or not, for the stays of three published lists."""
    train, validation, test = (
        _stay_numbers(find_file(folder, f"{split}_50_hadm_ids.csv"))
        for split in ("train", "dev", "test")
    )

    def cut(summaries: Sequence[Summary]) -> Cut:
        parts = [
            [Labelled(item, int(item.has("250.00"))) for item in summaries if item.stay[1] in part]
            for part in (train, validation, test)
        ]
        if not all(parts):
            raise FaithscopeError(
                f"A list of stays (*_50_hadm_ids.csv) in '{folder}' names none of MIMIC's: "
                "download the lists again."
            )
        return parts[0], parts[1], parts[2]

    return cut


def _stay_numbers(file: Path) -> set[int]:
    with open_text(file) as stream:
        try:
            return {int(float(line.partition(",")[0])) for line in stream if line.strip()}
        except ValueError:
            raise FaithscopeError(
                f"'{file}' is not a list of HADM_IDs, one a line: download it again."
            ) from None


# What comes out


def train_vectors(summaries: Sequence[Summary]) -> WordVectors:
    """Word2Vec vectors of all summaries, those for validation and test too, as in the paper.

    One worker and a fixed seed, so that they come out the same every time.
    """
    library = need_library("gensim.models", purpose="Word2Vec on MIMIC", extra="mimic")
    sentences = [item.words for item in summaries]
    trained = library.Word2Vec(
        sentences, vector_size=VECTOR_SIZE, window=10, min_count=2, workers=1, seed=0
    ).wv
    vectors = {word: np.array(trained[word]) for word in trained.key_to_index}
    return WordVectors(vectors, size=VECTOR_SIZE, normal=True)


def _texts(rows: Sequence[Labelled], longest: int | None) -> Texts:
    kept = [row for row in rows if longest is None or len(row.summary.words) <= longest]
    return Texts(
        texts=tuple(row.summary.text for row in kept),
        words=tuple(row.summary.words for row in kept),
        labels=np.array([row.label for row in kept], dtype=np.int64),
    )
