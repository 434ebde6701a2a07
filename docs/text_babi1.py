"""bAbI-1 in depth: the seed that did not learn, and why masking everything leaves more than 15 %.

roar_babi1_seeds.json (studies/roar_seeds.py) has both ends of the curves for many seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from filling import Row, Summaries, listed, number, percent, table
from text_numbers import ENDS, agrees, shown, spread, yes
from text_runs import PROCEDURES, SEEDS, WORDS, Run, published

RUN = "roar_babi1"
LEARNT = 0.99
"""Test accuracy from which a model of the intact texts counts as having learnt the task."""


def run_of(have: Summaries) -> Run | None:
    """The bAbI-1 run, if available."""
    return Run(RUN, have.studies[RUN]) if RUN in have.studies else None


def text_babi1(have: Summaries) -> str:
    """The section, if there is a run."""
    run = run_of(have)
    if run is None:
        return ""
    parts = [
        "## bAbI-1 in depth",
        "RACU by seed, with the accuracy of the seed's models on the intact texts:",
        by_seed_table(run),
        f"**The intact texts.** {base_words(run, have)}",
        f"**Everything masked.** {masked_words(run, have)}",
    ]
    return "\n\n".join(parts)


def by_seed_table(run: Run) -> str:
    """RACU of every seed, and the accuracy of its models on the intact texts."""
    rows = []
    for name in run.measures:
        for procedure in run.procedures:
            cells = [
                run.find("racu_by_seed", measure=name, procedure=procedure, seed=seed)
                for seed in run.seeds
            ]
            values = [None if cell is None else cell["racu"] for cell in cells]
            shown_ = ["—" if value is None else number(100 * value, 1) for value in values]
            rows.append([WORDS[name], PROCEDURES[procedure], *shown_])
    bases = run.point("random", 0, run.procedures[0])["values"]
    rows.append(["accuracy, intact", "", *(number(100 * base, 1) for base in bases)])
    return table(["RACU [%]", "", *(f"seed {seed}" for seed in run.seeds)], rows, names=2)


def unlearnt(run: Run) -> list[Row]:
    """Trainings on the intact texts that ended below 99 %."""
    return [row for row in run.rows("trainings") if row["k"] == 0 and row["test"] < LEARNT]


def base_words(run: Run, have: Summaries) -> str:
    """Seeds that did not learn the task, how often that happens, and its effect."""
    epochs = run.study["model"]["recipe"]["epochs"]
    lost = unlearnt(run)
    said = [
        f"Seed {row['seed']} ends at {percent(row['test'], 1)} on the test split. Its validation "
        f"accuracy is {percent(row['tenth'], 1)} after 10 epochs and stays between "
        f"{percent(row['lowest_after'], 1)} and {percent(row['highest_after'], 1)} until epoch "
        f"{epochs}: a worse optimum, not an unfinished training."
        for row in lost
        if row["tenth"] is not None
    ]
    if not lost:
        said.append(f"All {len(run.seeds)} seeds reach {percent(LEARNT)}.")
    return " ".join([*said, *without_seed(run), *many_base(have), *same_seed(run, have)])


def same_seed(run: Run, have: Summaries) -> list[str]:
    """Why a seed ends differently in the pack of many seeds than in the run."""
    tests = dict(enumerate(seeds(have)))
    own = run.point("random", 0, run.procedures[0])["values"]
    both = [(s, tests[s], here) for s, here in zip(run.seeds, own, strict=True) if s in tests]
    if not both or all(there == here for _, there, here in both):
        return []
    seed, there, here = max(both, key=lambda case: abs(case[1] - case[2]))
    recipe = run.study["model"]["recipe"]
    batches = -(-run.study["data"]["sizes"]["train"] // recipe["batch_size"])
    return [
        f"The run's seeds are among them but end differently, seed {seed} at "
        f"{percent(there, 1)} there and {percent(here, 1)} here: in another pack sums are computed "
        f"in another order, and rounding errors grow over {recipe['epochs'] * batches:,} steps."
    ]


def without_seed(run: Run) -> list[str]:
    """RACU without the one seed that did not learn."""
    lost = unlearnt(run)
    if len(lost) != 1:
        return []
    seed = lost[0]["seed"]
    rows = {
        name: run.find("left_out", measure=name, procedure="recursive", seed=seed)
        for name in run.measures
    }
    known = {name: row for name, row in rows.items() if row and row["ci_low"] is not None}
    same = [n for n, row in known.items() if agrees(theirs(run, n), row) == yes(True)]
    each = [
        f"{WORDS[n]} {shown(row)}{'' if n in same else ' (no overlap)'}" for n, row in known.items()
    ]
    if not known:
        return []
    return [
        f"Over the other {len(run.seeds) - 1} seeds, RACU overlaps Table 2 for {len(same)} of "
        f"{len(known)} measures: {listed(each)}."
    ]


def theirs(run: Run, measure: str) -> Row | None:
    """RACU in the paper."""
    return published(run.theirs["racu"].get(measure))


def many_base(have: Summaries) -> list[str]:
    """How often seeds do not learn."""
    tests = seeds(have)
    if not tests:
        return ["Five seeds are too few to say how often that happens."]
    row = share_of(sum(test >= LEARNT for test in tests), len(tests))
    below = [test for test in tests if test < LEARNT]
    worst = f"; the others end at {spread(below)} %" if below else ""
    return [
        f"Of {len(tests)} seeds {round(row['mean'] * len(tests))} reach {percent(LEARNT)}, "
        f"{shown(row)} % (Wilson's interval){worst}. At that rate five seeds all learn the task "
        f"in {percent(row['mean'] ** 5)} of cases."
    ]


def masked_words(run: Run, have: Summaries) -> str:
    """Why masking everything may give more than the paper's 15 %."""
    study = run.study
    if "classes" not in study:
        return "The shares of the classes are not in the summary."
    test, validation = study["classes"]["test"], study["classes"]["validation"]
    shares = sorted(test.values())
    majority = study["data"]["majority"]
    chosen = [
        row["validation"]
        for row in run.rows("trainings")
        if row["k"] == 100 and row["validation"] is not None
    ]
    said = (
        "A model that sees only masks can do no better than guess. Always predicting the training "
        f"split's largest class, {majority['class']}, scores {percent(majority['score'], 1)} on "
        f"the test split; the {len(shares)} places score {spread(shares)} %, on average "
        f"{percent(sum(shares) / len(shares), 1)}. "
    )
    if chosen:
        said += (
            f"Of {study['model']['recipe']['epochs']} epochs the one with the best validation "
            "score is kept, as in the authors' program; with nothing to learn that is the "
            f"luckiest one: {spread(chosen)} % on the validation split, where the best constant "
            f"answer has {percent(max(validation.values()), 1)}. "
        )
    return said + many_masked(run, have)


