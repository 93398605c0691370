"""The metrics, one file each: every file of this folder is imported and registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.metrics.base import METRICS, Metric, Request, View, plan_metrics, score
from shiftbench.tables import Cells

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METRICS", "Cells", "Metric", "Request", "View", "plan_metrics", "score"]
