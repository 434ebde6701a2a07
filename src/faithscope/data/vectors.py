"""Pretrained word vectors from a file: fastText's .vec, GloVe's .txt, wink-embeddings' .json."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.text import WordVectors
from faithscope.data.text_files import kind_of, open_text
from faithscope.errors import FaithscopeError


def read_vectors(file: Path, words: Collection[str], *, normal: bool = False) -> WordVectors:
    """Read the vectors of these words; the others in the file are passed over.

    Args:
        file: lines ``word number number …`` (fastText's first line, count and size, may stand
            before them), or wink-embeddings' JSON; may be compressed (.gz, .xz, .bz2).
        words: the words to look for.
        normal: whether words without a vector start from N(0, 1) instead of zero.

    Raises:
        FaithscopeError: if the file holds none of the words or a line is not a vector.
    """
    read = _read_json if kind_of(file) == ".json" else _read_lines
    vectors = read(file, frozenset(words))
    if not vectors:
        raise FaithscopeError(
            f"'{file}' has a vector for none of the {len(words)} words: give one of the same "
            "language, lower-case where they are."
        )
    return WordVectors(vectors, size=len(next(iter(vectors.values()))), normal=normal)


def _read_lines(file: Path, words: Collection[str]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with open_text(file, newline="\n", errors="replace") as stream:
        first = stream.readline().split()
        has_header = len(first) == 2 and first[0].isdecimal() and first[1].isdecimal()
        size = int(first[1]) if has_header else len(first) - 1
        if size < 1:
            raise FaithscopeError(f"'{file}' holds no word vectors: write 'word number number …'.")
        if not has_header and first[0] in words:
            found[first[0]] = _vector(file, 1, first[1:])
        for number, line in enumerate(stream, 2):
            word, _, rest = line.partition(" ")
            if word not in words or word in found:
                continue
            numbers = rest.split()
            if len(numbers) == size:  # GloVe also has words with blanks: they are longer
                found[word] = _vector(file, number, numbers)
    return found


def _vector(file: Path, line: int, numbers: list[str]) -> np.ndarray:
    try:
        return np.array(numbers, dtype=np.float32)
    except ValueError:
        raise FaithscopeError(
            f"Line {line} of '{file}' is not a word and its numbers: download the file again."
        ) from None


def _read_json(file: Path, words: Collection[str]) -> dict[str, np.ndarray]:
    """Vectors of ``{"dimensions": 100, "vectors": {word: numbers}}``: what follows 100 is no part.

    wink-embeddings puts two more numbers, the norm and the word's place, behind every vector.
    """
    with open_text(file) as stream:
        try:
            card: Any = json.load(stream)
            listed: Mapping[str, list[float]] = card["vectors"]
            size = card.get("dimensions") or len(next(iter(listed.values()))) - 2
            known = [word for word in words if word in listed]
            found = {word: np.array(listed[word][:size], dtype=np.float32) for word in known}
            sizes = {vector.shape for vector in found.values()}
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
            sizes = set()
            found = None
    if found is None or sizes - {(size,)}:
        raise FaithscopeError(
            f"'{file}' is not a JSON file of word vectors: it needs 'vectors', words to numbers."
        )
    return found
