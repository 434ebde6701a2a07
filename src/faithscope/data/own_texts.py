"""A user's own texts: tables with a text, a label and perhaps a second text (CSV, JSONL, …).

A table has the columns `text` and `label`, in a pair also `text2` (or `auxiliary`); options name
other columns. The splits come from a column `split`, from three files of a folder, or from here:

    only one table        70 % train, 15 % validation, 15 % test, each class alike, seed 0
    train and test        15 % of train become validation, each class alike, seed 0

Rows without a text or a label are left out and counted in the notes of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.splits import stratified_part
from faithscope.data.text import SPLITS, TextData, Texts
from faithscope.data.text_files import OPENERS, kind_of, read_csv, read_jsonl
from faithscope.data.words import plain_words
from faithscope.errors import FaithscopeError, choose, unknown

KINDS = (".csv", ".tsv", ".jsonl")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
SECOND_TEXT = ("text2", "auxiliary")
VALIDATION_SHARE, TEST_SHARE = 0.15, 0.15
COLUMN_OPTIONS = {"text": "text", "auxiliary": "", "label": "label", "split": ""}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows from one place, and the columns they have."""

    source: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Example:
    """One row that can be used; `place` says where it is, for sentences about it."""

    text: str
    auxiliary: str | None
    label: str
    place: str


@dataclass(frozen=True)
class Columns:
    """Which columns hold what."""

    text: str
    auxiliary: str | None
    label: str
    split: str | None


# Files


def file_or_folder_texts(path: Path, options: Mapping[str, Any]) -> TextData:
    """Texts of one file, or of a folder with train, validation and test files."""
    return own_data(path.name, _tables(path), options)


def _tables(path: Path) -> dict[str, Table]:
    """Tables by split; one file is "all"."""
    if not path.is_dir():
        return {"all": read_table(path)}
    tables: dict[str, Table] = {}
    for file in sorted(path.iterdir()):
        split = SPLIT_NAMES.get(file.name.partition(".")[0].lower())
        if split is None or kind_of(file) not in KINDS:
            continue
        if split in tables:
            raise FaithscopeError(
                f"The folder '{path}' holds the {split} split twice ('{file.name}'): keep one file."
            )
        tables[split] = read_table(file)
    if not tables:
        raise FaithscopeError(
            f"The folder '{path}' holds no texts: it needs train.csv, validation.csv and test.csv "
            "(or .tsv, .jsonl)."
        )
    return tables


def read_table(file: Path) -> Table:
    """Read a .csv, .tsv or .jsonl file, plain or compressed."""
    kind = kind_of(file)
    if kind not in KINDS:
        raise FaithscopeError(
            f"'{file}' is not a file of texts: give {', '.join(KINDS)}, plain or with "
            f"{', '.join(OPENERS)}."
        )
    if kind == ".jsonl":
        rows: list[Row] = list(read_jsonl(file))
    else:
        rows = list(read_csv(file, separator="\t" if kind == ".tsv" else ","))
    if not rows:
        raise FaithscopeError(f"'{file}' holds no rows: it needs a text and a label in each.")
    columns = dict.fromkeys(chain.from_iterable(rows)) if kind == ".jsonl" else rows[0]
    return Table(str(file), tuple(columns), rows)


# Tables to data


def own_data(
    name: str,
    tables: Mapping[str, Table],
    options: Mapping[str, Any],
    *,
    classes: Sequence[str] | None = None,
) -> TextData:
    """Make a data set of tables by split ("all": not yet split).

    Args:
        name: the name of the data.
        tables: "all", or "train", "test" and perhaps "validation".
        options: names of columns (text, auxiliary, label, split).
        classes: the order of the classes; sorted otherwise (numbers by size).
    """
    if _is_broken(name):
        raise FaithscopeError(f"The name {name!a} is not whole text: rename the data.")
    parts: dict[str, list[Example]] = {}
    notes = []
    for split, table in tables.items():
        columns = choose_columns(table, options)
        groups = _by_split(table, columns) if split == "all" else {split: list(_placed(table))}
        for part, rows in groups.items():
            parts[part], note = _examples(table, part, columns, rows)
            notes += note
    splits, note = _all_splits(name, parts)
    order = _class_order(splits["train"], classes)
    _check_labels(splits, order)
    paired = splits["train"][0].auxiliary is not None
    made = {split: _texts(examples, order, paired) for split, examples in splits.items()}
    return TextData(
        name=name,
        kind="own",
        train=made["train"],
        validation=made["validation"],
        test=made["test"],
        classes=tuple(order),
        metric="macro_f1",
        selection="auroc" if len(order) == 2 and not paired else "accuracy",
        notes=(*notes, *note, *_missing_classes(splits, order)),
    )


