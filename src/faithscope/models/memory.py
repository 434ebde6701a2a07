"""What to do when memory runs out: try again with half as many inputs."""

from __future__ import annotations

import torch

from faithscope.errors import FaithscopeError

OUT_OF_MEMORY = (torch.OutOfMemoryError, RuntimeError, MemoryError)
"""What `halve` should be asked about."""


_WORDS = ("can't allocate memory", "out of memory", "not enough memory", "alloc_failed")


def halve(size: int, error: Exception) -> int:
    """Half of a batch for which memory ran out; any other error is raised again."""
    if not is_out_of_memory(error):
        raise error
    if size <= 1:
        raise FaithscopeError(
            "Memory ran out on a single image: use a smaller model, a lower precision or "
            "another device."
        ) from None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return size // 2


def is_out_of_memory(error: Exception) -> bool:
    """Tell an out-of-memory error of a GPU or of the CPU's allocator from other errors."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in _WORDS)
