"""`xcit_nano_12_p16_af.TAG`: the models of `aft_models`."""

from __future__ import annotations

from collections.abc import Iterable

import timm
from timm.models import is_model_pretrained

from aft_models import PRESETS
from aft_models.weights import list_weights, load_weights, weights_card
from shiftbench.errors import UsageError
from shiftbench.models.blueprint import Blueprint
from shiftbench.models.checkpoint import card_preprocessing
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.source import (
    SOURCES,
    ModelEntry,
    ModelSpec,
    building,
    take_bool,
    without_weights,
)
from shiftbench.models.timm_zoo import timm_preprocessing
from shiftbench.registry import unknown_name


class BundledSource:
    """The alias-free models and their baselines, with bundled weights or none."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Finds the weights by their tag; untrained ones only on request."""
        options = dict(spec.options)
        pretrained = take_bool(options, "pretrained", True)
        architecture, tag = _taken_apart(spec)
        if spec.name in list_weights():
            if options:
                raise UsageError(
                    f"the card of {spec.text} says how the model is built: leave "
                    f"{', '.join(options)} out"
                )
            with building(spec):
                card = weights_card(spec.name)
                return as_classifier(
                    load_weights(spec.name),
                    card_preprocessing(card),
                    name=spec.text,
                    source="bundled",
                    class_names=card.class_names,
                )
        if pretrained and not (tag and is_model_pretrained(spec.name)):
            raise UsageError(_no_weights(spec.name, architecture))
        with building(spec, hub=pretrained):
            model = timm.create_model(spec.name, pretrained=pretrained, **options)
            recipe = timm_preprocessing(model, options.get("img_size"))
            return as_classifier(model, recipe, name=spec.text, source="bundled")

    def build(self, spec: ModelSpec) -> Blueprint:
        """Builds it with random weights, for the classes and the image size that are asked for."""
        options = without_weights(spec)
        architecture, _ = _taken_apart(spec)
        if spec.classes is not None:
            options.setdefault("num_classes", spec.classes)
        if spec.size is not None:
            options.setdefault("img_size", spec.size)
        with building(spec):
            model = timm.create_model(architecture, **options)
            recipe = timm_preprocessing(model, options.get("img_size"))
        return Blueprint(model, recipe, spec.text, architecture, "bundled")

    def entries(self) -> Iterable[ModelEntry]:
        """The weights first, then the architectures that can be trained."""
        for name in list_weights():
            yield ModelEntry(name, "bundled", True)
        for name in PRESETS:
            yield ModelEntry(name, "bundled", False)


def _taken_apart(spec: ModelSpec) -> tuple[str, str]:
    """The preset and the tag of its weights."""
    architecture, _, tag = spec.name.partition(".")
    if architecture not in PRESETS:
        raise unknown_name("model", spec.name, [*list_weights(), *PRESETS])
    return architecture, tag


def _no_weights(name: str, architecture: str) -> str:
    tags = [known for known in list_weights() if known.startswith(f"{architecture}.")]
    there = f"there are {', '.join(tags)}" if tags else "none are bundled for it"
    return (
        f"{name!r} names no trained weights, and {there}: choose those, give a file with "
        f"--checkpoint, or ask for random weights with {architecture},pretrained=false"
    )


SOURCES.register("bundled", BundledSource())
