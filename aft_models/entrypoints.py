"""Entry points of timm: one per preset, which imports the architecture when it is called.

`registration` imports this module once timm is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from timm.models import generate_default_cfgs, register_model

from aft_models.cards import BUNDLED, list_weights, weights_card
from aft_models.preprocessing import CROP_PCT, IMAGENET_MEAN, IMAGENET_STD
from aft_models.presets import PRESETS, XCiTConfig

if TYPE_CHECKING:
    from aft_models.xcit import XCiT

__all__ = ["default_cfgs"]  # timm appends the name of each model


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


def _all_cfgs() -> dict[str, dict[str, Any]]:
    """Return the configurations of untrained presets, Meta's baselines and bundled weights."""
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
    # timm would make the first weights the default. Here a name without a tag is the untrained
    # preset: its number of classes must not depend on the bundled weights.
    _cfg.tags.remove("")
    _cfg.tags.appendleft("")


def _entry_point(name: str) -> Callable[..., XCiT]:
    def create(pretrained: bool = False, **kwargs: Any) -> XCiT:
        from aft_models.xcit import create_xcit

        return create_xcit(name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__module__ = __name__
    create.__doc__ = f"XCiT ``{name}``: {PRESETS[name]}."
    return create


for _name in PRESETS:
    globals()[_name] = register_model(_entry_point(_name))
