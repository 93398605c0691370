"""`tv:NAME[,weights=TAG]`: the classifiers of torchvision, each with its own transforms.

`weights=IMAGENET1K_V1` names the set of weights, by default torchvision's latest. Weights from a
file are taken for that set's: its preprocessing applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torchvision
from torchvision.models import get_model, get_model_weights, list_models

from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import ModelEntry, building
from shiftbench.preprocessing import Preprocessing, square
from shiftbench.registry import unknown_name

# Two models carry weights from TensorFlow and undo torchvision's normalization in front of them.
# torchvision sets this for weights that it downloads itself; the same file as a checkpoint needs it
# as much. Weights trained without it say `transform_input=false`. The initial values are replaced.
FROM_TENSORFLOW = {
    name: {"transform_input": True, "init_weights": False} for name in ("googlenet", "inception_v3")
}


def load(spec: ModelSpec) -> Classifier:
    """Builds a torchvision model; options besides `weights` and `pretrained` go to it."""
    pretrained, options = spec.take_pretrained()
    weights = _take_weights(spec, options)
    if not spec.pretrained:
        options = {**FROM_TENSORFLOW.get(spec.name, {}), **options}
    with building(spec):
        model = get_model(spec.name, weights=weights if pretrained else None, **options)
        transforms = weights.transforms()
        view = square(transforms.crop_size)
        recipe = Preprocessing(
            input_size=view,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
            interpolation=transforms.interpolation.value,
            crop_pct=view / min(transforms.resize_size),
            origin=weights.name,
        )
        return as_classifier(
            model,
            spec.sized(recipe),
            name=spec.text,
            source="torchvision",
            class_names=weights.meta["categories"] if pretrained else (),
        )


def entries() -> Iterable[ModelEntry]:
    """Every classifier of torchvision."""
    for name in list_models(module=torchvision.models):
        yield ModelEntry(f"tv:{name}", "torchvision", True)


def _take_weights(spec: ModelSpec, options: dict[str, Any]) -> Any:
    """Removes the tag of the weights from the options; the weights hold their preprocessing."""
    names = list_models(module=torchvision.models)
    if spec.name not in names:
        raise unknown_name("torchvision classifier", spec.name, names)
    tags = get_model_weights(spec.name)
    tag = options.pop("weights", "DEFAULT")
    if tag not in tags.__members__:
        raise unknown_name(f"weights of {spec.name}", str(tag), tags.__members__)
    return tags[tag]
