"""Tables of a run, their statistics, saving and loading."""

from faithscope.results.compare import Comparison, compare
from faithscope.results.compare_roar import RoarComparison
from faithscope.results.result import FORMAT, Result, format_cell
from faithscope.results.runs import RoarRuns, Runs, load_result, load_results
from faithscope.results.schema import SCHEMAS
from faithscope.results.sensitivity import ks_of, sensitivity_rows, telling_names
from faithscope.results.stats import bootstrap_interval, holm, paired_p_values

__all__ = [
    "FORMAT",
    "SCHEMAS",
    "Comparison",
    "Result",
    "RoarComparison",
    "RoarRuns",
    "Runs",
    "bootstrap_interval",
    "compare",
    "format_cell",
    "holm",
    "ks_of",
    "load_result",
    "load_results",
    "paired_p_values",
    "sensitivity_rows",
    "telling_names",
]
