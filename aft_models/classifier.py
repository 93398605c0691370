"""The last layer of any classifier: search and replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.modes import evaluating

Layer = nn.Linear | nn.Conv2d  # the last layer of SqueezeNet is a 1 x 1 convolution


def classifier_names(model: nn.Module, *, size: int = 224) -> tuple[str, ...]:
    """List the names of the modules that turn features into logits.

    The configuration of timm's models contains the names (two for a distilled model). Any other
    model is run once, on a black image of ``size`` pixels: the classifier is the last layer to run
    that has as many outputs as the model.

    >>> classifier_names(nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.Linear(9, 5)), size=4)
    ('2',)
    """
    settings = getattr(model, "default_cfg", None) or {}
    named = settings.get("classifier") or ()
    names = (named,) if isinstance(named, str) else tuple(named)
    if names and set(names) <= {name for name, _ in model.named_modules()}:
        return names
    return (_last_layer(model, size),)


def replace_classifier(model: nn.Module, classes: int, *, size: int = 224) -> bool:
    """Replace the last layer of a model by one for ``classes`` classes, unless it has as many.

    Args:
        model: Any classifier; its other layers and weights do not change.
        classes: Outputs of the new layer.
        size: Side of the input images (pixels).

    Returns:
        True if the layer is new, and therefore untrained.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    >>> replace_classifier(model, 3, size=4), replace_classifier(model, 3, size=4), model[1]
    (True, False, Linear(in_features=48, out_features=3, bias=True))
    """
    names = classifier_names(model, size=size)
    layers = {name: model.get_submodule(name) for name in names}
    timm_model: Any = model  # with `num_classes` and `reset_classifier`
    if all(isinstance(layer, Layer) for layer in layers.values()):
        if all(_outputs(layer) == classes for layer in layers.values()):
            return False
        for name, layer in layers.items():
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, _like(layer, classes))
        if hasattr(model, "num_classes"):
            timm_model.num_classes = classes
        return True
    if not hasattr(model, "reset_classifier"):
        raise AftModelsError(
            f"expected a linear last layer, got {', '.join(names)}: replace it in your code"
        )
    if timm_model.num_classes == classes:
        return False
    timm_model.reset_classifier(classes)
    return True


def _outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
        return layer.out_channels
    return None


def _like(layer: nn.Module, classes: int) -> nn.Module:
    options: dict[str, Any] = {
        "bias": layer.bias is not None,
        "device": layer.weight.device,
        "dtype": layer.weight.dtype,
    }
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, classes, **options).train(layer.training)
    assert isinstance(layer, nn.Conv2d)
    return nn.Conv2d(layer.in_channels, classes, 1, **options).train(layer.training)


def _last_layer(model: nn.Module, size: int) -> str:
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, module in model.named_modules()
        if isinstance(module, Layer)
    ]
    try:
        with evaluating(model), torch.no_grad():
            like = next(model.parameters(), torch.zeros(()))
            logits = model(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise AftModelsError(
            f"expected logits (batch, classes) from {type(model).__name__}, got "
            f"{tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__}"
        )
    for name in reversed(ran):
        if _outputs(model.get_submodule(name)) == logits.shape[1]:
            return name
    raise AftModelsError(
        f"{type(model).__name__} has no linear layer with its {logits.shape[1]} outputs: replace "
        "the classifier in your code"
    )
