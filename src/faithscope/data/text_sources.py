"""Where texts come from by name: bAbI, SST, IMDB, SNLI, MIMIC, Hugging Face, your own files.

A source is a function ``(name, options) -> TextData``; other packages add theirs through the entry
points "faithscope.text".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.babi import babi_data, babi_words, load_babi, parse_questions
from faithscope.data.hugging_face import open_hugging_face
from faithscope.data.images import choose_subset
from faithscope.data.imdb import imdb_words, load_imdb
from faithscope.data.mimic import load_mimic, mimic_words
from faithscope.data.own_texts import (
    COLUMN_OPTIONS,
    SPLIT_NAMES,
    Table,
    file_or_folder_texts,
    own_data,
)
from faithscope.data.snli import load_snli, snli_words
from faithscope.data.sst import load_sst, sst_words
from faithscope.data.text import SPLITS, TEST_METRICS, TextData, Texts, TokenData, Words
from faithscope.data.text_files import open_text
from faithscope.data.vectors import read_vectors
from faithscope.data.vocabulary import Vocabulary
from faithscope.data.words import plain_words
from faithscope.errors import FaithscopeError, choose, quoted
from faithscope.registry import Registry, check_options, check_whole
from faithscope.request import as_path, existing_path, split_options

TextSource = Callable[[str, Mapping[str, Any]], TextData]
KIND = "text source"
TEXT_SOURCES: Registry[TextSource] = Registry(KIND, group="faithscope.text")
EVERYWHERE = {"vectors": "", "min_df": 1}
"""Options that every source has."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "babi": {"task": 1, "train": ""},
    "sst": {},
    "imdb": {},
    "snli": {},
    "mimic": {"subset": "anemia"},
    "hf": {**COLUMN_OPTIONS, "config": ""},
    "file": COLUMN_OPTIONS,
    "bundled": {},
}
WORDS: Mapping[str, Callable[[str], Words]] = {
    "babi": babi_words,
    "sst": sst_words,
    "imdb": imdb_words,
    "snli": snli_words,
    "mimic": mimic_words,
    "own": plain_words,
}
"""How a text of a kind is cut into the words of a vocabulary."""
SAMPLES = {"babi1": "babi1_sample.txt.xz"}


def load_text(name: str | Path, *, limit: int | None = None) -> TextData:
    """Load a data set of texts by name.

    Args:
        name: ``babi:FOLDER(task=1)`` (also train=FILE), ``sst:FOLDER``, ``imdb:FOLDER``,
            ``snli:FOLDER``, ``mimic:FOLDER(subset=anemia)`` or diabetes: the official files, cut
            and worded as in the paper; ``bundled:babi1``, a small bAbI that comes along;
            ``hf:ID or folder`` (options text, auxiliary, label, config); the path of your own
            .csv, .tsv or .jsonl file or of a folder with train, validation and test files
            (options text, auxiliary, label, split name the columns). Everywhere: vectors=FILE,
            pretrained word vectors (fastText's .vec, GloVe's .txt, wink's .json), and min_df=N,
            how many training texts a word must be in to be known.
        limit: use only so many texts of each split, spread evenly over it.
    """
    limit = check_whole("limit", limit, 1)
    source, place, options = _read_name(name)
    load = TEXT_SOURCES[source]
    if source in OPTIONS:  # another package's source checks its own
        check_options(KIND, source, options, {**OPTIONS[source], **EVERYWHERE})
    data = _limited(load(place, options), limit)
    return _with_options(data, options)


def _read_name(name: str | Path) -> tuple[str, str, dict[str, Any]]:
    """The source, what it is asked for, and its options; a plain path is your own file."""
    if not isinstance(name, str):
        name = as_path(name, "data")
    kind, colon, rest = str(name).partition(":")
    sourced = isinstance(name, str) and colon and re.fullmatch(r"[\w-]{2,}", kind)
    if sourced and (kind in TEXT_SOURCES or existing_path(name) is None):
        if not rest.strip():
            raise FaithscopeError(f"The text source '{kind}' needs to know what: '{kind}:…'.")
        return kind, *_split_options(rest)
    place, options = (str(name), {}) if isinstance(name, Path) else _split_options(name)
    if existing_path(place) is None:
        example = f"{name}:…" if name in TEXT_SOURCES else "babi:FOLDER"
        raise FaithscopeError(
            f"There is no file or folder {quoted(place)}: give a path, 'bundled:babi1' or "
            f"'{example}'."
        )
    return "file", place, options


