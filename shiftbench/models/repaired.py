"""Remedies as a suffix of any model's name: `timm:resnet50+circular+aps`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from aft_models.errors import AftModelsError
from aft_models.repair import parse
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.blueprint import digest_with, repaired, require_trained
from shiftbench.models.classifier import Classifier, LogitsOnly, as_classifier

_SUFFIX = re.compile(r"^(.+?)((?:\+[a-z]\w*(?::\w*)?)+)$")


def split_remedies(text: str) -> tuple[str, str]:
    """A model's name, and the remedies that follow it.

    >>> split_remedies("timm:resnet50,pretrained=false+circular+blurpool:3")
    ('timm:resnet50,pretrained=false', 'circular+blurpool:3')
    >>> split_remedies("a+b/net.py:build")
    ('a+b/net.py:build', '')
    """
    found = _SUFFIX.match(text.strip())
    if found is None:
        return text, ""
    try:
        remedies = "+".join(map(str, parse(found[2][1:])))
    except AftModelsError as error:
        raise UsageError(str(error)) from error
    return found[1], remedies


def require_one_model(names: Sequence[str]) -> None:
    """Refuses one file of weights for several models; those that differ in remedies share it.

    >>> require_one_model(["timm:resnet50", "timm:resnet50+circular+aps"])
    """
    models = {split_remedies(name)[0] for name in names}
    if len(models) != 1:
        raise UsageError(
            f"--checkpoint holds the weights of one --model, and {len(models)} were given"
        )


def with_remedies(plain: Classifier, remedies: str) -> Classifier:
    """A model with its own weights, repaired.

    Raises:
        ModelError: It is no network of PyTorch, or a learned remedy lacks its trained weights.
        UsageError: A remedy does not fit the model.
    """
    network = plain.module.model if isinstance(plain.module, LogitsOnly) else plain.module
    if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
        raise ModelError(
            f"remedies change the layers of a PyTorch network, and {plain.name} shows none"
        )
    name = f"{plain.name}+{remedies}"
    module = repaired(network, remedies, plain.preprocessing.input_size, plain.name)
    require_trained(module, name)
    found = as_classifier(module, plain.preprocessing, name=name, source=plain.source)
    digest = digest_with(plain.digest, remedies)
    return replace(found, digest=digest, class_names=plain.class_names)
