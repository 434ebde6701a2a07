"""Texts to explain one by one: strings, pairs, files, data sets, or tokens.

What `fs.load_data` gives for a text model. Texts of equally many tokens and units are a batch, so
that nothing is ever padded.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from faithscope.data.files import EXTENSIONS
from faithscope.data.hugging_face import is_rows, row_classes, rows_name, split_of
from faithscope.data.images import Batch, IndexedImages, Skipped, choose_subset, one_of
from faithscope.data.labels import (
    class_count,
    class_names,
    class_numbers,
    fit_labels,
    named_labels,
)
from faithscope.data.own_texts import KINDS, SECOND_TEXT, read_table
from faithscope.data.sources import SOURCES as IMAGES
from faithscope.data.tensors import as_tensor
from faithscope.data.text import TextData, Texts, Words
from faithscope.data.text_files import kind_of
from faithscope.data.text_sources import SAMPLES, TEXT_SOURCES, WORDS, load_text
from faithscope.errors import (
    FaithscopeError,
    check_encodable,
    first_line,
    quoted,
    shortened,
    shown,
    unknown,
    warn,
)
from faithscope.models import BUNDLE, TextModel
from faithscope.models.bilstm_text import BiLSTMText
from faithscope.models.text_model import Encoded, batch_of
from faithscope.models.tokens import NO_UNIT
from faithscope.registry import check_options, listed
from faithscope.request import existing_path, split_options

LABEL_KEYS = ("label", "labels")
USUAL: Mapping[str, Sequence[str]] = {
    "text": ("text", "sentence", "sentence1", "premise", "question", "content", "review"),
    "auxiliary": (*SECOND_TEXT, "sentence2", "hypothesis", "text_pair"),
    "label": LABEL_KEYS,
    "name": ("id", "idx", "sample"),
}
"""What columns are called, if nobody says otherwise."""
COLUMNS = {"text": "", "auxiliary": "", "label": ""}
"""Options that name columns."""
GIVE = "give strings, pairs, a file (.csv, .tsv, .jsonl), a data set or tokens (input_ids)"
BUNDLED = {"sst": "200 test sentences of the Stanford Sentiment Treebank, for text models."}
"""Texts that come with the package."""
_SURROGATE = re.compile("[\ud800-\udfff]")
NONE_GIVEN = "There are no texts: give at least one."


@dataclass(frozen=True)
class Item:
    """One text, or one pair; `words` if it was cut into words, `ids` and `types` into tokens."""

    text: str = ""
    pair: str | None = None
    label: Any = None
    name: str = ""
    ids: tuple[int, ...] = ()
    types: tuple[int, ...] | None = None
    words: tuple[Words, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both."""
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @property
    def key(self) -> str:
        """What its random draws depend on: its words."""
        said = repr((self.text, self.pair, self.ids, self.types))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    @property
    def is_unicode(self) -> bool:
        """Whether its characters are all characters."""
        return not any(map(_SURROGATE.search, self.texts))


