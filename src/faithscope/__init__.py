"""faithscope: does this explanation tell the truth about this model?

Nothing heavy is imported until a name is used, so that the command line answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from faithscope.api import evaluate, explain, roar
    from faithscope.data import load_data
    from faithscope.data.text_sources import load_text
    from faithscope.errors import FaithscopeError
    from faithscope.evaluation import Evaluation, Forecast, prepare
    from faithscope.methods import Evidence, Method, layer_method, method, register_method
    from faithscope.methods.text import TokenMethod, measure, register_measure
    from faithscope.metrics import Metric, metric, racu, register_metric, saco
    from faithscope.models import Model, load_model, wrap
    from faithscope.results import Result, load_result, load_results
    from faithscope.results.compare import Comparison, compare
    from faithscope.retrain.result import RoarResult
    from faithscope.retrain.roar import prepare_roar
    from faithscope.retrain.study import RoarStudy
    from faithscope.retrain.synthetic import synthetic_problem
    from faithscope.studies import Study, load_study, run_study

_HOMES = {
    "Comparison": "results",
    "Evaluation": "evaluation",
    "Evidence": "methods",
    "FaithscopeError": "errors",
    "Forecast": "evaluation",
    "Method": "methods",
    "Metric": "metrics",
    "Model": "models",
    "Result": "results",
    "RoarResult": "retrain.result",
    "RoarStudy": "retrain.study",
    "Study": "studies",
    "TokenMethod": "methods.text",
    "compare": "results",
    "evaluate": "api",
    "explain": "api",
    "layer_method": "methods",
    "load_data": "data",
    "load_model": "models",
    "load_result": "results",
    "load_results": "results",
    "load_study": "studies",
    "load_text": "data.text_sources",
    "measure": "methods.text",
    "method": "methods",
    "metric": "metrics",
    "prepare": "evaluation",
    "prepare_roar": "retrain.roar",
    "racu": "metrics",
    "register_measure": "methods.text",
    "register_method": "methods",
    "register_metric": "metrics",
    "roar": "api",
    "run_study": "studies",
    "saco": "metrics",
    "synthetic_problem": "retrain.synthetic",
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
