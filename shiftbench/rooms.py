"""Packages that are called like the function of their name: `shiftbench.run(...)`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(room: str, home: str) -> None:
    """Lets a package be called like the function of its own name, which the module `home` has.

    `import shiftbench.run.store` makes `shiftbench.run` the package; it is the function as well.
    """

    class CallableRoom(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), room.rpartition(".")[2])(*args, **kwargs)

    sys.modules[room].__class__ = CallableRoom
