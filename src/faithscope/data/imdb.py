"""IMDB film reviews, negative or positive, prepared as Keras did (ROAR.md §1.4, §14).

Reads the official folder `aclImdb` (train/pos/0_9.txt, …) or `train.jsonl` and `test.jsonl` with
id, label (0, 1) and text; both may be compressed. The paper read Keras's pickle `imdb_full.pkl`:
a pickle can run code when it is read, so it is refused. The texts give the same sizes, but the
pickle's order is not known, so the cut differs. Of the orders that the files offer (either class
first, by number or by name) the one taken, positive first by number, comes nearest to the paper:
12,488 words for 12,482.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.splits import train_test_split
from faithscope.data.text import TextData, Texts, Words
from faithscope.data.text_files import existing_folder, find_file, open_text, read_jsonl
from faithscope.errors import FaithscopeError

CLASSES = ("negative", "positive")
FOLDERS = ("neg", "pos")
MIN_DF = 10
LONGEST, SHORTEST = 400, 6  # words, both left out
TRAIN_SHARE, TEST_SHARE = 0.8, 0.2
SIGNS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


@dataclass(frozen=True)
class Review:
    """The words of a review and its class."""

    words: Words
    label: int


def load_imdb(name: str, options: Mapping[str, Any]) -> TextData:
    """IMDB from its folder; the cut is the same every time."""
    folder = existing_folder(name)
    train = read_reviews(folder, "train")
    known = {word for review in train for word in review.words}
    test = [_only(known, review) for review in read_reviews(folder, "test")]
    rng = np.random.RandomState(0)
    kept, validation = train_test_split(_short(train), TRAIN_SHARE, rng)
    tested, _ = train_test_split(_short(test), TEST_SHARE, rng)
    return TextData(
        name="imdb",
        kind="imdb",
        train=_texts(kept),
        validation=_texts(validation),
        test=_texts(tested),
        classes=CLASSES,
        metric="macro_f1",
        selection="auroc",
        min_df=MIN_DF,
    )


def read_reviews(folder: Path, split: str) -> list[Review]:
    """The reviews of a split, positive ones first, each class by number."""
    for root in (folder, folder / "aclImdb"):
        if (root / split / FOLDERS[0]).is_dir():
            rows = list(_official(root / split))
            break
    else:
        rows = list(_from_jsonl(_jsonl_file(folder, split)))
    rows.sort(key=lambda row: (-row[0], row[1]))
    return [Review(imdb_words(text), label) for label, _, text in rows]


def imdb_words(text: str) -> Words:
    """Lower-case words, without signs.

    >>> imdb_words("Well-made!<br />It's fun")
    ('well', 'made', 'br', "it's", 'fun')
    """
    return tuple(text.lower().translate(SIGNS).split())


def _official(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Class, number and text of every file ``NUMBER_RATING.txt``."""
    for label, name in enumerate(FOLDERS):
        files = sorted((folder / name).glob("*_*.txt"))
        if not files:
            raise FaithscopeError(
                f"The folder '{folder / name}' holds no reviews such as 0_9.txt: check the folder."
            )
        for file in files:
            number = file.name.partition("_")[0]
            with open_text(file) as stream:
                yield label, int(number) if number.isdecimal() else 0, stream.read()


def _jsonl_file(folder: Path, split: str) -> Path:
    try:
        return find_file(folder, f"{split}.jsonl")
    except FaithscopeError:
        pickled = any(folder.glob("imdb_full.pkl"))
        why = "Keras's pickle is not read, for it could run code: it" if pickled else "it"
        raise FaithscopeError(
            f"The folder '{folder}' does not hold IMDB: {why} needs aclImdb's {split}/neg and "
            f"{split}/pos, or {split}.jsonl with id, label and text."
        ) from None


def _from_jsonl(file: Path) -> Iterator[tuple[int, int, str]]:
    for place, row in enumerate(read_jsonl(file), 1):
        label, text, number = row.get("label"), row.get("text"), row.get("id", place)
        if label not in (0, 1) or not isinstance(text, str) or not isinstance(number, int):
            raise FaithscopeError(
                f"Row {place} of '{file}' needs a label (0 or 1), a text and, if any, a whole "
                "number as id."
            )
        yield int(label), number, text


def _only(known: Collection[str], review: Review) -> Review:
    """Without words that the training reviews never use: Keras did not number them."""
    return Review(tuple(word for word in review.words if word in known), review.label)


def _short(reviews: Sequence[Review]) -> list[Review]:
    return [review for review in reviews if len(review.words) < LONGEST]


def _texts(reviews: Sequence[Review]) -> Texts:
    kept = [review for review in reviews if len(review.words) > SHORTEST]
    return Texts(
        texts=tuple(" ".join(review.words) for review in kept),
        words=tuple(review.words for review in kept),
        labels=np.array([review.label for review in kept], dtype=np.int64),
    )
