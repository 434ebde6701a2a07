"""How far a run is, for people: a bar in a terminal or a notebook, lines elsewhere if asked for."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from faithscope.errors import FaithscopeError, printable, shown

if TYPE_CHECKING:  # the command line shows that it waits before anything heavy is imported
    from faithscope.runs.scheduler import Forecast, Progress, Report

QUIET_SECONDS = 10.0
"""How often progress says a word where there is no bar."""
SHORT_SECONDS = 0.5
"""What takes less than this gets no bar in a notebook, where it would only flicker."""


@dataclass
class Pace:
    """How fast a run goes and how long it will still take, in the unit of its probe."""

    unit: str
    forecast: Forecast | None = None
    place: Progress | None = None
    before: float = 0.0
    """What was done when it began."""
    started: float = field(default_factory=lambda: time.perf_counter())

    def move(self, place: Progress) -> None:
        """Take note of where the run is."""
        if self.place is None:
            self.before = place.done
        self.place = place

    @property
    def doing(self) -> str:
        """What is going on."""
        return "beginning" if self.place is None else self.place.doing

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return 0.0 if self.place is None else self.place.done / max(self.place.total, 1e-9)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.started

    def seconds_left(self) -> float | None:
        """By the forecast until something is done, then by the rate so far, the more the more is.

        A rate is misleading at first, since explaining comes before what is counted.
        """
        done = 0.0 if self.place is None else self.place.done - self.before
        if self.place is None or done <= 0:
            return None if self.forecast is None else max(0.0, self.forecast.seconds - self.elapsed)
        share = done / (self.place.total - self.before)  # of what was still to do
        whole = self.elapsed / share
        if self.forecast is not None:
            whole = share * whole + (1 - share) * self.forecast.seconds
        return (1 - share) * whole

    def __str__(self) -> str:
        parts = []
        if self.place is not None:
            parts.append(f"{self.place.done:,.0f}/{self.place.total:,.0f} {self.unit}")
            rate = (self.place.done - self.before) / max(self.elapsed, 1e-9)
            if rate > 0:
                slow = f"{60 * rate:,.1f} per minute"
                parts.append(f"{rate:,.0f} per second" if rate >= 10 else slow)
        if (left := self.seconds_left()) is not None:
            parts.append(f"{clock(left)} left")
        return " · ".join(parts)


def clock(seconds: float) -> str:
    """Write minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_notebook() -> bool:
    """Whether this is a kernel of Jupyter, as in VS Code and Colab; IPython is not imported."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def moves(console: Console) -> bool:
    """Whether a bar can be drawn again and again."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextmanager
def following(
    unit: str, progress: Report | bool | None = None, forecast: Forecast | None = None
) -> Iterator[Report]:
    """What a run reports to, for as long as it runs.

    Args:
        unit: of what is counted.
        progress: a function is called as it is; None draws a bar where somebody is watching, a
            notebook or a terminal; True says a line now and then where nobody is; False is silent.
        forecast: how long it will take, before its own rate is known.
    """
    console, pace = Console(stderr=True, highlight=False, markup=False, emoji=False), Pace(unit)
    pace.forecast = forecast
    if callable(progress):
        yield progress
    elif progress not in (None, True, False):
        raise FaithscopeError(f"progress must be a function, True or False, got {shown(progress)}.")
    elif progress is False:
        yield _say_nothing
    elif is_notebook():
        with _notebook_bar(pace) as report:
            yield report
    elif moves(console):
        with _terminal_bar(pace, console) as report:
            yield report
    else:
        yield _lines(pace) if progress else _say_nothing


def _say_nothing(place: Progress) -> None:
    """For those who are not watching."""


@contextmanager
def _notebook_bar(pace: Pace) -> Iterator[Report]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it draws its bar in text, and says so
        from tqdm.auto import tqdm

    bar = None

    def draw(place: Progress) -> None:
        nonlocal bar
        doing = printable(place.doing)
        if bar is None:
            counted = {"initial": round(place.done), "unit": f" {pace.unit}"}
            looks = {"desc": doing, "delay": SHORT_SECONDS, "leave": False}
            bar = tqdm(total=round(place.total), **counted, **looks)
        bar.total = round(place.total)
        bar.set_description(doing, refresh=False)
        bar.update(round(place.done) - bar.n)

    try:
        yield draw
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def _terminal_bar(pace: Pace, console: Console) -> Iterator[Report]:
    columns = (Words(lambda: pace.doing), BarColumn(bar_width=None), Words(lambda: str(pace)))
    with Bar(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=1.0)

        def draw(place: Progress) -> None:
            pace.move(place)
            bar.update(task, completed=pace.share)

        yield draw


class Words(ProgressColumn):
    """A column of a progress bar that is read off the pace whenever the bar is drawn."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(printable(self._words()))


def _lines(pace: Pace) -> Report:
    spoken = time.perf_counter()

    def speak(place: Progress) -> None:
        nonlocal spoken
        pace.move(place)
        if time.perf_counter() - spoken >= QUIET_SECONDS:
            spoken = time.perf_counter()
            print(printable(f"{pace.share:4.0%} · {pace.doing} · {pace}"), file=sys.stderr)

    return speak
