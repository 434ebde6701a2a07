"""ROAR runs as the page on text reads them: summaries, the paper's numbers, how both are written.

Runs are the files roar_*.json of studies/results (studies/summarise_roar.py); one that is missing
is left out. The paper's numbers are those of studies/paper/recursive_roar.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from filling import ROOT, Row, Study, Summaries, listed, number, rows_of
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEASURES = {
    "attention": "attention",
    "gradient": "gradient",
    "input_x_gradient": "input × gradient",
    "integrated_gradients": "integrated gradients",
}
"""The measures of the paper and how the page writes them."""
OTHER = {"mutual_information": "mutual information", "random": "random"}
WORDS = {**MEASURES, **OTHER}
PROCEDURES = {"recursive": "Recursive ROAR", "roar": "ROAR"}
METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "micro_f1": "micro-F1"}
ENDS = ("mean", "ci_low", "ci_high")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SEEDS = "roar_babi1_seeds"
BASES = "roar_bases"


@dataclass(frozen=True)
class Known:
    """A run that the page knows: the paper's data set and model, and what stands in for what."""

    dataset: str
    model: str
    ours: str = "BiLSTM-attention"
    instead: str = ""


MINILM = "MiniLM-L6"
GLOVE = "word vectors: GloVe, 100 numbers a word, for the paper's fastText, 300"
RUNS: Mapping[str, Known] = {
    "roar_babi1": Known("bAbI-1", "bilstm"),
    "roar_babi2": Known("bAbI-2", "bilstm"),
    "roar_sst": Known("SST", "bilstm", instead=GLOVE),
    "roar_sst_minilm": Known("SST", "roberta", MINILM, f"{MINILM} for RoBERTa-base"),
    "roar_imdb": Known("IMDB", "bilstm", instead=GLOVE),
    "roar_babi1_count": Known("bAbI-1", "bilstm"),
    "roar_sst_count": Known("SST", "bilstm", instead=GLOVE),
}
"""Every run of the page by the name of its summary; those that count tokens end in _count."""


@cache
def paper() -> Mapping[str, Any]:
    """The paper's numbers by data set."""
    file = ROOT / "studies" / "paper" / "recursive_roar.json"
    found: Mapping[str, Any] = json.loads(file.read_text())["datasets"]
    return found


def published(triple: Sequence[float] | None) -> Row | None:
    """The paper's mean and interval in % as a row."""
    if triple is None:
        return None
    return dict(zip(ENDS, (value / 100 for value in triple), strict=True))


