"""`tv:NAME[,weights=TAG]`: torchvision's classifiers, detectors and segmenters.

`weights=IMAGENET1K_V1` names the set of weights, by default torchvision's latest. Weights from a
file are taken for that set's: its preprocessing applies. `input_size=640` is the side of the images
of a detector or segmenter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torchvision
from torch import Tensor, nn
from torchvision.models import detection, get_model, get_model_weights, list_models, segmentation

from aft_models.preprocessing import Preprocessing
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, ModelEntry, Request
from shiftbench.models.transforms import of_weights
from shiftbench.registry import unknown_name

# The weights of two models come from TensorFlow and undo torchvision's normalization. torchvision
# sets the option when it downloads them; the same weights from a file need it too. Weights trained
# without it need `transform_input=false`. The initial values are replaced.
FROM_TENSORFLOW = ("googlenet", "inception_v3")
KEYPOINTS = "keypoint"  # detectors of people alone, with another output


def build(name: ModelName, request: Request) -> Built:
    """Build a torchvision model; options besides `weights` and `pretrained` go to it."""
    pretrained, options = request.take_pretrained(name.text)
    detectors, segmenters = _detectors(), list_models(module=segmentation)
    names = [*list_models(module=torchvision.models), *detectors, *segmenters]
    if name.name not in names:
        raise unknown_name("torchvision model", name.name, names)
    tags, tag = get_model_weights(name.name), options.pop("weights", "DEFAULT")
    if tag not in tags.__members__:
        raise unknown_name(f"weights of {name.name}", str(tag), tags.__members__)
    weights = tags[tag]
    if not request.pretrained and name.name in FROM_TENSORFLOW:
        options = {"transform_input": True, "init_weights": False, **options}
    side = request.size
    if name.name in (*detectors, *segmenters):
        side = options.pop("input_size", side)
        if not pretrained:
            options.setdefault("weights_backbone", None)
    network = get_model(name.name, weights=weights if pretrained else None, **options)
    classes = tuple(weights.meta["categories"]) if pretrained else ()
    if name.name in detectors:
        return _detector(network, side, _distinct(classes))
    if name.name in segmenters:
        return _segmenter(network, weights.transforms(), side, _distinct(classes))
    return Built(network, replace(of_weights(weights.transforms()), origin=weights.name), classes)


def _detectors() -> list[str]:
    return [name for name in list_models(module=detection) if KEYPOINTS not in name]


class Detector(nn.Module):
    """A detector of torchvision that takes square images, which its own resize does not change."""

    def __init__(self, network: Any, size: int) -> None:
        super().__init__()
        self.network = network
        resize = network.transform
        if resize.fixed_size is None:
            resize.min_size, resize.max_size = (size,), size
        else:
            resize.fixed_size = (size, size)

    def forward(self, images: Tensor) -> Any:
        """Return boxes, labels and scores of each of the images (B, 3, S, S), in [0, 1]."""
        return self.network(list(images))


def _detector(network: Any, size: int | None, classes: tuple[str, ...]) -> Built:
    """Describe a detector; it normalizes by itself, and pads by its mean color."""
    resize = network.transform
    if size is None and resize.fixed_size is not None:
        size = int(resize.fixed_size[0])
    # The longer side of an image of 4:3, whose shorter side has the network's own size.
    side = size or min(round(4 / 3 * resize.min_size[-1]), int(resize.max_size))
    fill = tuple(255 * float(level) for level in resize.image_mean)
    own = Preprocessing(side, (0.0,) * 3, (1.0,) * 3, "bilinear", fill=fill, origin="torchvision")
    return Built(Detector(network, side), own, classes)


def _segmenter(network: Any, transforms: Any, size: int | None, classes: tuple[str, ...]) -> Built:
    """Describe a segmenter, whose images are padded by the mean color."""
    mean, std = tuple(transforms.mean), tuple(transforms.std)
    side = size or int(transforms.resize_size[0])
    fill = tuple(255 * level for level in mean)
    own = Preprocessing(side, mean, std, "bilinear", fill=fill, origin="torchvision")
    return Built(network, own, classes)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Give distinct names to the classes "N/A", which no data set has."""
    return tuple(f"N/A {i}" if name == "N/A" else name for i, name in enumerate(names))


def entries() -> Iterable[ModelEntry]:
    """List the models of torchvision."""
    for name in (
        *list_models(module=torchvision.models),
        *_detectors(),
        *list_models(module=segmentation),
    ):
        yield ModelEntry(f"tv:{name}", "torchvision", True)