def _split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the options off; values that are paths need no quotes.

    >>> _split_options("sst(vectors=glove/6B.txt, min_df=2)")
    ('sst', {'vectors': 'glove/6B.txt', 'min_df': 2})
    """
    try:
        return split_options(text)
    except FaithscopeError:
        start = text.rindex("(") + 1 if "(" in text else len(text)
        quoted = re.sub(
            r"(\w+)\s*=\s*([^,()'\"]*[^,()'\"\s\d][^,()'\"]*)",
            lambda found: f"{found[1]}={found[2].strip()!r}",
            text[start:],
        )
        return split_options(text[:start] + quoted)


def _with_options(data: TextData, options: Mapping[str, Any]) -> TextData:
    """Apply what every source takes."""
    if "min_df" in options:
        if options["min_df"] < 1:
            raise FaithscopeError(f"min_df must be at least 1, got {options['min_df']}.")
        data = replace(data, min_df=options["min_df"], vocabulary=None)
    if options.get("vectors"):
        file = as_path(options["vectors"], "vectors")
        words = Vocabulary.of(data).words
        data = replace(data, vectors=read_vectors(file, words, normal=data.kind == "mimic"))
    return data


def _limited(data: TextData, limit: int | None) -> TextData:
    if limit is None or all(len(split) <= limit for _, split in data.splits):
        return data
    parts = {name: _subset(split, limit) for name, split in data.splits}
    note = f"Only {limit} texts of each split, as asked."
    return replace(
        data,
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        vocabulary=None,
        notes=(*data.notes, note),
    )


def _subset(texts: Texts, limit: int) -> Texts:
    chosen = choose_subset(len(texts), limit, None)

    def some(values: tuple[Any, ...] | None) -> Any:
        return None if values is None else tuple(values[place] for place in chosen)

    return Texts(
        texts=some(texts.texts),
        words=some(texts.words),
        labels=texts.labels[chosen],
        auxiliary_texts=some(texts.auxiliary_texts),
        auxiliary_words=some(texts.auxiliary_words),
    )


# Sources that are not a corpus's own


def _bundled(name: str, options: Mapping[str, Any]) -> TextData:
    """The sample that comes along: the first two facts and question of 2,000 bAbI-1 stories."""
    file = (
        resources.files("faithscope") / "bundled" / SAMPLES[choose("bundled text", name, SAMPLES)]
    )
    with resources.as_file(file) as path, open_text(path) as stream:
        return babi_data(f"bundled:{name}", parse_questions(stream, file.name))


def _own_files(name: str, options: Mapping[str, Any]) -> TextData:
    path = existing_path(name)
    if path is None:
        raise FaithscopeError(f"There is no file or folder {quoted(name)}: check the path.")
    return file_or_folder_texts(path, options)


def _hugging_face(name: str, options: Mapping[str, Any]) -> TextData:
    """A data set of Hugging Face `datasets`; splits of other names than ours are left aside."""
    found = open_hugging_face(name, options.get("config", ""))
    if not isinstance(found, Mapping):  # one split, saved alone
        found = {str(found.split or "all"): found}
    known = {SPLIT_NAMES[split]: rows for split, rows in found.items() if split in SPLIT_NAMES}
    if len(found) == 1 and not known:
        known = {"all": next(iter(found.values()))}
    if not known:
        raise FaithscopeError(
            f"'hf:{name}' has the splits {', '.join(found)}: {', '.join(SPLITS)} are needed."
        )
    label = options.get("label", "label")
    classes = None
    tables = {}
    for split, rows in known.items():
        classes = getattr(rows.features.get(label), "names", None)
        columns = [*dict.fromkeys(options.get(key, "") for key in COLUMN_OPTIONS)]
        wanted = {*columns, "text", "text2", "auxiliary", "label", "split"} & {*rows.column_names}
        plain = rows.select_columns(sorted(wanted)).with_format(None)
        named = [_class_named(row, label, classes) for row in plain]
        tables[split] = Table(f"hf:{name}", tuple(rows.column_names), named)
    short = Path(name).name if existing_path(name) else name
    return own_data(f"hf:{short}", tables, options, classes=classes)


def _class_named(row: Mapping[str, Any], label: str, classes: list[str] | None) -> dict[str, Any]:
    """The row with its class by name; -1 is Hugging Face's "no label"."""
    number = row.get(label)
    if not isinstance(number, int) or classes is None:
        return dict(row)
    return {**row, label: classes[number] if 0 <= number < len(classes) else None}


