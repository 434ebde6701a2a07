"""Text to explain: the texts of a data set, and the same encoded for one model.

TextData   what a source gives: three splits of texts, as words and as they stand
TokenData  what a model takes: the same splits as token ids, with what may be masked
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

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

    def with_ids(self, ids: Mapping[str, Tensor]) -> TokenData:
        """The same data with other tokens in the main text: ids [N, T] by split."""
        parts = {name: replace(part, ids=ids[name]) for name, part in self.splits}
        return replace(
            self, train=parts["train"], validation=parts["validation"], test=parts["test"]
        )
