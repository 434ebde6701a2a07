"""What the findings of a run say in sentences, for both kinds of run.

Captions stand beside the table or plot that they explain.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product
from typing import Any

from faithscope.runs.cards import Doubt, Failed, Left, Stopping
from faithscope.verdicts.findings import Findings, Series

Row = dict[str, Any]

RECOVERIES = 4
"""Seeds that fall and recover which are named before the rest is only counted."""
TEST_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "auroc": "AUROC",
    "cross_entropy": "cross-entropy",
}
"""How the metrics of a test split are written."""
PROCEDURES = {"recursive": "Recursive ROAR", "roar": "ROAR"}
"""Procedures, the one that counts first."""
CONSTANT = "degenerate"
"""The flag of the scores of a constant map."""


def headline(found: Findings) -> str:
    """The run in one or two sentences."""
    for doubt in found.manifest.doubts:
        if doubt.forbids_verdict:
            return f"No verdict: {_DOUBTS[doubt.kind](found, doubt)}"
    procedure = next((name for name in PROCEDURES if name in found.procedures), None)
    metrics = deciding(found)
    own = [r for r in found.rows if r["procedure"] == procedure and r["metric"] in metrics]
    compared = [row for row in own if row["matched_random"]]
    if not compared:
        return "Nothing was compared with random attribution."
    by = f"By {PROCEDURES[procedure]}, " if procedure else ""
    tested = _by_method([row for row in compared if row["verdict"]])
    count = counted(len(found.replicates), found.replicate.word)
    if not tested:
        comparisons = sum(not math.isnan(row["difference"]) for row in found.rows)
        needed = found.replicate.needed(comparisons)
        are = "is" if len(found.replicates) == 1 else "are"
        for_ = (
            "a verdict needs"
            if procedure
            else f"{counted(comparisons, 'comparison')} with random need{'s' * (comparisons == 1)}"
        )
        return f"{count} {are} too few for a verdict: {for_} at least {needed}." + leader(
            found, procedure
        )
    kinds: dict[str, list[str]] = {}
    for method, rows in tested.items():
        kind = kind_of([row["verdict"] for row in rows], len(metrics))
        kinds.setdefault(kind, []).append(method)
    first, *others = kinds_in_words(kinds, metrics)
    joint = " from random on " if "difference" in first else " than random on "
    said = ", ".join([first.replace(" on ", joint, 1), *others])
    rest = [method for method in _by_method(compared) if method not in tested]
    few = f" Too few scores for a verdict: {', '.join(rest)}." if rest else ""
    summary = f"{by}{counted(len(tested), 'method')} on {count}: {said}.{few}"
    return summary + leader(found, procedure)


def deciding(found: Findings) -> list[str]:
    """The metrics with a score; of trainings the first, since all read the same curves.

    Where units were counted RACU has none, and the end of the curve decides. The mean curve does
    so only if it is alone: it is for comparisons of runs.
    """
    scored = _scored(found)
    if not found.procedures:
        return scored
    others = [metric for metric in scored if found.manifest.metrics[metric].name != "area"]
    return (others or scored)[:1]


def _scored(found: Findings) -> list[str]:
    """The metrics with any score."""
    return list(dict.fromkeys(row["metric"] for row in found.rows if row["n"]))


KINDS = (
    "better on every metric",
    "better on some metrics",
    "better on some metrics and worse on others",
    "worse on some metrics",
    "worse on every metric",
    "with no significant difference on any metric",
)


def kind_of(verdicts: Sequence[str], metrics: int) -> str:
    """What a method's verdicts come to, one of `KINDS`."""
    if {"better", "worse"} <= set(verdicts):
        return "better on some metrics and worse on others"
    for word in ("better", "worse"):
        if word in verdicts:
            every = verdicts.count(word) == metrics
            return f"{word} on {'every metric' if every else 'some metrics'}"
    return "with no significant difference on any metric"


