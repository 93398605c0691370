"""`hf:REPO_OR_DIR`: classifiers, detectors and segmenters of the transformers library.

The architecture of the configuration decides. `input_size=640` is the side of the images of a
detector or segmenter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.preprocessing import (
    ASSUMED,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preprocessing,
    cropped_from,
    square,
)
from shiftbench.errors import ModelError
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request, hub_access
from shiftbench.models.transforms import read_preprocessing

# Networks that are built without a download: class of the configuration, and its values.
KNOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "microsoft/cvt-13": (
        "CvtConfig",
        {
            "embed_dim": [64, 192, 384],
            "depth": [1, 2, 10],
            "num_heads": [1, 3, 6],
            "num_labels": 1000,
        },
    ),
}


def build(name: ModelName, request: Request) -> Built:
    """Build a classifier of transformers; weights without its head are an error."""
    library = transformers_library(name)
    pretrained, options = request.take_pretrained(name.text)
    known = not pretrained and name.name in KNOWN and not Path(name.name).is_dir()
    with nullcontext() if known or Path(name.name).is_dir() else hub_access():
        config = None if known else _load_config(library, name, {}, missing_ok=True)
    architecture = str(next(iter(getattr(config, "architectures", None) or ()), ""))
    for ending, (automatic, wrap) in DENSE.items():
        if architecture.endswith(ending):
            return _dense(getattr(library, automatic), wrap, name, request, pretrained, options)
    kind = library.AutoModelForImageClassification
    if known:
        title, values = KNOWN[name.name]
        network = kind.from_config(getattr(library, title)(**{**values, **options}))
        resize = cropped_from(224, 0.875)
        return Built(network, Preprocessing(224, interpolation="bicubic", resize=resize))
    with nullcontext() if Path(name.name).is_dir() else hub_access():
        if pretrained:
            network = load_pretrained(kind, name, options)
        else:
            config = _load_config(library, name, options)
            if request.size is not None and hasattr(config, "image_size"):
                config.image_size = request.size
            network = kind.from_config(config)
        preprocessing = load_processor(name, network.config)
    return Built(network, preprocessing, _class_names(network.config))


class Detector(nn.Module):
    """A detector of transformers that returns boxes, labels and scores of each image."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Return the detections of images (B, 3, S, S), the most probable class of each query."""
        output = self.network(pixel_values=images)
        # Detectors with a loss of sigmoids have no class for "no object" after the last one.
        sigmoid = output.logits.shape[-1] == self.network.config.num_labels
        scores = output.logits.sigmoid() if sigmoid else output.logits.softmax(-1)[..., :-1]
        best, labels = scores.max(-1)  # (B, queries)
        center, size = output.pred_boxes.split(2, -1)
        corners = torch.cat([center - size / 2, center + size / 2], -1)
        boxes = corners * images.new_tensor([*images.shape[-2:][::-1]] * 2)
        return [
            {"boxes": b, "labels": c, "scores": s}
            for b, c, s in zip(boxes, labels, best, strict=True)
        ]


class Segmenter(nn.Module):
    """A segmenter of transformers that returns a map of logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return maps (B, classes, h, w) of images (B, 3, S, S)."""
        logits: Tensor = self.network(pixel_values=images).logits
        return logits


# Ending of an architecture's name: the automatic class, and the module around its networks.
DENSE: Mapping[str, tuple[str, type[nn.Module]]] = {
    "ForObjectDetection": ("AutoModelForObjectDetection", Detector),
    "ForSemanticSegmentation": ("AutoModelForSemanticSegmentation", Segmenter),
}


def _dense(
    kind: Any,
    wrap: Any,
    name: ModelName,
    request: Request,
    pretrained: bool,
    options: dict[str, Any],
) -> Built:
    """Build a detector or segmenter; its images are padded by the mean color."""
    side = options.pop("input_size", request.size)
    with nullcontext() if Path(name.name).is_dir() else hub_access():
        if pretrained:
            network = load_pretrained(kind, name, options)
        else:
            network = kind.from_config(_load_config(transformers_library(name), name, options))
        own = _fitted_preprocessing(name, network.config, side)
    return Built(wrap(network), own, _class_names(network.config))