@dataclass(frozen=True, eq=False)
class Run:
    """A run's summary with the paper's numbers beside it.

    Measures go by their plain names; options such as steps=20 are in `options`.
    """

    name: str
    study: Study

    @property
    def known(self) -> Known:
        """What the page knows of it."""
        return RUNS[self.name]

    @property
    def title(self) -> str:
        """Data set and model, as headings have them."""
        return f"{self.known.dataset}, {self.known.ours}"

    @property
    def short(self) -> str:
        """Data set, and the model where it is not the usual one."""
        other = self.known.ours != "BiLSTM-attention"
        return f"{self.known.dataset} ({self.known.ours})" if other else self.known.dataset

    @property
    def paper(self) -> Mapping[str, Any]:
        """The paper's numbers of the data set."""
        found: Mapping[str, Any] = paper()[self.known.dataset]
        return found

    @property
    def theirs(self) -> Mapping[str, Any]:
        """The paper's numbers of the data set and model."""
        found: Mapping[str, Any] = self.paper[self.known.model]
        return found

    @property
    def metric(self) -> str:
        """The task metric in words."""
        return METRICS[self.study["data"]["metric"]]

    @property
    def levels(self) -> list[int]:
        """Levels of masking, from 0."""
        return list(self.study["protocol"]["levels"])

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return list(self.study["protocol"]["seeds"])

    @property
    def procedures(self) -> list[str]:
        """What was run of both procedures, Recursive ROAR first."""
        return [name for name in PROCEDURES if name in self.study["protocol"]["procedures"]]

    @property
    def is_relative(self) -> bool:
        """Whether levels are percents, which RACU needs."""
        return bool(self.study["protocol"]["strategy"] == "relative")

    @property
    def is_learnt(self) -> bool:
        """Whether models of the intact texts know more than the largest class."""
        return bool(self.study.get("learnt", True))

    @property
    def is_told(self) -> bool:
        """Whether it has seeds enough for intervals, and models that learnt something."""
        return len(self.seeds) >= fewest() and self.is_learnt

    @property
    def options(self) -> list[str]:
        """Measures that were given options, as they were asked for."""
        return [name for name in self.study["protocol"]["measures"] if "(" in name]

    @property
    def measures(self) -> list[str]:
        """The paper's measures among those that were run, in its order."""
        asked = {plain(name) for name in self.study["protocol"]["measures"]}
        return [name for name in MEASURES if name in asked]

    @property
    def all_measures(self) -> list[str]:
        """Every measure that the page has a name for, random last."""
        asked = {plain(name) for name in self.study["protocol"]["measures"]}
        return [name for name in WORDS if name in asked]

    def has(self, measure: str, procedure: str = "recursive") -> bool:
        """Whether it was run."""
        return procedure in self.procedures and measure in self.all_measures

    def rows(self, part: str) -> list[dict[str, Any]]:
        """A table of the summary, measures by their plain names."""
        return self._tables[part]

    @cached_property
    def _tables(self) -> dict[str, list[dict[str, Any]]]:
        tables = {key: value for key, value in self.study.items() if _is_table(value)}
        return {
            key: [
                {name: plain(v) if name in ("measure", "other") else v for name, v in row.items()}
                for row in rows_of(value)
            ]
            for key, value in tables.items()
        }

    def find(self, part: str, **wanted: Any) -> dict[str, Any] | None:
        """The row with these values, if there is one."""
        rows = self.rows(part)
        return next((r for r in rows if all(r[key] == v for key, v in wanted.items())), None)

    def racu(self, measure: str, procedure: str = "recursive") -> Row | None:
        """RACU with its interval, if it has one, and its values by seed."""
        kind = {"measure": measure, "procedure": procedure}
        row = self.find("racu", **kind)
        if row is None or row["mean"] is None:
            return None
        own = [r for r in self.rows("racu_by_seed") if all(r[k] == v for k, v in kind.items())]
        return {**row, "values": [r["racu"] for r in own if r["racu"] is not None]}

    def values(self, measure: str, procedure: str = "recursive") -> Array:
        """The task metric [seeds, levels]."""
        kind = {"measure": measure, "procedure": procedure}
        own = [r for r in self.rows("values") if all(r[key] == v for key, v in kind.items())]
        return np.array([[r[str(k)] for k in self.levels] for r in own], dtype=np.float64)

    def point(self, measure: str, k: int, procedure: str = "recursive") -> Row:
        """A point of a curve with its interval and its values by seed."""
        own = self.values(measure, procedure)[:, self.levels.index(k)]
        row = self.find("curves", measure=measure, procedure=procedure, k=k)
        return {**(row or {}), "values": own.tolist()}

    def between(self, first: str, second: str, procedure: str = "recursive") -> Row | None:
        """RACU of the second measure less that of the first, paired by seed."""
        for one, two in ((first, second), (second, first)):
            row = self.find("measures", procedure=procedure, measure=one, other=two)
            if row is not None and row["difference"] is not None:
                found = {
                    **row,
                    "mean": row["difference"],
                    "values": self._gaps(one, two, procedure),
                }
                return found if one == first else turned(found)
        return None

    def _gaps(self, first: str, second: str, procedure: str) -> list[float]:
        """The same seed by seed."""
        one, two = (
            {r["seed"]: r["racu"] for r in self.rows("racu_by_seed") if _is(r, name, procedure)}
            for name in (first, second)
        )
        return [two[s] - one[s] for s in one if None not in (one[s], two.get(s))]

    def time(self, measure: str) -> Row | None:
        """Seconds of a step: explain a model, train the next."""
        return self.find("time", measure=measure)


