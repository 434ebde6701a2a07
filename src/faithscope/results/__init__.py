"""Tables of a run, their statistics, saving and loading."""

from faithscope.results.result import FORMAT, SCHEMAS, Result, format_cell, load_result
from faithscope.results.stats import bootstrap_interval, holm, paired_p_values

__all__ = [
    "FORMAT",
    "SCHEMAS",
    "Result",
    "bootstrap_interval",
    "format_cell",
    "holm",
    "load_result",
    "paired_p_values",
]