for _name, _source, _summary, _example in (
    (
        "babi",
        load_babi,
        "bAbI: the folder of tasks_1-20_v1-2; tasks 1, 2, 3.",
        "babi:FOLDER(task=1)",
    ),
    (
        "sst",
        load_sst,
        "Stanford Sentiment Treebank: train.txt, dev.txt, test.txt.",
        "sst:FOLDER",
    ),
    ("imdb", load_imdb, "IMDB reviews: the folder aclImdb.", "imdb:FOLDER"),
    ("snli", load_snli, "Stanford natural language inference: snli_1.0.", "snli:FOLDER"),
    ("mimic", load_mimic, "MIMIC-III: anemia or diabetes.", "mimic:FOLDER(subset=diabetes)"),
    (
        "hf",
        _hugging_face,
        "Hugging Face datasets, of the hub or saved.",
        "hf:OWNER/NAME(text=sentence)",
    ),
    (
        "file",
        _own_files,
        "Your own texts: .csv, .tsv, .jsonl with text, label (and text2), or a folder of them.",
        "FILE",
    ),
    ("bundled", _bundled, "A small bAbI-1 that comes with faithscope.", "bundled:babi1"),
):
    TEXT_SOURCES.register(_name, _source, summary=_summary, example=_example)


# What a data set is like


def describe(data: TextData, tokens: TokenData) -> dict[str, Any]:
    """What the paper's Tables 1, 3 and 4 say of a data set.

    The mean length is of the encoded main texts of all splits, special tokens included; the
    majority is the most frequent class of the training split, with what answering it for every
    test text would score. `vectors` says how many words of the vocabulary have a pretrained vector
    and of how many numbers, None without any.
    """
    lengths = np.concatenate([split.lengths.numpy() for _, split in tokens.splits])
    majority = int(np.bincount(data.train.labels, minlength=len(data.classes)).argmax())
    return {
        "name": data.name,
        "kind": data.kind,
        "classes": list(data.classes),
        "metric": data.metric,
        "selection": data.selection,
        "sizes": {name: len(split) for name, split in data.splits},
        "mean_length": float(lengths.mean()),
        "vocabulary": len(tokens.words),
        "majority": {
            "class": data.classes[majority],
            "score": constant_score(data.metric, data.test.labels, majority),
        },
        "truncated": dict(tokens.truncated),
        "vectors": _vectors(tokens),
        "notes": list(data.notes),
        "fingerprint": fingerprint(data),
    }


def _vectors(tokens: TokenData) -> dict[str, int] | None:
    if tokens.vectors is None:
        return None
    known = sum(word in tokens.vectors.vectors for word in tokens.words)
    return {"words": known, "size": tokens.vectors.size}


def constant_score(metric: str, labels: np.ndarray, answer: int) -> float:
    r"""The score of giving one answer to everything; p is its share of the labels.

    Accuracy and micro-F1 are p. The answer's F1 is :math:`2p / (1 + p)`, all other classes' is 0,
    and macro-F1 averages the classes that occur in labels or answers.

    >>> constant_score("macro_f1", np.array([0, 1, 1, 0]), 1)
    0.3333333333333333
    """
    choose("metric", metric, TEST_METRICS)
    share = float(np.mean(labels == answer))
    if metric != "macro_f1":
        return share
    return 2 * share / (1 + share) / len({*labels.tolist(), answer})


def fingerprint(data: TextData) -> str:
    """Sixteen hexadecimal digits that change with any word, label or split."""
    digest = hashlib.sha256()
    for _, split in data.splits:
        for words in (split.words, split.auxiliary_words or ()):
            for text in words:
                digest.update("\x1f".join(text).encode("utf-8", "surrogatepass") + b"\x1e")
            digest.update(b"\x1d")
        digest.update(split.labels.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