def choose_columns(table: Table, options: Mapping[str, Any]) -> Columns:
    """Find the columns, as named or by their usual names."""
    second = options.get("auxiliary") or next(
        (column for column in SECOND_TEXT if column in table.columns), None
    )
    split = options.get("split") or ("split" if "split" in table.columns else None)
    return Columns(
        text=_column(table, "text", options.get("text", "text")),
        auxiliary=None if second is None else _column(table, "auxiliary", second),
        label=_column(table, "label", options.get("label", "label")),
        split=None if split is None else _column(table, "split", split),
    )


def _column(table: Table, option: str, name: str) -> str:
    try:
        return choose(f"column of '{table.source}'", name, table.columns)
    except FaithscopeError as error:
        raise FaithscopeError(f"{error} Name it: '{table.source}({option}=…)'.") from None


def _placed(table: Table) -> Iterable[tuple[int, Row]]:
    return enumerate(table.rows, 1)


def _by_split(table: Table, columns: Columns) -> dict[str, list[tuple[int, Row]]]:
    if columns.split is None:
        return {"all": list(_placed(table))}
    groups: dict[str, list[tuple[int, Row]]] = {}
    for place, row in _placed(table):
        written = str(row.get(columns.split) or "").strip().lower()
        if written not in SPLIT_NAMES:
            raise unknown(f"split in row {place} of '{table.source}'", written, SPLIT_NAMES)
        groups.setdefault(SPLIT_NAMES[written], []).append((place, row))
    return groups


def _examples(
    table: Table, split: str, columns: Columns, rows: Iterable[tuple[int, Row]]
) -> tuple[list[Example], list[str]]:
    """The rows that can be used, and a note on those that cannot."""
    found: list[Example] = []
    without: list[int] = []
    for place, row in rows:
        text = _text_of(table, place, columns.text, row)
        second = columns.auxiliary and _text_of(table, place, columns.auxiliary, row)
        label = _label_of(table, place, columns.label, row)
        if text is None or label is None or (columns.auxiliary and second is None):
            without.append(place)
        else:
            found.append(Example(text, second, label, f"row {place} of '{table.source}'"))
    named = "" if split == "all" else f" of the {split} split"
    if not found:
        raise FaithscopeError(
            f"No row{named} in '{table.source}' has both a text and a label: fill the columns "
            f"'{columns.text}' and '{columns.label}'."
        )
    if not without:
        return found, []
    count = f"{len(without)} row{'s' if len(without) > 1 else ''}{named}"
    return found, [f"{count} without a text or a label left out (the first is row {without[0]})."]


def _text_of(table: Table, place: int, column: str, row: Row) -> str | None:
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise FaithscopeError(
            f"The column '{column}' of '{table.source}' holds {value!r} in row {place}, which is "
            "not text: name another column."
        )
    if value and _is_broken(value):
        raise _broken(table, place, column)
    return value if value and plain_words(value) else None


