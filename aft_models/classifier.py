"""The last layer of any classifier: finding it, replacing it, loading weights around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.modes import evaluating
from aft_models.repair import untrained

SHOWN = 12  # keys of a kind that an error lists

Layer = nn.Linear | nn.Conv2d  # what a last layer is: SqueezeNet's is a 1 x 1 convolution


def classifier_names(model: nn.Module, *, size: int = 224) -> tuple[str, ...]:
    """Names of the modules that turn features into logits, as in ``model.get_submodule(name)``.

    timm's models name them (a distilled one has two). Any other model is run once, on a
    black image of ``size`` pixels: it is the last layer to run with as many outputs as the model.

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
    """Gives a model a new last layer for ``classes`` classes, unless it has as many already.

    All its other layers and weights stay; ``size`` is the side of an image that it takes.

    Returns:
        Whether the layer is new, and so not trained.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    >>> replace_classifier(model, 3, size=4), replace_classifier(model, 3, size=4), model[1]
    (True, False, Linear(in_features=48, out_features=3, bias=True))
    """
    names = classifier_names(model, size=size)
    layers = {name: model.get_submodule(name) for name in names}
    timm_model: Any = model  # it has `num_classes` and `reset_classifier`
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
        raise AftModelsError(f"{', '.join(names)} is no linear layer: replace it yourself")
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
        "its classifier yourself"
    )


def load_backbone(model: nn.Module, weights: Mapping[str, Tensor], *, size: int = 224) -> list[str]:
    """Loads trained weights; a classifier with another number of classes is not loaded.

    Args:
        model: Any classifier.
        weights: The state dict of the same architecture with any number of classes, with or
            without the parameters of learned remedies; nothing else may differ.
        size: Side of an image that the model takes, in pixels.

    Returns:
        The keys that stayed new: those of the classifier, or of learned remedies, or none.
    """
    heads = tuple(f"{name}." for name in classifier_names(model, size=size))
    own = model.state_dict()
    new = {key for key in own if key.startswith(heads)}
    if all(key in weights and weights[key].shape == own[key].shape for key in new):
        new = set()  # weight and bias belong together
    loaded = {key: value for key, value in weights.items() if not (new and key.startswith(heads))}
    learned = set(untrained(model))
    if learned.isdisjoint(weights):
        new |= learned
    if trouble := misfit({key: own[key] for key in own.keys() - new}, loaded):
        raise AftModelsError(
            f"the weights do not fit the model: {trouble}. Use weights of the same model"
        )
    model.load_state_dict(loaded, strict=False)
    return sorted(new)


def misfit(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Which keys of a state dict do not fit a model, in words; nothing where all do.

    >>> misfit({"head.bias": torch.zeros(3)}, {"head.bias": torch.zeros(5)})
    'misshapen: head.bias (5,) instead of (3,)'
    """
    shapes = [
        (key, tuple(weights[key].shape), tuple(expected[key].shape))
        for key in sorted(expected.keys() & weights.keys())
    ]
    problems = {
        "missing": sorted(expected.keys() - weights.keys()),
        "unexpected": sorted(weights.keys() - expected.keys()),
        "misshapen": [f"{key} {a} instead of {b}" for key, a, b in shapes if a != b],
    }
    texts = []
    for what, keys in problems.items():
        more = f", ... {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        if keys:
            texts.append(f"{what}: {', '.join(keys[:SHOWN])}{more}")
    return "; ".join(texts)
