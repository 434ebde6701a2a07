"""Cutting a text into words: by spaCy, as the paper did, or plainly for a user's own texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from faithscope.errors import FaithscopeError

DIGITS = "[DIGITS]"  # stands for every word that holds a digit; an ordinary word of the vocabulary


def need_library(name: str, *, purpose: str, extra: str) -> Any:
    """Import a library that only some data needs, or say how to get it."""
    try:
        return import_module(name)
    except ImportError:
        library = name.partition(".")[0]
        raise FaithscopeError(
            f"{purpose} needs the library {library}: pip install 'faithscope[{extra}]'."
        ) from None


def plain_words(text: str) -> tuple[str, ...]:
    """Lower-case words and single signs, for your own texts; needs no library.

    >>> plain_words("It's 5 o'clock, isn't it?")
    ("it's", '5', "o'clock", ',', "isn't", 'it', '?')
    """
    return tuple(re.findall(r"\w+(?:['’]\w+)*|[^\w\s]", text.lower()))


@cache
def _spacy_tokenizer() -> Callable[[str], Sequence[Any]]:
    library = need_library("spacy", purpose="Cutting SST, SNLI and MIMIC into words", extra="text")
    tokenizer: Callable[[str], Sequence[Any]] = library.blank("en").tokenizer
    return tokenizer


def spacy_words(text: str) -> tuple[str, ...]:
    """Lower-case tokens of spaCy's English rules (the same with and without a trained model)."""
    return tuple(token.text.lower() for token in _spacy_tokenizer()(text))


def without_digits(words: Sequence[str]) -> tuple[str, ...]:
    """Words that hold a digit become [DIGITS].

    >>> without_digits(["the", "2nd", "1999"])
    ('the', '[DIGITS]', '[DIGITS]')
    """
    return tuple(DIGITS if any(map(str.isdigit, word)) else word for word in words)
