"""faithscope: does this explanation tell the truth about this model?

Nothing heavy is imported until a name is used, so that the command line answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faithscope.version import __version__ as __version__

if TYPE_CHECKING:
    from faithscope import plot
    from faithscope.api import Prepared, compare, evaluate, prepare, prepare_roar, roar
    from faithscope.cli.synthetic import synthetic_problem
    from faithscope.data import load_data
    from faithscope.data.text_sources import load_text
    from faithscope.errors import FaithscopeError
    from faithscope.explaining import explain
    from faithscope.methods import Evidence, Method, layer_method, method, register_method
    from faithscope.methods.shap import from_shap
    from faithscope.methods.text import measure, register_measure
    from faithscope.metrics import Metric, metric, racu, register_metric, saco
    from faithscope.models import AttentionView, Model, load_model, wrap, zero_shot
    from faithscope.request import Given, Perturb, Retrain
    from faithscope.result import Comparison, Result, load_result
    from faithscope.runs.scheduler import Forecast, Progress
    from faithscope.studies import Runs, Study, load_results, load_study, run_study

_NAMES = {
    "api": "Prepared compare evaluate prepare prepare_roar roar",
    "cli.synthetic": "synthetic_problem",
    "data": "load_data",
    "data.text_sources": "load_text",
    "errors": "FaithscopeError",
    "explaining": "explain",
    "methods": "Evidence Method layer_method method register_method",
    "methods.shap": "from_shap",
    "methods.text": "measure register_measure",
    "metrics": "Metric metric racu register_metric saco",
    "models": "AttentionView Model load_model wrap zero_shot",
    "request": "Given Perturb Retrain",
    "result": "Comparison Result load_result",
    "runs.scheduler": "Forecast Progress",
    "studies": "Runs Study load_results load_study run_study",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = [
    "AttentionView",
    "Comparison",
    "Evidence",
    "FaithscopeError",
    "Forecast",
    "Given",
    "Method",
    "Metric",
    "Model",
    "Perturb",
    "Prepared",
    "Progress",
    "Result",
    "Retrain",
    "Runs",
    "Study",
    "compare",
    "evaluate",
    "explain",
    "from_shap",
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
    "plot",
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
    "zero_shot",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "plot":
        return import_module("faithscope.plot")
    if name not in _HOMES:
        raise AttributeError(f"module 'faithscope' has no attribute {name!r}")
    return getattr(import_module(f"faithscope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