def kinds_in_words(kinds: Mapping[str, Sequence[str]], metrics: Sequence[str]) -> list[str]:
    """How many methods are of each kind, and some of their names."""
    said = []
    for kind in KINDS:
        if kinds.get(kind):
            words = kind if len(metrics) > 1 else f"{kind.rsplit(' on ', 1)[0]} on {metrics[0]}"
            said.append(f"{len(kinds[kind])} {words}{named(kinds[kind])}")
    return said


def leader(found: Findings, procedure: str | None) -> str:
    """Which method has the best mean by the metric that counts, and how sure that is.

    Only of trainings, where one metric does: RACU or, where units were counted, the end.
    """
    if procedure is None:
        return ""
    metrics = deciding(found)
    if not metrics:
        return ""
    (metric,) = metrics
    card = found.manifest.metrics[metric]
    rows = {
        Series(row["method"], procedure): row
        for row in found.rows
        if (row["procedure"], row["metric"]) == (procedure, metric)
        and row["n"]
        and row["matched_random"]
    }
    if len(rows) < 2:
        return ""
    choose_best = max if card.higher_is_better else min
    best = choose_best(rows, key=lambda series: rows[series]["mean"])
    word = "Highest" if card.higher_is_better else "Lowest"
    said = f" {word} {metric}: {best.method} ({mean_and_interval(rows[best])})"
    if rows[best]["verdict"] and (equals := _not_apart(found, best, rows, metric)):
        said += f", with no significant difference from {in_words(equals)}"
    return f"{said}."


def _not_apart(found: Findings, best: Series, means: Iterable[Series], metric: str) -> list[str]:
    """Methods whose scores are not significantly worse than those of the best."""
    card = found.manifest.metrics[metric]
    others = [series for series in means if series != best]
    gaps = [found.scores_of(best, metric) - found.scores_of(series, metric) for series in others]
    tested = found.replicate.test(gaps, [card.higher_is_better] * len(gaps))
    return [
        series.method
        for series, verdict in zip(others, tested.verdicts, strict=True)
        if verdict != "better"
    ]


def verdicts(found: Findings) -> list[str]:
    """One sentence per method: on which metrics it is better than its matched random one."""
    said = []
    scored = len(_scored(found))
    for series in found.series:
        rows = [
            row
            for row in found.rows
            if (row["method"], row["procedure"]) == (series.method, series.procedure)
            and row["verdict"]
        ]
        if rows:
            said.append(_verdict(series.label, rows, scored))
    return said


def _verdict(label: str, rows: Sequence[Row], metrics: int) -> str:
    matched = rows[0]["matched_random"]
    words = {
        "better": f"is better than {matched} on",
        "same": f"shows no significant difference from {matched} on",
        "worse": f"is worse than {matched} on",
    }
    by = {
        verdict: [row["metric"] for row in rows if row["verdict"] == verdict] for verdict in words
    }
    said = [f"{words[verdict]} {', '.join(names)}" for verdict, names in by.items() if names]
    if len(said) == 1 and len(rows) == metrics > 1:
        verdict = rows[0]["verdict"]
        reach = "any" if verdict == "same" else "every"
        return f"{label} {words[verdict]} {reach} metric."
    return f"{label} " + "; ".join(said) + "."


def metric_verdicts(found: Findings) -> list[str]:
    """One sentence per metric (and procedure): how many methods differ from random, which way."""
    said = []
    procedures: list[str | None] = [*found.procedures] or [None]
    for metric, procedure in product(found.metrics, procedures):
        rows = [r for r in found.rows if (r["metric"], r["procedure"]) == (metric, procedure)]
        judged = [row for row in rows if row["verdict"]]
        if not judged:
            continue
        where = f"{metric} in {PROCEDURES[str(procedure)]}" if len(procedures) > 1 else metric
        ways = {way: sum(row["verdict"] == way for row in judged) for way in ("better", "worse")}
        alone = len(judged) == 1
        some = [way if alone else f"{count} {way}" for way, count in ways.items() if count]
        text = f"On {where} {_differ(sum(ways.values()), len(judged))} significantly from random"
        if some:
            text += f" ({', '.join(some)})"
        if found.manifest.metrics[metric].name == "saco":
            text += _covers_zero(found, rows)
        said.append(f"{text}.")
    return said


