"""What people see in a terminal: notes, progress, tables. Nothing else in the package prints.

A terminal gets colours, a moving bar and tables that fit its width; a pipe or a file gets the same
words in plain, unwrapped lines.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as Bar
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from faithscope.errors import printable
from faithscope.report.table import UNWRAPPED, Head, Number, Table
from faithscope.request import Place
from faithscope.verdicts.sentences import failed_line

if TYPE_CHECKING:
    from faithscope.api import Prepared
    from faithscope.cli.synthetic import SyntheticResult
    from faithscope.report.summary import Summary
    from faithscope.result import Result
    from faithscope.runs.scheduler import Forecast, Progress
    from faithscope.verdicts.compare import Differences
    from faithscope.verdicts.findings import Findings

QUIET_SECONDS = 10.0
"""How often progress says a word where there is no bar."""
NAMED = 10
"""How many left-out samples are named before the rest is only counted."""
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
HALF_KNOWN = 0.75
"""Accuracy between knowing the class (1) and guessing it (0.5)."""
SYNTHETIC = {
    "truth": "those four first",
    "recursive": "in Recursive ROAR's order",
    "roar": "in ROAR's order",
    "worst": "those four last",
}


def screen(*, stderr: bool = False) -> Console:
    """The terminal, or what stands in its place: answers on stdout, everything else on stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNWRAPPED
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(text: str = "", style: str | None = None, *, stderr: bool = False) -> None:
    """Print a paragraph."""
    screen(stderr=stderr).print(Text(_lines(text), style or ""))


def _lines(text: str) -> str:
    """Lines in which names are shown as they are, and not obeyed."""
    return "\n".join(map(printable, text.split("\n")))


def note(text: str) -> None:
    """Print a remark that is not part of the answer."""
    say(text, "dim", stderr=True)


def show(table: Table | RichTable) -> None:
    """Print a table as the answer; what is not a terminal gets no blanks at the end of lines."""
    out = screen()
    fitted = table.fitted(out) if isinstance(table, Table) else table
    if out.is_terminal:
        out.print(fitted)
        return
    with out.capture() as captured:
        out.print(fitted)
    out.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def say_lines(*lines: str, stderr: bool = False) -> None:
    """Print lines in one piece, whatever the width, so that they can be copied."""
    for line in lines:
        screen(stderr=stderr).print(f"  {printable(line)}", soft_wrap=True)


def say_files(files: Mapping[str, Place], *, stderr: bool = False) -> None:
    """Say what was written where."""
    width = max(map(len, files), default=0)
    say_lines(*(f"{what:<{width}}  {path}" for what, path in files.items()), stderr=stderr)


def print_json(data: Any) -> None:
    """Print data for a program: NaN and infinity, which JSON does not have, become null."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(_finite(data), indent=2, ensure_ascii=not unicode, allow_nan=False)
    if not text.replace("\n", "").isprintable():  # JSON leaves some signs alone that terminals obey
        text = json.dumps(_finite(data), indent=2, allow_nan=False).replace("\x7f", "\\u007f")
    screen().out(text, highlight=False)


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show on a terminal that something is going on; say nothing elsewhere."""
    err = screen(stderr=True)
    if not moves(err):
        yield
        return
    with err.status(Text(printable(text))):
        yield


def moves(console: Console) -> bool:
    """Whether a bar can be drawn again and again."""
    return console.is_terminal and not console.is_dumb_terminal


# Progress


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


class Words(ProgressColumn):
    """A column of a progress bar that is read off the pace whenever the bar is drawn."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(printable(self._words()))


def run_with_progress(prepared: Prepared, forecast: Forecast | None = None) -> Result:
    """Run, showing on stderr what is going on, the rate and the time left."""
    err, pace = screen(stderr=True), Pace(prepared.probe.unit, forecast)
    if moves(err):
        columns = (Words(lambda: pace.doing), BarColumn(bar_width=None), Words(lambda: str(pace)))
        with Bar(*columns, console=err, transient=True, expand=True) as bar:
            task = bar.add_task("", total=1.0)

            def draw(place: Progress) -> None:
                pace.move(place)
                bar.update(task, completed=pace.share)

            return prepared.run(draw)
    spoken = time.perf_counter()

    def speak(place: Progress) -> None:
        nonlocal spoken
        pace.move(place)
        if time.perf_counter() - spoken >= QUIET_SECONDS:
            spoken = time.perf_counter()
            err.print(printable(f"{pace.share:4.0%} · {pace.doing} · {pace}"))

    return prepared.run(speak)


# Runs


def show_result(found: Findings) -> None:
    """Print what was measured, the table, how to read it, and the verdict in words."""
    from faithscope.report.summary import summary_of

    summary = summary_of(found)
    for line in summary.heading.values():
        say(line)
    _show_summary(summary)


def show_comparison(compared: Differences) -> None:
    """Print what differs between two runs, the table of differences, and the verdict in words."""
    from faithscope.report.summary import summary_of_two

    summary = summary_of_two(compared)
    for name, line in summary.heading.items():
        say(f"{name:<9}{line}")
    _show_summary(summary)


def _show_summary(summary: Summary) -> None:
    say()
    show(summary.table)
    for line in summary.keys():
        say(line, "dim")
    for line in summary.said:
        say(line)
    for line in summary.warnings:
        say(line, "yellow")
    say(f"\n{summary.headline}", "bold")
    _bullets(summary.verdicts)


def _bullets(lines: Sequence[str]) -> None:
    if lines:
        grid = RichTable.grid(padding=(0, 1))
        for line in lines:
            grid.add_row("  •", Text(printable(line)))
        show(grid)


def show_sensitivity(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print what each choice of the protocol moves."""
    from faithscope.report.tables import sensitivity_table

    table = sensitivity_table(list(rows))
    say("\nHow the choices of the protocol change the scores", "bold")
    show(table)
    say(f"{table.caption}.", "dim")


