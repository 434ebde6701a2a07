"""Files that are whole or not there at all, and that are known to be what was written."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import Timeout
from pydantic import ValidationError

from faithscope.errors import FaithscopeError
from faithscope.hashing import canonical, digest, hasher
from faithscope.request.paths import Place
from faithscope.request.remote import RemotePath
from faithscope.runs.tables import joined

A = TypeVar("A")
B = TypeVar("B")
P = TypeVar("P", Path, RemotePath, Place)

AT_ONCE = 16
"""Requests to another machine."""
A_WHILE = 60.0
"""Seconds; to write a file takes less."""
IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
_TOKEN = re.compile(r"[0-9a-f]{8}")
MOST_ROWS = 1000
"""By byte of a Parquet file: it could say of a billion that they are all the same."""
GROUP = 1 << 20
"""Bytes of rows that are written, and read, together: no more of a table need be in memory."""


class StoreError(FaithscopeError):
    """Files cannot be read or written, which may pass."""


def write_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Place, content: bytes) -> None:
    """Put a file into place in one step: whoever looks sees the old one or the new one."""
    replace_with(path, [content])


def replace_with(path: Place, chunks: Iterable[bytes]) -> None:
    """The same of content that is made while it is written, so that it never is in memory whole.

    What a link points to is replaced, not the link; a device or a pipe is no file. At an address
    a file comes in one piece.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(b"".join(chunks))
        return
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FileExistsError(errno.EEXIST, "it is a device or a pipe", str(path))
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        write_file(temporary, chunks)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_tree(path: Place) -> None:
    """Remove a folder as far as that is possible: what is left in it does no harm."""
    if isinstance(path, RemotePath):
        with suppress(OSError):
            path.remove_tree()
    else:
        shutil.rmtree(path, ignore_errors=True)


def clear_half_written(path: Place) -> None:
    """Remove what a kill left of a file; what was begun a moment ago may be in the making."""
    if isinstance(path, RemotePath):  # where a file comes in one step
        return
    start = f".{path.name[:100]}."
    for file in path.parent.iterdir():
        is_left = file.name.startswith(start) and _TOKEN.fullmatch(file.name.removeprefix(start))
        if is_left and time.time() - file.lstat().st_mtime > A_WHILE:
            file.unlink(missing_ok=True)


