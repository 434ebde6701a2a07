"""What a reader must know before trusting a ROAR run, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from faithscope.probes.retrain.jobs import BASELINE
from faithscope.probes.retrain.leakage import leaks, recoveries
from faithscope.probes.retrain.verdict import METRICS, rise, score
from faithscope.verdicts.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult


def warnings(result: RoarResult) -> list[str]:
    """All of them, a sentence each."""
    return [
        *_few_seeds(result),
        *_diverged(result),
        *_unlearned(result),
        *_doubts(result),
        *_tiny(result),
        *_leakage(result),
        *_recoveries(result),
        *_truncated(result),
    ]


def _few_seeds(result: RoarResult) -> list[str]:
    if len(result.seeds) >= FEWEST_SEEDS:
        return []
    many = "1 seed" if len(result.seeds) == 1 else "2 seeds"
    return [f"{many}: intervals over fewer than three seeds mean nothing, and are not shown."]


def _diverged(result: RoarResult) -> list[str]:
    columns = [result.trainings[name].to_pylist() for name in ("job", "metric", "value")]
    rows = zip(*columns, strict=True)
    wild = (job for job, name, loss in rows if name == "cross_entropy" and not isfinite(loss))
    jobs = list(dict.fromkeys(wild))
    if not jobs:
        return []
    more = f" and {len(jobs) - 5:,} more" if len(jobs) > 5 else ""
    return [
        f"{', '.join(jobs[:5])}{more} diverged: the cross-entropy on the test is not finite, "
        "so their numbers mean nothing; a lower learning rate may help."
    ]


def _unlearned(result: RoarResult) -> list[str]:
    if not result.is_unlearned:
        return []
    base, majority = (score(result.metric, value) for value in result.base_and_majority)
    return [
        f"The models of the intact texts ({METRICS[result.metric]} {base}) do no better than "
        f"always guessing the most common class ({majority}), or so little that "
        f"{result.tested:,} test texts cannot show it: they have learnt nothing that an "
        "explanation could show."
    ]


def _doubts(result: RoarResult) -> list[str]:
    said: list[str] = []
    if not result.is_relative:
        return said
    found = {row["procedure"]: row for row in result.racu().to_pylist()}  # random's: all alike
    kinds = {(*row["degenerate"], -1, *row["negative"]): row for row in found.values()}
    for row in kinds.values():
        if row["degenerate"]:
            said.append(
                f"RACU is not defined for seed{_listed(row['degenerate'])}: masking random "
                "tokens loses no performance; left out of means and intervals."
            )
        if row["negative"]:
            said.append(
                f"RACU has its sign turned around for seed{_listed(row['negative'])}: with "
                "everything masked the model does better than on average."
            )
    return said


def _tiny(result: RoarResult) -> list[str]:
    """Seeds that random masking leaves little to lose, and those whose RACU was clipped."""
    if not result.is_relative or result.is_unlearned or result.measures == [BASELINE]:
        return []
    said = []
    if floored := _floored(result):
        said.append(
            f"Random masking loses almost everything at its first level "
            f"({result.levels[1]} %) with seed{_listed(floored)}: RACU divides by little "
            "there, so read it with care."
        )
    free = result.racu(clip=False).to_pylist()
    beyond: dict[int, list[str]] = {}
    for row in free if result.manifest["protocol"]["clip"] else []:
        for seed, value in zip(result.seeds, row["values"], strict=True):
            if abs(value) > 1:
                beyond.setdefault(seed, []).append(f"{row['measure']} ({row['procedure']})")
    if beyond:
        named = "; ".join(f"seed {seed}, {', '.join(beyond[seed])}" for seed in sorted(beyond))
        said.append(f"RACU was beyond ±100 % and is clipped to it: {named}.")
    return said


def _floored(result: RoarResult) -> list[int]:
    """Seeds whose random curve is, up to chance, at its end at the first masked level."""
    if result.metric == "cross_entropy":
        return []
    curves = result.values(BASELINE, result.procedures[0])
    return [
        seed
        for seed, curve in zip(result.seeds, curves, strict=True)
        if len(curve) > 2 and curve[1] <= curve[-1] + result.noise(curve[-1])
    ]


def _leakage(result: RoarResult) -> list[str]:
    """Curves that rise beyond chance: more masking, better performance."""
    said = []
    unit = " %" if result.is_relative else " tokens"
    for measure, procedure in result.kinds:
        values = result.values(measure, procedure)
        rising = leaks(values)
        if measure == BASELINE or not rising:
            continue
        mean = values.mean(0)
        stop = max(rising, key=lambda place: mean[place] - mean[:place].min())
        start = int(mean[:stop].argmin())
        said.append(
            f"{measure} ({procedure}): performance rises by "
            f"{rise(result.metric, mean[stop] - mean[start])} from {result.levels[start]} to "
            f"{result.levels[stop]}{unit} masked, so what is masked may give the class away."
        )
    return said


def _recoveries(result: RoarResult) -> list[str]:
    """Single seeds that fall to guessing and know more again when more is masked."""
    if not result.is_relative or result.is_unlearned or result.metric == "cross_entropy":
        return []
    cases = []
    for measure, procedure in result.kinds:
        values = result.values(measure, procedure)
        for seed, *ends in recoveries(values, result.tested):
            low, high = (
                f"{score(result.metric, values[seed, place])} at {result.levels[place]} %"
                for place in ends
            )
            cases.append(f"{measure} ({procedure}), seed {result.seeds[seed]}: {low}, {high}")
    if not cases:
        return []
    more = f"; and {len(cases) - 4:,} more" if len(cases) > 4 else ""
    told = Counter(row["measure"] for row in result.one_class())
    counted = ", ".join(f"{measure} {count:,}" for measure, count in told.items())
    other = f" Trainings on masked texts that answer one class only: {counted}."
    return [
        "Performance falls to guessing and is higher again with more masked, which lost tokens "
        "cannot do: a training failed there or the masks give the class away, and RACU takes "
        f"the fall for tokens that mattered ({'; '.join(cases[:4])}{more})."
        f"{other if told else ''}"
    ]


def _truncated(result: RoarResult) -> list[str]:
    count = sum(result.manifest["data"]["truncated"].values())
    if not count:
        return []
    total = sum(result.manifest["data"]["sizes"].values())
    return [f"{count:,} of {total:,} texts are longer than the model reads and were cut."]


def _listed(seeds: Sequence[int]) -> str:
    """Seeds after the word for them.

    >>> "seed" + _listed([1, 2])
    'seeds 1, 2'
    """
    return f"{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
