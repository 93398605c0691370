"""From a model name to a classifier: which source it belongs to."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aft_models.classifier import replace_classifier
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.blueprint import Blueprint, answer_logits
from shiftbench.models.checkpoint import Weights, load_state, read_weights
from shiftbench.models.classifier import Classifier
from shiftbench.models.repaired import split_remedies, with_remedies
from shiftbench.models.source import (
    SOURCES,
    Builder,
    ModelEntry,
    ModelSpec,
    building,
    parse_options,
)
from shiftbench.registry import unknown_name


def load_model(name: str, *, checkpoint: str | Path | None = None) -> Classifier:
    """Loads a model by its name.

    Args:
        name: `xcit_nano_12_p16_af.TAG` (bundled), a folder exported by training, `timm:NAME`,
            `tv:NAME`, `hf:REPO_OR_DIR`, `onnx:FILE.onnx` or `FILE.py:FUNCTION`; `,key=value` adds
            options, and remedies may follow: `timm:resnet50+circular+aps`.
        checkpoint: Weights to load instead of the source's own: a file, or a folder that training
            exported, whose card then says how many classes and which images.

    Raises:
        UsageError: The name or an option is not known.
        ModelError: The weights are not available, or do not fit.
    """
    plain, remedies = split_remedies(name)
    if plain.strip() and Path(plain).is_dir():
        if checkpoint is not None:
            raise UsageError(f"the folder {plain} holds weights already: leave --checkpoint out")
        return _load_exported(Path(plain), remedies)
    if checkpoint is not None:
        _builder(plain)
        return _load_weights(name, read_weights(Path(checkpoint)))
    source, spec = parse_name(plain)
    found = SOURCES.get(source).load(spec)
    return with_remedies(found, remedies) if remedies else found


def build_model(
    name: str,
    *,
    classes: int | None = None,
    size: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Blueprint:
    """Builds a model by its name, remedies included, without trained weights.

    Args:
        name: As for `load_model`.
        classes: The classifier gets so many outputs; by default its own.
        size: Side of the images it shall take, in pixels; by default its own.
        seed: Of the random weights.
        options: Added to those of the name.

    >>> build_model("timm:resnet10t+circular+aps", classes=5, size=64).module.num_classes
    5
    """
    plain, remedies = split_remedies(name)
    source, spec = _builder(plain)
    asked = {**spec.options, **(options or {})}
    spec = replace(spec, classes=classes, size=size, seed=seed, options=asked)
    with building(spec):
        built = source.build(spec)
        recipe = replace(built.preprocessing, input_size=size or built.preprocessing.input_size)
        built = replace(built, preprocessing=recipe)
        answer_logits(built.module)
        if classes is not None:
            # Not left to timm, whose start for a few classes has logits ten times as large.
            replace_classifier(built.module, classes, size=recipe.input_size)
        return built.with_remedies(remedies) if remedies else built


def _builder(name: str) -> tuple[Builder, ModelSpec]:
    """The source of a model that can be built without its weights."""
    kind, spec = parse_name(name)
    source = SOURCES.get(kind)
    if not isinstance(source, Builder):
        raise UsageError(
            f"{name} holds its weights itself: it cannot be trained, and takes no others, so leave "
            "--checkpoint out"
        )
    return source, spec


def _load_weights(name: str, weights: Weights) -> Classifier:
    """A model with weights from a file; a card beside them says what they are of, and for."""
    card = weights.card
    if card is None:
        built = build_model(name)
    else:
        built = build_model(
            name, classes=card.num_classes, size=card.input_size, options=card.switches
        )
        theirs = parse_options(split_remedies(card.architecture)[0])[0]
        if theirs != built.architecture:
            raise ModelError(
                f"{weights.origin} holds the weights of {theirs}, not of {built.architecture}"
            )
        recipe = weights.preprocessing or built.preprocessing
        built = replace(built, preprocessing=recipe, class_names=card.class_names)
    load_state(built.module, weights.state, origin=weights.origin)
    return built.classifier()


def _load_exported(folder: Path, remedies: str) -> Classifier:
    """The one set of weights in a folder that training wrote; its card names the model."""
    weights = read_weights(folder)
    if weights.card is None:
        raise ModelError(
            f"expected the weights of one model with their card in {folder}: name the folder that "
            "training exported"
        )
    name = "+".join(filter(None, (weights.card.architecture, remedies)))
    found = _load_weights(name, weights)
    return replace(found, name="+".join(filter(None, (weights.card.name, remedies))))


def parse_name(text: str) -> tuple[str, ModelSpec]:
    """Finds the source that a name belongs to."""
    if not text.strip():
        raise UsageError("a model name cannot be empty: see `shiftbench list models`")
    name, options = parse_options(text)
    prefix, colon, rest = name.partition(":")
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        source = "python"
    elif colon and prefix in SOURCES:
        source, name = prefix, rest
    elif name.endswith(".py"):
        raise UsageError(f"expected FILE.py:FUNCTION, got {text!r}: name the function to call")
    elif colon:
        raise unknown_name("model source", prefix, SOURCES)
    else:
        source = "bundled"
    return source, ModelSpec(text=text, name=name, options=options)


def list_models(pattern: str | None = None) -> list[ModelEntry]:
    """Every model that can be named, bundled ones first; `pattern` as in a shell, or a part."""
    entries = [entry for source in SOURCES for entry in SOURCES.get(source).entries()]
    if not pattern:
        return entries
    if not any(character in pattern for character in "*?["):
        pattern = f"*{pattern}*"
    # `swin*` means timm:swin_... too: the prefix need not be typed.
    return [
        entry
        for entry in entries
        if fnmatch.fnmatch(entry.name, pattern)
        or fnmatch.fnmatch(entry.name.rpartition(":")[2], pattern)
    ]


def default_models(data: str) -> list[str]:
    """The bundled models that were trained on a data set."""
    names = [entry.name for entry in list_models(f"*.{data}") if entry.source == "bundled"]
    if not names:
        raise UsageError(f"no bundled model was trained on {data}: name one with --model")
    return names
