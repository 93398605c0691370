"""`onnx:FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

What the weights expect of an image stands in a JSON file of the same name beside it (the format of
our weight cards), or in the options: `onnx:m.onnx,input_size=96,mean=0.5,std=0.5`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.onnx_network import OnnxNetwork, Signature
from shiftbench.models.source import building
from shiftbench.preprocessing import FIELDS, Preprocessing, as_preprocessing, card_preprocessing
from shiftbench.registry import unknown_name


def load(spec: ModelSpec) -> Classifier:
    """Opens the file; its card and the options say what its weights expect."""
    spec.require_own_weights()
    path = Path(spec.name)
    if not path.is_file():
        raise UsageError(f"no ONNX file {spec.name!r} for the model {spec.text!r}")
    network = OnnxNetwork(path, name=path.name)
    card = _card(path.with_suffix(".json"))
    recipe = _recipe(spec, card, network.signature)
    parameters, digest = _weights(path)
    names = tuple(map(str, card.get("class_names") or ()))
    with building(spec):
        classifier = as_classifier(
            network,
            recipe,
            name=spec.public_name(),
            source="onnx",
            digest=digest,
            class_names=names,
            parameters=parameters,
        )
    if names and len(names) != classifier.num_classes:
        raise ModelError(
            f"the card {path.with_suffix('.json').name} names {len(names)} classes, and "
            f"{path.name} answers with {classifier.num_classes}: correct the card"
        )
    return classifier


def _card(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the card {path}: {first_line(error)}") from error
    if not isinstance(card, dict):
        raise ModelError(f"expected a JSON object in the card {path}, got {type(card).__name__}")
    return card


def _recipe(spec: ModelSpec, card: Mapping[str, Any], signature: Signature) -> Preprocessing:
    """From the card beside the file and the options; both may leave fields out."""
    unknown = next((key for key in spec.options if key not in FIELDS), None)
    if unknown is not None:
        raise unknown_name("option of an ONNX model", unknown, FIELDS)
    default = {"input_size": signature.size} if signature.size else {}
    known = card_preprocessing({**default, **card})
    if signature.takes_bytes:
        named = {"mean", "std"} & {*card, *spec.options}
        if named:
            raise UsageError(
                f"{spec.text} takes pixels of 0 to 255 and normalizes them itself: leave "
                f"{' and '.join(sorted(named))} out"
            )
        known = replace(known, mean=(0.0,) * 3, std=(1.0,) * 3, origin="bytes")
    recipe = as_preprocessing(spec.options, known)
    if signature.size not in (None, recipe.input_size):
        raise UsageError(
            f"{spec.text} takes images of {signature.size} pixels, and {recipe.input_size} were "
            "asked for: leave input_size out, or export the model with a free size"
        )
    return recipe


def _weights(path: Path) -> tuple[int, str]:
    """The number of parameters, and the digest of the file and of those it keeps weights in."""
    import onnx

    tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    elsewhere = {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }
    digest = hashlib.sha256(path.read_bytes())
    for place in sorted(elsewhere):
        digest.update((path.parent / place).read_bytes())
    return sum(math.prod(tensor.dims) for tensor in tensors), digest.hexdigest()
