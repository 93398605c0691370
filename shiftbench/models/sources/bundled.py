"""`xcit_nano_12_p16_af.TAG`: the models of `aft_models`, with bundled weights or none.

Bundled weights have a card, as exported ones have: they are loaded like any checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from timm.models import is_model_pretrained

from aft_models.cards import list_weights
from aft_models.presets import PRESETS
from shiftbench.errors import UsageError
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request, list_models, timm
from shiftbench.registry import unknown_name


def build(name: ModelName, request: Request) -> Built:
    """Build a preset, with weights of timm's hub if the tag names them."""
    pretrained, options = request.take_pretrained(name.text)
    architecture, _, tag = name.name.partition(".")
    if architecture not in PRESETS:
        elsewhere = [e.name for e in list_models() if e.name.partition(":")[2] == name.name]
        if elsewhere:
            raise UsageError(f"unknown model {name.name!r}. Did you mean {' or '.join(elsewhere)}?")
        raise unknown_name("model", name.name, [*list_weights(), *PRESETS])
    if pretrained and not (tag and is_model_pretrained(name.name)):
        tags = [known for known in list_weights() if known.startswith(f"{architecture}.")]
        bundled = f"--model {' or '.join(tags)}, " if tags else ""
        raise UsageError(
            f"expected trained weights for {name.name!r}, got none: use {bundled}--checkpoint FILE "
            f"or, for random weights, --model {architecture},pretrained=false"
        )
    if request.classes is not None:
        options.setdefault("num_classes", request.classes)
    if request.size is not None:
        options.setdefault("img_size", request.size)
    network_name = name.name if pretrained else architecture
    return timm.create(network_name, replace(request, pretrained=pretrained, options=options))
