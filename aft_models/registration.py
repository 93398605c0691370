"""Registration of the presets with timm, without importing timm.

timm imports torch, which takes seconds. The presets are registered at once if timm is already
imported, otherwise by a finder that runs the registration after the import of `timm.models`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import cast

HOST = "timm.models"  # the module whose import registers the presets
ENTRY_POINTS = "aft_models.entrypoints"


class _Loader(Loader):
    """Loader that registers the presets after the original loader has run."""

    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._original  # readers of source need it
        self._original.exec_module(module)
        import_module(ENTRY_POINTS)


class _Finder(MetaPathFinder):
    """Finder of `timm.models` alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != HOST:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Loader, _Loader(spec.loader))
        return spec


def install() -> None:
    """Register the presets now if timm is imported, else together with timm."""
    if HOST in sys.modules:
        import_module(ENTRY_POINTS)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
