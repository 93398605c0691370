"""`tv:NAME[,weights=TAG]`: the classifiers of torchvision, each with its own transforms.

`weights=IMAGENET1K_V1` names the set of weights, by default torchvision's latest. Weights from a
file are taken for that set's: its preprocessing applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torchvision
from torchvision.models import get_model, get_model_weights, list_models

from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, ModelEntry, Request
from shiftbench.models.transforms import of_weights
from shiftbench.registry import unknown_name

# The weights of two models come from TensorFlow and undo torchvision's normalization. torchvision
# sets the option when it downloads them; the same weights from a file need it too. Weights trained
# without it need `transform_input=false`. The initial values are replaced.
FROM_TENSORFLOW = ("googlenet", "inception_v3")


def build(name: ModelName, request: Request) -> Built:
    """Build a torchvision model; options besides `weights` and `pretrained` go to it."""
    pretrained, options = request.take_pretrained(name.text)
    names = list_models(module=torchvision.models)
    if name.name not in names:
        raise unknown_name("torchvision classifier", name.name, names)
    tags, tag = get_model_weights(name.name), options.pop("weights", "DEFAULT")
    if tag not in tags.__members__:
        raise unknown_name(f"weights of {name.name}", str(tag), tags.__members__)
    weights = tags[tag]
    if not request.pretrained and name.name in FROM_TENSORFLOW:
        options = {"transform_input": True, "init_weights": False, **options}
    return Built(
        get_model(name.name, weights=weights if pretrained else None, **options),
        replace(of_weights(weights.transforms()), origin=weights.name),
        tuple(weights.meta["categories"]) if pretrained else (),
    )


def entries() -> Iterable[ModelEntry]:
    """List the classifiers of torchvision."""
    for name in list_models(module=torchvision.models):
        yield ModelEntry(f"tv:{name}", "torchvision", True)
