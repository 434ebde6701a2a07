"""What people see in a terminal: notes, progress, tables. Nothing else in the package prints.

A terminal gets colours, a moving bar and tables that fit its width; a pipe or a file gets the same
words in plain, unwrapped lines.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from faithscope.probes.perturb.evaluation import Evaluation, Forecast
    from faithscope.result import Result
    from faithscope.verdicts.compare import Comparison
    from faithscope.verdicts.compare_roar import RoarComparison

UNWRAPPED = 1000
"""Columns of what is not a terminal: enough that no line is broken."""
QUIET_SECONDS = 10.0
"""How often progress says a word where there is no bar."""
NAMED = 10
"""How many left-out images are named before the rest is only counted."""
STYLES = {"better": "green", "worse": "red", "ok": "green", "warn": "yellow", "fail": "bold red"}
MARKS = {"better": " *", "worse": " †"}

Layout = Callable[[Mapping[str, Any]], tuple[str, str]]
"""How a cell is written: mean and mark, and a second line for the interval."""


def screen(*, stderr: bool = False) -> Console:
    """The terminal, or what stands in its place: answers on stdout, everything else on stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNWRAPPED
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(text: str = "", style: str | None = None, *, stderr: bool = False) -> None:
    """Print a paragraph."""
    screen(stderr=stderr).print(Text(text, style or ""))


def note(text: str) -> None:
    """Print a remark that is not part of the answer."""
    say(text, "dim", stderr=True)


def show(table: Table) -> None:
    """Print a table as the answer; what is not a terminal gets no blanks at the end of lines."""
    out = screen()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    out.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def say_lines(*lines: str, stderr: bool = False) -> None:
    """Print lines in one piece, whatever the width, so that they can be copied."""
    for line in lines:
        screen(stderr=stderr).print(f"  {line}", soft_wrap=True)


def say_files(files: Mapping[str, Path], *, stderr: bool = False) -> None:
    """Say what was written where."""
    width = max(map(len, files), default=0)
    say_lines(*(f"{what:<{width}}  {path}" for what, path in files.items()), stderr=stderr)


def print_json(data: Any) -> None:
    """Print data for a program: NaN and infinity, which JSON does not have, become null."""
    text = json.dumps(_finite(data), indent=2, ensure_ascii=not _speaks_unicode(), allow_nan=False)
    screen().out(text, highlight=False)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


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
    with err.status(text):
        yield


@dataclass
class Pace:
    """How fast an evaluation goes and how long it will still take.

    Passes are counted as they are made; the time the explanations take is read off the job, since
    it comes in one piece at the beginning of each shard and must not blur the rate.
    """

    evaluation: Evaluation
    forecast: Forecast | None = None
    done: int = 0
    busy: float = 0.0
    started: float = field(default_factory=lambda: time.perf_counter())

    def __post_init__(self) -> None:
        self.images = max(len(self.evaluation.data), len(self.evaluation.first.images))
        self.per_image = self.evaluation.passes_per_image
        self.total = self.images * self.per_image

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.started

    @property
    def measuring(self) -> bool:
        """Whether perturbed inputs are run already: the intact ones and the maps come before."""
        return self.done > min(self.images, self.evaluation.shard)

    def add(self, passes: int) -> None:
        """Count passes that have just been made."""
        self.done += passes
        self.busy = self.elapsed - self.evaluation.job.explain_seconds

    def seconds_left(self) -> float | None:
        """What is left of the forecast, or of the passes and explanations at the rate so far."""
        if not self.measuring:
            if self.forecast is None:
                return None
            return max(0.0, self.forecast.seconds - self.elapsed)
        shard = self.evaluation.shard
        explained = min(self.images, math.ceil(self.done / self.per_image / shard) * shard)
        explaining = self.evaluation.job.explain_seconds / explained * (self.images - explained)
        return max(0, self.total - self.done) * self.busy / self.done + explaining

    def __str__(self) -> str:
        parts = [f"{self.done:,}/{self.total:,} passes"]
        if self.measuring:
            parts.append(f"{self.done / self.busy:,.0f} passes/s")
        left = self.seconds_left()
        if left is not None:
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
        return Text(self._words())


def run_with_progress(
    evaluation: Evaluation, forecast: Forecast | None = None, out: Path | None = None
) -> Result:
    """Run an evaluation, kept in a folder if one is given, showing rate and time left on stderr."""
    err = screen(stderr=True)
    pace = Pace(evaluation, forecast)
    advance = _bar if moves(err) else _lines
    with advance(err, pace) as step:
        return evaluation.run(step, out)