@dataclass(frozen=True, eq=False, repr=False)
class TextSamples(IndexedImages):
    """Texts in memory, encoded for a model as they are needed."""

    items: Sequence[Item]
    model: TextModel
    labels: Tensor | None = None
    name: str = "texts"
    noun: str = "texts"
    needs_specials: bool = False
    """Whether a text of which all tokens are ranked is left out, as nothing would be left of it."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def sample_names(self) -> Sequence[str]:
        """What the texts are called, by position."""
        return [item.name for item in self.items]

    @property
    def most_units(self) -> int:
        """The most units that a text has."""
        return max((len(one.words) for one in self.encoded), default=0)

    @cached_property
    def encoded(self) -> Sequence[Encoded]:
        """The texts as the model reads them, by position."""
        plain = [item for item in self.items if not item.ids and item.is_unicode]
        made = iter(self.model.encode_all([_as_read(self.model, item) for item in plain]))
        return [
            self.model.encode_ids(one.ids, one.types)
            if one.ids
            else next(made)
            if one.is_unicode
            else Encoded((), (), (), ())
            for one in self.items
        ]

    def _repr_html_(self) -> str:
        from faithscope.data.card import texts_html

        return texts_html(self)

    def that_keep_some(self) -> TextSamples:
        """The same for tokens that are dropped: texts without special tokens are left out."""
        made = replace(self, needs_specials=True)
        vars(made)["encoded"] = self.encoded
        return made

    def parts(self, size: int) -> list[list[int]]:
        """Positions of texts of like length together, longest first."""
        order = sorted(range(len(self)), key=self._length, reverse=True)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _length(self, position: int) -> tuple[int, int]:
        made = self.encoded[position]
        return len(made.ids), len(made.words)

    def typical(self, example: Batch) -> Batch:
        """A text of median length."""
        order = [place for part in self.parts(len(self)) for place in part]
        used = [place for place in order if self._is_usable(place)]
        return self._batch([used[len(used) // 2]])

    def read_batches(self, positions: Sequence[int]) -> list[Batch]:
        """Texts of equally many tokens and units together; one without units is left out."""
        alike: dict[tuple[int, int], list[int]] = {}
        left = [place for place in positions if not self._is_usable(place)]
        for position in positions:
            if self._is_usable(position):
                alike.setdefault(self._length(position), []).append(position)
        batches = [self._batch(places) for places in alike.values()]
        if left:
            skipped = tuple(Skipped(self.items[place].name, self._why(place)) for place in left)
            batches.append(Batch(torch.empty(0, 3, 1, 1), None, (), (), (), (), skipped))
        return batches

    def _is_usable(self, place: int) -> bool:
        units = self.encoded[place].units
        return any(unit != NO_UNIT for unit in units) and not (
            self.needs_specials and NO_UNIT not in units
        )

    def _why(self, place: int) -> str:
        """Why a text is left out."""
        if self.encoded[place].words:
            return (
                "it has no special tokens, and the fill 'drop' would leave nothing of it (choose "
                "another)"
            )
        if not self.items[place].is_unicode:
            return "it holds a lone surrogate, which is no character"
        side = "" if self.model.side == "both" else f" on its {self.model.side} side"
        return f"it has no {self.model.units}{side}"

    def _batch(self, places: list[int]) -> Batch:
        items = [self.items[place] for place in places]
        made = [self.encoded[place] for place in places]
        digests = tuple(item.key for item in items)
        return Batch(
            images=batch_of(made),
            labels=None if self.labels is None else self.labels[places],
            samples=tuple(item.name for item in items),
            keys=digests,
            digests=digests,
            positions=tuple(places),
            words=tuple(one.words for one in made),
            seconds=tuple(one.second for one in made),
        )


def _as_read(model: TextModel, item: Item) -> tuple[Any, ...]:
    """A text, or both of a pair, as strings or, for a model of words, as words."""
    if not isinstance(model, BiLSTMText):
        return item.texts
    return item.words or tuple(map(WORDS[model.kind], item.texts))


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
            file (options text, auxiliary, label name its columns), of which every row is used;
            ``hf:ID or folder`` (also split, config); another name that `fs.roar` takes
            (``sst:FOLDER``: its test split); the bundled sentences, ``bundled:sst``, or one of
            them, ``bundled:sst:7``; a `datasets.Dataset`; a table of pandas, polars or pyarrow;
            tokens, as a tokenizer gives them (``input_ids``, ``attention_mask``) or ids [B, T];
            what `fs.load_data` gave.
        model: whose tokenizer encodes them.
        labels: class numbers or names, if the data has none of its own.
        limit: use only so many, spread evenly.
        seed: choose those at random instead.
    """
    if isinstance(data, TextSamples):
        return TextSamples(data.items, model, data.labels, data.name)
    name, items, classes = _items(data, model)
    if not items:
        raise FaithscopeError(NONE_GIVEN)
    if labels is not None:
        items, classes = _labelled(items, labels), None
    chosen = choose_subset(len(items), limit, seed)
    named = [replace(items[place], name=items[place].name or str(place)) for place in chosen]
    found = TextSamples(named, model, _class_numbers(named, classes, model), name)
    _check_names(found)
    _warn_of_cut(found)
    return found


