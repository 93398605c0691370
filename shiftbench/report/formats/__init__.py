"""Tables as text, one format per file: every file of this folder registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.report.formats.base import FORMATS, Format

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FORMATS", "Format"]
