"""Faithfulness metrics: the spans each one needs, and its score as a pure function."""

from faithscope.metrics.metric import (
    METRICS,
    BaseMetric,
    Metric,
    MetricLike,
    Responses,
    metric,
    metrics_of,
    register_metric,
    resolve_metrics,
)

from faithscope.metrics.saco import AUTO_K, SaCo, auto_k, check_k, saco  # isort: skip
from faithscope.metrics.curves import area, mean_drop, mean_log_odds
from faithscope.metrics.racu import (
    Curves,
    CurveScores,
    TrainingMetric,
    absolute_area,
    racu,
    racu_doubts,
)

__all__ = [
    "AUTO_K",
    "METRICS",
    "BaseMetric",
    "CurveScores",
    "Curves",
    "Metric",
    "MetricLike",
    "Responses",
    "SaCo",
    "TrainingMetric",
    "absolute_area",
    "area",
    "auto_k",
    "check_k",
    "mean_drop",
    "mean_log_odds",
    "metric",
    "metrics_of",
    "racu",
    "racu_doubts",
    "register_metric",
    "resolve_metrics",
    "saco",
]
