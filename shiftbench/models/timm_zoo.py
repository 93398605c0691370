"""`timm:NAME[,key=value...]`: every model of timm."""

from __future__ import annotations

from collections.abc import Iterable

import timm
from timm.data import resolve_model_data_config
from timm.models import get_pretrained_cfg_value, is_model, is_model_pretrained
from torch import nn

from shiftbench.errors import UsageError
from shiftbench.models.blueprint import Blueprint
from shiftbench.models.classifier import (
    Classifier,
    as_classifier,
    square,
)
from shiftbench.models.source import (
    SOURCES,
    ModelEntry,
    ModelSpec,
    building,
    take_bool,
    without_weights,
)
from shiftbench.preprocessing import Preprocessing
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


class TimmSource:
    """Models by their timm name, pretrained unless `pretrained=false` is given."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Builds a timm model; the options go to `timm.create_model`."""
        options = dict(spec.options)
        pretrained = take_bool(options, "pretrained", True)
        remote = _is_remote(spec)
        # timm itself only logs that there are no weights, and goes on with random ones.
        if pretrained and not remote and not is_model_pretrained(spec.name):
            raise UsageError(
                f"timm has no pretrained weights for {spec.name!r}: give a file with --checkpoint, "
                f"or ask for random weights with timm:{spec.name},pretrained=false"
            )
        with building(spec, hub=pretrained):
            model = timm.create_model(spec.name, pretrained=pretrained, **options)
            recipe = timm_preprocessing(model, options.get("img_size"))
            return as_classifier(model, recipe, name=spec.text, source="timm")

    def build(self, spec: ModelSpec) -> Blueprint:
        """Builds it with random weights, for the image size that is asked for."""
        options = without_weights(spec)
        remote = _is_remote(spec)
        if spec.size and not remote and get_pretrained_cfg_value(spec.name, "fixed_input_size"):
            options.setdefault("img_size", spec.size)
        with building(spec, hub=remote):
            model = timm.create_model(spec.name, pretrained=False, **options)
            recipe = timm_preprocessing(model, options.get("img_size"))
        return Blueprint(model, recipe, spec.text, f"timm:{spec.name}", "timm")

    def entries(self) -> Iterable[ModelEntry]:
        """Every timm model that is timm's own."""
        for name in timm.list_models(exclude_filters=[]):
            if not timm.model_entrypoint(name).__module__.startswith("aft_models"):
                yield ModelEntry(f"timm:{name}", "timm", is_model_pretrained(name))


def _is_remote(spec: ModelSpec) -> bool:
    """Whether the hub knows the model; else timm must."""
    remote = spec.name.startswith(REMOTE)
    if not remote and not is_model(spec.name):
        raise unknown_name("timm model", spec.name, timm.list_models())
    return remote


SOURCES.register("timm", TimmSource())
