"""The Stanford Sentiment Treebank: sentences of film reviews, negative or positive.

Trees in brackets, one a line, in `train.txt`, `dev.txt` and `test.txt` (ROAR.md §1.3, §14).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.text import TextData, Texts
from faithscope.data.text_files import existing_folder, find_file, open_text
from faithscope.data.words import spacy_words
from faithscope.errors import FaithscopeError

CLASSES = ("negative", "positive")
NEUTRAL = 2
SHORTEST = 6  # treebank tokens
ROOT = re.compile(r"\((\d)\s")
LEAF = re.compile(r"\(\d ([^()\s]+)\)")


def load_sst(name: str, options: Mapping[str, Any]) -> TextData:
    """SST from the folder of its trees (or from `trees` in it)."""
    folder = existing_folder(name)
    folder = folder / "trees" if (folder / "trees").is_dir() else folder
    rng = random.Random(0)  # one generator for the three splits, in this order
    train, validation, test = (
        _shuffled(read_trees(find_file(folder, f"{split}.txt")), rng)
        for split in ("train", "dev", "test")
    )
    return TextData(
        name="sst",
        kind="sst",
        train=train,
        validation=validation,
        test=test,
        classes=CLASSES,
        metric="macro_f1",
        selection="auroc",
    )


def read_trees(file: Path) -> list[tuple[str, int]]:
    """Sentences (treebank tokens joined by blanks) and classes; neutral and short ones left out."""
    found = []
    with open_text(file) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            root, tokens = ROOT.match(line), LEAF.findall(line)
            if root is None or not tokens:
                raise FaithscopeError(
                    f"Line {number} of '{file}' is not a tree such as '(3 (2 Very) (4 good))': "
                    "check that it is a file of the Stanford Sentiment Treebank."
                )
            sentiment = int(root[1])
            if sentiment != NEUTRAL and len(tokens) >= SHORTEST:
                found.append((" ".join(tokens), int(sentiment > NEUTRAL)))
    if not found:
        raise FaithscopeError(
            f"'{file}' holds no sentence of at least {SHORTEST} tokens that is not neutral, and "
            "others are left out: give the whole file of the treebank."
        )
    return found


def sst_words(sentence: str) -> tuple[str, ...]:
    """Words without brackets and punctuation.

    It is stripped only at first: a sentence that begins with a sign keeps a leading blank, which
    spaCy returns as a token. The published vocabulary counts it.
    """
    text = sentence.strip().replace("-LRB-", "").replace("-RRB-", "  ")
    return spacy_words(re.sub(r"\s+", " ", re.sub(r"\W+", " ", text)))


def _shuffled(sentences: list[tuple[str, int]], rng: random.Random) -> Texts:
    mixed = rng.sample(sentences, len(sentences))
    return Texts(
        texts=tuple(sentence for sentence, _ in mixed),
        words=tuple(sst_words(sentence) for sentence, _ in mixed),
        labels=np.array([label for _, label in mixed], dtype=np.int64),
    )