def show_skipped(found: Findings) -> None:
    """Name and count the samples that were left out."""
    data, word = found.manifest.data, found.replicate.word
    total = data.samples + len(data.skipped)
    if data.skipped:
        count = f"{len(data.skipped)} of {total} {word}s left out:"
        _name_some(count, [f"{item.name}: {item.why}" for item in data.skipped])
    if data.failed:
        samples = len({item.sample for item in data.failed})
        count = f"{samples} of {total} {word}s failed:"
        _name_some(count, [failed_line(item) for item in data.failed])


def _name_some(count: str, lines: Sequence[str]) -> None:
    say(count, "yellow", stderr=True)
    for line in lines[:NAMED]:
        say(f"  {line}", "yellow", stderr=True)
    if len(lines) > NAMED:
        say(f"  … and {len(lines) - NAMED} more", "yellow", stderr=True)


# One image, and the problem whose answer is known


def show_scores(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the SaCo of one image, one row of the scores per method."""
    cells = tuple((row["method"], Number(row["value"]), row["flag"]) for row in rows)
    show(Table("scores", "", ("method", Head("SaCo", True), ""), cells))


def show_story(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print SaCo and AOPC of one image, each beside the range of its random draws."""
    heads = ("method", Head("SaCo", True), "random", Head("AOPC", True), "random", "")
    cells = tuple(
        (
            row["method"],
            *(
                cell
                for name in ("saco", "aopc")
                for cell in (Number(row[name]), _range(row["random"].get(name, ())))
            ),
            row["flag"],
        )
        for row in rows
    )
    show(Table("story", "", heads, cells))


def _range(draws: Sequence[float]) -> str:
    known = [draw for draw in draws if not math.isnan(draw)]
    return f"{min(known):.3f} … {max(known):.3f}" if len(known) > 1 else ""


def show_synthetic(result: SyntheticResult) -> None:
    """Print the accuracy on the synthetic problem after every few removals."""
    from faithscope.verdicts.sentences import percent

    say("The synthetic problem: four of sixteen features know the class", "bold")
    removed = range(0, len(result.curves["truth"]), 2)
    cells = tuple(
        (name, *(percent(float(result.curves[key][at])) for at in removed))
        for key, name in SYNTHETIC.items()
    )
    show(Table("synthetic", "", ("accuracy after removing", *map(str, removed)), cells))
    gone = {key: int((curve < HALF_KNOWN).nonzero()[0]) for key, curve in result.curves.items()}
    say(
        f"The class is lost after {gone['recursive']} removals in Recursive ROAR's order and after "
        f"{gone['roar']} in ROAR's; the best is {gone['truth']}, the worst {gone['worst']}."
    )
    say()


# Lists and checks


def show_entries(title: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """Print names with a summary and, below it, their traits."""
    say(title, "bold")
    grid = RichTable.grid(padding=(0, 2))
    for name, summary, traits in entries:
        text = Text(_lines(summary))
        if traits:
            text.append(f"\n{_lines(traits)}", "dim")
        grid.add_row(Text(f"  {printable(name)}", "cyan"), text)
    show(grid)
    say()


def show_check(name: str, status: str, detail: str, advice: str) -> None:
    """Print one line of the doctor, and what to do if something is wrong."""
    text = Text(_lines(detail))
    if advice:
        text.append(f"\n→ {_lines(advice)}", STYLES[status])
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(min_width=4)
    grid.add_column(min_width=16)
    grid.add_row(Text(status, STYLES[status]), printable(name), text)
    show(grid)
