"""Faithfulness metrics: the spans each one needs, and its score as a pure function."""

from faithscope.metrics.metric import (
    METRICS,
    Metric,
    MetricLike,
    Responses,
    metric,
    register_metric,
    resolve_metrics,
)

from faithscope.metrics.saco import AUTO_K, SaCo, auto_k, check_k, saco  # isort: skip
from faithscope.metrics.curves import area, mean_drop, mean_log_odds

__all__ = [
    "AUTO_K",
    "METRICS",
    "Metric",
    "MetricLike",
    "Responses",
    "SaCo",
    "area",
    "auto_k",
    "check_k",
    "mean_drop",
    "mean_log_odds",
    "metric",
    "register_metric",
    "resolve_metrics",
    "saco",
]