def _fitted_preprocessing(name: ModelName, config: Any, side: int | None) -> Preprocessing:
    """Read mean, std and size of an image processor that resizes whole images."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        values, _ = ImageProcessingMixin.get_image_processor_dict(name.name)
    except OSError:
        values = {}
    size = values.get("size") or {}
    if isinstance(size, int):
        size = {"shortest_edge": size}
    short = size.get("height") or size.get("shortest_edge") or getattr(config, "image_size", 0)
    own = square(short or 512)
    if "shortest_edge" in size:  # the longer side of an image of 4:3
        own = min(round(4 / 3 * own), int(size.get("longest_edge") or 2 * own))
    normalize = values.get("do_normalize", True)
    mean = tuple(values.get("image_mean") or IMAGENET_MEAN) if normalize else (0.0,) * 3
    std = tuple(values.get("image_std") or IMAGENET_STD) if normalize else (1.0,) * 3
    return Preprocessing(
        side or own,
        mean,
        std,
        "bilinear",
        fill=tuple(255 * level for level in mean),
        origin="processor" if values else ASSUMED,
    )


def _class_names(config: Any) -> tuple[str, ...]:
    """Return the class names of a configuration; none if they are only numbers."""
    labels = getattr(config, "id2label", None) or {}
    names = tuple(str(labels[index]) for index in sorted(labels))
    numbered = all(label.startswith("LABEL_") for label in names)
    return () if numbered else names


def _load_config(
    library: Any, name: ModelName, options: Mapping[str, Any], *, missing_ok: bool = False
) -> Any:
    try:
        return library.AutoConfig.from_pretrained(name.name, **options)
    except (OSError, ValueError) as error:
        if missing_ok:  # the error of the weights names the reason
            return None
        if isinstance(error, ValueError):
            raise
        raise ModelError(
            f"cannot read the configuration of {name.text}: there is no folder or repository "
            f"{name.name}, or no connection to it. Name a folder that contains config.json: "
            "hf:FOLDER"
        ) from error


def transformers_library(name: ModelName) -> Any:
    """Import the library."""
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{name.text} needs the transformers library: pip install 'shiftbench[hf]'"
        ) from error
    return transformers


def load_pretrained(kind: Any, name: ModelName, options: Mapping[str, Any]) -> Any:
    """Load a model with all its weights; `kind` is an automatic class of transformers."""
    from transformers.utils import logging as output

    shown, level = output.is_progress_bar_enabled(), output.get_verbosity()
    output.disable_progress_bar()
    output.set_verbosity_error()  # keys that do not fit are reported below
    try:
        model, report = kind.from_pretrained(
            name.name,
            output_loading_info=True,
            weights_only=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    finally:
        output.set_verbosity(level)
        if shown:
            output.enable_progress_bar()
    shapes = [
        f"{key} {tuple(theirs)} instead of {tuple(ours)}"
        for key, theirs, ours in sorted(report["mismatched_keys"])
    ]
    if shapes:
        raise ModelError(
            f"the weights of {name.text} do not fit its config.json: {', '.join(shapes[:4])}"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{name.text} has no trained weights for {', '.join(missing[:4])}: choose a model that "
            "was trained for this task"
        )
    return model


def load_processor(name: ModelName, config: Any) -> Preprocessing:
    """Read the image processor of a repository or folder, or assume ImageNet's preprocessing."""
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        ImageProcessingMixin.get_image_processor_dict(name.name)
    except OSError:
        return Preprocessing(square(getattr(config, "image_size", 224)), origin=ASSUMED)
    processor = AutoImageProcessor.from_pretrained(name.name, trust_remote_code=False)
    return read_preprocessing(processor, name.text)


def pooled(output: Any) -> Tensor:
    """Return the features of a tower; since version 5 transformers returns them in an object."""
    return output if isinstance(output, Tensor) else output.pooler_output
