"""Model sources: a name such as `timm:swin_tiny_patch4_window7_224` becomes a `Classifier`.

A new source is one new file here that registers a `ModelSource` in `SOURCES`, under the prefix of
its names: every file of this folder is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.loading import build_model, default_models, list_models, load_model
from shiftbench.models.source import SOURCES, ModelEntry
from shiftbench.preprocessing import Preprocessing

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "SOURCES",
    "Classifier",
    "ModelEntry",
    "Preprocessing",
    "as_classifier",
    "build_model",
    "default_models",
    "list_models",
    "load_model",
]
