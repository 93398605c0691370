"""The command line of the authors' training script, read as switches of this package.

Only their alias-free model looks at it; the others ignore arguments that have defaults all the
same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aft_models.errors import AftModelsError

_ACTIVATIONS = {"gelu": "gelu", "up_gelu": "af_gelu", "up_poly": "af_poly"}
_SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {  # argument -> switch, and value by value
    "conv_padding_mode": ("padding", {"zeros": "zeros", "circular": "circular"}),
    "pe_down_af": ("downsample", {"True": "af", "False": "stride"}),
    "pe_act": ("embed_activation", _ACTIVATIONS),
    "pe_last_act": ("last_embed_activation", {"True": True, "False": False}),
    "mlp_act": ("block_activation", _ACTIVATIONS),
    "lpi_act": ("block_activation", _ACTIVATIONS),
    "pe_first_act": ("", {"None": None}),
    "xca_norm_layer": ("norm", {"layer": "layer", "layer_af": "af"}),
    "features_type": (
        "head",
        {
            "cls_attn": "class_attention",
            "cls_attn_af": "af_class_attention",
            "avgpool": "avgpool",
        },
    ),
}
# Where polynomials start from; the weights say where they ended.
_INITIAL = {"init_coef", "in_scale", "out_scale", "train_scale"}


def switches_of(arguments: Mapping[str, Any], degrees: Mapping[str, int]) -> dict[str, Any]:
    """Switches of :class:`~aft_models.xcit.XCiTConfig` that saved arguments tell.

    Args:
        arguments: by their names; those that are not there tell nothing.
        degrees: of the polynomials in the weights, by their switch.

    Raises:
        AftModelsError: they ask for a layer that this package does not have.

    >>> switches_of({"xca_norm_layer": "layer", "lr": 0.001}, {})
    {'norm': 'layer'}
    """
    found: dict[str, Any] = {}
    for name, (switch, words) in _SWITCHES.items():
        if name not in arguments:
            continue
        value = str(arguments[name])
        if value not in words:
            raise _refused(arguments, [name], f"{', '.join(words)} can be loaded")
        if switch and found.setdefault(switch, words[value]) != words[value]:
            raise _refused(arguments, ["mlp_act", "lpi_act"], "here both are the same")
    _check_sub_sampling(arguments, found)
    for name, switch in (
        ("pe_act", "embed_degree"),
        ("mlp_act", "block_degree"),
        ("lpi_act", "block_degree"),
    ):
        if str(arguments.get(name)) == "up_poly":
            _check_polynomial(arguments, f"{name}_kwargs", degrees.get(switch))
    return found


def _check_sub_sampling(arguments: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Two settings make their patch embedding sub-sample never, or once too often."""
    fused = arguments.get("pe_fuse_down", True)
    if fused and found.get("downsample") == "af" and found.get("embed_activation") == "gelu":
        names = ["pe_down_af", "pe_fuse_down", "pe_act"]
        raise _refused(arguments, names, "their patch embedding then never sub-samples")
    if found.get("downsample") == "stride" and found.get("last_embed_activation") is False:
        names = ["pe_down_af", "pe_last_act"]
        raise _refused(arguments, names, "their patch embedding then sub-samples once too often")


def _check_polynomial(arguments: Mapping[str, Any], name: str, stored: int | None) -> None:
    """The weights hold the coefficients; an unused one, or another up factor, would not show."""
    given = arguments.get(name) or {}
    try:
        options = dict(json.loads(given) if isinstance(given, str) else given)
    except ValueError as error:
        raise _refused(arguments, [name], "expected a JSON object") from error
    used = options.pop("degree", 2)
    if options.keys() - _INITIAL or used != stored:
        held = "none" if stored is None else f"some of degree {stored}, for up-sampling by 2"
        raise _refused(arguments, [name], f"of polynomials, the weights hold {held}")


def _refused(arguments: Mapping[str, Any], names: list[str], reason: str) -> AftModelsError:
    line = " ".join(f"--{name.replace('_', '-')} {arguments.get(name)}" for name in names)
    return AftModelsError(
        f"the checkpoint was trained with {line}, which is no model here: {reason}"
    )
