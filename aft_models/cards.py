"""Cards of trained weights: architecture, preprocessing, training, scores. Needs no torch.

Two files per set of weights, ``<architecture>.<tag>.safetensors`` and the same with ``.json``.
Characters that a file name cannot contain are replaced. The bundled files are in the folder
``weights``; training writes the same pair to a folder of the user's choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aft_models.errors import AftModelsError, unknown
from aft_models.files import file_safe
from aft_models.preprocessing import Preprocessing, cropped_from

BUNDLED = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class WeightsCard:
    """Facts about a set of weights."""

    name: str  # "<architecture>.<tag>"
    architecture: str  # a model registered with timm, or the user's name of another one
    tag: str  # the training data, in one word
    num_classes: int  # outputs of the classifier
    class_names: tuple[str, ...]  # in the order of the outputs; empty if unknown
    input_size: int  # side of the square input, in pixels
    mean: tuple[float, ...]  # subtracted per channel, images in [0, 1]
    std: tuple[float, ...]  # divided by, after the mean
    interpolation: str  # for resizing: bilinear, bicubic, ...
    crop_pct: float  # fraction of the resized image that the center crop keeps
    digest: str  # sha256 of the weights, see checkpoint.state_dict_digest
    recipe: Mapping[str, Any] = field(default_factory=dict)  # settings of the training
    data: str = ""  # the training data, as text
    epochs: float = 0.0  # passes over the data
    scores: Mapping[str, float] = field(default_factory=dict)  # measured, as fractions in [0, 1]
    images: Mapping[str, int] = field(default_factory=dict)  # number of images of each score
    license: str = "Apache-2.0"  # of the weights
    switches: Mapping[str, Any] = field(default_factory=dict)  # differences from the preset

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the images that the weights were trained on."""
        resize = cropped_from(self.input_size, self.crop_pct)
        return Preprocessing(
            self.input_size,
            self.mean,
            self.std,
            self.interpolation,
            resize=resize,
            enlarge=True,
            origin="card",
        )


def list_weights(folder: str | Path | None = None) -> list[str]:
    """List the names of the weights in a folder, by default of the bundled ones."""
    where = Path(folder or BUNDLED)
    if not where.is_dir():
        raise AftModelsError(f"expected a folder of exported weights, got {where}: create it first")
    return sorted(p.stem for p in where.glob("*.json") if p.with_suffix(".safetensors").is_file())


def card_file(name: str, folder: str | Path | None = None) -> Path:
    """Return the path of a card; its weights have the same path with the ending .safetensors."""
    known = list_weights(folder)
    stem = name if name in known else file_safe(name)
    if stem not in known:
        raise AftModelsError(unknown("weights", name, known))
    # Not with_suffix: the tag follows a dot as well.
    return Path(folder or BUNDLED) / f"{stem}.json"


def weights_card(name: str, folder: str | Path | None = None) -> WeightsCard:
    """Read the card of the weights ``"<architecture>.<tag>"``."""
    path = card_file(name, folder)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for key in ("class_names", "mean", "std"):
            content[key] = tuple(content[key])
        return WeightsCard(**content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise AftModelsError(f"cannot read the weights card {path}: {error!r}") from error
