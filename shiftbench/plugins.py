"""Plug-ins: files and installed packages that register shifts, attacks, metrics, sources, formats.

A plug-in is a Python module that registers something when it is imported. Installed packages list
their plug-ins in the entry-point group `shiftbench`. A single file is loaded with `--plugin
FILE.py`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from shiftbench.errors import UsageError

GROUP = "shiftbench"


def load_plugins(files: Iterable[Path] = ()) -> None:
    """Import every installed plug-in and the given files, each only once.

    Raises:
        UsageError: A plug-in is missing, or its import fails.
    """
    _load_installed()
    for file in files:
        _load_file(file.expanduser().resolve())


@cache
def _load_installed() -> None:
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise UsageError(
                f"the installed plug-in {entry.name!r} ({entry.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; upgrade or remove its package"
            ) from error


@cache
def _load_file(file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"no plug-in at {file}: --plugin takes a Python file")
    place = hashlib.sha256(str(file.parent).encode()).hexdigest()[:8]
    name = f"shiftbench_plugin_{file.stem}_{place}"  # files of two folders may have the same name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file: --plugin takes one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # required to pickle its classes
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            f"the plug-in {file} cannot be imported: {type(error).__name__}: {error}"
        ) from error