def _label_of(table: Table, place: int, column: str, row: Row) -> str | None:
    value = row.get(column)
    if value is not None and not isinstance(value, (str, int, float)):
        raise FaithscopeError(
            f"The label in row {place} of '{table.source}' is {type(value).__name__}: it must be a "
            "word or a number."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise FaithscopeError(
            f"The label in row {place} of '{table.source}' is {value}: it must be a word or a "
            "number."
        )
    if isinstance(value, str) and _is_broken(value):
        raise _broken(table, place, column)
    return None if value is None else str(value).strip() or None


def _is_broken(text: str) -> bool:
    r"""Whether a text holds half a character, which no file of UTF-8 can.

    >>> _is_broken("caf\u00e9"), _is_broken("\ud83d")
    (False, True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _broken(table: Table, place: int, column: str) -> FaithscopeError:
    return FaithscopeError(
        f"The column '{column}' of '{table.source}' holds half a character (a lone surrogate, "
        f"\\ud800 to \\udfff) in row {place}: fix or remove that row."
    )


# Splits and classes


def _all_splits(
    name: str, parts: Mapping[str, list[Example]]
) -> tuple[dict[str, list[Example]], list[str]]:
    """Three splits, cut from what there is."""
    rng = np.random.RandomState(0)
    if set(parts) == {"all"} or set(parts) == {"train"}:
        (everything,) = parts.values()
        rest, test = _cut(everything, TEST_SHARE, rng)
        train, validation = _cut(rest, VALIDATION_SHARE / (1 - TEST_SHARE), rng)
        note = "Cut into 70 % train, 15 % validation and 15 % test, each class alike."
    elif set(parts) == {"train", "test"}:
        test = parts["test"]
        train, validation = _cut(parts["train"], VALIDATION_SHARE, rng)
        note = "15 % of the training split serve as validation, each class alike."
    elif set(parts) == set(SPLITS):
        return dict(parts), []
    else:
        missing = [split for split in ("train", "test") if split not in parts]
        raise FaithscopeError(
            f"'{name}' has no {' and no '.join(missing)} split: all of {', '.join(SPLITS)} are "
            "needed, or one table without splits."
        )
    for split, examples in (("train", train), ("validation", validation), ("test", test)):
        if not examples:
            raise FaithscopeError(
                f"'{name}' has too few rows to cut off a {split} split: give more, at least 20."
            )
    return {"train": train, "validation": validation, "test": test}, [note]


def _cut(
    examples: Sequence[Example], share: float, rng: np.random.RandomState
) -> tuple[list[Example], list[Example]]:
    _, labels = np.unique([example.label for example in examples], return_inverse=True)
    kept, taken = stratified_part(labels, share, rng)
    return [examples[place] for place in kept], [examples[place] for place in taken]


def _class_order(train: Sequence[Example], order: Sequence[str] | None) -> list[str]:
    present = {example.label for example in train}
    if len(present) < 2:
        raise FaithscopeError(
            f"All training texts have the label '{next(iter(present))}': at least two classes are "
            "needed."
        )
    if order is not None:
        return [name for name in order if name in present]
    try:
        numbers = {name: float(name) for name in present}
    except ValueError:
        return sorted(present)
    if not all(map(math.isfinite, numbers.values())):  # "nan" has no place among numbers
        return sorted(present)
    return sorted(present, key=lambda name: (numbers[name], name))


def _check_labels(splits: Mapping[str, Sequence[Example]], order: Sequence[str]) -> None:
    for split, examples in splits.items():
        for example in examples:
            if example.label not in order:
                raise FaithscopeError(
                    f"The label '{example.label}' ({example.place}, {split}) is never seen in "
                    "training: correct it, or add texts of it to the training split."
                )
    held = {example.label for example in splits["validation"]}
    if len(order) == 2 and len(held) < 2:
        raise FaithscopeError(
            f"The validation split holds only the class '{next(iter(held))}': both are needed to "
            "choose the best epoch."
        )


def _missing_classes(
    splits: Mapping[str, Sequence[Example]], order: Sequence[str]
) -> Iterable[str]:
    for split in SPLITS[1:]:
        held = {example.label for example in splits[split]}
        missing = [f"'{name}'" for name in order if name not in held]
        if missing:
            yield f"The {split} split has no text of class {', '.join(missing)}."


def _texts(examples: Sequence[Example], order: Sequence[str], paired: bool) -> Texts:
    numbers = {name: number for number, name in enumerate(order)}
    second = tuple(example.auxiliary or "" for example in examples) if paired else None
    return Texts(
        texts=tuple(example.text for example in examples),
        words=tuple(plain_words(example.text) for example in examples),
        labels=np.array([numbers[example.label] for example in examples], dtype=np.int64),
        auxiliary_texts=second,
        auxiliary_words=None if second is None else tuple(map(plain_words, second)),
    )