def write_output(path: P, content: bytes, what: str) -> P:
    """Write a file that somebody asked for, whole; say so if that is impossible."""
    if not path.name:
        raise FaithscopeError(f"The {what} cannot be written to '{path}', a folder: name a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_half_written(path)
        replace_file(path, content)
    except OSError as error:
        raise FaithscopeError(
            f"The {what} cannot be written to '{path}' ({error.strerror}): choose another path."
        ) from None
    return path


@contextmanager
def writing(root: Place) -> Iterator[None]:
    """Say in a sentence that the disk is full or the folder cannot be written to."""
    try:
        yield
    except Timeout:  # of the lock, which is an OSError, too
        raise
    except OSError as error:
        raise cannot_write(root, error) from error


def cannot_write(root: Place, error: OSError, *, is_lasting: bool = True) -> StoreError:
    """The sentence for what cannot be written."""
    why = error.strerror or type(error).__name__
    if isinstance(root, RemotePath):
        return StoreError(
            f"'{root}' cannot be written to ({why}): check the address, the network and your "
            "credentials; what is finished is kept; run the same command to resume."
        )
    if not is_lasting:
        return StoreError(
            f"The temporary folder '{root}' cannot be written to ({why}): make room, set TMPDIR to "
            "another folder, or keep the run in one (out=…)."
        )
    if error.errno in IN_THE_WAY and (error.filename2 or error.filename):
        return StoreError(
            f"'{error.filename2 or error.filename}' is in the way of a run, which cannot be "
            f"written to '{root}' ({why}): remove it, or choose another folder."
        )
    return StoreError(
        f"'{root}' cannot be written to ({why}): make room or choose another folder; what is "
        "finished is kept; run the same command to resume."
    )


@contextmanager
def reading(place: Place) -> Iterator[None]:
    """Say in a sentence that a file or folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise unreadable(place, error) from error


def unreadable(file: Place, error: OSError) -> StoreError:
    """The sentence for a file that is there and cannot be read: it may be whole, and stays."""
    why = error.strerror or type(error).__name__
    if isinstance(file, RemotePath):
        return StoreError(
            f"'{file}' cannot be read ({why}): check the address, the network and your "
            "credentials, and run the same command again."
        )
    return StoreError(
        f"'{file}' cannot be read ({why}): repair or remove it, and run the same command again."
    )


def each(place: Place, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Do something with each of some items: at an address with many at once, since all wait."""
    if isinstance(place, Path):
        return [work(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def read_if_there(path: Place) -> bytes | None:
    """The content of a file, None if there is none."""
    if isinstance(path, Path):
        return path.read_bytes() if path.exists() else None
    try:  # without a look before: every request has its price
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_checked(path: Place, expected: str | None) -> bytes:
    """The content of a file; a ValueError if its hash is another one."""
    content = path.read_bytes()
    check_digest(path, content, expected)
    return content


def check_digest(path: Place, content: bytes, expected: str | None) -> None:
    """A ValueError if the hash of a file is another one."""
    if digest(content) != expected:
        raise ValueError(f"{path.name} is not what was written")


def reason(error: Exception) -> str:
    """An error in a few words, none of them of a library."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        if isinstance(said := first.get("ctx", {}).get("error"), ValueError):
            return str(said)
        place = ".".join(map(str, first["loc"]))
        return f"'{place[:200]}' is not what it should be"
    if isinstance(error, OSError):
        name = f"{Path(error.filename).name}: " if isinstance(error.filename, str) else ""
        return f"{name}{error.strerror or type(error).__name__}"
    return str(error) if type(error) is ValueError else type(error).__name__


def as_json(value: Any) -> bytes:
    """JSON in the order of what it holds."""
    return json.dumps(value).encode()


def sealed(content: Mapping[str, Any]) -> bytes:
    """JSON that carries its own hash."""
    text = json.dumps({**content, "hash": digest(canonical(content))}, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def unsealed(content: bytes) -> dict[str, Any]:
    """What `sealed` wrote; a ValueError if it is anything else."""
    try:
        text = content.decode("utf-8", "surrogatepass")
        held = json.loads(text, parse_int=_whole, object_pairs_hook=_once)
        if not isinstance(held, dict) or "hash" not in held:
            raise ValueError("it carries no hash")
        expected = held.pop("hash")
        if digest(canonical(held)) != expected:
            raise ValueError("its hash differs")
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError("it cannot be read") from error
    return held


def _whole(text: str) -> int:
    """A whole number that others can hold, too."""
    if len(text) > 19 or abs(number := int(text)) >= 1 << 63:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        raise ValueError("it gives a key twice")
    return held


def write_parquet(path: Place, parts: Iterable[pa.Table]) -> str:
    """Put a table into place, of which there is at least one part; gives the hash of its file."""
    hashed = hasher()

    def chunks() -> Iterator[bytes]:
        for chunk in _parquet(parts):
            hashed.update(chunk)
            yield chunk

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_with(path, chunks())
    found: str = hashed.hexdigest()
    return found


def _parquet(parts: Iterable[pa.Table]) -> Iterator[bytes]:
    """A Parquet file, piece by piece."""
    waiting = iter(parts)
    first, sink = next(waiting), _Sink()
    with pq.ParquetWriter(sink, first.schema) as writer:
        for group in _groups(chain([first], waiting)):
            writer.write_table(group)
            yield sink.drain()
    yield sink.drain()


def _groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Several parts as one, as large as a group of rows may be."""
    held, size = list[pa.Table](), 0
    for part in parts:
        held.append(part)
        size += part.nbytes
        if size >= GROUP:
            yield joined(held)
            held, size = [], 0
    if held:
        yield joined(held)


class _Sink(io.RawIOBase):
    """Where a writer leaves what somebody else takes away."""

    def __init__(self) -> None:
        self.held = list[bytes]()
        self.place = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.held.append(bytes(content))
        self.place += len(content)
        return len(content)

    def tell(self) -> int:
        return self.place

    def drain(self) -> bytes:
        """What was left since the last time."""
        held, self.held = b"".join(self.held), []
        return held


def read_parquet(content: bytes, schema: pa.Schema) -> pa.Table:
    """The table of a Parquet file; a ValueError if it is none of this schema."""
    file = open_parquet(pa.BufferReader(content), len(content), schema)
    return joined([*read_groups(file)] or [schema.empty_table()])


def open_parquet(source: Any, size: int, schema: pa.Schema) -> pq.ParquetFile:
    """A Parquet file of so many bytes; a ValueError if it is none of this schema."""
    try:
        file = pq.ParquetFile(source)
    except (OSError, pa.ArrowException) as error:
        raise ValueError("it cannot be read") from error
    if file.metadata.num_rows > MOST_ROWS * size:
        raise ValueError("it has more rows than a file of its size can hold")
    if not file.schema_arrow.equals(schema):
        raise ValueError("it has other columns")
    return file


def read_groups(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a Parquet file, group by group; a ValueError if one cannot be read."""
    for group in range(file.num_row_groups):
        try:
            table = file.read_row_group(group, columns, use_threads=False)
            table.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise ValueError("it cannot be read") from error
        yield table