@contextmanager
def _bar(err: Console, pace: Pace) -> Iterator[Callable[[int], None]]:
    columns = (
        Words(lambda: "measuring " if pace.measuring else "explaining"),
        BarColumn(bar_width=None),
        Words(lambda: str(pace)),
    )
    with Progress(*columns, console=err, transient=True, expand=True) as progress:
        task = progress.add_task("", total=pace.total)

        def step(passes: int) -> None:
            pace.add(passes)
            progress.update(task, completed=pace.done)

        yield step


@contextmanager
def _lines(err: Console, pace: Pace) -> Iterator[Callable[[int], None]]:
    spoken = time.perf_counter()

    def step(passes: int) -> None:
        nonlocal spoken
        pace.add(passes)
        if time.perf_counter() - spoken >= QUIET_SECONDS:
            spoken = time.perf_counter()
            err.print(f"{pace.done / pace.total:4.0%} · {pace}")

    yield step


def moves(console: Console) -> bool:
    """Whether a bar can be drawn again and again."""
    return console.is_terminal and not console.is_dumb_terminal


def show_result(result: Result) -> None:
    """Print what was measured, the table, how to read it, and the verdict in words."""
    out = screen()
    for line in _heading(result):
        say(line)
    out.print()
    show(_fitting_table(result, out))
    for line in _legend(result):
        say(line, "dim")
    for line in _flags(result):
        say(line, "yellow")
    say(f"\n{result.headline()}", "bold")
    verdicts = Table.grid(padding=(0, 1))
    for sentence in (*result.verdicts(), *result.metric_verdicts()):
        verdicts.add_row("  •", Text(sentence))
    show(verdicts)
    if "stopping" in result.manifest:
        say(f"  {_stopping(result.manifest['stopping'])}")


def _stopping(said: Mapping[str, Any]) -> str:
    """Why the run ended where it did."""
    if said["reached"]:
        return (
            f"Stopped after {said['images']:,} images: every mean is known to within "
            f"{said['tolerance']}."
        )
    return (
        f"All {said['images']:,} images were used, and not every mean is known to within "
        f"{said['tolerance']}."
    )


def show_sensitivity(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print what each choice of the protocol moves."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    rows = list(rows)
    nested = any(row["where"] for row in rows)
    for name in ("choice", "where", "metric") if nested else ("choice", "metric"):
        table.add_column(name)
    for name in ("mean change", "[95 %]", "|change|", "orders flipped", "agreement"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['axis']}: {row['first']} → {row['second']}",
            *([row["where"]] if nested else []),
            row["metric"],
            f"{row['signed']:+.3f}",
            f"[{row['signed_low']:+.3f}, {row['signed_high']:+.3f}]",
            f"{row['absolute']:.3f}",
            f"{row['flipped']:.0%}" if row["flipped"] == row["flipped"] else "—",
            f"{row['agreement']:.2f}" if row["agreement"] == row["agreement"] else "—",
        )
    say("\nWhat the protocol's choices move", "bold")
    show(table)
    say(
        "Change of a score from the first value to the other; pairs of methods whose order of "
        "means flips; rank correlation over methods, image by image.",
        "dim",
    )


def show_skipped(result: Result) -> None:
    """Name and count the images that were left out."""
    data = result.manifest["data"]
    skipped = data["skipped"]
    if not skipped:
        return
    total = data["images"] + len(skipped)
    say(f"{len(skipped)} of {total} images left out:", "yellow", stderr=True)
    for item in skipped[:NAMED]:
        say(f"  {item['sample']}: {item['reason']}", "yellow", stderr=True)
    if len(skipped) > NAMED:
        say(f"  … and {len(skipped) - NAMED} more", "yellow", stderr=True)


def _heading(result: Result) -> list[str]:
    from faithscope.verdicts.sensitivity import reads_k

    model, data, protocol = (result.manifest[key] for key in ("model", "data", "protocol"))
    count, accuracy = data["images"], data["accuracy"]
    images = "1 image" if count == 1 else f"{count:,} images"
    right = "" if accuracy is None else f" (accuracy {accuracy:.1%})"
    choices = (
        *([f"K = {protocol['k']}"] if any(map(reads_k, result.metrics)) else []),
        f"fill {protocol['fill']}",
        protocol["units"],
        protocol["upsample"],
        f"target {protocol['target']}",
        protocol["precision"],
        f"seed {protocol['seed']}",
    )
    untrained = ", random weights," if model["weights"] == "random" else ""
    title = f"{model['name']}{untrained} on {images} of {data['name']}{right}"
    return [title, " · ".join(choices)]


