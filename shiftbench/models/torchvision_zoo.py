"""`tv:NAME[,weights=TAG]`: the classifiers of torchvision, each with its own transforms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torchvision
from torchvision.models import get_model, get_model_weights, list_models

from shiftbench.models.blueprint import Blueprint
from shiftbench.models.classifier import (
    Classifier,
    as_classifier,
    square,
)
from shiftbench.models.source import (
    SOURCES,
    ModelEntry,
    ModelSpec,
    building,
    take_bool,
    without_weights,
)
from shiftbench.preprocessing import Preprocessing
from shiftbench.registry import unknown_name

# Two models carry weights from TensorFlow and undo torchvision's normalization in front of them.
# torchvision sets this for weights that it downloads itself; the same file as a checkpoint needs it
# as much. Weights trained without it say `transform_input=false`. The initial values are replaced.
FROM_TENSORFLOW = {
    name: {"transform_input": True, "init_weights": False} for name in ("googlenet", "inception_v3")
}


class TorchvisionSource:
    """Classifiers by their torchvision name, with their default weights."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Builds a torchvision model; options besides `weights` and `pretrained` go to it."""
        options = dict(spec.options)
        pretrained = take_bool(options, "pretrained", True)
        weights = _take_weights(spec, options)
        with building(spec):
            model = get_model(spec.name, weights=weights if pretrained else None, **options)
            recipe = _preprocessing(weights.transforms())
            found = as_classifier(model, recipe, name=spec.text, source="torchvision")
        names = tuple(weights.meta["categories"])
        return replace(found, class_names=names) if pretrained else found

    def build(self, spec: ModelSpec) -> Blueprint:
        """Builds it with random weights; they may be of other classes than torchvision's."""
        options = without_weights(spec)
        weights = _take_weights(spec, options)
        options = {**FROM_TENSORFLOW.get(spec.name, {}), **options}
        with building(spec):
            model = get_model(spec.name, weights=None, **options)
            recipe = _preprocessing(weights.transforms())
        return Blueprint(model, recipe, spec.text, f"tv:{spec.name}", "torchvision")

    def entries(self) -> Iterable[ModelEntry]:
        """Every classifier of torchvision."""
        for name in list_models(module=torchvision.models):
            yield ModelEntry(f"tv:{name}", "torchvision", True)


def _take_weights(spec: ModelSpec, options: dict[str, Any]) -> Any:
    """Removes the tag of the weights from the options; the weights know their preprocessing."""
    names = list_models(module=torchvision.models)
    if spec.name not in names:
        raise unknown_name("torchvision classifier", spec.name, names)
    tags = get_model_weights(spec.name)
    tag = options.pop("weights", "DEFAULT")
    if tag not in tags.__members__:
        raise unknown_name(f"weights of {spec.name}", str(tag), tags.__members__)
    return tags[tag]


def _preprocessing(transforms: Any) -> Preprocessing:
    """Reads torchvision's ImageClassification preset."""
    view = square(transforms.crop_size)
    return Preprocessing(
        input_size=view,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value,
        crop_pct=view / min(transforms.resize_size),
    )


SOURCES.register("tv", TorchvisionSource())
