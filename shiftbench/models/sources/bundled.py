"""`xcit_nano_12_p16_af.TAG`: the models of `aft_models`, with bundled weights or none."""

from __future__ import annotations

from collections.abc import Iterable

import timm
from timm.models import is_model_pretrained

from aft_models import PRESETS
from aft_models.weights import list_weights, load_weights, weights_card
from shiftbench.errors import UsageError
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import ModelEntry, building
from shiftbench.models.sources.timm import timm_preprocessing
from shiftbench.preprocessing import card_preprocessing
from shiftbench.registry import unknown_name


def load(spec: ModelSpec) -> Classifier:
    """Finds the weights by their tag; untrained ones only on request."""
    pretrained, options = spec.take_pretrained()
    architecture, _, tag = spec.name.partition(".")
    if architecture not in PRESETS:
        raise unknown_name("model", spec.name, [*list_weights(), *PRESETS])
    if pretrained and spec.name in list_weights():
        if options:
            raise UsageError(
                f"the card of {spec.text} says how the model is built: leave "
                f"{', '.join(options)} out"
            )
        with building(spec):
            card = weights_card(spec.name)
            return as_classifier(
                load_weights(spec.name),
                card_preprocessing(vars(card)),
                name=spec.text,
                source="bundled",
                class_names=card.class_names,
            )
    if pretrained and not (tag and is_model_pretrained(spec.name)):
        tags = [known for known in list_weights() if known.startswith(f"{architecture}.")]
        there = f"there are {', '.join(tags)}" if tags else "none are bundled for it"
        raise UsageError(
            f"{spec.name!r} names no trained weights, and {there}: choose those, give a file with "
            f"--checkpoint, or ask for random weights with {architecture},pretrained=false"
        )
    if spec.classes is not None:
        options.setdefault("num_classes", spec.classes)
    if spec.size is not None:
        options.setdefault("img_size", spec.size)
    with building(spec, hub=pretrained):
        name = spec.name if pretrained else architecture
        model = timm.create_model(name, pretrained=pretrained, **options)
        recipe = spec.sized(timm_preprocessing(model, options.get("img_size")))
        return as_classifier(model, recipe, name=spec.text, source="bundled")


def entries() -> Iterable[ModelEntry]:
    """The weights first, then the architectures that can be trained."""
    for name in list_weights():
        yield ModelEntry(name, "bundled", True)
    for name in PRESETS:
        yield ModelEntry(name, "bundled", False)
