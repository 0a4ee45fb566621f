"""How good the synthetic data are, measured on real data; the measurements are not covered by ε."""

from sfumato.evaluation import downstream as downstream
from sfumato.evaluation.metrics import (
    Evaluation,
    Metric,
    MetricInfo,
    default_metrics,
    evaluate,
    list_metrics,
    register,
    wilson,
)

__all__ = [
    "Evaluation",
    "Metric",
    "MetricInfo",
    "default_metrics",
    "evaluate",
    "list_metrics",
    "register",
    "wilson",
]
