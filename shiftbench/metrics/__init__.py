"""The metrics, one file each: every file of this folder is imported and registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.metrics.base import METRICS, Metric, MetricOptions, plan_metric, score_rows

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METRICS", "Metric", "MetricOptions", "plan_metric", "score_rows"]