def _differ(count: int, total: int) -> str:
    """How many of so many methods differ, as the middle of a sentence.

    >>> _differ(0, 3), _differ(1, 3), _differ(2, 3)
    ('none of 3 methods differs', '1 of 3 methods differs', '2 of 3 methods differ')
    """
    if total == 1:
        return "the method differs" if count else "the method does not differ"
    return f"{count or 'none'} of {total} methods differ{'s' * (count <= 1)}"


def _covers_zero(found: Findings, rows: Sequence[Row]) -> str:
    """A fair SaCo of random attribution is 0."""
    random = [row for row in rows if found.manifest.methods[row["method"]].is_random]
    return "".join(
        f"; the interval of {row['method']}, [{row['ci_low']:.3f}, {row['ci_high']:.3f}], "
        f"{'includes' if row['ci_low'] <= 0 <= row['ci_high'] else 'does not include'} 0"
        for row in random
    )


def stopping(stop: Stopping, word: str) -> str:
    """Why a run with a tolerance ended where it did; `word` is what a sample is called."""
    if stop.reached:
        known = f"every mean is known to within {stop.tolerance}"
        return f"Stopped after {stop.samples:,} {word}s: {known}."
    return (
        f"All {stop.samples:,} {word}s were used, and not every mean is known to within "
        f"{stop.tolerance}."
    )


def flags(found: Findings) -> list[str]:
    """Which methods have scores with a flag, which says why they mean little."""
    total, said = len(found.replicates), []
    for (flag, count), whose in _alike(found).items():
        if flag != CONSTANT:
            of = f"{count} of {total} {found.replicate.word}s"
            said.append(f"{whose}: {of} flagged '{flag}'{_WHY.get(flag, '')}.")
    return said


_WHY = {"few_units": ", having fewer units than K (each is then a group of its own)"}


def _constant(found: Findings) -> list[str]:
    """Which methods have maps that are the same everywhere: their scores look like a true zero."""
    total, said = len(found.replicates), []
    for (flag, count), whose in _alike(found).items():
        if flag != CONSTANT:
            continue
        share = f"all {total:,} maps" if count == total else f"{count:,} of {total:,} maps"
        maps = "the map" if total == 1 else share
        are, rank = ("is", "it ranks") if count == 1 else ("are", "they rank")
        said.append(f"{whose}: {maps} {are} constant, so {rank} nothing.")
    return said


def _alike(found: Findings) -> dict[tuple[str, int], str]:
    """The methods by flag, and on how many samples they have it."""
    alike: dict[tuple[str, int], list[str]] = {}
    for (method, flag), count in sorted(_flagged(found).items()):
        alike.setdefault((flag, count), []).append(method)
    every = len(found.manifest.methods)
    return {
        key: "all methods" if 1 < len(methods) == every else ", ".join(methods)
        for key, methods in alike.items()
    }


def _flagged(found: Findings) -> Counter[tuple[str, str]]:
    """How many samples of a method have a flag."""
    return Counter(
        (method, flag)
        for method, _, flag in {
            (method, sample, flag)
            for sample, method, marks in found.marks
            if sample is not None
            for flag in marks.split(",")
        }
    )


# Doubts


def warnings(found: Findings) -> list[str]:
    """What a reader must know before trusting the numbers, a sentence each."""
    said = left_out(found.manifest.plan.left_out) + _skipped(found)
    for kind, same in groupby(found.manifest.doubts, key=lambda doubt: doubt.kind):
        if kind in _DOUBTS:
            said += [_DOUBTS[kind](found, doubt) for doubt in same]
        else:
            said.append(_DOUBTS_TOGETHER[kind](found, list(same)))
    return said + _constant(found)


