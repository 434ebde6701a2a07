"""Conditions on a comparison, written as text: what a job of continuous integration fails on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from faithscope.errors import FaithscopeError, choose, unknown
from faithscope.verdicts.compare import Differences
from faithscope.verdicts.findings import Series
from faithscope.verdicts.sentences import written_p

Row = dict[str, Any]

VERDICTS = {"worse": ("worse",), "better": ("better",), "different": ("worse", "better")}
FORMS = (
    *VERDICTS,
    "METRIC<NUMBER",
    "METRIC>NUMBER",
    "METHOD/METRIC<NUMBER",
    "METHOD/METRIC>NUMBER",
)
SHOWN = 5
"""How many rows a line names before the rest is only counted."""


@dataclass(frozen=True)
class Condition:
    """A verdict of any explanation method, or a bound on a mean difference, second − first.

    `sign` is "<", ">" or, for a verdict, its word; `name` is a metric, METHOD/METRIC or
    METHOD/PROCEDURE/METRIC. Without a method, a bound is on every explanation method; random
    attribution is looked at only if it is named.
    """

    text: str
    sign: str
    name: str = ""
    number: float = math.nan

    def check(self, comparison: Differences) -> None:
        """Refuse names that neither run has."""
        if self.name and _bare(self.name) not in _spellings(comparison):
            method, _, metric = self.name.rpartition("/")
            metrics = [*comparison.metrics, *comparison.lone_metrics]
            if _bare(metric) not in map(_bare, metrics):
                raise unknown("metric", metric.strip(), metrics)
            raise unknown("method", method.strip(), _method_names(comparison))

    def failure(self, comparison: Differences) -> str:
        """One line that says why the job fails, "" if it does not.

        What cannot be judged (too few samples, no score, in one run only) fails too.
        """
        rows = self._rows(comparison)
        if not rows:
            return f"{self.text}: cannot be judged, since only one of the runs has it."
        held = [row for row in rows if self._holds(row)]
        unjudged = [row for row in rows if not self._is_known(row)]
        parts = [_listed(held, comparison)] if held else []
        if lost := [] if self.name else comparison.lost:
            parts.append(f"cannot be judged: {', '.join(lost)} of the first run, not in the second")
        if unjudged:
            why = self._why(unjudged, comparison)
            parts.append(f"cannot be judged: {_listed(unjudged, comparison)}{why}")
        return f"{self.text}: {'; '.join(parts)}." if parts else ""

    def _rows(self, comparison: Differences) -> list[Row]:
        if not self.name:
            return comparison.explained()
        wanted = _spellings(comparison)[_bare(self.name)]
        return [row for row in comparison.rows if _key(row) in wanted]

    def _holds(self, row: Row) -> bool:
        if self.sign in VERDICTS:
            return row["verdict"] in VERDICTS[self.sign]
        below = row["difference"] < self.number
        above = row["difference"] > self.number
        return bool(below if self.sign == "<" else above)

    def _is_known(self, row: Row) -> bool:
        known = row["verdict"] if self.sign in VERDICTS else not math.isnan(row["difference"])
        return bool(known)

    def _why(self, rows: list[Row], comparison: Differences) -> str:
        if self.sign in VERDICTS and max(row["n"] for row in rows):
            return f" (a verdict needs {comparison.enough} {comparison.replicate.word}s)"
        return ""


def parse_condition(text: str) -> Condition:
    """Read a condition.

    >>> parse_condition(" rollout / saco < -0.05")
    Condition(text='rollout/saco < -0.05', sign='<', name='rollout/saco', number=-0.05)
    """
    found = re.fullmatch(r"(.*)([<>])([^<>]*)", text.strip(), re.DOTALL)
    if not found:
        word = choose("condition", text.strip(), FORMS)
        return Condition(word, word)
    whole, sign, number = (part.strip() for part in found.groups())
    parts = [part.strip() for part in whole.split("/")]
    if not all(parts):
        raise FaithscopeError(
            f"The condition '{text}' names no {'method' if parts[-1] else 'metric'}: for example "
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
    name = "/".join(parts)
    return Condition(f"{name} {sign} {number}", sign, name, bound)


def failures(comparison: Differences, conditions: Iterable[Condition]) -> list[str]:
    """One line for every condition that holds or cannot be judged."""
    lines = (condition.failure(comparison) for condition in conditions)
    return [line for line in lines if line]


Key = tuple[str, str | None, str]
"""Method, procedure and metric of a row."""


def _key(row: Row) -> Key:
    return row["method"], row["procedure"], row["metric"]


def _method_names(comparison: Differences) -> list[str]:
    """What a method may be called: by its label, or whatever the procedure."""
    methods = [*comparison.methods, *comparison.lone_methods]
    return [*dict.fromkeys([*methods, *(series.method for series in comparison.series)])]


def _spellings(comparison: Differences) -> dict[str, set[Key]]:
    """Every name that a condition may have, and the rows that it means."""
    found: dict[str, set[Key]] = {}
    explained = {_key(row) for row in comparison.explained()}
    for row in comparison.rows:
        key = _key(row)
        series = Series(row["method"], row["procedure"])
        for name in (f"{series.label}/{row['metric']}", f"{series.method}/{row['metric']}"):
            found.setdefault(_bare(name), set()).add(key)
        own = found.setdefault(_bare(row["metric"]), set())
        if key in explained:
            own.add(key)
    for metric in (*comparison.metrics, *comparison.lone_metrics):
        found.setdefault(_bare(metric), set())
        for method in _method_names(comparison):
            found.setdefault(_bare(f"{method}/{metric}"), set())
    return found


def _bare(name: str) -> str:
    return "".join(name.split())


def _listed(rows: list[Row], comparison: Differences) -> str:
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return ", ".join(_row(row, comparison) for row in rows[:SHOWN]) + more


def _row(row: Row, comparison: Differences) -> str:
    """One row with its numbers."""
    name = f"{Series(row['method'], row['procedure']).label}/{row['metric']}"
    if math.isnan(row["difference"]):
        return f"{name} (no {comparison.replicate.word} has both scores)"
    interval = ""
    if not math.isnan(row["ci_low"]):
        interval = f" [{row['ci_low']:+.4f}, {row['ci_high']:+.4f}]"
    tested = "" if math.isnan(row["p"]) else f"{written_p(row['p'])}, "
    return f"{name} {row['difference']:+.4f}{interval} ({tested}n = {row['n']})"
