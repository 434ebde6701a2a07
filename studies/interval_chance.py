"""How often the 95 % interval over a few seeds excludes zero by chance: BCa and Student.

python studies/interval_chance.py

Seeds are drawn from a normal distribution around zero, so every interval that excludes zero is a
false positive; 5 % would be correct. The page on text quotes the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import stats
from summarise import written

from faithscope.verdicts.statistics import seed_interval

SEEDS = (3, 5)


def mistakes(seeds: int, draws: int) -> dict[str, float]:
    """The share of draws whose BCa, Student, or both intervals exclude zero."""
    drawn = np.random.default_rng(seeds).standard_normal((draws, seeds))
    ends = np.array([seed_interval(row)[1:] for row in drawn])
    bca = (ends[:, 0] > 0) | (ends[:, 1] < 0)
    student = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    found = {"bca": bca, "student": student, "both": bca & student}
    return {name: float(flags.mean()) for name, flags in found.items()}


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the shares for three and five seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "interval_chance.json")
    options = parser.parse_args(None if arguments is None else list(arguments))
    found = {str(seeds): mistakes(seeds, options.draws) for seeds in SEEDS}
    command = "python studies/interval_chance.py"
    options.out.write_text(written({"command": command, "draws": options.draws, **found}))


if __name__ == "__main__":
    main()
