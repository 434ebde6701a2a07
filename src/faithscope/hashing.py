"""Hashes by which contents and values are known again."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any


def digest(content: bytes) -> str:
    """The hash by which a file is known to be what was written."""
    hashed = hasher()
    hashed.update(content)
    found: str = hashed.hexdigest()
    return found


def digest_of(file: io.BufferedReader) -> str:
    """The same of an open file, which is read piece by piece."""
    return hashlib.file_digest(file, hasher).hexdigest()


def hasher() -> Any:
    """What takes the hash, piece by piece."""
    return hashlib.blake2b(digest_size=16)


def canonical(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True).encode()
