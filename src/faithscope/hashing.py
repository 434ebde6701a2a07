"""Hashes by which contents and values are known again."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(content: bytes) -> str:
    """The hash by which a file is known to be what was written."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def canonical(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True).encode()
