"""What people see of ROAR runs in a terminal: RACU, how the models do, what to be careful with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress
from rich.text import Text

from faithscope.cli.console import (
    MARKS,
    QUIET_SECONDS,
    STYLES,
    Words,
    clock,
    moves,
    plain_table,
    say,
    screen,
    show,
)
from faithscope.verdicts.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from faithscope.cli.synthetic import SyntheticResult
    from faithscope.probes.retrain.result import RoarResult
    from faithscope.probes.retrain.roar import Forecast, Roar
    from faithscope.probes.retrain.roar import Progress as Place
    from faithscope.verdicts.compare_roar import RoarComparison


HALF_KNOWN = 0.75
"""Accuracy between knowing the class (1) and guessing it (0.5)."""


@dataclass
class Pace:
    """How fast a ROAR run goes and how long it will still take; trainings are its unit."""

    forecast: Forecast | None = None
    place: Place | None = None
    before: float = 0.0
    """Trainings that were done when it began."""
    started: float = field(default_factory=lambda: time.perf_counter())

    def move(self, place: Place) -> None:
        """Take note of where the run is."""
        if self.place is None:
            self.before = place.done
        self.place = place

    @property
    def doing(self) -> str:
        """What is going on, and in which epoch."""
        if self.place is None:
            return "beginning"
        if self.place.doing != "training":
            return self.place.doing
        return f"training {self.place.pack_jobs}, epoch {self.place.epoch}/{self.place.epochs}"

    def seconds_left(self) -> float | None:
        """By the rate so far; by the forecast while there is none."""
        elapsed = time.perf_counter() - self.started
        done = 0.0 if self.place is None else self.place.done - self.before
        if self.place is None or done <= 0:
            return None if self.forecast is None else max(0.0, self.forecast.seconds - elapsed)
        return (self.place.total - self.place.done) * elapsed / done

    def __str__(self) -> str:
        parts = []
        if self.place is not None:
            parts.append(f"{self.place.done:,.0f}/{self.place.total:,} trainings")
            done, elapsed = self.place.done - self.before, time.perf_counter() - self.started
            if done > 0:
                parts.append(f"{60 * done / elapsed:,.1f} per minute")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"{clock(left)} left")
        return " · ".join(parts)


def run_roar(roar: Roar, forecast: Forecast | None = None) -> RoarResult:
    """Run, showing on stderr what is done, the rate and the time left."""
    err, pace = screen(stderr=True), Pace(forecast)
    if moves(err):
        columns = (Words(lambda: pace.doing), BarColumn(bar_width=None), Words(lambda: str(pace)))
        with Progress(*columns, console=err, transient=True, expand=True) as bar:
            task = bar.add_task("", total=len(roar.jobs))

            def draw(place: Place) -> None:
                pace.move(place)
                bar.update(task, completed=place.done)

            return roar.run(draw)
    spoken = time.perf_counter()

    def speak(place: Place) -> None:
        nonlocal spoken
        pace.move(place)
        if time.perf_counter() - spoken >= QUIET_SECONDS:
            spoken = time.perf_counter()
            err.print(f"{place.done / place.total:4.0%} · {pace.doing} · {pace}")

    return roar.run(speak)


def show_roar(result: RoarResult) -> None:
    """Print what was run, the RACU of every measure, how the models do, warnings, the headline."""
    from faithscope.report.roar_rows import ends_sentence

    model, data = (result.manifest[key]["name"] for key in ("model", "data"))
    seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}"
    unit = "%" if result.is_relative else "tokens"
    say(f"{model} on {data}, {seeds}")
    say(f"{', '.join(map(str, result.levels))} {unit} masked")
    say()
    if result.is_relative:
        _show_racu(result)
    say(ends_sentence(result))
    for warning in result.warnings():
        say(warning, "yellow")
    say(f"\n{result.headline()}", "bold")


def show_synthetic(result: SyntheticResult) -> None:
    """Print the accuracy on the synthetic problem after every few removals."""
    from faithscope.probes.retrain.verdict import percent

    say("The synthetic problem: four of sixteen features know the class", "bold")
    table = plain_table()
    table.add_column("accuracy after removing")
    removed = range(0, len(result.curves["truth"]), 2)
    for count in removed:
        table.add_column(str(count), justify="right")
    names = {
        "truth": "those four first",
        "recursive": "in Recursive ROAR's order",
        "roar": "in ROAR's order",
        "worst": "those four last",
    }
    for key, name in names.items():
        table.add_row(name, *(percent(float(result.curves[key][at])) for at in removed))
    show(table)
    gone = {key: int((curve < HALF_KNOWN).nonzero()[0]) for key, curve in result.curves.items()}
    say(
        f"The class is lost after {gone['recursive']} removals in Recursive ROAR's order and after "
        f"{gone['roar']} in ROAR's; the best is {gone['truth']}, the worst {gone['worst']}."
    )
    say()


def _show_racu(result: RoarResult) -> None:
    from faithscope.probes.retrain.verdict import PROCEDURES
    from faithscope.report.roar_rows import racu_rows

    rows = racu_rows({"": result})
    table = plain_table()
    table.add_column("RACU in %")
    shown = [name for name in PROCEDURES if name in result.procedures]
    for name in shown:
        table.add_column(PROCEDURES[name], justify="right")
    for measure in (name for name in result.measures if name != "random"):
        cells = {row["procedure"]: row for row in rows if row["measure"] == measure}
        table.add_row(Text(measure), *(_racu(cells[name]) for name in shown))
    show(table)
    ends = (
        "mean over seeds, too few for intervals; 0 is random masking."
        if len(result.seeds) < FEWEST_SEEDS
        else "mean over seeds with the distances to the ends of its 95 % interval; * better, † "
        "worse than random masking, by that interval and by Student's t."
    )
    say(
        "Area between the curves of a measure and of random masking, relative to the most it could "
        f"be: {ends}",
        "dim",
    )
    say()


def _racu(row: dict[str, Any]) -> Text:
    from faithscope.report.roar_tables import racu

    mark = MARKS.get(row["verdict"], "  ")
    return Text(f"{racu(row)}{mark}", STYLES.get(row["verdict"], ""))


def show_roar_comparison(comparison: RoarComparison) -> None:
    """Print what differs between two ROAR runs, the table of differences, the verdict in words."""
    for place, result in (("first", comparison.first), ("second", comparison.second)):
        model, data = (result.manifest[key]["name"] for key in ("model", "data"))
        say(f"{place:<9}{model} on {data}")
    say(f"differs  {'; '.join(comparison.differs) or 'nothing'}")
    say(f"shared   {comparison.shared} seed{'s' * (comparison.shared > 1)}")
    if comparison.lone_methods:
        say(f"in only one run, left out: {', '.join(comparison.lone_methods)}.", "yellow")
    say()
    randoms = [row["method"] for row in comparison.rows if row["random"]]
    table = plain_table()
    for name in ("measure", "metric"):
        table.add_column(name)
    for name in ("first", "second", "second - first", "95 % interval"):
        table.add_column(name, justify="right")
    for row in comparison.rows:
        if row["random"] and row["method"] != randoms[0]:
            continue  # random masking is trained once for both procedures
        mark = MARKS.get(row["verdict"], "  ")
        known = row["ci_low"] == row["ci_low"]
        table.add_row(
            Text("random" if row["random"] else row["method"]),
            f"{row['metric']} {'↑' if comparison.up(row['metric']) else '↓'}",
            f"{row['first']:.3f}",
            f"{row['second']:.3f}",
            Text(f"{row['difference']:+.3f}{mark}", STYLES.get(row["verdict"], "")),
            f"[{row['ci_low']:+.3f}, {row['ci_high']:+.3f}]" if known else "—",
        )
    show(table)
    say(
        "Means over shared seeds and their paired difference (BCa interval over seeds); * better, "
        "† worse where it and Student's t leave out 0, not adjusted for the number of rows. ↑ more "
        "is better, ↓ less is; area is the mean performance over the levels.",
        "dim",
    )
    say(f"\n{comparison.headline()}", "bold")
    for sentence in comparison.sentences():
        say(f"  • {sentence}")
