"""`xcit_nano_12_p16_af.TAG`, or a folder that training exported: the models of `aft_models`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
from timm.models import is_model_pretrained
from torch import nn

from aft_models import PRESETS
from aft_models.weights import WeightsCard, list_weights, load_weights, weights_card
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.checkpoint import load_state, read_state_dict
from shiftbench.models.classifier import Classifier, Preprocessing, as_classifier
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building, take_bool
from shiftbench.models.timm_zoo import timm_preprocessing
from shiftbench.registry import unknown_name


class BundledSource:
    """The alias-free models and their baselines, with bundled, exported or no weights."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Finds the weights by tag, folder or checkpoint; untrained ones only on request."""
        options = dict(spec.options)
        pretrained = take_bool(options, "pretrained", spec.checkpoint is None)
        if Path(spec.name).is_dir():
            return _exported(spec, Path(spec.name), options)
        architecture, _, tag = spec.name.partition(".")
        if architecture not in PRESETS:
            raise unknown_name("model", spec.name, [*list_weights(), *PRESETS])
        if spec.checkpoint is not None:
            return _from_checkpoint(spec, architecture, options)
        if spec.name in list_weights():
            _refuse(options, spec)
            with building(spec):
                return _with_card(load_weights(spec.name), weights_card(spec.name), spec.text)
        if pretrained and not (tag and is_model_pretrained(spec.name)):
            raise UsageError(_no_weights(spec.name, architecture))
        with building(spec, hub=pretrained):
            model = timm.create_model(spec.name, pretrained=pretrained, **options)
            recipe = timm_preprocessing(model, options.get("img_size"))
            return as_classifier(model, recipe, name=spec.text, source="bundled")

    def entries(self) -> Iterable[ModelEntry]:
        """The weights first, then the architectures that can be trained."""
        for name in list_weights():
            yield ModelEntry(name, "bundled", True)
        for name in PRESETS:
            yield ModelEntry(name, "bundled", False)


def _exported(spec: ModelSpec, folder: Path, options: dict[str, Any]) -> Classifier:
    """The one set of weights in a folder that training wrote."""
    names = list_weights(folder)
    if len(names) != 1:
        raise ModelError(
            f"expected a folder with the weights of one model and their card, and {folder} has "
            f"{len(names)}: name the folder that training exported"
        )
    _refuse(options, spec)
    with building(spec):
        return _with_card(load_weights(names[0], folder), weights_card(names[0], folder), names[0])


def _from_checkpoint(spec: ModelSpec, architecture: str, options: dict[str, Any]) -> Classifier:
    """Weights from a file; those with a card beside them bring their preprocessing along."""
    path = spec.checkpoint
    assert path is not None
    folder = path if path.is_dir() else path.parent
    names = list_weights(folder) if folder.is_dir() else []
    carded = [name for name in names if path.is_dir() or path.name == f"{name}.safetensors"]
    with building(spec):
        if len(carded) == 1:
            card = weights_card(carded[0], folder)
            if card.architecture != architecture:
                raise ModelError(
                    f"{path} holds the weights of {card.architecture}, not of {architecture}"
                )
            _refuse(options, spec)
            return _with_card(load_weights(card.name, folder), card, spec.text)
        model = timm.create_model(architecture, **options)
        load_state(model, read_state_dict(path), origin=str(path))
        recipe = timm_preprocessing(model, options.get("img_size"))
        return as_classifier(model, recipe, name=spec.text, source="bundled")


def _with_card(model: nn.Module, card: WeightsCard, name: str) -> Classifier:
    recipe = Preprocessing(
        input_size=card.input_size,
        mean=card.mean,
        std=card.std,
        interpolation=card.interpolation,
        crop_pct=card.crop_pct,
        canvas=math.floor(card.input_size / card.crop_pct + 1e-6),
    )
    return as_classifier(model, recipe, name=name, source="bundled", class_names=card.class_names)


def _refuse(options: dict[str, Any], spec: ModelSpec) -> None:
    if options:
        raise UsageError(
            f"the card of {spec.text} says how the model is built: leave {', '.join(options)} out"
        )


def _no_weights(name: str, architecture: str) -> str:
    tags = [known for known in list_weights() if known.startswith(f"{architecture}.")]
    there = f"there are {', '.join(tags)}" if tags else "none are bundled for it"
    return (
        f"{name!r} names no trained weights, and {there}: choose those, give a file with "
        f"--checkpoint, or ask for random weights with {architecture},pretrained=false"
    )


SOURCES.register("bundled", BundledSource())
