"""ROAR runs for the page on text: summaries and the paper's numbers.

Runs are the files roar_*.json of studies/results (studies/summarise_roar.py); one that is missing
is left out. The paper's numbers are those of studies/paper/recursive_roar.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from filling import ROOT, Row, Study, Summaries, listed, rows_of
from text_numbers import ENDS, Array, above, count, fewest, turned, with_interval

MEASURES = {
    "attention": "attention",
    "gradient": "gradient",
    "input_x_gradient": "input × gradient",
    "integrated_gradients": "integrated gradients",
}
"""The measures of the paper and their names on the page."""
OTHER = {"mutual_information": "mutual information", "random": "random"}
WORDS = {**MEASURES, **OTHER}
MUTUAL = "mutual_information"
MODELS = {"bilstm": "BiLSTM-attention", "roberta": "RoBERTa"}
PROCEDURES = {"recursive": "Recursive ROAR", "roar": "ROAR"}
METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "micro_f1": "micro-F1"}
SEEDS = "roar_babi1_seeds"
LEAKAGE, EARLIER = "roar_babi1_leakage", "roar_babi1_leakage_40"
BASES = "roar_bases"
CHANCE = "interval_chance"
ELEVEN = tuple(range(0, 101, 10))
"""Levels of the paper's Table 2."""
WIDEST = 20
"""The largest gap between two levels, in points, for a RACU comparable with Table 2."""
TOKENS = 10
"""Tokens that the paper masks one by one."""


@dataclass(frozen=True)
class Known:
    """A run that the page knows: the paper's data set and model, and what replaces what."""

    dataset: str
    model: str
    ours: str = "BiLSTM-attention"
    instead: str = ""


AGREES, PART, INCONCLUSIVE, NOT = "agrees", "agrees in part", "inconclusive", "disagrees"


class Finding(NamedTuple):
    """A finding of the paper, our verdict on it, why, and the numbers as a table."""

    claim: str
    verdict: str
    said: str
    numbers: str = ""

    def section(self, place: int) -> str:
        """The section on the page."""
        parts = [f"### {place}. {self.claim}: {self.verdict}", self.said, self.numbers]
        return "\n\n".join(part for part in parts if part)


MINILM = "MiniLM-L6"
GLOVE = "GloVe word vectors (100 dimensions) for the paper's fastText (300)"
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
    """A run's summary, with the paper's numbers.

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
        """Data set and model, for headings."""
        return f"{self.known.dataset}, {self.known.ours}"

    @property
    def short(self) -> str:
        """Data set, and the model if it is not BiLSTM-attention."""
        other = self.known.ours != "BiLSTM-attention"
        return f"{self.known.dataset} with {self.known.ours}" if other else self.known.dataset

    @property
    def with_seeds(self) -> str:
        """The same, with the number of seeds if they are too few for an interval."""
        few = len(self.seeds) < fewest()
        return f"{self.short} ({count(len(self.seeds), 'seed')})" if few else self.short

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
        """The procedures that were run, Recursive ROAR first."""
        return [name for name in PROCEDURES if name in self.study["protocol"]["procedures"]]

    @property
    def is_relative(self) -> bool:
        """Whether levels are percentages, which RACU needs."""
        return bool(self.study["protocol"]["strategy"] == "relative")

    @property
    def is_full(self) -> bool:
        """Whether it has the eleven levels of Table 2."""
        return self.levels == list(ELEVEN)

    @property
    def is_comparable(self) -> bool:
        """Whether its levels are close enough to each other for Table 2."""
        return self.is_relative and is_dense(self.levels)

    @property
    def cut_at(self) -> int | None:
        """The last level before a run was cut off, if it was."""
        if not self.is_relative:
            return self.levels[-1] if self.levels[-1] < TOKENS else None
        *gaps, last = np.diff(self.levels).tolist()
        return self.levels[-2] if gaps and last > max(gaps) else None

    @property
    def is_learnt(self) -> bool:
        """Whether models of the intact texts do better than the largest class alone."""
        return bool(self.study.get("learnt", True))

    @property
    def is_conclusive(self) -> bool:
        """Whether it has enough seeds for intervals, and models that learnt something."""
        return len(self.seeds) >= fewest() and self.is_learnt

    @property
    def options(self) -> list[str]:
        """Measures with options, as requested."""
        return [name for name in self.study["protocol"]["measures"] if "(" in name]

    @property
    def measures(self) -> list[str]:
        """The paper's measures among those that were run, in its order."""
        asked = {plain(name) for name in self.study["protocol"]["measures"]}
        return [name for name in MEASURES if name in asked]

    @property
    def all_measures(self) -> list[str]:
        """Every measure that the page knows, random last."""
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
        """RACU of the second measure minus that of the first, paired by seed."""
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


