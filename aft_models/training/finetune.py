"""Starting from trained weights: everything but a classifier for other classes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from aft_models.errors import AftModelsError

SHOWN = 6  # how many keys an error lists


def load_backbone(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Loads trained weights; the classifier stays new where its classes are others.

    Args:
        model: A timm-style model, whose `default_cfg` names its classifier.
        weights: The state dict of the same architecture with any number of classes.

    Returns:
        The keys that stayed new: none, or those of the classifier.

    Raises:
        AftModelsError: Something besides the classifier does not fit.
    """
    head = f"{_classifier(model)}."
    own = model.state_dict()
    new = {
        key
        for key in own
        if key.startswith(head) and (key not in weights or weights[key].shape != own[key].shape)
    }
    if new:  # weight and bias belong together
        new = {key for key in own if key.startswith(head)}
    loaded = {key: value for key, value in weights.items() if not (new and key.startswith(head))}
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


def _classifier(model: nn.Module) -> str:
    settings = getattr(model, "default_cfg", None) or {}
    name = settings.get("classifier", "head")
    assert isinstance(name, str)
    return name
