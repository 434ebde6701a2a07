"""Words as numbers: the vocabulary of a training split, and texts encoded with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from faithscope.data.text import TextData, Texts, TokenData, Tokens
from faithscope.models.bilstm import CLS as CLS
from faithscope.models.bilstm import EOS as EOS
from faithscope.models.bilstm import MASK as MASK
from faithscope.models.bilstm import PAD as PAD
from faithscope.models.bilstm import SPECIALS as SPECIALS
from faithscope.models.bilstm import UNK as UNK


@dataclass(frozen=True)
class Vocabulary:
    """What every id stands for: five special tokens, then the words in sorted order.

    >>> Vocabulary.from_words(["to", "be"]).words
    ('[PAD]', '[CLS]', '[EOS]', '[MASK]', '[UNK]', 'be', 'to')
    """

    words: tuple[str, ...]

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Vocabulary:
        """A vocabulary of these words; one that is spelt as a special token is left out."""
        return cls((*SPECIALS, *sorted(set(words).difference(SPECIALS))))

    @classmethod
    def of(cls, data: TextData) -> Vocabulary:
        """The words of the training split that are in at least `min_df` of its texts.

        In a pair the main and the auxiliary text count as two texts. Where the data brings its
        own list of words, they are taken.
        """
        if data.vocabulary is not None:
            return cls.from_words(data.vocabulary)
        texts = chain(data.train.words, data.train.auxiliary_words or ())
        return cls.from_words(frequent_words(texts, data.min_df))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Words to ids, without the special tokens."""
        start = len(SPECIALS)
        return {word: start + place for place, word in enumerate(self.words[start:])}

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """[CLS], the words (unknown ones as [UNK]), [EOS].

        >>> Vocabulary.from_words(["to", "be"]).encode_words(["to", "see"])
        [1, 6, 4, 2]
        """
        ids = self.ids
        return [CLS, *(ids.get(word, UNK) for word in words), EOS]

    def encode(self, data: TextData) -> TokenData:
        """Encode all splits; texts are never cut."""
        return TokenData(
            name=data.name,
            kind=data.kind,
            train=self._encode_split(data.train),
            validation=self._encode_split(data.validation),
            test=self._encode_split(data.test),
            classes=data.classes,
            metric=data.metric,
            selection=data.selection,
            words=self.words,
            mask_id=MASK,
            pad_id=PAD,
            vectors=data.vectors,
        )

    def _encode_split(self, split: Texts) -> Tokens:
        ids, lengths = self._padded(split.words)
        auxiliary, auxiliary_lengths = None, None
        if split.auxiliary_words is not None:
            auxiliary, auxiliary_lengths = self._padded(split.auxiliary_words)
        return Tokens(
            ids=ids,
            lengths=lengths,
            eligible=ids >= MASK,  # padding, [CLS] and [EOS] come before
            labels=torch.from_numpy(split.labels.astype(np.int64)),
            auxiliary=auxiliary,
            auxiliary_lengths=auxiliary_lengths,
        )

    def _padded(self, texts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Ids [N, T], padded on the right, and lengths [N]."""
        encoded = [self.encode_words(words) for words in texts]
        lengths = torch.tensor([len(ids) for ids in encoded], dtype=torch.long)
        longest = max(map(len, encoded), default=0)
        padded = np.full((len(encoded), longest), PAD, dtype=np.int64)
        for row, ids in zip(padded, encoded, strict=True):
            row[: len(ids)] = ids
        return torch.from_numpy(padded), lengths


def frequent_words(texts: Iterable[Sequence[str]], min_df: int) -> set[str]:
    """The words that are in at least `min_df` of the texts.

    >>> sorted(frequent_words([("a", "a", "b"), ("b", "c")], 2))
    ['b']
    """
    count = Counter(word for words in texts for word in set(words))
    return {word for word, number in count.items() if number >= min_df}