def _skipped(found: Findings) -> list[str]:
    """How many samples could not be used, and why the first could not."""
    data, word = found.manifest.data, found.replicate.word
    if not data.skipped:
        return []
    first, count = data.skipped[0], len(data.skipped)
    total = counted(data.samples + count, word)
    are = "is" if count == 1 else "are"
    return [f"{count:,} of {total} {are} left out; the first, '{first.name}': {first.why}."]


def _few_seeds(found: Findings, doubt: Doubt) -> str:
    count = counted(len(found.replicates), "seed")
    return f"{count}: fewer than three give no interval and no verdict."


def _some_names(doubt: Doubt) -> str:
    """The names that a doubt gives, and how many more there are."""
    left = (doubt.count or 0) - len(doubt.names)
    return ", ".join(doubt.names) + (f" and {left:,} more" if left > 0 else "")


def _diverged(found: Findings, doubt: Doubt) -> str:
    return (
        f"{_some_names(doubt)} diverged: the cross-entropy on the test split is not "
        "finite, so their numbers mean nothing; a lower learning rate may help."
    )


def _unlearned(found: Findings, doubt: Doubt) -> str:
    metric = found.trained.metric
    base, majority = (test_score(metric, number) for number in doubt.numbers)
    return (
        f"{found.manifest.model.name} did not learn: on the intact {found.trained.card.sample}s of "
        f"{found.manifest.data.name} it reaches {base} ({TEST_METRICS[metric]}), not significantly "
        f"better than always guessing the most common class ({majority}), so there is nothing that "
        "an explanation could show."
    )


def _no_loss(found: Findings, doubt: Doubt) -> str:
    return (
        f"RACU is not defined for seed{_listed(doubt.seeds)}: masking random "
        f"{found.trained.card.units} loses no performance; left out of means and intervals."
    )


def _sign_turned(found: Findings, doubt: Doubt) -> str:
    return (
        f"RACU has the opposite sign for seed{_listed(doubt.seeds)}: with everything masked the "
        "model does better than on average."
    )


def _floored(found: Findings, doubt: Doubt) -> str:
    return (
        f"Random masking loses almost everything at its first level ({doubt.levels[0]} %) with "
        f"seed{_listed(doubt.seeds)}: RACU divides by little there, so read it with care."
    )


def _clipped(found: Findings, doubts: Sequence[Doubt]) -> str:
    by_seed = {
        seed: [f"{case.method} ({case.procedure})" for case in doubts if seed in case.seeds]
        for seed in sorted({seed for case in doubts for seed in case.seeds})
    }
    cases = "; ".join(f"seed {seed}, {', '.join(names)}" for seed, names in by_seed.items())
    return f"RACU was beyond ±100 % and is clipped to it: {cases}."


def _counted(found: Findings, doubt: Doubt) -> str:
    return (
        f"RACU is not defined where {found.trained.card.units} are counted, since not all of "
        "them are masked in the end: verdicts are by where the curves end."
    )


def _rising(found: Findings, doubt: Doubt) -> str:
    unit = " %" if found.trained.is_relative else f" {found.trained.card.units}"
    start, stop = doubt.levels
    return (
        f"{doubt.method} ({doubt.procedure}): performance rises by "
        f"{test_difference(found.trained.metric, doubt.numbers[0])} from {start} to {stop}{unit} "
        "masked, so what is masked may give the class away."
    )


