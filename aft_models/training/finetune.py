"""Starting from trained weights: everything but a classifier for other classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from aft_models.classifier import classifier_names
from aft_models.errors import AftModelsError
from aft_models.repair import untrained

SHOWN = 6  # how many keys an error lists


def load_backbone(model: nn.Module, weights: Mapping[str, Tensor], *, size: int = 224) -> list[str]:
    """Loads trained weights; a classifier with another number of classes is not loaded.

    Args:
        model: Any classifier.
        weights: The state dict of the same architecture with any number of classes, with or
            without the parameters of learned remedies.
        size: Side of an image that the model takes, in pixels.

    Returns:
        The keys that stayed new: those of the classifier, or of learned remedies, or none.

    Raises:
        AftModelsError: Something besides the classifier does not fit.
    """
    heads = tuple(f"{name}." for name in classifier_names(model, size=size))
    own = model.state_dict()
    new = {
        key
        for key in own
        if key.startswith(heads) and (key not in weights or weights[key].shape != own[key].shape)
    }
    if new:  # weight and bias belong together
        new = {key for key in own if key.startswith(heads)}
    loaded = {key: value for key, value in weights.items() if not (new and key.startswith(heads))}
    learned = set(untrained(model))
    if learned.isdisjoint(weights):
        new |= learned
    wrong = sorted(
        key
        for key in (own.keys() - new) | loaded.keys()
        if key not in own or key not in loaded or own[key].shape != loaded[key].shape
    )
    if wrong:
        rest = f", ... {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise AftModelsError(
            f"the weights do not fit the model: {len(wrong)} keys are missing, unknown or of "
            f"another shape ({', '.join(wrong[:SHOWN])}{rest}); use weights of the same model"
        )
    model.load_state_dict(loaded, strict=False)
    return sorted(new)
