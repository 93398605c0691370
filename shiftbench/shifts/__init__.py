"""Shift types and the attacks that search them. A shift type prepares a batch once, then shifts it.

A new shift type is one new file that registers a `Shift` in `SHIFTS` and an `Attack` in `ATTACKS`.
Every file of this folder is imported, and property tests run over the registries. Torch is imported
on first use only, so that attacks are listed at once.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.shifts.base import (
    ATTACKS,
    DEFAULT_RADIUS,
    PAPER_ATTACKS,
    SHIFTS,
    Attack,
    Scene,
    Shift,
    Views,
    parse_attack,
)

# The order of the registries, and so of tables: the shift types of the paper come first.
for _name in dict.fromkeys(
    ("cyclic", "crop", "bilinear", "lanczos", *(module.name for module in iter_modules(__path__)))
):
    import_module(f"{__name__}.{_name}")

__all__ = [
    "ATTACKS",
    "DEFAULT_RADIUS",
    "PAPER_ATTACKS",
    "SHIFTS",
    "Attack",
    "Scene",
    "Shift",
    "Views",
    "parse_attack",
]