def many_masked(run: Run, have: Summaries) -> str:
    """The same over many seeds."""
    tests = seeds(have, "masked")
    if not tests:
        return "Five seeds cannot separate this from the paper's number beyond their intervals."
    from faithscope.verdicts.statistics import seed_interval

    mean = dict(zip(ENDS, seed_interval(tests), strict=True))
    value, _, high = run.theirs["masked"]
    rare = share_of_fives(tests, (value + 0.5) / 100)
    within = share_of(sum(test <= high / 100 for test in tests), len(tests))
    return (
        f"Over {len(tests)} seeds the mean is {shown(mean)} % (single seeds {spread(tests)} %). "
        f"{shown(within)} % of them (Wilson's interval) lie at or below {number(high, 1)} %, the "
        f"upper end of the paper's interval; five of them have a mean that rounds to its "
        f"{number(value, 0)} % in {percent(rare, 1)} of draws."
    )


def share_of_fives(values: Sequence[float], limit: float) -> float:
    """How often five of the values, drawn with replacement, have a mean below a limit."""
    import numpy as np

    draws = np.random.default_rng(0).choice(values, size=(100_000, 5))
    return float((draws.mean(1) < limit).mean())


def share_of(successes: int, total: int) -> Row:
    """A share with Wilson's interval."""
    from scipy.stats import binomtest

    found = binomtest(successes, total).proportion_ci(method="wilson")
    return {"mean": successes / total, "ci_low": float(found.low), "ci_high": float(found.high)}


def seeds(have: Summaries, what: str = "base") -> list[float]:
    """Results over many seeds, if they were run."""
    found: Iterable[Any] = have.studies.get(SEEDS, {}).get(what, [])
    return list(found)
