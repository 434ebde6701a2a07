"""faithscope: does this explanation tell the truth about this model?

Nothing heavy is imported until a name is used, so that the command line answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faithscope.version import __version__ as __version__

if TYPE_CHECKING:
    from faithscope.api import evaluate, explain, roar
    from faithscope.cli.synthetic import synthetic_problem
    from faithscope.data import load_data
    from faithscope.data.text_sources import load_text
    from faithscope.errors import FaithscopeError
    from faithscope.methods import Evidence, Method, layer_method, method, register_method
    from faithscope.methods.text import TokenMethod, measure, register_measure
    from faithscope.metrics import Metric, metric, racu, register_metric, saco
    from faithscope.models import Model, load_model, wrap
    from faithscope.probes.perturb.evaluation import Evaluation, Forecast, prepare
    from faithscope.probes.retrain.result import RoarResult
    from faithscope.probes.retrain.roar import prepare_roar
    from faithscope.result import Result
    from faithscope.studies import Study, load_study, run_study
    from faithscope.studies.roar import RoarStudy
    from faithscope.studies.runs import load_result, load_results
    from faithscope.verdicts.compare import Comparison, compare

_HOMES = {
    "Comparison": "verdicts.compare",
    "Evaluation": "probes.perturb.evaluation",
    "Evidence": "methods",
    "FaithscopeError": "errors",
    "Forecast": "probes.perturb.evaluation",
    "Method": "methods",
    "Metric": "metrics",
    "Model": "models",
    "Result": "result",
    "RoarResult": "probes.retrain.result",
    "RoarStudy": "studies.roar",
    "Study": "studies",
    "TokenMethod": "methods.text",
    "compare": "verdicts.compare",
    "evaluate": "api",
    "explain": "api",
    "layer_method": "methods",
    "load_data": "data",
    "load_model": "models",
    "load_result": "studies.runs",
    "load_results": "studies.runs",
    "load_study": "studies",
    "load_text": "data.text_sources",
    "measure": "methods.text",
    "method": "methods",
    "metric": "metrics",
    "prepare": "probes.perturb.evaluation",
    "prepare_roar": "probes.retrain.roar",
    "racu": "metrics",
    "register_measure": "methods.text",
    "register_method": "methods",
    "register_metric": "metrics",
    "roar": "api",
    "run_study": "studies",
    "saco": "metrics",
    "synthetic_problem": "cli.synthetic",
    "wrap": "models",
}
__all__ = [
    "Comparison",
    "Evaluation",
    "Evidence",
    "FaithscopeError",
    "Forecast",
    "Method",
    "Metric",
    "Model",
    "Result",
    "RoarResult",
    "RoarStudy",
    "Study",
    "TokenMethod",
    "compare",
    "evaluate",
    "explain",
    "layer_method",
    "load_data",
    "load_model",
    "load_result",
    "load_results",
    "load_study",
    "load_text",
    "measure",
    "method",
    "metric",
    "prepare",
    "prepare_roar",
    "racu",
    "register_measure",
    "register_method",
    "register_metric",
    "roar",
    "run_study",
    "saco",
    "synthetic_problem",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'faithscope' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"faithscope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