def _recovery(found: Findings, doubts: Sequence[Doubt]) -> str:
    cases = []
    for case in doubts[:RECOVERIES]:
        low, high = (
            f"{test_score(found.trained.metric, number)} at {level} %"
            for number, level in zip(case.numbers, case.levels, strict=True)
        )
        cases.append(f"{case.method} ({case.procedure}), seed {case.seeds[0]}: {low}, {high}")
    if more := len(doubts) - len(cases):
        cases.append(f"and {more:,} more")
    answers = Counter(row["measure"] for row in found.trained.one_class())
    counts = ", ".join(f"{measure} {count:,}" for measure, count in answers.items())
    card = found.trained.card
    other = f" Trainings on masked {card.sample}s that answer one class only: {counts}."
    other = other if answers else ""
    return (
        f"Performance falls to guessing and is higher again with more masked, which lost "
        f"{card.units} cannot do: a training failed there or the masks give the class away, and "
        f"RACU takes the fall for {card.units} that mattered ({'; '.join(cases)}).{other}"
    )


def _truncated(found: Findings, doubt: Doubt) -> str:
    return f"{doubt.count:,} of {doubt.total:,} texts are longer than the model reads and were cut."


def left_out(methods: Iterable[Left]) -> list[str]:
    """Which methods were left out of a run and why; those with the same reason in one sentence.

    In a reason "it" is the model, and the method that needs something is named.

    >>> reason = "needs a ViT, but ResNet is none"
    >>> left_out([Left(name=name, why=f"The method '{name}' {reason}") for name in ("a", "b")])
    ['a and b are left out: each needs a ViT, but ResNet is none.']
    """
    by_reason: dict[str, list[Left]] = {}
    for held in methods:
        reason = re.sub("^its ", "the model's ", re.sub("^it ", "the model ", held.why))
        label, bare = re.escape(held.name), re.escape(held.name.partition("(")[0])
        reason = re.sub(f"^(The \\w+ '{label}'|{bare}\\b)", "…", reason)
        by_reason.setdefault(reason, []).append(held)
    said = []
    for reason, alike in by_reason.items():
        single = len(alike) == 1
        why = re.sub("^…", "it" if single else "each", reason)
        names = in_words(held.name for held in alike)
        said.append(f"{names} {'is' if single else 'are'} left out: {why}.")
    return said


def failed_line(failed: Failed) -> str:
    """A sample on which something failed: which, of which method, and why."""
    method = f" ({failed.method})" if failed.method else ""
    return f"{failed.sample}{method}: {failed.why}"


def probabilities(model: str, output: str) -> str:
    """A model that has its softmax or sigmoid in itself."""
    return (
        f"{model} seems to return probabilities, not logits: remove its last {output}, or every "
        "score is of probabilities of probabilities."
    )


def _probabilities(found: Findings, doubt: Doubt) -> str:
    return probabilities(found.manifest.model.name, doubt.names[0])


def _refilled(found: Findings, doubt: Doubt) -> str:
    return (
        f"{found.manifest.model.name} pools patches and has none when all are dropped: there it "
        f"was given the mean fill, and scores that read that answer are flagged '{doubt.names[0]}'."
    )


def _failed(found: Findings, doubt: Doubt) -> str:
    return (
        f"The model or a method failed on {doubt.count:,} of "
        f"{counted(doubt.total or 0, found.replicate.word)} "
        f"({_some_names(doubt)}), which have no score there: means and tests leave them "
        "out, pair by pair."
    )


def _undefined(found: Findings, doubt: Doubt) -> str:
    return (
        f"Some score of {doubt.count:,} of {counted(doubt.total or 0, found.replicate.word)} "
        f"({_some_names(doubt)}) is not defined, because a map or an answer of the model "
        "holds NaN: means and tests leave them out, pair by pair."
    )


def precision_notes(found: Findings) -> list[str]:
    """Methods whose maps were made in a coarser format than the model has."""
    by_format: dict[str, list[str]] = {}
    for label, card in found.manifest.methods.items():
        if card.precision in ("tf32", "fp16", "bf16"):
            by_format.setdefault(card.precision, []).append(label)
    return [
        f"Maps of {in_words(labels)} were made in {name}: means hardly differ from those in "
        f"float64, the score of a single {found.replicate.word} may."
        for name, labels in by_format.items()
    ]


