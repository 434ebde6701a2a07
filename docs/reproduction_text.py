"""The blocks of reproduction_text.md by name, filled in by docs/reproduction.py.

text_runs.py reads runs and the paper's numbers, text_numbers.py has intervals and formatting;
text_findings.py, text_curves.py and text_leakage.py judge the six findings; text_tables.py,
text_table2.py, text_appendix.py and text_babi1.py make the sections, text_figures.py the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from filling import Summaries, listed
from text_appendix import (
    text_bases,
    text_commands,
    text_cost,
    text_count,
    text_procedures,
    text_sparsity,
    text_time,
)
from text_babi1 import text_babi1
from text_figures import draw_text
from text_findings import text_findings, verdict_lines
from text_runs import runs
from text_table2 import overlaps, text_doubts, text_racu
from text_tables import text_by_run, text_chance, text_ends, text_overview, text_runs

__all__ = ["TEXT_BLOCKS", "draw_text"]


def text_short(have: Summaries) -> str:
    """A short version for the page on images."""
    names = [run.short for run in runs(have)]
    agreeing, compared = overlaps(have)
    return (
        f"Run here: {listed(names)}. {agreeing} of {compared} comparable intervals of RACU overlap "
        f"those of the paper's Table 2. Its six findings:\n\n"
        f"{verdict_lines(have)}\n\n"
        "![RACU of every run compared with the paper's](images/reproduction-text-racu.png)"
    )


TEXT_BLOCKS: Mapping[str, Callable[[Summaries], str]] = {
    "text in short": text_short,
    "text runs": text_runs,
    "text chance": text_chance,
    "text ends": text_ends,
    "text findings": text_findings,
    "text racu": text_racu,
    "text overview": text_overview,
    "text by run": text_by_run,
    "text babi1": text_babi1,
    "text procedures": text_procedures,
    "text count": text_count,
    "text sparsity": text_sparsity,
    "text time": text_time,
    "text cost": text_cost,
    "text bases": text_bases,
    "text doubts": text_doubts,
    "text commands": text_commands,
}
