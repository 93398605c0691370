"""A model before it has weights: what training starts from, and what a file is loaded into."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.repair import untrained
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.classifier import (
    Classifier,
    as_classifier,
    logits_of,
)
from shiftbench.preprocessing import Preprocessing


@dataclass(frozen=True)
class Blueprint:
    """A network, and what its source knows of it besides the weights."""

    module: nn.Module  # with random weights; its parameters have the names that files know
    preprocessing: Preprocessing
    name: str  # how records call it, with options and remedies, without folders of this machine
    architecture: str  # the name alone: "timm:resnet50", "xcit_pico_6_p8", "net.py:build"
    source: str  # as in `Classifier`
    class_names: tuple[str, ...] = ()
    code: bytes = b""  # what decides the answers besides the weights, where the user wrote it
    remedies: str = ""  # "circular+aps"

    def with_remedies(self, remedies: str) -> Blueprint:
        """The same, repaired."""
        module = repaired(self.module, remedies, self.preprocessing.input_size, self.name)
        name = f"{self.name}+{remedies}"
        return replace(self, module=module, name=name, remedies=remedies)

    def classifier(self) -> Classifier:
        """The model with the weights that it has now, ready to be measured."""
        require_trained(self.module, self.name)
        found = as_classifier(
            self.module,
            self.preprocessing,
            name=self.name,
            source=self.source,
            class_names=self.class_names,
        )
        digest = found.digest
        if self.code:  # a change of the code is a new model, as one of the weights is
            digest = hashlib.sha256(self.code + digest.encode()).hexdigest()
        return replace(found, digest=digest_with(digest, self.remedies))


def answer_logits(module: nn.Module) -> None:
    """Lets a module answer with its logits alone; its parameters keep their names."""
    module.register_forward_hook(_logits_alone)


def _logits_alone(_: nn.Module, __: Any, output: Any) -> Tensor:
    return logits_of(output)


def repaired(module: nn.Module, remedies: str, size: int, name: str) -> nn.Module:
    """A copy of a network with remedies such as `circular+aps`, for images of `size` pixels.

    Raises:
        UsageError: A remedy does not fit the model.
    """
    image = torch.zeros(1, 3, size, size)
    try:
        return aft_models.repair(module, *remedies.split("+"), image=image)
    except AftModelsError as error:
        raise UsageError(f"{name}+{remedies}: {error}") from error


def require_trained(module: nn.Module, name: str) -> None:
    """Refuses a model that answers at random, since nothing filled what its remedy must learn."""
    lacking = untrained(module)
    if lacking:
        raise ModelError(
            f"{name} has {len(lacking)} learned parameters that no weights fill (such as "
            f"{lacking[0]}): train it, or give weights of it with --checkpoint"
        )


def digest_with(digest: str, remedies: str) -> str:
    """Names the weights of a repaired model, which answers otherwise than the original."""
    return hashlib.sha256(f"{digest}+{remedies}".encode()).hexdigest() if remedies else digest
