"""`timm:NAME[,key=value...]`: every model of timm, pretrained unless `pretrained=false`."""

from __future__ import annotations

from collections.abc import Iterable

import timm
from timm.data import resolve_model_data_config
from timm.models import get_pretrained_cfg_value, is_model, is_model_pretrained
from torch import nn

from shiftbench.errors import UsageError
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import ModelEntry, building
from shiftbench.preprocessing import Preprocessing, square
from shiftbench.registry import unknown_name

REMOTE = ("hf-hub:", "hf_hub:", "local-dir:")  # timm's own schemes: nothing to look up here


def timm_preprocessing(model: nn.Module, img_size: int | None = None) -> Preprocessing:
    """The preprocessing timm keeps with a model's weights."""
    config = resolve_model_data_config(model, args={"img_size": img_size} if img_size else None)
    return Preprocessing(
        input_size=square(config["input_size"]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
    )


def load(spec: ModelSpec) -> Classifier:
    """Builds a timm model; the options go to `timm.create_model`."""
    pretrained, options = spec.take_pretrained()
    remote = spec.name.startswith(REMOTE)
    if not remote and not is_model(spec.name):
        raise unknown_name("timm model", spec.name, timm.list_models())
    # timm itself only logs that there are no weights, and goes on with random ones.
    if pretrained and not remote and not is_model_pretrained(spec.name):
        raise UsageError(
            f"timm has no pretrained weights for {spec.name!r}: give a file with --checkpoint, "
            f"or ask for random weights with timm:{spec.name},pretrained=false"
        )
    if spec.size and not remote and get_pretrained_cfg_value(spec.name, "fixed_input_size"):
        options.setdefault("img_size", spec.size)
    with building(spec, hub=pretrained or remote):
        model = timm.create_model(spec.name, pretrained=pretrained, **options)
        recipe = spec.sized(timm_preprocessing(model, options.get("img_size")))
        return as_classifier(model, recipe, name=spec.text, source="timm")


def entries() -> Iterable[ModelEntry]:
    """Every timm model that is timm's own."""
    for name in timm.list_models(exclude_filters=[]):
        if not timm.model_entrypoint(name).__module__.startswith("aft_models"):
            yield ModelEntry(f"timm:{name}", "timm", is_model_pretrained(name))
