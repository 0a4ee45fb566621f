"""How good the synthetic data are, measured on real data; the measurements are not covered by ε."""

# Each import registers a family, in the order in which metrics are listed.
# ruff: isort: off
from sfumato.evaluation import downstream as downstream
from sfumato.evaluation import baselines as baselines
from sfumato.evaluation import dpimagebench as dpimagebench
from sfumato.evaluation import frechet as frechet
from sfumato.evaluation import neighbours as neighbours
from sfumato.evaluation import distributions as distributions
from sfumato.evaluation import tables as tables
from sfumato.evaluation.metrics import (
    Evaluation,
    Fitted,
    Metric,
    MetricInfo,
    default_metrics,
    evaluate,
    list_metrics,
    preset_metrics,
    register,
    wilson,
)

__all__ = [
    "Evaluation",
    "Fitted",
    "Metric",
    "MetricInfo",
    "default_metrics",
    "evaluate",
    "list_metrics",
    "preset_metrics",
    "register",
    "wilson",
]
