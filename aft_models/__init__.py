"""XCiT models, baseline and shift-equivariant; remedies for other networks; training.

Importing this package registers every preset with timm, in either order of imports.
Names are loaded on first use: neither torch nor timm is imported before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aft_models import registration

if TYPE_CHECKING:
    from aft_models.authors import load_authors_checkpoint
    from aft_models.cards import list_weights
    from aft_models.checkpoint import load_weights
    from aft_models.errors import AftModelsError
    from aft_models.presets import PRESETS, XCiTConfig
    from aft_models.remedies.repair import repair
    from aft_models.xcit import XCiT, create_xcit

__all__ = [
    "PRESETS",
    "AftModelsError",
    "XCiT",
    "XCiTConfig",
    "create_xcit",
    "list_weights",
    "load_authors_checkpoint",
    "load_weights",
    "repair",
]

_MODULES = {
    "PRESETS": "presets",
    "AftModelsError": "errors",
    "XCiT": "xcit",
    "XCiTConfig": "presets",
    "create_xcit": "xcit",
    "list_weights": "cards",
    "load_authors_checkpoint": "authors",
    "load_weights": "checkpoint",
    "repair": "remedies.repair",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'aft_models' has no attribute {name!r}")
    return getattr(import_module(f"aft_models.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


registration.install()
