"""Remedies as a suffix of any model's name: `timm:resnet50+circular+aps`."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import aft_models
from aft_models.errors import AftModelsError
from aft_models.repair import parse, untrained
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.checkpoint import read_state_dict
from shiftbench.models.classifier import Classifier, LogitsOnly, as_classifier

_SUFFIX = re.compile(r"^(.+?)((?:\+[a-z]+(?::\w*)?)+)$")
LEARNED = "scorer."  # in the names of parameters that only a learned remedy has


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


def load_repaired(
    name: str,
    remedies: str,
    checkpoint: Path | None,
    load: Callable[[str, Path | None], Classifier],
) -> Classifier:
    """Loads a model and repairs it; weights keep their names, so either's checkpoint loads.

    Args:
        name: The model's name without remedies.
        remedies: As `split_remedies` gives them.
        checkpoint: Weights of the model, or of the model so repaired.
        load: Loads a model without remedies.

    Raises:
        ModelError: It is no network of PyTorch, or a learned remedy lacks its trained weights.
        UsageError: A remedy does not fit the model.
    """
    state = {} if checkpoint is None else read_state_dict(checkpoint)
    learned = {key: value for key, value in state.items() if LEARNED in key}
    with tempfile.TemporaryDirectory() as folder:
        if learned:  # the model itself knows nothing of them
            checkpoint = Path(folder, "weights.safetensors")
            rest = {key: value.contiguous() for key, value in state.items() if key not in learned}
            save_file(rest, checkpoint)
        plain = load(name, checkpoint)
    network = plain.module.model if isinstance(plain.module, LogitsOnly) else plain.module
    if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
        raise ModelError(f"remedies change the layers of a PyTorch network, and {name} shows none")
    side = plain.preprocessing.input_size
    try:
        repaired = aft_models.repair(
            network, *remedies.split("+"), image=torch.zeros(1, 3, side, side)
        )
    except AftModelsError as error:
        raise UsageError(f"{name}+{remedies}: {error}") from error
    repaired.load_state_dict(learned, strict=False)
    lacking = untrained(repaired)
    if lacking:
        raise ModelError(
            f"{name}+{remedies} has {len(lacking)} learned parameters that no weights fill (such "
            f"as {lacking[0]}): train it, or give weights of it with --checkpoint"
        )
    return as_classifier(
        repaired,
        plain.preprocessing,
        name=f"{plain.name}+{remedies}",
        source=plain.source,
        digest=hashlib.sha256(f"{plain.digest}+{remedies}".encode()).hexdigest(),
        class_names=plain.class_names,
    )
