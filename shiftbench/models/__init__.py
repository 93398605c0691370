"""Model sources: a name such as `timm:swin_tiny_patch4_window7_224` becomes a `Classifier`."""

from shiftbench.models.classifier import Classifier, Preprocessing

__all__ = ["Classifier", "Preprocessing"]
