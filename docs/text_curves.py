"""Finding 5 of the paper, which is about curves: the first 20 %."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from filling import Row, Summaries, number, table
from text_numbers import Array, above, shown, spread, with_interval
from text_runs import (
    AGREES,
    MEASURES,
    NOT,
    PART,
    UNTOLD,
    WORDS,
    Finding,
    Run,
    told,
)

TOP = 20
"""The paper's "top 20 %"."""


def top_twenty(have: Summaries) -> Finding:
    """Agrees if for most curves the distance to random grows fastest within 20 %, surely by then.

    In part if only one of both holds for most; disagrees if neither does.
    """
    claim = f"Measures work best for the top {TOP} %"
    own = told(have)
    cases = [(run, name) for run in own for name in run.measures]
    if not cases:
        return Finding(claim, UNTOLD, "No run here has enough seeds.")
    early = [case for case in cases if fastest(*case) <= TOP]
    better = [case for case in cases if above(top_gain(*case))]
    by_fall = [case for case in cases if steepest(*case) <= TOP]
    before = [case for case in cases if steepest(*case, last=False) <= TOP]
    most = [2 * len(found) > len(cases) for found in (early, better)]
    verdict = AGREES if all(most) else PART if any(most) else NOT
    names = [*(name for name in MEASURES if any(map(has(name), own))), "random"]
    rows = [
        [
            f"{run.short}, at {top_level(run)} %",
            *(shown(top_share(run, m)) if run.has(m) else "—" for m in names),
        ]
        for run in own
    ]
    said = (
        f"The distance to random masking grows fastest within the first {TOP} % for {len(early)} "
        f"of {len(cases)} curves (means over seeds), and by then surely more has been lost than "
        f"under random masking for {len(better)}. {' '.join(map(share_words, own))} The distance "
        "is taken because nothing is ranked in the step to 100 %; by the fall of the curve itself, "
        f"it is {len(by_fall)} of {len(cases)} if that step counts and {len(before)} if not."
    )
    heads = ["share of the whole loss [%]", *(WORDS[name] for name in names)]
    return Finding(claim, verdict, said, table(heads, rows))


def has(measure: str) -> Callable[[Run], bool]:
    """Whether a run has a measure."""
    return lambda run: run.has(measure)


def share_words(run: Run) -> str:
    """What share of the loss has come by then."""
    shares = [float(top_share(run, name)["mean"]) for name in run.measures]
    later = ": most comes later" if max(shares) < 0.5 else ""
    random = number(100 * top_share(run, "random")["mean"], 1)
    return (
        f"On {run.short} {spread(shares)} % of the whole loss has come by then (random {random} %)"
        f"{later}."
    )


def top_level(run: Run) -> int:
    """20 %, or the level before it where it was not run."""
    return max(k for k in run.levels if k <= TOP)


def loss_shares(run: Run, measure: str) -> Array:
    """By seed, what is lost at the top level, as a share of the seed's loss at 100 %."""
    curve = run.values(measure)
    lost = curve[:, :1] - curve
    whole = np.where(lost[:, -1] > 0, lost[:, -1], np.nan)
    shares: Array = lost[:, run.levels.index(top_level(run))] / whole
    return shares


def top_share(run: Run, measure: str) -> Row:
    """The same with its interval."""
    return with_interval(loss_shares(run, measure))


def top_gain(run: Run, measure: str) -> Row:
    """The same less random's, paired by seed."""
    return with_interval(loss_shares(run, measure) - loss_shares(run, "random"))


def fastest(run: Run, measure: str) -> int:
    """Where the step ends in which random minus measure grows fastest; 100 if it never grows."""
    gap = run.values("random").mean(0) - run.values(measure).mean(0)
    slopes = np.diff(gap) / np.diff(run.levels)
    return run.levels[int(slopes.argmax()) + 1] if slopes.max() > 0 else run.levels[-1]


def steepest(run: Run, measure: str, *, last: bool = True) -> int:
    """Where the step ends in which the mean curve falls fastest; that to 100 % may not count."""
    slopes = np.diff(run.values(measure).mean(0)) / np.diff(run.levels)
    return run.levels[int((slopes if last else slopes[:-1]).argmin()) + 1]
