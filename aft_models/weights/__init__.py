"""Trained weights, each with a card: architecture, preprocessing, training, scores.

Two files per entry, ``<architecture>.<tag>.safetensors`` and the same with ``.json``; characters
that a file name should not have are replaced. The bundled ones lie in this folder; training writes
the same pair to a folder of the user's choice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from aft_models.classifier import replace_classifier
from aft_models.errors import AftModelsError, unknown
from aft_models.files import write_atomic

__all__ = [
    "WeightsCard",
    "list_weights",
    "load_state_dict",
    "load_weights",
    "save_weights",
    "state_dict_digest",
    "weights_card",
]

BUNDLED = Path(__file__).parent


@dataclass(frozen=True)
class WeightsCard:
    """What a set of weights is for, what it expects of an image, and how it was trained."""

    name: str  # "<architecture>.<tag>"
    architecture: str  # a model registered with timm, or how the user named another one
    tag: str  # what it was trained on
    num_classes: int  # outputs of the classifier
    class_names: tuple[str, ...]  # in the order of the outputs; empty when not known
    input_size: int  # side of the square input, in pixels
    mean: tuple[float, ...]  # subtracted per channel, images in [0, 1]
    std: tuple[float, ...]  # divided by, after the mean
    interpolation: str  # for resizing: bilinear, bicubic, ...
    crop_pct: float  # part of the resized image that the center crop keeps
    digest: str  # sha256 of the weights, see state_dict_digest
    recipe: Mapping[str, Any] = field(default_factory=dict)  # settings of the training
    data: str = ""  # what it was trained on, in words
    epochs: float = 0.0  # passes over the data
    scores: Mapping[str, float] = field(default_factory=dict)  # measured, as fractions in [0, 1]
    images: Mapping[str, int] = field(default_factory=dict)  # how many images each score is of
    license: str = "Apache-2.0"  # of the weights
    switches: Mapping[str, Any] = field(default_factory=dict)  # differences from the preset


def list_weights(folder: str | Path | None = None) -> list[str]:
    """Names of the weights in ``folder``, by default the bundled ones."""
    where = Path(folder or BUNDLED)
    if not where.is_dir():
        raise AftModelsError(f"no folder {where}: expected one that holds exported weights")
    return sorted(p.stem for p in where.glob("*.json") if p.with_suffix(".safetensors").is_file())


def weights_card(name: str, folder: str | Path | None = None) -> WeightsCard:
    """The card of weights by the name ``"<architecture>.<tag>"``, as for ``load_weights``."""
    path = _path(name, folder)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for key in ("class_names", "mean", "std"):
            content[key] = tuple(content[key])
        return WeightsCard(**content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise AftModelsError(f"{path} is not a weights card: {error!r}") from error


def load_state_dict(name: str, folder: str | Path | None = None) -> dict[str, Tensor]:
    """The weights alone, on the CPU, checked against the digest of their card."""
    card = weights_card(name, folder)
    path = _path(name, folder).with_suffix(".safetensors")
    try:
        state: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise AftModelsError(f"{path} cannot be read as weights: {error}") from error
    digest = state_dict_digest(state)
    if digest != card.digest:
        raise AftModelsError(
            f"{path} does not hold the weights of its card (digest {digest[:12]}, expected "
            f"{card.digest[:12]}): copy or export it again"
        )
    return state


def load_weights(
    name: str, folder: str | Path | None = None, *, model: nn.Module | None = None
) -> nn.Module:
    """The model with these weights, in evaluation mode on the CPU.

    Args:
        name: ``"<architecture>.<tag>"``.
        folder: where ``save_weights`` wrote it; by default the bundled ones.
        model: the architecture of the card, where it is not a name that ``timm.create_model``
            takes; its classifier is replaced where it has other classes.
    """
    card = weights_card(name, folder)
    state = load_state_dict(name, folder)
    if model is not None:
        replace_classifier(model, card.num_classes, size=card.input_size)
    elif timm.is_model(card.architecture):
        options = {"num_classes": card.num_classes, "img_size": card.input_size, **card.switches}
        model = timm.create_model(card.architecture, **options)
    else:
        raise AftModelsError(
            f"{card.name} is of {card.architecture!r}, which timm does not know: build that model "
            "and pass it to load_weights(..., model=...)"
        )
    assert model is not None
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise AftModelsError(
            f"the weights {name!r} do not fit their architecture: {error}"
        ) from None
    return model.eval()


def save_weights(model: nn.Module, folder: str | Path, card: WeightsCard) -> Path:
    """Write ``<card.name>.safetensors`` and its card; a reader never sees half of either.

    A name such as ``timm:resnet50+af.birds`` becomes the file name ``timm_resnet50+af.birds``. The
    card's digest and its switches, those that differ from the preset, are filled in from the model.

    Returns:
        The path of the card.
    """
    if card.name != f"{card.architecture}.{card.tag}":
        raise AftModelsError(
            f"a card's name must be '<architecture>.<tag>': expected "
            f"{card.architecture + '.' + card.tag!r}, got {card.name!r}"
        )
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    # Copies, because a file cannot hold two names of one tensor (modules that a network shares).
    state = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    card = dataclasses.replace(
        card, digest=state_dict_digest(state), switches=_switches(model, card.architecture)
    )
    text = json.dumps(dataclasses.asdict(card), indent=2, ensure_ascii=False) + "\n"
    stem = _file_safe(card.name)
    target = where / f"{stem}.json"
    # The card goes last: weights without a card are not listed.
    # Not save_file, whose files only their owner may read.
    write_atomic(where / f"{stem}.safetensors", save(state, metadata={"format": "pt"}))
    write_atomic(target, lambda path: path.write_text(text, encoding="utf-8"))
    return target


def state_dict_digest(state: Mapping[str, Tensor]) -> str:
    """sha256 over the sorted keys with dtype, shape and bytes; order and device do not matter."""
    total = hashlib.sha256()
    for key in sorted(state):
        tensor = state[key].detach().cpu().contiguous()
        total.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _switches(model: nn.Module, architecture: str) -> dict[str, Any]:
    from aft_models.presets import PRESETS

    config = getattr(model, "cfg", None)
    if config is None or architecture not in PRESETS:
        return {}
    preset = dataclasses.asdict(PRESETS[architecture])
    return {k: v for k, v in dataclasses.asdict(config).items() if v != preset[k]}


def _file_safe(name: str) -> str:
    """Idempotent, so that the name of a file finds that file."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", name).strip("_.")


def _path(name: str, folder: str | Path | None) -> Path:
    known = list_weights(folder)
    stem = _file_safe(name)
    if stem not in known:
        raise AftModelsError(unknown("weights", name, known))
    # Not with_suffix: the tag follows a dot of its own.
    return Path(folder or BUNDLED) / f"{stem}.json"
