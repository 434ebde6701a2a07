"""Odd inputs: how many are tried, and what may come of one.

`make test` tries a few hundred, the same ones every time; `make fuzz` many times as many, others
every time (`FAITHSCOPE_FUZZ` is how many times).
"""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings

from faithscope.errors import LONGEST, FaithscopeError, printable

TIMES = float(os.environ.get("FAITHSCOPE_FUZZ", "1"))
SECONDS = 60
"""Longer than any odd input may take."""
tried = 0
"""How many odd inputs were tried in this process."""


def cases(number: int) -> settings:
    """So many cases of a test in `make test`, and so many times more in `make fuzz`."""
    return settings(
        max_examples=max(1, round(number * TIMES)),
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def answered(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call gives, or the FaithscopeError it raises: anything else fails the test.

    The error must be one line of bounded length without control characters, and come in time.
    """
    global tried
    tried += 1
    try:
        with in_time(SECONDS):
            return call(*args, **options)
    except FaithscopeError as error:
        text = str(error)
        assert text and printable(text) == text and len(text) <= LONGEST, repr(text[:300])
        return error
    except Hang:
        raise
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in place if "/faithscope/" in frame.filename]
        where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "nowhere of ours"
        raise AssertionError(
            f"a foreign {type(error).__name__} ({str(error)[:200]}) through {where}"
        ) from error


class Hang(AssertionError):
    """An input that is not answered in time."""


@contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """Fail if what is inside takes longer; for the main thread of a process."""

    def late(*_: Any) -> None:
        raise Hang(f"not answered within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
