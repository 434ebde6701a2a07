"""A run, or two compared, on one screen: the same words in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from faithscope.markup import bullets, card, facts, tag
from faithscope.report.table import MARKS, SIGNS, Table
from faithscope.report.tables import (
    WAYS,
    choices_of,
    comparison_table,
    difference_words,
    marks,
    marks_of_two,
    scores_table,
)
from faithscope.verdicts import sentences
from faithscope.verdicts.compare import Differences
from faithscope.verdicts.findings import Findings
from faithscope.verdicts.sentences import counted, percent


@dataclass(frozen=True, eq=False)
class Summary:
    """What is said of a run, from its heading to its verdict.

    `heading` says what was measured and how, `key` what the numbers are, `marks` what the signs
    beside them mean, `said` what else was found, `warnings` what to know before trusting them.
    """

    heading: Mapping[str, str]
    table: Table
    key: str
    marks: Callable[[Mapping[str, str]], str] | None
    said: Sequence[str]
    warnings: Sequence[str]
    headline: str
    verdicts: Sequence[str]

    def keys(self, signs: Mapping[str, str] = SIGNS) -> list[str]:
        """How to read the table, whose signs may be others on a page."""
        return [f"{text}." for text in (self.key, self.marks and self.marks(signs)) if text]

    def html(self) -> str:
        """For a notebook: the headline first."""
        return card(
            self.headline,
            *(tag("p", line, class_="warning") for line in self.warnings),
            tag("div", replace(self.table, is_sortable=False).html(), class_="scroll"),
            tag("p", tag("small", " ".join(self.keys(MARKS)))),
            *(tag("p", line) for line in self.said),
            bullets("Verdicts", self.verdicts),
            tag("small", facts(self.heading)),
        )


def summary_of(found: Findings) -> Summary:
    """What is said of one run."""
    has_marks = any(row["verdict"] for row in found.rows)
    said = [sentences.ends_sentence(found)] if found.trainings.num_rows else []
    if found.manifest.stopping is not None:
        said.append(sentences.stopping(found.manifest.stopping, found.manifest.sample))
    headline = sentences.headline(found)
    noted = (*sentences.flags(found), *sentences.warnings(found))
    return Summary(
        heading={"run": heading_of(found), "protocol": " · ".join(choices_of(found))},
        table=scores_table(found),
        key=f"Mean with its 95 % interval over {found.replicate.word}s; {WAYS}",
        marks=partial(marks, found) if has_marks else None,
        said=said,
        warnings=[line for line in noted if line not in headline],
        headline=headline,
        verdicts=[*sentences.verdicts(found), *sentences.metric_verdicts(found)],
    )


def heading_of(found: Findings) -> str:
    """The model, the data and how much of it."""
    model, data = found.manifest.model, found.manifest.data
    is_untrained = model.weights == "random" and model.recipe is None
    untrained = ", random weights," if is_untrained else ""
    right = "" if data.accuracy is None else f" (accuracy {percent(data.accuracy)})"
    count = counted(len(found.replicates), found.replicate.word)
    return f"{model.name}{untrained} on {data.name}: {count}{right}"


def summary_of_two(compared: Differences) -> Summary:
    """What is said of the second run against the first."""
    return Summary(
        heading={
            "first": heading_of(compared.first),
            "second": heading_of(compared.second),
            "differs": "; ".join(compared.differs) or "nothing",
            "shared": _shared(compared),
        },
        table=comparison_table(compared),
        key=difference_words(compared),
        marks=partial(marks_of_two, compared),
        said=(),
        warnings=[*_left_out(compared), *compared.notes],
        headline=compared.headline(),
        verdicts=compared.sentences(),
    )


def _shared(compared: Differences) -> str:
    alone = {"first": compared.only_first, "second": compared.only_second}
    lone = [f"{count:,} only in the {place} run" for place, count in alone.items() if count]
    shared = counted(len(compared.replicates), compared.replicate.word)
    return f"{shared}, {' and '.join(lone)}" if lone else shared


def _left_out(compared: Differences) -> list[str]:
    kinds = {"method": compared.lone_methods, "metric": compared.lone_metrics}
    return [
        f"{counted(len(names), kind)} in only one run left out: {', '.join(names)}."
        for kind, names in kinds.items()
        if names
    ]
