"""`timm:NAME[,key=value...]`: every model of timm, pretrained unless `pretrained=false`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import timm
from timm.models import get_pretrained_cfg_value, is_model, is_model_pretrained

from aft_models.preprocessing import Preprocessing
from aft_models.presets import PRESETS
from shiftbench.errors import UsageError
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, ModelEntry, Request, hub_access
from shiftbench.registry import unknown_name

REMOTE = ("hf-hub:", "hf_hub:", "local-dir:")  # timm's own schemes: names are not listed


def build(name: ModelName, request: Request) -> Built:
    """Build a timm model; the options go to `timm.create_model`."""
    pretrained, options = request.take_pretrained(name.text)
    remote = name.name.startswith(REMOTE)
    if not remote and not is_model(name.name):
        raise unknown_name("timm model", name.name, timm.list_models())
    # timm itself only logs that there are no weights, and continues with random ones.
    if pretrained and not remote and not is_model_pretrained(name.name):
        raise UsageError(
            f"timm has no pretrained weights for {name.name!r}: give a file with --checkpoint, "
            f"or choose random weights with timm:{name.name},pretrained=false"
        )
    # Models with a free input size, such as ResNet, take no img_size.
    if request.size and not remote and get_pretrained_cfg_value(name.name, "fixed_input_size"):
        options.setdefault("img_size", request.size)
    return create(name.name, Request(pretrained, options=options))


def create(name: str, request: Request) -> Built:
    """Create a model by its name in timm, with the options of the request."""
    remote = request.pretrained or name.startswith(REMOTE)
    with hub_access() if remote else nullcontext():
        network = timm.create_model(name, pretrained=request.pretrained, **request.options)
    preprocessing = Preprocessing.of(network, img_size=request.options.get("img_size"))
    return Built(network, preprocessing)


def entries() -> Iterable[ModelEntry]:
    """List the models of timm itself."""
    for name in timm.list_models(exclude_filters=[]):
        if name not in PRESETS:
            yield ModelEntry(f"timm:{name}", "timm", is_model_pretrained(name))
