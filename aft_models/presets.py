"""The named models, and their registration with timm.

A name is ``xcit_<size>_p<patch>`` for the baseline, followed by ``_<variant>`` for the others:
``xcit_nano_12_p16``, ``xcit_small_12_p8_af``, ``xcit_pico_6_p4_aps``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.xcit import checkpoint_filter_fn

from aft_models.errors import AftModelsError, unknown
from aft_models.preprocessing import CROP_PCT, IMAGENET_MEAN, IMAGENET_STD
from aft_models.weights import BUNDLED, list_weights, weights_card
from aft_models.xcit import XCiT, XCiTConfig

_SIZES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    # Small enough to train on a laptop's processor: 0.4 M parameters on an 8 x 8 grid of tokens.
    "pico_6": ({"dim": 64, "depth": 6, "num_heads": 4}, (4, 8)),
    # timm's released nano weights were trained with class attention normalizing its token alone.
    "nano_12": ({"dim": 128, "depth": 12, "num_heads": 4, "tokens_norm": False}, (16, 8)),
    "tiny_12": ({"dim": 192, "depth": 12, "num_heads": 4}, (16, 8)),
    "small_12": ({"dim": 384, "depth": 12, "num_heads": 8}, (16, 8)),
}

_APS: dict[str, Any] = {"padding": "circular", "downsample": "aps", "positional": False}

_ALIAS_FREE: dict[str, Any] = {
    "padding": "circular",
    "downsample": "af",
    "embed_activation": "af_gelu",
    "block_activation": "af_gelu",
    "last_embed_activation": True,
    "norm": "af",
    "positional": False,
    "head": "af_class_attention",
}

VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "aps": _APS,
    "aps_avgpool": {**_APS, "head": "avgpool"},  # of the paper's table by batch size
    "af": _ALIAS_FREE,
    "af_avgpool": {**_ALIAS_FREE, "head": "avgpool"},
    "af_poly": {**_ALIAS_FREE, "embed_activation": "af_poly", "block_activation": "af_poly"},
    "af_polyblocks": {**_ALIAS_FREE, "block_activation": "af_poly"},
    "cyclic": {"padding": "circular"},
    "avgpool": {"head": "avgpool"},
    "aflayernorm": {"norm": "af"},
    "nopos": {"positional": False},
}


PRESETS = {
    f"xcit_{size}_p{patch}_{variant}".rstrip("_"): XCiTConfig(patch_size=patch, **shape, **switches)
    for size, (shape, patches) in _SIZES.items()
    for patch in patches
    for variant, switches in VARIANTS.items()
}

_SWITCHES = {field.name for field in dataclasses.fields(XCiTConfig)}


def get_config(name: str) -> XCiTConfig:
    """The configuration of a preset, or an error with the nearest names."""
    if name not in PRESETS:
        raise AftModelsError(unknown("model", name, PRESETS))
    return PRESETS[name]


def create_xcit(name: str, pretrained: bool = False, **kwargs: Any) -> XCiT:
    """Build a preset; switches of :class:`XCiTConfig` given by keyword override it.

    Args:
        name: a key of :data:`PRESETS`.
        pretrained: load the weights of timm's pretrained configuration.
        **kwargs: fields of :class:`XCiTConfig`, arguments of :class:`XCiT`, and the keywords
            that timm itself passes on.
    """
    switches = {key: kwargs.pop(key) for key in list(kwargs) if key in _SWITCHES}
    config = dataclasses.replace(get_config(name), **switches)
    model: XCiT = build_model_with_cfg(
        XCiT,
        name,
        pretrained,
        model_cfg=config,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **kwargs,
    )
    return model


def _default_cfg(config: XCiTConfig) -> dict[str, Any]:
    side = 224 if config.dim > 64 else 8 * config.patch_size
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, side, side),
        "pool_size": None,
        "crop_pct": CROP_PCT if side == 224 else 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
        "first_conv": "patch_embed.proj.0.0",
        "classifier": "head",
    }


__all__ = ["PRESETS", "VARIANTS", "create_xcit", "get_config"]  # timm appends each model's name


def _all_cfgs() -> dict[str, dict[str, Any]]:
    """Configurations of all presets untrained, of Meta's baselines, of the bundled weights."""
    cfgs = {name: _default_cfg(config) for name, config in PRESETS.items()}
    for size in ("nano_12", "tiny_12", "small_12"):
        for patch in (16, 8):
            name = f"xcit_{size}_p{patch}"
            hub = f"timm/{name}_224.fb_in1k"
            cfgs[f"{name}.fb_in1k"] = {**cfgs[name], "hf_hub_id": hub, "crop_pct": 1.0}
    for name in list_weights():
        card = weights_card(name)
        if card.switches or card.architecture not in PRESETS:
            continue  # a name alone cannot rebuild it; load_weights can
        cfgs[name] = {
            **cfgs[card.architecture],
            "file": str(BUNDLED / f"{name}.safetensors"),
            "num_classes": card.num_classes,
            "input_size": (3, card.input_size, card.input_size),
            "interpolation": card.interpolation,
            "crop_pct": card.crop_pct,
            "mean": card.mean,
            "std": card.std,
            "license": card.license.lower(),
        }
    return cfgs


default_cfgs = generate_default_cfgs(_all_cfgs())
for _cfg in default_cfgs.values():
    # timm would make the first weights the default; a name alone stays the untrained preset here,
    # so that its number of classes does not depend on which weights are bundled.
    _cfg.tags.remove("")
    _cfg.tags.appendleft("")


def _entry_point(name: str) -> Callable[..., XCiT]:
    def create(pretrained: bool = False, **kwargs: Any) -> XCiT:
        return create_xcit(name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__module__ = __name__
    create.__doc__ = f"XCiT ``{name}``: {PRESETS[name]}."
    return create


for _name in PRESETS:
    globals()[_name] = register_model(_entry_point(_name))
