"""Finding 5 of the paper, which is about curves: the first 20 %."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from filling import Row, Summaries, number, table
from text_numbers import Array, above, shown, spread, with_interval
from text_runs import (
    AGREES,
    INCONCLUSIVE,
    MEASURES,
    NOT,
    PART,
    WORDS,
    Finding,
    Run,
    conclusive,
)

TOP = 20
"""The paper's "top 20 %"."""


def top_twenty(have: Summaries) -> Finding:
    """Agrees if most curves leave random's fastest within 20 %, and significantly by then.

    In part if only one of the two holds for most; disagrees if neither does.
    """
    claim = f"Measures work best for the top {TOP} %"
    own = conclusive(have)
    cases = [(run, name) for run in own for name in run.measures]
    if not cases:
        return Finding(claim, INCONCLUSIVE, "No run has enough seeds.")
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
        f"of {len(cases)} curves (means over seeds), and for {len(better)} significantly more is "
        f"lost by then than under random masking. {' '.join(map(share_words, own))} We use the "
        "distance because nothing is ranked in the step to 100 %; by the slope of the curve "
        f"itself it is {len(by_fall)} of {len(cases)} if that step counts and {len(before)} if "
        "not."
    )
    heads = ["share of the total loss [%]", *(WORDS[name] for name in names)]
    return Finding(claim, verdict, said, table(heads, rows))


def has(measure: str) -> Callable[[Run], bool]:
    """Whether a run has a measure."""
    return lambda run: run.has(measure)


def share_words(run: Run) -> str:
    """The share of the total loss by then."""
    shares = [float(top_share(run, name)["mean"]) for name in run.measures]
    later = ", so most comes later" if max(shares) < 0.5 else ""
    random = number(100 * top_share(run, "random")["mean"], 1)
    return (
        f"On {run.short}, {spread(shares)} % of the total loss occurs by then (random: {random} %)"
        f"{later}."
    )


def top_level(run: Run) -> int:
    """20 %, or the level before it if it was not run."""
    return max(k for k in run.levels if k <= TOP)


def loss_shares(run: Run, measure: str) -> Array:
    """By seed, the loss at the top level as a share of the loss at 100 %."""
    curve = run.values(measure)
    lost = curve[:, :1] - curve
    whole = np.where(lost[:, -1] > 0, lost[:, -1], np.nan)
    shares: Array = lost[:, run.levels.index(top_level(run))] / whole
    return shares


def top_share(run: Run, measure: str) -> Row:
    """The same with its interval."""
    return with_interval(loss_shares(run, measure))


def top_gain(run: Run, measure: str) -> Row:
    """The same minus random's, paired by seed."""
    return with_interval(loss_shares(run, measure) - loss_shares(run, "random"))


def fastest(run: Run, measure: str) -> int:
    """The end of the step in which random minus measure grows fastest; 100 if it never grows."""
    gap = run.values("random").mean(0) - run.values(measure).mean(0)
    slopes = np.diff(gap) / np.diff(run.levels)
    return run.levels[int(slopes.argmax()) + 1] if slopes.max() > 0 else run.levels[-1]


def steepest(run: Run, measure: str, *, last: bool = True) -> int:
    """The end of the step in which the mean curve falls fastest; `last` counts the one to 100 %."""
    slopes = np.diff(run.values(measure).mean(0)) / np.diff(run.levels)
    return run.levels[int((slopes if last else slopes[:-1]).argmin()) + 1]
