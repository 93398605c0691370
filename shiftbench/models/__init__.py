"""Model sources: a name such as `timm:swin_tiny_patch4_window7_224` becomes a `Classifier`."""

from shiftbench.models.classifier import Classifier, Preprocessing, as_classifier
from shiftbench.models.loading import default_models, list_models, load_model
from shiftbench.models.source import ModelEntry

__all__ = [
    "Classifier",
    "ModelEntry",
    "Preprocessing",
    "as_classifier",
    "default_models",
    "list_models",
    "load_model",
]
