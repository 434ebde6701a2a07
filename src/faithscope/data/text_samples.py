"""Texts to explain one by one: strings, pairs, files, data sets, or tokens.

What `fs.load_data` gives for a text model. Texts of equally many tokens and units are a batch, so
that nothing is ever padded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faithscope.data.hugging_face import is_rows, rows_name
from faithscope.data.images import Batch, IndexedImages, Skipped, choose_subset
from faithscope.data.labels import class_numbers
from faithscope.data.own_texts import SECOND_TEXT, read_table
from faithscope.data.tensors import as_tensor
from faithscope.data.text import TextData, Texts
from faithscope.data.text_sources import TEXT_SOURCES, load_text
from faithscope.errors import FaithscopeError, quoted, shown, unknown, warn
from faithscope.models import BUNDLE, TextModel
from faithscope.models.text_model import Encoded
from faithscope.models.tokens import joined
from faithscope.request import existing_path

TEXT_KEYS = ("text", "sentence", "premise", "question", "content", "review")
PAIR_KEYS = (*SECOND_TEXT, "sentence2", "hypothesis", "text_pair")
LABEL_KEYS = ("label", "labels")
NAME_KEYS = ("id", "idx", "sample")
FILES = (".csv", ".tsv", ".jsonl")
NONE_GIVEN = "There are no texts: give at least one."


@dataclass(frozen=True)
class Item:
    """One text, or one pair; `ids` and `types` if it was tokenized already."""

    text: str = ""
    pair: str | None = None
    label: Any = None
    name: str = ""
    ids: tuple[int, ...] = ()
    types: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """What its random draws depend on, if it has no name: its words."""
        said = f"{self.text}|{self.pair}|{self.ids}|{self.types}"
        return hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class TextSamples(IndexedImages):
    """Texts in memory, encoded for a model as they are needed."""

    items: Sequence[Item]
    model: TextModel
    labels: Tensor | None = None
    name: str = "texts"
    noun: str = "texts"
    _encoded: dict[int, Encoded | Skipped] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def sample_names(self) -> Sequence[str]:
        """What the texts are called, by position."""
        return [item.name for item in self.items]

    @property
    def most_units(self) -> int:
        """The most units that a text has."""
        found = (self.encoded(place) for place in range(len(self)))
        return max((len(one.words) for one in found if isinstance(one, Encoded)), default=0)

    def encoded(self, position: int) -> Encoded | Skipped:
        """A text as the model reads it, or why it cannot be explained."""
        if position not in self._encoded:
            self._encoded[position] = self._encode(self.items[position])
        return self._encoded[position]

    def _encode(self, item: Item) -> Encoded | Skipped:
        made = (
            self.model.encode_ids(item.ids, item.types)
            if item.ids
            else self.model.encode(item.text, item.pair)
        )
        if not made.words:
            side = "" if self.model.side == "both" else f" on its {self.model.side} side"
            return Skipped(item.name, f"it has no {self.model.units}{side}")
        return made

    def parts(self, size: int) -> list[list[int]]:
        """Positions of texts of like length together, shortest first."""
        order = sorted(range(len(self)), key=self._length)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _length(self, position: int) -> tuple[int, int]:
        made = self.encoded(position)
        return (0, 0) if isinstance(made, Skipped) else (len(made.ids), len(made.words))

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """Texts of equally many tokens and units together; one without units is left out."""
        alike: dict[tuple[int, int], list[int]] = {}
        skipped = []
        for position in positions:
            made = self.encoded(position)
            if isinstance(made, Skipped):
                skipped.append(made)
            else:
                alike.setdefault((len(made.ids), len(made.words)), []).append(position)
        batches = [self._batch(places) for places in alike.values()]
        if skipped:
            batches.append(Batch(torch.empty(0, 3, 1, 1), None, (), (), (), (), tuple(skipped)))
        return batches

    def _batch(self, places: list[int]) -> Batch:
        items = [self.items[place] for place in places]
        made = [self._encoded[place] for place in places]
        texts = [one for one in made if isinstance(one, Encoded)]
        digests = tuple(item.key for item in items)
        return Batch(
            images=joined([one.inputs() for one in texts]),
            labels=None if self.labels is None else self.labels[places],
            samples=tuple(item.name for item in items),
            keys=digests,
            digests=digests,
            positions=tuple(places),
            words=tuple(one.words for one in texts),
        )


def load_texts(
    data: Any,
    model: TextModel,
    *,
    labels: Any = None,
    limit: int | None = None,
    seed: int | None = None,
) -> TextSamples:
    """Accept texts in whatever form people have them.

    Args:
        data: a text; a list of texts, of pairs (text, text) or of dicts; a .csv, .tsv or .jsonl
            file; a name that `fs.roar` takes (``sst:FOLDER``: its test split) or ``bundled:sst``; a
            `datasets.Dataset`; tokens, as a tokenizer gives them (``input_ids``,
            ``attention_mask``) or ids [B, T]; what `fs.load_data` gave.
        model: whose tokenizer encodes them.
        labels: class numbers or names, if the data has none of its own.
        limit: use only so many, spread evenly.
        seed: choose those at random instead.
    """
    if isinstance(data, TextSamples):
        return _again(data, model)
    name, items = _items(data)
    if not items:
        raise FaithscopeError(NONE_GIVEN)
    if labels is not None:
        items = _labelled(items, labels)
    chosen = choose_subset(len(items), limit, seed)
    named = [
        Item(item.text, item.pair, item.label, item.name or str(place), item.ids, item.types)
        for place, item in ((place, items[place]) for place in chosen)
    ]
    found = TextSamples(named, model, _class_numbers(named, model), name)
    _warn_of_cut(found)
    return found


def _again(data: TextSamples, model: TextModel) -> TextSamples:
    """Texts that were loaded before, perhaps with other units."""
    return TextSamples(data.items, model, data.labels, data.name)


def _items(data: Any) -> tuple[str, list[Item]]:
    """What the data is called, and its texts."""
    if isinstance(data, str | os.PathLike):
        return _named(data)
    if isinstance(data, TextData):
        return data.name, _of_split(data.test, data.classes)
    if is_rows(data):
        return rows_name(data), [_of_row(dict(row), place) for place, row in enumerate(data)]
    if isinstance(data, Mapping) and "input_ids" in data:
        return "tokens", _of_tokens(data)
    if isinstance(data, Tensor) or (hasattr(data, "dtype") and hasattr(data, "shape")):
        return "tokens", _of_tokens({"input_ids": data})
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise FaithscopeError(
            "Texts are a list of strings or pairs, a file, a data set or tokens (input_ids), got "
            f"{shown(data)}."
        )
    return "texts", [_of_object(one, place) for place, one in enumerate(data)]


def _named(name: str | os.PathLike[str]) -> tuple[str, list[Item]]:
    """Texts of a file or a source; what is neither is a text itself."""
    text = os.fspath(name)
    path = existing_path(text)
    if path is not None and path.is_file() and Path(text).suffix in FILES:
        table = read_table(path)
        return path.name, [_of_row(row, place) for place, row in enumerate(table.rows)]
    source = text.partition(":")[0]
    if text.startswith("bundled:") and (BUNDLE / f"{text[8:]}.jsonl").is_file():
        table = read_table(Path(str(BUNDLE / f"{text[8:]}.jsonl")))
        return text, [_of_row(row, place) for place, row in enumerate(table.rows)]
    if path is not None or (":" in text and source in TEXT_SOURCES and " " not in source):
        data = load_text(text)
        return data.name, _of_split(data.test, data.classes)
    if not text.strip():
        raise FaithscopeError("The text is empty: give at least one word.")
    if " " not in text.strip() and ("/" in text or Path(text).suffix in FILES):
        raise FaithscopeError(f"There is no file or folder {quoted(text)}: check the path.")
    return "text", [Item(text)]


def _of_split(split: Texts, classes: Sequence[str]) -> list[Item]:
    pairs = split.auxiliary_texts or (None,) * len(split)
    each = zip(split.texts, pairs, split.labels.tolist(), strict=True)
    return [Item(text, pair, classes[label]) for text, pair, label in each]


def _of_row(row: Mapping[str, Any], place: int) -> Item:
    """A row of a table, by the usual names of its columns."""
    if "input_ids" in row:
        return _of_tokens({key: [held] for key, held in row.items()})[0]
    first = _held(row, TEXT_KEYS)
    if "sentence1" in row:
        first = row["sentence1"]
    if first is None:
        raise unknown("column of texts, which should be 'text',", shown(sorted(row)), TEXT_KEYS)
    pair, name = _held(row, PAIR_KEYS), _held(row, NAME_KEYS)
    item = _of_object(first if pair is None else (first, pair), place)
    return Item(item.text, item.pair, _held(row, LABEL_KEYS), "" if name is None else str(name))


def _held(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _of_object(one: Any, place: int) -> Item:
    """A text, a pair, a row, or tokens."""
    if isinstance(one, str):
        return Item(one)
    if isinstance(one, Mapping):
        return _of_row(one, place)
    if isinstance(one, list | tuple) and len(one) == 2 and all(isinstance(o, str) for o in one):
        return Item(one[0], one[1])
    raise FaithscopeError(
        f"The text {place} is neither a string nor a pair of strings, got {shown(one)}: a text "
        "model reads texts, or tokens as {'input_ids': …}."
    )


def _of_tokens(batch: Mapping[str, Any]) -> list[Item]:
    """A batch of tokens without its padding."""
    ids = _rows(batch["input_ids"])
    masks = _rows(batch["attention_mask"]) if "attention_mask" in batch else None
    types = _rows(batch["token_type_ids"]) if "token_type_ids" in batch else None
    items = []
    for place, row in enumerate(ids):
        kept = [1] * len(row) if masks is None else masks[place]
        own = tuple(token for token, held in zip(row, kept, strict=True) if held)
        kinds = types and tuple(kind for kind, held in zip(types[place], kept, strict=True) if held)
        items.append(Item(ids=own, types=kinds or None))
    return items


def _rows(values: Any) -> list[list[int]]:
    if isinstance(values, list | tuple) and values and isinstance(values[0], list | tuple):
        return [[int(one) for one in row] for row in values]
    numbers = as_tensor(values, "What input_ids holds")
    if numbers.is_floating_point() or numbers.ndim not in (1, 2):
        raise FaithscopeError(
            f"Tokens are whole numbers [texts, tokens], got {numbers.dtype} "
            f"{list(numbers.shape)}: a text model reads texts, not images."
        )
    return [[int(one) for one in row] for row in numbers.reshape(-1, numbers.shape[-1]).tolist()]


def _labelled(items: list[Item], labels: Any) -> list[Item]:
    given = list(labels) if isinstance(labels, list | tuple) else class_numbers("labels", labels)
    given = given.tolist() if isinstance(given, Tensor) else given
    if len(given) != len(items):
        raise FaithscopeError(
            f"labels must hold one class for each of the {len(items)} texts, got {len(given)}."
        )
    pairs = zip(items, given, strict=True)
    return [Item(i.text, i.pair, label, i.name, i.ids, i.types) for i, label in pairs]


def _class_numbers(items: Sequence[Item], model: TextModel) -> Tensor | None:
    """Labels as the model's class numbers, by number or by name; None if any text has none."""
    if any(item.label is None for item in items):
        return None
    names = {name.lower(): number for number, name in enumerate(model.classes or ())}
    found = []
    for item in items:
        label = str(item.label).strip()
        if label.lower() in names:
            found.append(names[label.lower()])
        elif label.lstrip("-").isdecimal():
            found.append(int(label))
        else:
            warn(
                f"The label {quoted(label)} is no class of {model.name} "
                f"({', '.join(model.classes or ())}): the texts are used without labels."
            )
            return None
    return torch.tensor(found, dtype=torch.int64)


def _warn_of_cut(data: TextSamples) -> None:
    made = [data.encoded(place) for place in range(len(data))]
    cut = sum(isinstance(one, Encoded) and one.is_cut for one in made)
    if cut:
        texts = "text was" if cut == 1 else "texts were"
        warn(
            f"{cut} {texts} longer than the {data.model.max_length} tokens that {data.model.name} "
            "reads, and cut."
        )