def _is(row: Row, measure: str, procedure: str) -> bool:
    return bool(row["measure"] == measure and row["procedure"] == procedure)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and "columns" in value


def plain(measure: Any) -> Any:
    """A measure without its options.

    >>> plain("integrated_gradients(steps=20)")
    'integrated_gradients'
    """
    return measure.partition("(")[0] if isinstance(measure, str) else measure


def runs(have: Summaries, *, relative: bool = True) -> list[Run]:
    """The runs that are there: in percents, or in tokens."""
    found = [Run(name, have.studies[name]) for name in RUNS if name in have.studies]
    return [run for run in found if run.is_relative == relative]


def told(have: Summaries) -> list[Run]:
    """Runs by Recursive ROAR in percents from which something can be concluded."""
    return [run for run in runs(have) if run.is_told and "recursive" in run.procedures]


def mean_racu(run: Run, measure: str) -> float:
    """RACU by Recursive ROAR, the lowest possible where there is none."""
    row = run.racu(measure)
    return -np.inf if row is None else float(row["mean"])


def ranked(run: Run) -> list[str]:
    """The paper's measures from the highest RACU down."""
    return sorted(run.measures, key=lambda name: -mean_racu(run, name))


def ahead_of(run: Run, measure: str) -> dict[str, Row]:
    """The paper's measures that are surely ahead of one, and by how much."""
    others = {name: run.between(measure, name) for name in run.measures if name != measure}
    return {name: gap for name, gap in others.items() if gap is not None and above(gap)}


# Numbers over seeds


def fewest() -> int:
    """Seeds that an interval needs."""
    from faithscope.metrics.racu import FEWEST_SEEDS

    return FEWEST_SEEDS


def with_interval(values: Sequence[float] | Array) -> Row:
    """A mean over seeds with its 95 % interval; fewer than three have none, but are kept."""
    from faithscope.metrics.racu import told_interval

    known = [float(value) for value in values if np.isfinite(value)]
    if not known:
        return {**dict.fromkeys(ENDS), "values": []}
    ends = (None if np.isnan(end) else end for end in told_interval(known))
    return {**dict(zip(ENDS, ends, strict=True)), "values": known}


def welch(one: Sequence[float], other: Sequence[float], comparisons: int = 1) -> Row:
    r"""The mean of the second less that of the first, unpaired, with Welch's interval.

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
    """A difference the other way round."""
    low, high = (None if row[end] is None else -row[end] for end in ("ci_high", "ci_low"))
    values = [-value for value in row["values"]]
    return {**row, "mean": -row["mean"], "ci_low": low, "ci_high": high, "values": values}


def above(row: Row | None, limit: float = 0.0) -> bool:
    """Whether an interval lies above a limit; one that is not there does not."""
    return row is not None and row["ci_low"] is not None and bool(row["ci_low"] > limit)


def below(row: Row | None, limit: float = 0.0) -> bool:
    """Whether an interval lies below a limit; one that is not there does not."""
    return row is not None and row["ci_high"] is not None and bool(row["ci_high"] < limit)


def overlap(one: Row, other: Row, slack: float = 0.0) -> bool:
    """Whether two intervals have something in common, or would if one moved by the slack."""
    return bool(
        one["ci_low"] <= other["ci_high"] + slack and other["ci_low"] <= one["ci_high"] + slack
    )


# How numbers are written


def shown(row: Row | None, sign: str = "") -> str:
    """A share in % with its interval, or with its single seeds where they are fewer than three.

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
    return "yes" if holds else "**no**"


def named(measures: Iterable[str]) -> str:
    """Measures as a sentence has them."""
    return listed([WORDS[name] for name in measures])


def count(value: int, word: str) -> str:
    """A number of things in words.

    >>> count(1, "seed"), count(3, "seed"), count(12, "run")
    ('one seed', 'three seeds', '12 runs')
    """
    return f"{NUMBERS[value] if value < len(NUMBERS) else value} {word}{'s' * (value != 1)}"


def spread(values: Iterable[float]) -> str:
    """From the smallest to the largest, in %."""
    known = sorted(values)
    return f"{number(100 * known[0], 1)} to {number(100 * known[-1], 1)}"
