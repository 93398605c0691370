"""Where numbers can be sent besides files of our own, one sink per file; each registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.logs.base import LOGS, Log, Sink, open_logs, require_logs

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["LOGS", "Log", "Sink", "open_logs", "require_logs"]