def is_dense(levels: Sequence[int]) -> bool:
    """Whether levels go from 0 to 100 % without a wide gap.

    >>> is_dense([0, 10, 30, 50, 70, 90, 100]), is_dense([0, 10, 20, 30, 40, 100])
    (True, False)
    """
    reach = levels[0] == 0 and levels[-1] == 100
    return reach and bool(np.diff(levels).max() <= WIDEST)


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
    """The available runs: in percent, or in tokens."""
    found = [Run(name, have.studies[name]) for name in RUNS if name in have.studies]
    return [run for run in found if run.is_relative == relative]


def conclusive(have: Summaries) -> list[Run]:
    """Runs of Recursive ROAR in percent that give verdicts."""
    own = [run for run in runs(have) if run.is_conclusive and run.is_comparable]
    return [run for run in own if "recursive" in run.procedures]


def inconclusive(have: Summaries) -> list[Run]:
    """Runs in percent that learnt, but have too few seeds or levels for a verdict."""
    known = {run.name for run in conclusive(have)}
    return [run for run in runs(have) if run.is_learnt and run.name not in known]


def published_racu(run: Run, measure: str) -> Row | None:
    """The paper's RACU, if it prints one and the run's levels can be compared with its own."""
    return published(run.theirs["racu"].get(measure)) if run.is_comparable else None


def racu_over(run: Run, measure: str, levels: Sequence[int]) -> list[float]:
    """RACU by seed over some of a run's levels, by Recursive ROAR, clipped as in Table 2."""
    return racu_of(run, run.values(measure), levels)


def racu_of(run: Run, curve: Array, levels: Sequence[int]) -> list[float]:
    """The same for given curves [seeds, levels] instead of a measure."""
    import torch

    from faithscope.metrics.racu import racu

    places = [run.levels.index(k) for k in levels]
    own, random = (torch.as_tensor(part[:, places]) for part in (curve, run.values("random")))
    ratios = torch.tensor(levels, dtype=torch.float64) / 100
    return [float(value) for value in racu(own, random, ratios)]


def racu_row_over(run: Run, measure: str, levels: Sequence[int]) -> Row:
    """Its mean and interval: the run's own if no level is left out, as in the rows of Table 2.

    Computed again from rounded numbers, an interval over few seeds may change.
    """
    row = run.racu(measure) if list(levels) == run.levels else None
    return row or with_interval(racu_over(run, measure, levels))


def moved(have: Summaries, levels: Sequence[int]) -> float | None:
    """The largest change of RACU when levels are left out of a run that has all eleven."""
    own = [run for run in runs(have) if run.is_full and run.is_learnt and run.has("random")]
    gaps = [
        float(np.mean(racu_over(run, name, levels)) - np.mean(racu_over(run, name, ELEVEN)))
        for run in own
        for name in run.measures
    ]
    return max(map(abs, gaps)) if gaps else None


def level_words(run: Run) -> str:
    """The levels of a run in words."""
    unit = "%" if run.is_relative else "tokens"
    steps = f", steps of {run.levels[1] - run.levels[0]}" * (" to " in level_span(run.levels))
    return f"{level_span(run.levels)} {unit}{steps}"


def level_span(levels: Sequence[int]) -> str:
    """Levels, abbreviated if they are evenly spaced except for the last.

    >>> level_span([0, 10, 20, 30]), level_span([0, 10, 20, 30, 100]), level_span([0, 10, 30, 50])
    ('0 to 30', '0 to 30 and 100', '0, 10, 30, 50')
    """
    steps = np.diff(levels).tolist()
    if len(set(steps)) == 1:
        return f"{levels[0]} to {levels[-1]}"
    if len(set(steps[:-1])) == 1 and len(steps) > 3:
        return f"{levels[0]} to {levels[-2]} and {levels[-1]}"
    return ", ".join(map(str, levels))


def mean_racu(run: Run, measure: str) -> float:
    """RACU by Recursive ROAR, minus infinity if there is none."""
    row = run.racu(measure)
    return -np.inf if row is None else float(row["mean"])


def ranked(run: Run) -> list[str]:
    """The paper's measures by descending RACU."""
    return sorted(run.measures, key=lambda name: -mean_racu(run, name))


def ahead_of(run: Run, measure: str) -> dict[str, Row]:
    """The paper's measures that are significantly above one, and by how much."""
    others = {name: run.between(measure, name) for name in run.measures if name != measure}
    return {name: gap for name, gap in others.items() if gap is not None and above(gap)}


def theirs_ranked(run: Run) -> list[str]:
    """The same in the paper."""
    return sorted(run.measures, key=lambda name: -float(run.theirs["racu"][name][0]))


def named(measures: Iterable[str]) -> str:
    """Measures joined as in a sentence."""
    return listed([WORDS[name] for name in measures])
