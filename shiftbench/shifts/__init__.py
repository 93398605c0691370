"""Kinds of shift. Each prepares a batch once and then yields shifted views of it cheaply.

A new kind is one new file with a `Shift` in it, registered in `SHIFTS`; the law tests run over
the registry.
"""

from shiftbench.shifts.base import SHIFTS, Shift, Views

__all__ = ["SHIFTS", "Shift", "Views"]
