"""Files that are whole or not there at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faithscope.errors import FaithscopeError


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put a file into place in one step: whoever looks sees the old one or the new one."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_output(path: Path, content: bytes, what: str) -> Path:
    """Write a file that somebody asked for, whole; say so if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise FaithscopeError(
            f"The {what} cannot be written to '{path}' ({error.strerror}): give another path."
        ) from None
    return path


def parquet(table: pa.Table) -> bytes:
    """A table as the content of a Parquet file."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content
