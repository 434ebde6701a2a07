"""Reading text files, plain or compressed (.gz, .xz, .bz2); one sentence where one is broken."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from faithscope.errors import FaithscopeError
from faithscope.request import as_path

OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
LONGEST_FIELD = 2**30  # characters of a CSV field; Python's own limit is shorter than some texts


def kind_of(file: Path) -> str:
    """What a file holds, by its ending and whatever compresses it.

    >>> kind_of(Path("reviews.CSV.gz"))
    '.csv'
    """
    inner = file.with_suffix("") if file.suffix.lower() in OPENERS else file
    return inner.suffix.lower()


@contextmanager
def open_text(
    file: Path, *, newline: str | None = None, errors: str = "strict"
) -> Iterator[TextIO]:
    """Open a file of UTF-8 text, unpacked on the way; errors are one sentence."""
    opener = OPENERS.get(file.suffix.lower(), open)
    try:
        with opener(file, "rt", encoding="utf-8-sig", newline=newline, errors=errors) as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise FaithscopeError(
            f"'{file}' is not UTF-8 text ({error.reason}): save it as UTF-8."
        ) from None
    except FileNotFoundError:
        raise FaithscopeError(f"There is no file '{file}': check the path.") from None
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FaithscopeError(
            f"'{file}' cannot be read ({reason.rstrip('.')}): check the file and its permissions."
        ) from None


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that the folder holds, compressed or not; '*' stands for anything.

    Raises:
        FaithscopeError: if there is none; the sentence names the first.
    """
    for name in names:
        for ending in ("", *OPENERS):
            found = sorted(file for file in folder.glob(name + ending) if file.is_file())
            if found:
                return found[0]
    raise FaithscopeError(f"The folder '{folder}' holds no file '{names[0]}': check the folder.")


def existing_folder(name: str) -> Path:
    """The folder of this name, which must be there."""
    folder = as_path(name)
    if not folder.is_dir():
        raise FaithscopeError(f"There is no folder '{folder}': check the path.")
    return folder


def read_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that holds one a line; empty lines are passed over."""
    with open_text(file) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise FaithscopeError(
                    f"Line {number} of '{file}' is not a JSON object: write one in each line."
                )
            yield row


def read_csv(file: Path, *, separator: str = ",") -> Iterator[dict[str, str]]:
    """The rows of a CSV file by the names in its first line."""
    with open_text(file, newline="") as stream, _long_fields():
        reader = csv.reader(stream, delimiter=separator, strict=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            for name in names:
                if name and names.count(name) > 1:
                    raise FaithscopeError(
                        f"The first line of '{file}' names the column '{name}' twice: rename one."
                    )
            for row in reader:
                if row and len(row) != len(names):
                    raise FaithscopeError(
                        f"Line {reader.line_num} of '{file}' has {len(row)} fields where the first "
                        f"line names {len(names)}: put texts that hold '{separator}' in quotes."
                    )
                if row:
                    yield dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise FaithscopeError(
                f"Line {reader.line_num} of '{file}' is not CSV ({error}): fix its quotes."
            ) from None


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def need_columns(file: Path, row: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a file that lacks one of these columns."""
    for name in names:
        if name not in row:
            raise FaithscopeError(
                f"'{file}' has no column '{name}', it has {', '.join(map(str, row))}: check that "
                "it is the file it is named for."
            )