def _items(data: Any, model: TextModel) -> tuple[str, list[Item], Sequence[str] | None]:
    """What the data is called, its texts, and what it calls their classes."""
    if isinstance(data, str | os.PathLike):
        return _named(data, model)
    if isinstance(data, TextData):
        return data.name, _of_split(data.test), data.classes
    if is_rows(data):
        return rows_name(data), _of_rows(data, {}, "The data set"), row_classes(data)
    if hasattr(data, "columns"):
        return "table", _of_rows(_table_rows(data, model), {}, "The table"), None
    tokens = _as_tokens(data, model)
    if tokens is not None:
        return "tokens", _of_tokens(tokens, model), None
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise FaithscopeError(f"{_reads_texts(model)}, got {shown(data)}: {GIVE}.")
    items = [_of_object(one, place, model) for place, one in enumerate(listed(data, "texts"))]
    return "texts", items, None


def _table_rows(data: Any, model: TextModel) -> list[dict[str, Any]]:
    """The rows of a table of pandas, polars or pyarrow, which by itself is a list of columns."""
    try:
        rows: list[dict[str, Any]] = pa.table(data).to_pylist()
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise FaithscopeError(
            f"{_reads_texts(model)}, and this table cannot be read ({first_line(error)}): give its "
            "rows, a list of dicts."
        ) from None
    return rows


def _as_tokens(data: Any, model: TextModel) -> Mapping[str, Any] | None:
    """A batch of tokens: a mapping, or ids alone."""
    if isinstance(data, Mapping):
        return data if "input_ids" in data else None
    is_array = isinstance(data, Tensor) or (hasattr(data, "dtype") and hasattr(data, "shape"))
    if not is_array or str(data.dtype).startswith(("<U", "object", "str")):
        return None
    return {"input_ids": data}


def _reads_texts(model: TextModel) -> str:
    return f"{model.name} reads texts"


def _named(name: str | os.PathLike[str], model: TextModel) -> tuple[str, list[Item], Any]:
    """Texts of a file or a source; what is neither is a text itself."""
    text = os.fspath(name)
    place, options = _split_options(text)
    path = existing_path(place)
    if path is not None and path.is_file() and kind_of(path) in KINDS:
        check_options("file of texts", path.name, options, COLUMNS)
        return path.name, _of_rows(read_table(path).rows, options, f"'{path.name}'"), None
    source, colon, rest = text.partition(":")
    is_named = bool(colon and re.fullmatch(r"[\w-]{2,}", source) and rest[:1].strip())
    if is_named and source == "bundled" and rest.partition("(")[0] not in SAMPLES:
        return text, _bundled(rest, model), None
    if is_named and source == "hf":
        return _hugging_face(*_split_options(rest))
    if (is_named and source in IMAGES and source not in TEXT_SOURCES) or (
        kind_of(Path(place)) in EXTENSIONS
    ):
        raise _names_images(model, text)
    if path is not None or (is_named and source in TEXT_SOURCES):
        data = load_text(text)
        return data.name, _of_split(data.test), data.classes
    if not text.strip():
        raise FaithscopeError("The text is empty: give at least one word.")
    if not isinstance(name, str) or (" " not in text.strip() and _is_path(text)):
        raise FaithscopeError(f"There is no file or folder {quoted(text)}: check the path.")
    return "text", [Item(text)], None


def _names_images(model: TextModel, name: str) -> FaithscopeError:
    return FaithscopeError(f"{_reads_texts(model)}, and {quoted(name)} names images: {GIVE}.")


def _bundled(name: str, model: TextModel) -> list[Item]:
    """The texts of a sample that comes with the package, or one of them (``sst:7``)."""
    name, colon, place = name.partition(":")
    if (BUNDLE / f"{name}_sample.json").is_file():
        raise _names_images(model, f"bundled:{name}{colon}{place}")
    if name not in BUNDLED:
        raise FaithscopeError(
            f"{_reads_texts(model)}, and none are called {quoted(f'bundled:{name}')}: {GIVE}, or "
            f"choose {' or '.join(f'bundled:{sample}' for sample in (*BUNDLED, *SAMPLES))}."
        )
    rows = read_table(Path(str(BUNDLE / f"{name}.jsonl"))).rows
    chosen = one_of(len(rows), place, f"bundled:{name}") if colon else range(len(rows))
    return _of_rows((rows[number] for number in chosen), {}, f"bundled:{name}")


