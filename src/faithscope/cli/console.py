"""What people see in a terminal: notes, progress, tables. Nothing else in the package prints.

A terminal gets colours, a moving bar and tables that fit its width; a pipe or a file gets the same
words in plain, unwrapped lines.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from faithscope.errors import printable
from faithscope.report.table import UNWRAPPED, Head, Number, Table
from faithscope.request import Place

if TYPE_CHECKING:
    from faithscope.api import Prepared
    from faithscope.cli.synthetic import SyntheticResult
    from faithscope.report.summary import Summary
    from faithscope.report.words import Explained
    from faithscope.result import Result
    from faithscope.runs.scheduler import Forecast
    from faithscope.verdicts.compare import Differences
    from faithscope.verdicts.findings import Findings

MANY_COLOURS = ("256", "truecolor", "windows")
"""What rich calls terminals with enough colours for a map; pipes and files have none."""
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
    from faithscope.runs.progress import moves

    err = screen(stderr=True)
    if not moves(err):
        yield
        return
    with err.status(Text(printable(text))):
        yield


def run_with_progress(prepared: Prepared, forecast: Forecast | None = None) -> Result:
    """Run, showing on stderr what is going on, the rate and the time left."""
    from faithscope.runs.progress import following

    with following(prepared.probe.unit, True, forecast) as report:
        return prepared.run(report)


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


def show_sensitivity(rows: Iterable[Mapping[str, Any]], results: Mapping[str, Findings]) -> None:
    """Print what each choice of the protocol moves."""
    from faithscope.report.tables import sample_word, sensitivity_table

    table = sensitivity_table(list(rows), sample_word(results))
    say("\nHow the choices of the protocol change the scores", "bold")
    show(table)
    say(f"{table.caption}.", "dim")


def show_skipped(found: Findings, *, are_warned_of: bool) -> None:
    """Name the samples that were left out or failed; one left out is named in the warnings, too."""
    from faithscope.verdicts.sentences import failed_line

    data, word = found.manifest.data, found.replicate.word
    total = data.samples + len(data.skipped)
    if data.skipped and not (are_warned_of and len(data.skipped) == 1):
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


# One sample, and the problem whose answer is known


def show_explained(explained: Sequence[Explained]) -> None:
    """Print a text in the colours of every map; without colours, its most salient words."""
    from faithscope.report.words import BETWEEN, for_terminal

    out = screen()
    if out.no_color or out.color_system not in MANY_COLOURS:
        shown = explained[0].text.words
        words = " ".join(w.text for w in shown if w.look != "rest" or w.text == BETWEEN)
        say(f"\n{words}\n")
        cells = tuple(
            (one.method, one.text.first or one.text.note, Number(one.saco), one.flag)
            for one in explained
        )
        heads = ("method", "most salient", Head("SaCo", True), "")
        show(Table("explained", "", heads, cells, names=2))
        return
    grid = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    grid.add_column("method", overflow="fold")
    grid.add_column("SaCo ↑", justify="right", no_wrap=True)
    grid.add_column("words, coloured by their salience")
    for one in explained:
        name = Text(printable(one.method))
        name.append(f"\n{one.flag}" if one.flag else "", "dim")
        grid.add_row(name, str(Number(one.saco)), for_terminal(one.text.cut().words))
    show(grid)


def show_scores(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the SaCo of one sample, one row of the scores per method."""
    cells = tuple((row["method"], Number(row["value"]), row["flag"]) for row in rows)
    show(Table("scores", "", ("method", Head("SaCo", True), ""), cells))


def show_story(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print SaCo and AOPC of one sample, each beside the range of its random draws."""
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
