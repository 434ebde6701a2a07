"""What to do when memory runs out: try again with half as many inputs."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from faithscope.errors import FaithscopeError
from faithscope.models.device import free_caches

OUT_OF_MEMORY = (torch.OutOfMemoryError, RuntimeError, MemoryError)
"""What `halve` should be asked about."""
LESS = "ask for less (fewer images or texts, fewer methods, a smaller batch_size) or free some"
"""What helps where memory is nearly gone."""


_WORDS = (
    *("can't allocate memory", "out of memory", "not enough memory", "alloc_failed"),
    "bad_alloc",
)


def halve(size: int, error: Exception) -> int:
    """Half of a batch for which memory ran out; any other error is raised again."""
    if not is_out_of_memory(error):
        raise error
    if size <= 1:
        raise FaithscopeError(
            "Memory ran out on a single image: use a smaller model, a lower precision or "
            "another device."
        ) from None
    gc.collect()  # what somebody's model left in circles
    free_caches()
    return size // 2


def inputs_that_fit(device: torch.device, run: Callable[[], object], count: int) -> int:
    """How many inputs half of a CUDA GPU's free memory has room for, as a run of `count` shows."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    used = torch.cuda.max_memory_allocated(device) - before
    free, _ = torch.cuda.mem_get_info(device)
    return int(free / 2 / max(1, used / count))


def power_of_two(wanted: int, least: int, most: int) -> int:
    """The power of two up to what is wanted, within bounds."""
    return max(least, min(most, 1 << max(0, wanted.bit_length() - 1)))


@contextmanager
def enough_memory(kept: str = "") -> Iterator[None]:
    """Say in a sentence that memory ran out, and where what is finished is kept."""
    try:
        yield
    except (*OUT_OF_MEMORY, OSError) as error:
        if not is_out_of_memory(error):
            raise
        resume = f"; what is finished is kept in '{kept}', and the same command resumes it"
        raise FaithscopeError(f"Memory ran out: {LESS}{resume if kept else ''}.") from None


def is_out_of_memory(error: Exception) -> bool:
    """Tell an out-of-memory error of a GPU or of the CPU's allocator from other errors."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in _WORDS)