def _split_options(name: str) -> tuple[str, dict[str, Any]]:
    """The options of a name in brackets; a sentence may have brackets, too."""
    try:
        return split_options(name)
    except FaithscopeError:
        return name, {}


def _is_path(name: str) -> bool:
    return "/" in name or kind_of(Path(name)) in KINDS


def _hugging_face(
    name: str, options: Mapping[str, Any]
) -> tuple[str, list[Item], Sequence[str] | None]:
    """A split of a data set of Hugging Face."""
    check_options("data source", "hf", options, {**COLUMNS, "config": "", "split": ""})
    label, rows = split_of(name, options.get("config", ""), options.get("split"))
    column = options.get("label") or next((k for k in LABEL_KEYS if k in rows.column_names), "")
    classes = getattr(rows.features.get(column), "names", None)
    return label, _of_rows(rows, options, f"'hf:{name}'"), classes


def _of_split(split: Texts) -> list[Item]:
    pairs = split.auxiliary_texts or (None,) * len(split)
    sides = [split.words] if split.auxiliary_words is None else [split.words, split.auxiliary_words]
    each = zip(split.texts, pairs, split.labels.tolist(), zip(*sides, strict=True), strict=True)
    return [Item(text, pair, label, words=words) for text, pair, label, words in each]


def _of_rows(
    rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any], what: str
) -> list[Item]:
    """Rows of a table, by the names of its columns, or by the usual ones."""
    read = [dict(row) for row in rows]
    known = dict.fromkeys(column for row in read for column in row)
    for option, column in options.items():
        if option in COLUMNS and column not in known:
            raise unknown(f"column of {what}, given as {option},", str(column), list(known))
    return [_of_row(row, options, what) for row in read]


def _of_row(row: Mapping[str, Any], options: Mapping[str, Any], what: str) -> Item:
    keys = {**USUAL, **{column: (name,) for column, name in options.items() if column in COLUMNS}}
    first, pair, label, name = (_held(row, keys[column]) for column in USUAL)
    if first is None and any(key in row for key in keys["text"]):
        first = ""  # which costs this text alone
    if first is not None and not isinstance(first, str):
        raise FaithscopeError(f"{what} holds {shown(first)} for a text: write it in quotes.")
    if first is None:
        columns = ", ".join(map(str, row))
        raise FaithscopeError(
            f"{what} has no text in a column {' or '.join(keys['text'])}, but the columns "
            f"{shortened(columns, 200)}: name one, as FILE(text=…)."
        )
    return Item(
        first,
        None if pair is None else str(pair),
        None if label == "" else label,
        "" if name is None else str(name),
    )