def _fitting_table(
    result: Result, out: Console, rows: Sequence[Mapping[str, Any]] | None = None
) -> Table:
    """The most generous layout that the terminal has room for; of the summary or other rows."""
    rows = result.summary().to_pylist() if rows is None else rows
    for layout in (_wide, _medium, _narrow):
        table = _table(result, rows, layout)
        wanted = out.measure(table, options=out.options.update(max_width=UNWRAPPED)).maximum
        if wanted <= out.width:
            break
    return table


def _table(result: Result, rows: Sequence[Mapping[str, Any]], layout: Layout) -> Table:
    """Methods by metrics; baselines apart, below."""
    table = plain_table()
    shape = _broken if layout is _narrow else str
    table.add_column("method", overflow="fold")
    columns = []
    for metric in result.metrics:
        header = f"{shape(metric)} {result.arrow(metric)}"
        own = [row for row in rows if row["metric"] == metric]
        texts = [layout(row) if row["n"] else ("—  ", "") for row in own]
        lines = [*header.split("\n"), *(line for text in texts for line in text)]
        width = max(map(len, lines))
        table.add_column("\n".join(line.rjust(width) for line in header.split("\n")))
        columns.append([_cell(row, *text, width) for row, text in zip(own, texts, strict=True)])
    cards = result.manifest["methods"]
    compared = any(card["matched_random"] for card in cards.values())
    for method, cells in zip(result.methods, zip(*columns, strict=True), strict=True):
        if compared and not cards[method]["matched_random"]:
            table.add_section()
            compared = False
        table.add_row(Text(shape(method)), *cells)
    return table


def _cell(row: Mapping[str, Any], mean: str, interval: str, width: int) -> Text:
    """A cell filled up from the left: rich would take the blanks on the right away."""
    cell = Text(mean.rjust(width), STYLES.get(row["verdict"], ""))
    return cell.append(f"\n{interval.rjust(width)}", "dim") if interval else cell


def _wide(row: Mapping[str, Any]) -> tuple[str, str]:
    interval = _interval(row, " [{:.3f}, {:.3f}]")
    return f"{row['mean']:.3f}{interval}{MARKS.get(row['verdict'], '  ')}", ""


def _medium(row: Mapping[str, Any]) -> tuple[str, str]:
    mean = f"{row['mean']:.3f}{MARKS.get(row['verdict'], '  ')}"
    return mean, _interval(row, "[{:.3f}, {:.3f}]")


def _narrow(row: Mapping[str, Any]) -> tuple[str, str]:
    mean = f"{row['mean']:.3f}{MARKS.get(row['verdict'], '  ')}"
    return mean, _interval(row, "{:.2f}…{:.2f}")


def _interval(row: Mapping[str, Any], form: str) -> str:
    """The interval in some form; nothing for a single image, which has none."""
    return "" if math.isnan(row["ci_low"]) else form.format(row["ci_low"], row["ci_high"])


def _broken(label: str) -> str:
    """Break a long name into two lines, near its middle, after a sign if there is one.

    >>> print(_broken("integrated_gradients"))
    integrated_
    gradients
    >>> print(_broken("comprehensiveness"))
    comprehen-
    siveness
    """
    if len(label) < 12:
        return label
    middle = math.ceil(len(label) / 2)
    signs = [match.end() for match in re.finditer(r"[_:(,=]", label)]
    cut = min(signs, key=lambda place: abs(place - middle), default=middle)
    return f"{label[:cut]}{'' if signs else '-'}\n{label[cut:]}"


def plain_table() -> Table:
    """A table in our style, without frames."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def _legend(result: Result) -> list[str]:
    lines = ["Mean with its 95 % interval over images; ↑ more is better, ↓ less is better."]
    if any(row["verdict"] for row in result.summary().to_pylist()):
        lines.append(
            "* better, † worse than random attribution of the same granularity (paired test over "
            "images, p ≤ 0.05 after Holm's correction for the whole table)."
        )
    return lines


def _flags(result: Result) -> list[str]:
    """Say which methods have scores with a flag; the flag says why they mean little."""
    scores = result.scores.select(["method", "sample", "flag"]).to_pylist()
    flagged = {(row["method"], row["sample"], row["flag"]) for row in scores if row["flag"]}
    counts = Counter((method, flag) for method, _, flag in flagged)
    return [
        f"{method}: {count} of {result.manifest['data']['images']} images flagged '{flag}'."
        for (method, flag), count in sorted(counts.items())
    ]


def show_scores(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the SaCo of one image, one row of the scores per method."""
    table = plain_table()
    table.add_column("method")
    table.add_column("SaCo ↑", justify="right")
    table.add_column("")
    for row in rows:
        number = "—" if math.isnan(row["value"]) else f"{row['value']:.3f}"
        table.add_row(Text(row["method"]), number, Text(row["flag"], "yellow"))
    show(table)