def overflow_note(label: str, count: int, sample: str) -> str:
    """What was explained again, since half precision could not hold its gradients.

    >>> overflow_note("captum", 2, "image")
    'Half precision overflowed in captum on 2 images, which were explained again without it.'
    """
    many = f"{counted(count, sample)}, which {'was' if count == 1 else 'were'}"
    return f"Half precision overflowed in {label} on {many} explained again without it."


def _overflowed(found: Findings, doubt: Doubt) -> str:
    return overflow_note(doubt.method or "", doubt.count or 0, found.replicate.word)


_DOUBTS = {
    "probabilities": _probabilities,
    "refilled": _refilled,
    "failed": _failed,
    "undefined": _undefined,
    "overflowed": _overflowed,
    "few_seeds": _few_seeds,
    "diverged": _diverged,
    "unlearned": _unlearned,
    "no_loss": _no_loss,
    "sign_turned": _sign_turned,
    "floored": _floored,
    "counted": _counted,
    "rising": _rising,
    "truncated": _truncated,
}
"""The sentence for every kind of doubt."""
_DOUBTS_TOGETHER = {"clipped": _clipped, "recovery": _recovery}
"""The same for those that share one sentence."""


def ends_sentence(found: Findings) -> str:
    """How models of unmasked and of fully masked data do."""
    curves = found.trained
    said = f"Unmasked the models reach {test_score(curves.metric, curves.at_level(0)['mean'])}"
    masked = curves.at_level(100)["mean"]
    if not math.isnan(masked):
        said += f", with every {curves.card.unit} masked {test_score(curves.metric, masked)}"
    majority = test_score(curves.metric, curves.card.majority.score)
    name = TEST_METRICS[curves.metric]
    return f"{said} ({name}); the most common class alone would score {majority}."


# Numbers and names in words


def test_score(metric: str, value: float) -> str:
    """A test metric: in percent, but for the cross-entropy."""
    if metric == "cross_entropy":
        return "—" if math.isnan(value) else f"{value:.3f}"
    return percent(value)


def test_difference(metric: str, value: float) -> str:
    """A difference of a test metric: in points, but for the cross-entropy.

    >>> test_difference("accuracy", 0.246)
    '24.6 points'
    """
    return f"{value:.3f}" if metric == "cross_entropy" else f"{100 * value:.1f} points"


def percent(value: float) -> str:
    """A share as people write it.

    >>> percent(0.0785), percent(-0.0123)
    ('7.8 %', '−1.2 %')
    """
    return "—" if math.isnan(value) else f"{100 * value:z.1f} %".replace("-", "−")


def mean_and_interval(row: Row) -> str:
    """A mean and its interval, if it has one."""
    if not row["n"]:
        return "—"
    if math.isnan(row["ci_low"]):
        return f"{row['mean']:z.3f}"
    return f"{row['mean']:z.3f} [{row['ci_low']:z.3f}, {row['ci_high']:z.3f}]"


def written_p(p_value: float) -> str:
    """A p-value in words.

    >>> written_p(0.03), written_p(0.0001)
    ('p = 0.030', 'p < 0.001')
    """
    if math.isnan(p_value):
        return "no p"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things.

    >>> counted(1, "image"), counted(1200, "model pass", "model passes")
    ('1 image', '1,200 model passes')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def named(names: Sequence[str], most: int = 3) -> str:
    """Names in brackets, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f" ({', '.join(names[:most])}{more})"


def in_words(names: Iterable[str]) -> str:
    """Names as they are said.

    >>> in_words(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    return by_method


def _listed(seeds: Sequence[int]) -> str:
    """Seeds after the word for them.

    >>> "seed" + _listed([1, 2])
    'seeds 1, 2'
    """
    return f"{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