def _held(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _of_object(one: Any, place: int, model: TextModel) -> Item:
    """A text, a pair, a row, or tokens."""
    if isinstance(one, str):
        return Item(one)
    if isinstance(one, Mapping):
        if "input_ids" in one:
            return _of_tokens({key: [held] for key, held in one.items()}, model)[0]
        return _of_row(one, {}, f"The text {place}")
    if isinstance(one, list | tuple) and len(one) == 2 and all(isinstance(o, str) for o in one):
        return Item(one[0], one[1])
    raise FaithscopeError(
        f"{_reads_texts(model)}, and what was given at {place} is neither a text nor a pair, "
        f"{shown(one)}: {GIVE}."
    )


def _of_tokens(batch: Mapping[str, Any], model: TextModel) -> list[Item]:
    """A batch of tokens without its padding."""
    ids = _rows(batch["input_ids"], model)
    masks = _rows(batch["attention_mask"], model) if "attention_mask" in batch else None
    types = _rows(batch["token_type_ids"], model) if "token_type_ids" in batch else None
    for other in (masks, types):
        if other is not None and [*map(len, other)] != [*map(len, ids)]:
            raise FaithscopeError(
                "input_ids, attention_mask and token_type_ids must have one shape [texts, tokens]."
            )
    if masks is None:
        _refuse_padding(ids, model)
    items = []
    for place, row in enumerate(ids):
        kept = [1] * len(row) if masks is None else masks[place]
        own = tuple(token for token, held in zip(row, kept, strict=True) if held)
        kinds = types and tuple(kind for kind, held in zip(types[place], kept, strict=True) if held)
        items.append(Item(ids=own, types=kinds or None))
    return items


def _refuse_padding(ids: Sequence[Sequence[int]], model: TextModel) -> None:
    """Tokens alone do not say whether those at the ends are read."""
    pad = model.specials["pad"]
    if pad is None or not ids:
        return
    before, after = (
        {next((at for at, token in enumerate(row) if token != pad), len(row)) for row in rows}
        for rows in (ids, [row[::-1] for row in ids])
    )
    ends = getattr(model.tokenizer, "eos_token_id", None)
    usual = [{0}, {1}] if pad == ends else [{0}]  # one may end every text
    if before != {0} or after not in usual:
        raise FaithscopeError(
            "The tokens begin or end with padding: give their attention_mask, too, as "
            "{'input_ids': …, 'attention_mask': …}."
        )


def _rows(values: Any, model: TextModel) -> list[list[int]]:
    """Whole numbers [texts, tokens], or a list of lists of different lengths."""
    if isinstance(values, list | tuple) and values:
        parts = [_numbers(row, model) for row in values]
        if all(part.ndim == 1 for part in parts):
            return [part.tolist() for part in parts]
    numbers = _numbers(values, model)
    return (numbers if numbers.ndim == 2 else numbers.reshape(1, -1)).tolist()


def _numbers(values: Any, model: TextModel) -> Tensor:
    found = as_tensor(values, "What input_ids holds")
    if found.is_floating_point() or found.ndim > 2 or found.dtype == torch.uint8:
        raise FaithscopeError(
            f"{_reads_texts(model)}, of which tokens are whole numbers [texts, tokens], got "
            f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}: {GIVE}."
        )
    return found


def _labelled(items: list[Item], labels: Any) -> list[Item]:
    given = list(labels) if isinstance(labels, list | tuple) else class_numbers("labels", labels)
    given = given.tolist() if isinstance(given, Tensor) else given
    if not isinstance(given, list) or len(given) != len(items):
        count = len(given) if isinstance(given, list) else "one"
        raise FaithscopeError(
            f"labels must hold one class for each of the {len(items)} texts, got {count}."
        )
    return [replace(item, label=label) for item, label in zip(items, given, strict=True)]


def _class_numbers(
    items: Sequence[Item], classes: Sequence[str] | None, model: TextModel
) -> Tensor | None:
    """Labels as the model's class numbers, by number or by name; None if any text has none."""
    given = [item.label for item in items]
    missing = sum(label is None for label in given)
    if missing:
        if missing < len(given):
            warn(f"{missing} of {len(given)} texts have no label: they are used without labels.")
        return None
    words = [str(label).strip() for label in given]
    found = named_labels(words, model)
    if found is None and all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        found = fit_labels([*map(int, words)], classes, model)
    if found is None:
        own = ", ".join(class_names(model) or ()) or f"0 to {(class_count(model) or 1) - 1}"
        warn(
            f"The labels ({shortened(', '.join(sorted({*words})), 100)}) are not the classes of "
            f"{model.name} ({shortened(own, 100)}): the texts are used without labels."
        )
        return None
    return torch.tensor(found, dtype=torch.int64)


def _check_names(data: TextSamples) -> None:
    """Refuse a name that two texts have."""
    for name, times in Counter(data.sample_names).items():
        check_encodable("The name of a text", name)
        if times > 1:
            raise FaithscopeError(
                f"{times} texts are called {quoted(name)}: give each a name of its own, or leave "
                f"the column {' or '.join(USUAL['name'])} out."
            )


def _warn_of_cut(data: TextSamples) -> None:
    cut = sum(one.is_cut for one in data.encoded)
    if cut:
        texts = "text was" if cut == 1 else "texts were"
        warn(
            f"{cut} {texts} longer than the {data.model.max_length} tokens that {data.model.name} "
            "reads, and cut."
        )
