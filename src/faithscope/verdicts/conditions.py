"""Conditions on a comparison, written as text: what a job of continuous integration fails on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from faithscope.errors import FaithscopeError, choose
from faithscope.verdicts.compare import Comparison, Row, find_name, written_p
from faithscope.verdicts.compare_roar import RoarComparison

VERDICTS = {"worse": ("worse",), "better": ("better",), "different": ("worse", "better")}
FORMS = (
    *VERDICTS,
    "METRIC<NUMBER",
    "METRIC>NUMBER",
    "METHOD/METRIC<NUMBER",
    "METHOD/METRIC>NUMBER",
)
AnyComparison = Comparison | RoarComparison
SHOWN = 5
"""How many rows a line names before the rest is only counted."""


@dataclass(frozen=True)
class Condition:
    """A verdict of any explanation method, or a bound on a mean difference, second − first.

    `sign` is "<", ">" or, for a verdict, its word. Without a method, a bound is on every
    explanation method; random attribution is looked at only if it is named.
    """

    text: str
    sign: str
    metric: str = ""
    method: str = ""
    number: float = math.nan

    def check(self, comparison: AnyComparison) -> None:
        """Refuse names that neither run has."""
        if self.metric:
            find_name("metric", self.metric, [*comparison.metrics, *comparison.lone_metrics])
        if self.method:
            find_name("method", self.method, comparison.names)

    def failure(self, comparison: AnyComparison) -> str:
        """One line that says why the job fails, "" if it does not.

        What cannot be judged (too few samples, no score, in one run only) fails too.
        """
        rows = self._rows(comparison)
        if not rows:
            return f"{self.text}: cannot be judged, since only one of the runs has it."
        held = [row for row in rows if self._holds(row)]
        unknown = [row for row in rows if not self._is_known(row)]
        parts = [_listed(held)] if held else []
        if lost := self._lost(comparison):
            parts.append(f"cannot be judged: {', '.join(lost)} of the first run, not in the second")
        if unknown:
            parts.append(f"cannot be judged: {_listed(unknown)}{self._why(unknown, comparison)}")
        return f"{self.text}: {'; '.join(parts)}." if parts else ""

    def _rows(self, comparison: AnyComparison) -> list[Row]:
        rows = comparison.rows if self.method else comparison.explained()
        return [
            row
            for row in rows
            if not self.metric or _bare(self.metric) == _bare(row["metric"])
            if not self.method or _bare(self.method) in _called(row)
        ]

    def _lost(self, comparison: AnyComparison) -> list[str]:
        """Explanation methods and metrics that the second run should have and does not."""
        methods = [] if self.method else comparison.lost_methods
        metrics = [] if self.metric else comparison.lost_metrics
        return [*methods, *metrics]

    def _holds(self, row: Row) -> bool:
        if self.sign in VERDICTS:
            return row["verdict"] in VERDICTS[self.sign]
        below = row["difference"] < self.number
        above = row["difference"] > self.number
        return bool(below if self.sign == "<" else above)

    def _is_known(self, row: Row) -> bool:
        known = row["verdict"] if self.sign in VERDICTS else not math.isnan(row["difference"])
        return bool(known)

    def _why(self, rows: list[Row], comparison: AnyComparison) -> str:
        if self.sign in VERDICTS and max(row["n"] for row in rows):
            needed = f"{comparison.enough} {comparison.unit}s"
            rows_matter = isinstance(comparison, Comparison)  # seeds need no Holm's correction
            on = f" on {len(comparison.rows)} rows" if rows_matter else ""
            return f" (a verdict{on} needs {needed})"
        return ""


def parse_condition(text: str) -> Condition:
    """Read a condition.

    >>> parse_condition(" rollout / saco < -0.05")
    Condition(text='rollout/saco < -0.05', sign='<', metric='saco', method='rollout', number=-0.05)
    """
    found = re.fullmatch(r"(.*)([<>])([^<>]*)", text.strip(), re.DOTALL)
    if not found:
        word = choose("condition", text.strip(), FORMS)
        return Condition(word, word)
    name, sign, number = (part.strip() for part in found.groups())
    method, slash, metric = (part.strip() for part in name.rpartition("/"))
    if not metric or (slash and not method):
        raise FaithscopeError(
            f"The condition '{text}' names no {'method' if metric else 'metric'}: for example "
            "'saco<-0.05' or 'rollout/saco<-0.05'."
        )
    try:
        bound = math.nan if "_" in number else float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise FaithscopeError(
            f"The condition '{text}' needs a number after '{sign}', got '{number}': for example "
            "'saco<-0.05'."
        )
    said = f"{method}{slash}{metric} {sign} {number}"
    return Condition(said, sign, metric, method, bound)


def failures(comparison: AnyComparison, conditions: Iterable[Condition]) -> list[str]:
    """One line for every condition that holds or cannot be judged."""
    lines = (condition.failure(comparison) for condition in conditions)
    return [line for line in lines if line]


def _bare(name: str) -> str:
    return "".join(name.split())


def _called(row: Row) -> set[str]:
    """What a condition may call the method of a row: of ROAR, the measure alone, too."""
    return {_bare(row[key]) for key in ("method", "measure") if key in row}


def _listed(rows: list[Row]) -> str:
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return ", ".join(map(_row, rows[:SHOWN])) + more


def _row(row: Row) -> str:
    """One row with its numbers."""
    name = f"{row['method']}/{row['metric']}"
    if math.isnan(row["difference"]):
        return f"{name} (no {'seed' if 'measure' in row else 'image'} has both scores)"
    interval = ""
    if not math.isnan(row["ci_low"]):
        interval = f" [{row['ci_low']:+.4f}, {row['ci_high']:+.4f}]"
    tested = f"{written_p(row['p'])}, " if "p" in row else ""
    return f"{name} {row['difference']:+.4f}{interval} ({tested}n = {row['n']})"
