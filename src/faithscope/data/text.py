"""Text to explain: the texts of a data set, and the same encoded for one model.

TextData   what a source gives: three splits of texts, as words and as they stand
TokenData  what a model takes: the same splits as token ids, with what may be masked
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from faithscope.errors import FaithscopeError, choose, shown

SPLITS = ("train", "validation", "test")

Words = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Texts:
    """One split of a data set. Labels are class numbers, int64 [N].

    `texts` feed a pretrained model's tokenizer, `words` a vocabulary of whole words. In a paired
    task the auxiliary text (question, hypothesis) is read but never explained and never masked.
    """

    texts: tuple[str, ...]
    words: tuple[Words, ...]
    labels: np.ndarray
    auxiliary_texts: tuple[str, ...] | None = None
    auxiliary_words: tuple[Words, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Pretrained vectors. Words without one start at zero, or from N(0, 1) (`normal`)."""

    vectors: Mapping[str, np.ndarray]
    size: int
    normal: bool = False


@dataclass(frozen=True, eq=False)
class TextData:
    """A data set of texts, and how the paper scores and selects models on it.

    `kind` names the family whose hyper-parameters apply: babi, sst, imdb, snli, mimic or own.
    `metric` is what is reported, `selection` what chooses the best epoch on the validation split.
    `vocabulary` lists the words where they are not simply those of the training split.
    """

    name: str
    kind: str
    train: Texts
    validation: Texts
    test: Texts
    classes: tuple[str, ...]
    metric: str
    selection: str
    min_df: int = 1
    vectors: WordVectors | None = None
    vocabulary: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_paired(self) -> bool:
        """Whether a second text comes with each."""
        return self.train.auxiliary_texts is not None

    @property
    def splits(self) -> Iterator[tuple[str, Texts]]:
        """The splits by name."""
        return ((name, getattr(self, name)) for name in SPLITS)


KINDS = ("babi", "sst", "imdb", "snli", "mimic", "own")
TEST_METRICS = ("accuracy", "macro_f1", "micro_f1")
SELECTIONS = ("accuracy", "auroc")


def check_texts(data: TextData) -> None:
    """Refuse texts of one's own making whose parts do not go together."""
    choose("kind of texts", data.kind, KINDS)
    choose("metric of texts", data.metric, TEST_METRICS)
    choose("selection of texts", data.selection, SELECTIONS)
    if not isinstance(data.name, str) or not data.name:
        raise FaithscopeError(f"The name of texts is text, got {shown(data.name)}.")
    classes = data.classes
    if not isinstance(classes, tuple | list) or not all(isinstance(one, str) for one in classes):
        raise FaithscopeError(f"The classes of '{data.name}' are names, got {shown(classes)}.")
    for name, split in data.splits:
        where = f"the {name} split of '{data.name}'"
        if not isinstance(split, Texts):
            raise FaithscopeError(f"Texts are needed for {where}, got {shown(split)}.")
        _check_split(where, split, len(classes))
        if (split.auxiliary_words is None) != (data.train.auxiliary_words is None):
            raise FaithscopeError(f"A second text is missing in a split of '{data.name}'.")


def _check_split(where: str, split: Texts, classes: int) -> None:
    labels = split.labels
    whole = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1
    if not whole or any(not 0 <= label < classes for label in labels.tolist()):
        raise FaithscopeError(
            f"The labels of {where} are an array of whole numbers from 0 to {classes - 1}, got "
            f"{shown(labels)}."
        )
    parts = [split.texts, split.words, split.auxiliary_texts, split.auxiliary_words]
    for part in parts:
        listed = isinstance(part, tuple | list) and len(part) == len(labels)
        if part is not None and not listed:
            raise FaithscopeError(f"Labels and texts of {where} are not equally many.")
    if not all(isinstance(text, str) for text in (*split.texts, *(split.auxiliary_texts or ()))):
        raise FaithscopeError(f"Something in {where} is not a text.")
    if not all(
        isinstance(words, tuple | list) and all(isinstance(word, str) for word in words)
        for words in (*split.words, *(split.auxiliary_words or ()))
    ):
        raise FaithscopeError(f"The words of {where} are lists of words, a list for each text.")


@dataclass(frozen=True, eq=False)
class Tokens:
    """One split, encoded and padded on the right.

    ids [N, T] of what the model reads; lengths [N] of its main part, special tokens included;
    eligible [N, T] where a token may be masked; labels [N]. A model that reads the auxiliary text
    by itself has it in `auxiliary` [N, U] and `auxiliary_lengths` [N]; one that reads the pair as
    one sequence has the rest of it beyond `lengths`.
    """

    ids: Tensor
    lengths: Tensor
    eligible: Tensor
    labels: Tensor
    auxiliary: Tensor | None = None
    auxiliary_lengths: Tensor | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def at(self, rows: Tensor) -> Tokens:
        """Some of the texts."""
        held = {name: part[rows] for name, part in vars(self).items() if part is not None}
        return replace(self, **held)


@dataclass(frozen=True, eq=False)
class TokenData:
    """A data set encoded for one model; `words` says what every id stands for."""

    name: str
    kind: str
    train: Tokens
    validation: Tokens
    test: Tokens
    classes: tuple[str, ...]
    metric: str
    selection: str
    words: tuple[str, ...]
    mask_id: int
    pad_id: int
    vectors: WordVectors | None = None
    truncated: Mapping[str, int] = field(default_factory=dict)

    @property
    def splits(self) -> Iterator[tuple[str, Tokens]]:
        """The splits by name."""
        return ((name, getattr(self, name)) for name in SPLITS)

    def hidden(self, split: str) -> Tensor:
        """Where tokens of a split are masked already: bool [N, T]."""
        tokens: Tokens = getattr(self, split)
        return tokens.eligible & (tokens.ids == self.mask_id)

    def masked(self, masks: Mapping[str, Tensor]) -> TokenData:
        """The same with the tokens at these positions masked: bool [N, T] by split."""
        parts = self.splits
        return self.with_ids({n: p.ids.masked_fill(masks[n], self.mask_id) for n, p in parts})

    def with_ids(self, ids: Mapping[str, Tensor]) -> TokenData:
        """The same data with other tokens in the main text: ids [N, T] by split."""
        return self.with_splits({name: replace(p, ids=ids[name]) for name, p in self.splits})

    def with_splits(self, parts: Mapping[str, Tokens]) -> TokenData:
        """The same data with other splits."""
        return replace(
            self, train=parts["train"], validation=parts["validation"], test=parts["test"]
        )
