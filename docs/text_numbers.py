"""Numbers over seeds: intervals, significance and formatting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from filling import Row, number
from numpy.typing import NDArray

Array = NDArray[np.float64]

ENDS = ("mean", "ci_low", "ci_high")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


# Over seeds


def fewest() -> int:
    """The number of seeds that an interval needs."""
    from faithscope.verdicts.statistics import FEWEST_SEEDS

    return FEWEST_SEEDS


def with_interval(values: Sequence[float] | Array) -> Row:
    """A mean over seeds with its 95 % interval; fewer than three seeds have none."""
    from faithscope.verdicts.statistics import interval_or_nan

    known = [float(value) for value in values if np.isfinite(value)]
    if not known:
        return {**dict.fromkeys(ENDS), "values": []}
    ends = (None if np.isnan(end) else end for end in interval_or_nan(known))
    return {**dict(zip(ENDS, ends, strict=True)), "values": known}


def welch(one: Sequence[float], other: Sequence[float], comparisons: int = 1) -> Row:
    r"""Mean of the second minus mean of the first, unpaired, with Welch's interval.

    .. math:: \bar y - \bar x \pm t_{\nu,\,1-\alpha/2m} \sqrt{s_x^2/n_x + s_y^2/n_y}

    The 5 % are shared by all m comparisons. No interval for fewer than three seeds.
    """
    from scipy import stats

    x, y = (np.array(values, dtype=np.float64) for values in (one, other))
    gap = float(y.mean() - x.mean())
    parts = [v.var(ddof=1) / len(v) if len(v) > 1 else np.nan for v in (x, y)]
    if min(len(x), len(y)) < fewest():
        return {"mean": gap, "ci_low": None, "ci_high": None}
    if not sum(parts):
        return {"mean": gap, "ci_low": gap, "ci_high": gap}
    freedom = sum(parts) ** 2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (x, y), strict=True))
    width = float(stats.t.ppf(1 - 0.025 / comparisons, freedom) * np.sqrt(sum(parts)))
    return {"mean": gap, "ci_low": gap - width, "ci_high": gap + width}


def turned(row: Row) -> Row:
    """A difference with its sign reversed."""
    low, high = (None if row[end] is None else -row[end] for end in ("ci_high", "ci_low"))
    values = [-value for value in row.get("values", [])]
    return {**row, "mean": -row["mean"], "ci_low": low, "ci_high": high, "values": values}


_STRICT = [True]


@contextmanager
def bootstrap_alone() -> Iterator[None]:
    """Inside, "significant" means by the BCa interval alone, the first version of the rule."""
    _STRICT.append(False)
    try:
        yield
    finally:
        _STRICT.pop()


def student(values: Sequence[float] | Array, comparisons: int = 1) -> Row:
    """A mean over seeds with its Student interval, if there are enough seeds.

    The 5 % are shared by all comparisons.
    """
    from faithscope.verdicts.statistics import student_interval

    known = [float(value) for value in values]
    ends = (None if np.isnan(end) else end for end in student_interval(known, comparisons))
    return {**dict(zip(ENDS, ends, strict=True)), "values": known}


def above(row: Row | None, limit: float = 0.0, *, comparisons: int = 1) -> bool:
    """Whether a number is significantly above a limit, by the BCa and the Student interval.

    The 5 % of the Student interval are shared by all comparisons. A row without the values of its
    seeds has one interval only; a row without interval is never significant.
    """
    if row is None or row["ci_low"] is None:
        return False
    seeds = row.get("values") if _STRICT[-1] else None
    lows = [row["ci_low"], *([student(seeds, comparisons)["ci_low"]] if seeds else [])]
    return bool(min(lows) > limit)


def below(row: Row | None, limit: float = 0.0, *, comparisons: int = 1) -> bool:
    """Whether a number is significantly below a limit."""
    has_interval = row is not None and row["ci_low"] is not None
    return has_interval and above(turned(row), -limit, comparisons=comparisons)


def is_loose(row: Row) -> bool:
    """Whether the BCa interval excludes zero, but the Student interval does not."""
    with bootstrap_alone():
        loosely = above(row) or below(row)
    return loosely and not (above(row) or below(row))


def overlap(one: Row, other: Row, slack: float = 0.0) -> bool:
    """Whether two intervals overlap, or would if one were shifted by the slack."""
    return bool(
        one["ci_low"] <= other["ci_high"] + slack and other["ci_low"] <= one["ci_high"] + slack
    )


# Formatting


def shown(row: Row | None, sign: str = "") -> str:
    """A share in % with its interval, or with its single seeds if there are fewer than three.

    >>> shown({"mean": 0.5, "ci_low": -0.0004, "ci_high": 0.75})
    '50.0 [0.0, 75.0]'
    >>> shown({"mean": 0.5, "ci_low": None, "ci_high": None, "values": [0.4, 0.6]})
    '50.0 (40.0; 60.0)'
    """
    if row is None or row["mean"] is None:
        return "—"
    middle = number(100 * row["mean"], 1, sign)
    if row["ci_low"] is None:
        each = row.get("values", [])
        singles = "; ".join(number(100 * value, 1, sign) for value in each)
        return f"{middle} ({singles})" if len(each) > 1 else middle
    low, high = (number(100 * row[name], 1, sign) for name in ENDS[1:])
    return f"{middle} [{low}, {high}]"


def agrees(paper_row: Row | None, ours: Row | None, slack: float = 0.0) -> str:
    """Whether our interval overlaps the paper's, or how many of few seeds lie inside it."""
    if paper_row is None or ours is None:
        return ""
    if ours["ci_low"] is not None:
        return yes(overlap(paper_row, ours, slack))
    low, high = paper_row["ci_low"] - slack, paper_row["ci_high"] + slack
    inside = sum(low <= value <= high for value in ours["values"])
    return f"{inside} of {len(ours['values'])} seeds inside"


def yes(holds: bool) -> str:
    """Yes or no."""
    return "yes" if holds else "no"


def count(value: int, word: str) -> str:
    """A count in words.

    >>> count(1, "seed"), count(3, "seed"), count(12, "run")
    ('one seed', 'three seeds', '12 runs')
    """
    return f"{NUMBERS[value] if value < len(NUMBERS) else value} {word}{'s' * (value != 1)}"


def spread(values: Iterable[float]) -> str:
    """From the smallest to the largest, in %."""
    known = sorted(values)
    return f"{number(100 * known[0], 1)} to {number(100 * known[-1], 1)}"
