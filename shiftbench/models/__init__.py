"""From a name such as `timm:swin_tiny_patch4_window7_224` to a `Model`.

A source builds a network, a checkpoint fills it, layer remedies change it, input remedies wrap it,
and `Model` runs it. A new source is one new file in `sources/`, or a plug-in that registers one in
`SOURCES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shiftbench.models.names import ModelName, parse_model, parse_models
from shiftbench.models.sources import SOURCES, ModelEntry, default_models, list_models

if TYPE_CHECKING:
    from shiftbench.models.loading import build_model, load_model
    from shiftbench.models.model import Model

__all__ = [
    "SOURCES",
    "Model",
    "ModelEntry",
    "ModelName",
    "build_model",
    "default_models",
    "list_models",
    "load_model",
    "parse_model",
    "parse_models",
]

_MODULES = {  # names whose modules import torch
    "Model": "shiftbench.models.model",
    "build_model": "shiftbench.models.loading",
    "load_model": "shiftbench.models.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'shiftbench.models' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