def show_story(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print SaCo and AOPC of one image, each beside the range of its random draws."""
    table = plain_table()
    table.add_column("method")
    for name in ("SaCo ↑", "AOPC ↑"):
        table.add_column(name, justify="right")
        table.add_column("random", style="dim")
    table.add_column("")
    for row in rows:
        saco, aopc = (
            _number_and_range(row[name], row["random"].get(name, ())) for name in ("saco", "aopc")
        )
        table.add_row(Text(row["method"]), *saco, *aopc, Text(row["flag"], "yellow"))
    show(table)


def _number_and_range(value: float, draws: Sequence[float]) -> tuple[str, str]:
    known = [draw for draw in draws if not math.isnan(draw)]
    return (
        "—" if math.isnan(value) else f"{value:.3f}",
        f"{min(known):.3f} … {max(known):.3f}" if len(known) > 1 else "",
    )


def show_entries(title: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """Print names with a summary and, below it, their traits."""
    say(title, "bold")
    grid = Table.grid(padding=(0, 2))
    for name, summary, traits in entries:
        text = Text(summary)
        if traits:
            text.append(f"\n{traits}", "dim")
        grid.add_row(Text(f"  {name}", "cyan"), text)
    show(grid)
    say()


def show_check(name: str, status: str, detail: str, advice: str) -> None:
    """Print one line of the doctor, and what to do if something is wrong."""
    text = Text(detail)
    if advice:
        text.append(f"\n→ {advice}", STYLES[status])
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=4)
    grid.add_column(min_width=16)
    grid.add_row(Text(status, STYLES[status]), name, text)
    show(grid)


class _Signed(float):
    """A number that is written with its sign."""

    def __format__(self, form: str) -> str:
        return super().__format__(f"+{form}")


def show_comparison(comparison: Comparison | RoarComparison) -> None:
    """Print what differs between two runs, the table of differences, and the verdict in words."""
    from faithscope.verdicts.compare import Comparison

    if not isinstance(comparison, Comparison):
        from faithscope.cli.console_roar import show_roar_comparison

        return show_roar_comparison(comparison)
    out = screen()
    for place, result in (("first", comparison.first), ("second", comparison.second)):
        say(f"{place:<9}{_heading(result)[0]}")
    say(f"differs  {'; '.join(comparison.differs) or 'nothing'}")
    say(f"shared   {_shared_samples(comparison)}")
    for line in (*_left_out(comparison), *comparison.notes):
        say(line, "yellow")
    out.print()
    show(_fitting_table(_skeleton(comparison), out, _as_differences(comparison)))
    for line in _comparison_legend(comparison):
        say(line, "dim")
    say(f"\n{comparison.headline()}", "bold")
    sentences = Table.grid(padding=(0, 1))
    for sentence in comparison.sentences():
        sentences.add_row("  •", Text(sentence))
    if sentences.rows:
        show(sentences)


def _shared_samples(comparison: Comparison) -> str:
    count = len(comparison.samples)
    text = "1 image" if count == 1 else f"{count:,} images"
    lone = [
        f"{number:,} only in the {place} run"
        for place, number in (
            ("first", comparison.only_first),
            ("second", comparison.only_second),
        )
        if number
    ]
    return f"{text}, {' and '.join(lone)}" if lone else text


def _left_out(comparison: Comparison) -> list[str]:
    kinds = (("methods", comparison.lone_methods), ("metrics", comparison.lone_metrics))
    return [
        f"{len(names)} {kind if len(names) > 1 else kind[:-1]} in only one run left out: "
        f"{', '.join(names)}."
        for kind, names in kinds
        if names
    ]


def _skeleton(comparison: Comparison) -> Result:
    """The first run with only the methods and metrics that are compared."""
    manifest = comparison.first.manifest
    chosen = {
        "methods": {name: manifest["methods"][name] for name in comparison.methods},
        "metrics": {name: manifest["metrics"][name] for name in comparison.metrics},
    }
    return replace(comparison.first, manifest={**manifest, **chosen})


def _as_differences(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows as a table of means shows them, the difference in the place of the mean."""
    shown = {"mean": "difference", "ci_low": "ci_low", "ci_high": "ci_high"}
    return [
        {**row, **{key: _Signed(row[source]) for key, source in shown.items()}}
        for row in comparison.rows
    ]


def _comparison_legend(comparison: Comparison) -> list[str]:
    lines = [
        "Mean difference, second - first, with its 95 % interval over shared images; ↑ more is "
        "better, ↓ less is better."
    ]
    if any(row["verdict"] in MARKS for row in comparison.rows):
        lines.append(
            "* better, † worse in the second run (paired test over images, p ≤ 0.05 after Holm's "
            "correction for the whole table)."
        )
    return lines
