"""Kinds of shift. Each prepares a batch once and then yields shifted views of it cheaply.

A new kind is one new file here that registers a `Shift` in `SHIFTS`: every file of this folder is
imported, and the law tests run over the registry.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.shifts.base import SHIFTS, Shift, Views

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["SHIFTS", "Shift", "Views"]
