"""From a model name to a classifier."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import aft_models
from aft_models.classifier import replace_classifier
from aft_models.errors import AftModelsError
from aft_models.repair import untrained, view_margin
from shiftbench.errors import ModelError, UsageError
from shiftbench.identity import plugin_parts
from shiftbench.models.checkpoint import Weights, load_state, read_weights
from shiftbench.models.classifier import Classifier, as_classifier, logits_of
from shiftbench.models.names import EXPORTED, ModelSpec, parse_model
from shiftbench.models.sources import SOURCES, building

log = logging.getLogger(__name__)


def load_model(
    model: str | ModelSpec,
    *,
    checkpoint: str | Path | None = None,
    strip_prefix: str | None = None,
    class_names: Sequence[str] = (),
) -> Classifier:
    """Loads a model by its name.

    Args:
        model: `xcit_nano_12_p16_af.TAG` (bundled), a folder exported by training, `timm:NAME`,
            `tv:NAME`, `hf:REPO_OR_DIR`, `FILE.onnx` or `FILE.py:FUNCTION`; `,key=value` adds
            options, remedies may follow (`timm:resnet50+circular+aps`), and `NAME=` in front says
            what records call it.
        checkpoint: Weights to load instead of the source's own: a file, or a folder that training
            exported, whose card then says how many classes and which images.
        strip_prefix: Take those keys of the checkpoint that begin so: `student.`.
        class_names: Of the data, by index, for models that have no classes of their own
            (`zeroshot:` and `knn:`).

    >>> load_model("xcit_pico_6_p8.scenes").num_classes
    12

    Raises:
        UsageError: The name or an option is not known.
        ModelError: The weights are not available, or do not fit.
    """
    spec = replace(parse_model(model), class_names=tuple(class_names))
    if checkpoint is not None:
        classifier = _load_weights(spec, read_weights(Path(checkpoint)), strip_prefix)
    elif spec.source == EXPORTED:
        classifier = _load_exported(spec)
    else:
        classifier = repaired(_load(spec), spec.remedies)
    return replace(classifier, name=spec.label or classifier.name)


def build_model(
    model: str | ModelSpec,
    *,
    classes: int | None = None,
    size: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Classifier:
    """Builds a model by its name, remedies included, without trained weights.

    Args:
        model: As for `load_model`.
        classes: The classifier gets so many outputs; by default its own.
        size: Side of the images it shall take, in pixels; by default its own.
        seed: Of the random weights.
        options: Added to those of the name.

    >>> build_model("timm:resnet10t+circular+aps", classes=5, size=64).num_classes
    5
    """
    spec = parse_model(model)
    spec = replace(
        spec,
        pretrained=False,
        classes=classes,
        size=size,
        seed=seed,
        options={**spec.options, **(options or {})},
    )
    built = _load(spec)
    with building(spec):
        built.network.register_forward_hook(_logits_alone)
        # Not left to timm, whose start for a few classes has logits ten times as large.
        if classes is not None and replace_classifier(
            built.network, classes, size=built.preprocessing.input_size
        ):
            built = _rebuilt(built, built.network)
        return repaired(built, spec.remedies, trained=False)


def _load(spec: ModelSpec) -> Classifier:
    """The model of a name that was taken apart; without its remedies, as a rule."""
    if spec.source == EXPORTED:
        spec.require_own_weights()
    source = SOURCES.get(spec.source)
    model = source.load(spec)
    if model.preprocessing.origin == "assumed":
        log.warning(
            "%s names no mean and std: ImageNet's are assumed; name them with `return model, "
            '{"input_size": %d, "mean": ..., "std": ...}` (FILE.py), ,mean=0.5,std=0.5 (onnx:), or '
            "preprocessor_config.json (hf:)",
            model.name,
            model.preprocessing.input_size,
        )
    return model.with_code(plugin_parts(source))


def _logits_alone(_: nn.Module, __: Any, output: Any) -> Tensor:
    """A hook for training, which takes the network itself: it returns its logits alone."""
    return logits_of(output)


def repaired(plain: Classifier, remedies: str, *, trained: bool = True) -> Classifier:
    """A copy of a model with remedies such as `circular+aps`.

    Raises:
        ModelError: A learned remedy lacks its trained weights, and `trained` asks for them.
        UsageError: A remedy does not fit the model, or it is no network of PyTorch.
    """
    if remedies in ("", plain.parts["remedies"]):  # none, or the source's own work
        return plain
    size = plain.preprocessing.input_size
    try:
        module = aft_models.repair(
            plain.network, *remedies.split("+"), image=torch.zeros(1, 3, size, size)
        )
    except AftModelsError as error:
        raise UsageError(f"{plain.name}+{remedies}: {error}") from error
    better = _rebuilt(
        plain,
        module,
        name=f"{plain.name}+{remedies}",
        digest=plain.parts["weights"],
        remedies=remedies,
    )
    if trained:
        _require_trained(better)
    return better


def _rebuilt(plain: Classifier, module: nn.Module, **changes: Any) -> Classifier:
    """A classifier of a changed network, with all else that is known of the model."""
    recipe = plain.preprocessing.widened(view_margin(module))
    kept = {"name": plain.name, "remedies": plain.parts["remedies"], **changes}
    known: Any = {"source": plain.source, "class_names": plain.class_names, "code": plain.code}
    return as_classifier(module, recipe, **known, **kept)


def _require_trained(model: Classifier) -> None:
    """Refuses a model that answers at random, since nothing filled what its remedy must learn."""
    lacking = untrained(model.module)
    if lacking:
        raise ModelError(
            f"{model.name} has {len(lacking)} learned parameters that no weights fill (such as "
            f"{lacking[0].removeprefix('model.')}): train it, or give weights of it with "
            "--checkpoint"
        )


def _load_weights(spec: ModelSpec, weights: Weights, strip_prefix: str | None = None) -> Classifier:
    """A model with weights from a file; a card beside them says what they are of, and for."""
    card = weights.card
    if card is None:
        built = build_model(spec)
    else:
        ours, theirs = spec.architecture, parse_model(card.architecture).architecture
        if theirs != ours:
            raise ModelError(f"{weights.origin} holds the weights of {theirs}, not of {ours}")
        built = build_model(
            spec, classes=card.num_classes, size=card.input_size, options=card.switches
        )
        assert weights.preprocessing is not None
        built = replace(built, preprocessing=weights.preprocessing, class_names=card.class_names)
    load_state(built.network, weights, strip_prefix)
    loaded = _rebuilt(built, built.network)
    _require_trained(loaded)
    return loaded


def _load_exported(spec: ModelSpec) -> Classifier:
    """The one set of weights in a folder that training wrote; its card names the model."""
    weights = read_weights(Path(spec.name))
    if weights.card is None:
        raise ModelError(
            f"expected the weights of one model with their card in {spec.name}: name the folder "
            "that training exported"
        )
    remedies = f"+{spec.remedies}" if spec.remedies else ""
    loaded = _load_weights(parse_model(f"{weights.card.architecture}{remedies}"), weights)
    return replace(loaded, name=f"{weights.card.name}{remedies}")
