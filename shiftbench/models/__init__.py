"""Model sources: a name such as `timm:swin_tiny_patch4_window7_224` becomes a `Classifier`.

A new source is one new file in `sources/`, or a plug-in that registers one in `SOURCES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shiftbench.models.names import ModelSpec, parse_model, parse_models
from shiftbench.models.sources import SOURCES, ModelEntry, default_models, list_models

if TYPE_CHECKING:
    from shiftbench.models.classifier import Classifier, as_classifier
    from shiftbench.models.loading import build_model, load_model

__all__ = [
    "SOURCES",
    "Classifier",
    "ModelEntry",
    "ModelSpec",
    "as_classifier",
    "build_model",
    "default_models",
    "list_models",
    "load_model",
    "parse_model",
    "parse_models",
]

_HOME = {  # what waits for torch
    "Classifier": "shiftbench.models.classifier",
    "as_classifier": "shiftbench.models.classifier",
    "build_model": "shiftbench.models.loading",
    "load_model": "shiftbench.models.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shiftbench.models' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
