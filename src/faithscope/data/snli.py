"""Stanford Natural Language Inference: does the premise entail the hypothesis?

Reads the official `snli_1.0_{train,dev,test}.jsonl`, or three files a split with one item a line:
`s1.*` (premises), `s2.*` (hypotheses), `labels.*`. The premise is the main text
(ROAR.md §1.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.text import TextData, Texts, Words
from faithscope.data.text_files import (
    existing_folder,
    find_file,
    need_columns,
    open_text,
    read_jsonl,
)
from faithscope.data.words import spacy_words, without_digits
from faithscope.errors import FaithscopeError, choose

CLASSES = ("entailment", "contradiction", "neutral")
UNDECIDED = "-"
MIN_DF = 3


def load_snli(name: str, options: Mapping[str, Any]) -> TextData:
    """SNLI in its official splits; pairs without a gold label are left out."""
    folder = existing_folder(name)
    folder = folder / "snli_1.0" if (folder / "snli_1.0").is_dir() else folder
    splits = [read_pairs(folder, split) for split in ("train", "dev", "test")]  # before long work
    train, validation, test = (_texts(pairs) for pairs in splits)
    return TextData(
        name="snli",
        kind="snli",
        train=train,
        validation=validation,
        test=test,
        classes=CLASSES,
        metric="micro_f1",
        selection="accuracy",
        min_df=MIN_DF,
    )


def read_pairs(folder: Path, split: str) -> list[tuple[str, str, str]]:
    """Premises, hypotheses and labels of a split."""
    if any(folder.glob(f"s1.{split}*")):
        columns = [_lines(find_file(folder, f"{part}.{split}")) for part in ("s1", "s2", "labels")]
        if len({len(column) for column in columns}) > 1:
            raise FaithscopeError(
                f"The files s1.{split}, s2.{split} and labels.{split} of '{folder}' differ in "
                "length: download them again."
            )
        pairs = list(zip(*columns, strict=True))
    else:
        pairs = _official(find_file(folder, f"snli_1.0_{split}.jsonl"))
    decided = [pair for pair in pairs if pair[2] != UNDECIDED]
    for label in {pair[2] for pair in decided}:
        choose("label of SNLI", label, CLASSES)
    return decided


@lru_cache(maxsize=4096)  # a premise comes with three hypotheses
def snli_words(sentence: str) -> Words:
    """Lower-case words, those with digits as [DIGITS]."""
    return without_digits(spacy_words(" ".join(sentence.split())))


def _official(file: Path) -> list[tuple[str, str, str]]:
    pairs = []
    for row in read_jsonl(file):
        need_columns(file, row, ("sentence1", "sentence2", "gold_label"))
        pairs.append((str(row["sentence1"]), str(row["sentence2"]), str(row["gold_label"])))
    return pairs


def _lines(file: Path) -> list[str]:
    with open_text(file) as stream:
        return [line.strip() for line in stream]


def _texts(pairs: list[tuple[str, str, str]]) -> Texts:
    return Texts(
        texts=tuple(premise for premise, _, _ in pairs),
        words=tuple(snli_words(premise) for premise, _, _ in pairs),
        labels=np.array([CLASSES.index(label) for _, _, label in pairs], dtype=np.int64),
        auxiliary_texts=tuple(hypothesis for _, hypothesis, _ in pairs),
        auxiliary_words=tuple(snli_words(hypothesis) for _, hypothesis, _ in pairs),
    )
