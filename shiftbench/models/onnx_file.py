"""`onnx:FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

What the weights expect of an image stands in a JSON file of the same name beside it (the format of
our weight cards), or in the options: `onnx:m.onnx,input_size=96,mean=(0.5,0.5,0.5)`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shiftbench.errors import ModelError, UsageError
from shiftbench.models.classifier import (
    Classifier,
    as_classifier,
    as_preprocessing,
    first_line,
)
from shiftbench.models.onnx_network import OnnxNetwork, Signature
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building
from shiftbench.preprocessing import Preprocessing
from shiftbench.registry import unknown_name

DEFAULT_SIZE = 224  # where neither the file nor its card nor an option says one
RECIPE = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


class OnnxSource:
    """ONNX files."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Opens the file; its card and the options say what its weights expect."""
        path = Path(spec.name)
        if not path.is_file():
            raise UsageError(f"no ONNX file {spec.name!r} for the model {spec.text!r}")
        network = OnnxNetwork(path, name=path.name)
        card = _card(path.with_suffix(".json"))
        recipe = _recipe(spec, card, network.signature)
        parameters, digest = _weights(path)
        names = tuple(map(str, card.get("class_names") or ()))
        with building(spec):
            found = as_classifier(
                network,
                recipe,
                name=spec.public_text,
                source="onnx",
                digest=digest,
                class_names=names,
            )
            network.gives_probabilities = _are_probabilities(network, recipe.input_size)
        if names and len(names) != found.num_classes:
            raise ModelError(
                f"the card {path.with_suffix('.json').name} names {len(names)} classes, and "
                f"{path.name} answers with {found.num_classes}: correct the card"
            )
        return replace(found, parameters=parameters)

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the user's files are the user's."""
        return ()


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
    unknown = next((key for key in spec.options if key not in RECIPE), None)
    if unknown is not None:
        raise unknown_name("option of an ONNX model", unknown, RECIPE)
    said = {key: card[key] for key in RECIPE if key in card} | dict(spec.options)
    said.setdefault("input_size", signature.size or DEFAULT_SIZE)
    try:
        recipe = as_preprocessing(said)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cannot read how {spec.text} wants its images: {first_line(error)}"
        ) from error
    if len(recipe.mean) != 3 or len(recipe.std) != 3:
        raise UsageError(
            f"expected three numbers as mean and as std of {spec.text}, got {recipe.mean} and "
            f"{recipe.std}"
        )
    if signature.size not in (None, recipe.input_size):
        raise UsageError(
            f"{spec.text} takes images of {signature.size} pixels, and {recipe.input_size} were "
            "asked for: leave input_size out, or export the model with a free size"
        )
    if "crop_pct" in card:
        enlarged = math.floor(recipe.input_size / float(card["crop_pct"]) + 1e-6)
        return replace(recipe, canvas=enlarged)
    return recipe


def _are_probabilities(network: OnnxNetwork, size: int) -> bool:
    """Whether the answers are a softmax already, as Keras likes to export them."""
    generator = torch.Generator().manual_seed(0)
    answers = network(torch.randn(4, 3, size, size, generator=generator))
    total = answers.double().sum(1)
    return bool((answers >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


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


SOURCES.register("onnx", OnnxSource())
