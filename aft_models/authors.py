"""Checkpoints of the paper's authors, converted to the key names and settings of this package.

Five key names differ. The patch embedding counts its down-sampling layers. The batch norm of the
local patch interaction is called ``norm``, the positional encoding ``pos_embeder`` or
``pos_module``. Class attention has one ``qkv`` matrix. A polynomial has separate input and output
scales.

The keys distinguish three models: a baseline, one with adaptive polyphase sampling, and an
alias-free one. The layers of the alias-free model follow the arguments of the training script,
which are stored beside the weights. The other two models ignore these arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models.xcit import checkpoint_filter_fn
from torch import Tensor

from aft_models.cards import WeightsCard
from aft_models.checkpoint import misfit, save_weights
from aft_models.errors import AftModelsError
from aft_models.preprocessing import CROP_PCT, IMAGENET_MEAN, IMAGENET_STD
from aft_models.presets import get_config
from aft_models.xcit import XCiT, create_xcit

_PROJ = re.compile(r"patch_embed\.proj\.(\d+)\.(.*)")
_POLYNOMIAL = re.compile(r"(.*)\.act_layer\.(coef|in_scale|out_scale)")

_PLAIN: dict[str, Any] = {
    "padding": "zeros",
    "downsample": "stride",
    "embed_activation": "gelu",
    "block_activation": "gelu",
    "last_embed_activation": False,
    "norm": "layer",
}
_FIXED: dict[str, dict[str, Any]] = {  # models that no argument changes
    "baseline": _PLAIN,
    "APS": {**_PLAIN, "padding": "circular", "downsample": "aps"},
}
_ACTIVATIONS = {"gelu": "gelu", "up_gelu": "af_gelu", "up_poly": "af_poly"}
_HEADS = {
    "cls_attn": "class_attention",
    "cls_attn_af": "af_class_attention",
    "avgpool": "avgpool",
}
_SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {  # argument -> switch, and value by value
    "conv_padding_mode": ("padding", {"zeros": "zeros", "circular": "circular"}),
    "pe_down_af": ("downsample", {"True": "af", "False": "stride"}),
    "pe_act": ("embed_activation", _ACTIVATIONS),
    "pe_last_act": ("last_embed_activation", {"True": True, "False": False}),
    "mlp_act": ("block_activation", _ACTIVATIONS),
    "lpi_act": ("block_activation", _ACTIVATIONS),
    "pe_first_act": ("", {"None": None}),
    "xca_norm_layer": ("norm", {"layer": "layer", "layer_af": "af"}),
    "features_type": ("head", _HEADS),
}
# Initial values of polynomials; the weights contain the trained ones.
_INITIAL = {"init_coef", "in_scale", "out_scale", "train_scale"}


def load_authors_checkpoint(
    source: str | Path | Mapping[str, Any], architecture: str, **kwargs: Any
) -> XCiT:
    """Build a model of this package with weights trained by the paper's authors or their code.

    The content of the checkpoint takes precedence over the preset. Keys determine the positional
    encoding and the degrees of polynomials. Saved arguments determine norms, activations, padding
    and down-sampling. A file without arguments, as released, has the settings of ``architecture``.
    Alias-free norms get ``norm_mean="channel"``. Class attention normalizes all tokens in all
    models but the baseline ``xcit_nano_12_p8``, as in the authors' code.

    Args:
        source: checkpoint file, or its content; a training checkpoint's ``"model"`` is used.
        architecture: a preset, such as ``"xcit_nano_12_p16_af"``.
        **kwargs: passed on to the model, with precedence; ``num_classes`` is read from the weights.

    Returns:
        The model in evaluation mode.

    Raises:
        AftModelsError: The file cannot be read or contains another model. Or it was trained with
            layers that this package does not have, or a key is missing, unexpected or misshapen.
    """
    theirs, arguments = _read(source)
    model = create_xcit(architecture, **{**_settings(theirs, arguments, architecture), **kwargs})
    ours = _rename(theirs, model)
    if trouble := misfit(model.state_dict(), ours):
        raise AftModelsError(
            f"the checkpoint does not fit {architecture}: {trouble}. Choose the architecture it "
            "was trained as"
        )
    model.load_state_dict(ours)
    return model.eval()


def convert_authors_checkpoint(source: str | Path, architecture: str, folder: str | Path) -> Path:
    """Write a checkpoint of the authors as a folder that ``--checkpoint`` loads.

    Returns:
        The path of the card.
    """
    model = load_authors_checkpoint(source, architecture)
    card = WeightsCard(
        name=f"{architecture}.authors",
        architecture=architecture,
        tag="authors",
        num_classes=model.num_classes,
        class_names=(),
        input_size=224,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bicubic",
        crop_pct=CROP_PCT,
        digest="",  # save_weights fills it in
    )
    return save_weights(model, folder, card)


def _settings(
    theirs: Mapping[str, Tensor], arguments: Mapping[str, Any], architecture: str
) -> dict[str, Any]:
    """Return the model arguments that follow from the keys and arguments of a checkpoint."""
    preset = dataclasses.asdict(get_config(architecture))
    places = _convolutions(theirs)
    if any(".local_mp.norm." in key for key in theirs):
        kind, differing = "alias-free", ["downsample"] if preset["downsample"] == "aps" else []
    else:  # a convolution, an activation, and in one of the models a layer that sub-samples
        kind = "APS" if len(places) > 1 and places[1] - places[0] == 3 else "baseline"
        differing = [name for name, value in _FIXED[kind].items() if preset[name] != value]
    if differing:
        raise AftModelsError(
            f"the checkpoint is of the authors' {kind} model, from which {architecture} differs in "
            f"{', '.join(differing)}: choose the architecture it was trained as"
        )
    degrees = {  # of the polynomials, if there are any
        "embed_degree" if key.startswith("patch_embed.") else "block_degree": value.shape[1] - 1
        for key, value in theirs.items()
        if key.endswith(".act_layer.coef")
    }
    nano_p8 = kind == "baseline" and (preset["dim"], preset["patch_size"]) == (128, 8)
    settings: dict[str, Any] = {
        "norm_mean": "channel",
        "tokens_norm": not nano_p8,
        "positional": any(key.startswith(("pos_embeder.", "pos_module.")) for key in theirs),
        **degrees,
    }
    if "head.weight" in theirs:
        settings["num_classes"] = theirs["head.weight"].shape[0]
    if kind == "alias-free":
        settings |= _switches(arguments, degrees)
    return settings


def _convolutions(theirs: Mapping[str, Tensor]) -> list[int]:
    """List the indices of the convolutions in the patch embedding."""
    return sorted({int(m[1]) for k in theirs if (m := _PROJ.fullmatch(k)) and m[2] == "0.weight"})


def _rename(theirs: Mapping[str, Tensor], model: XCiT) -> dict[str, Tensor]:
    """Rename the keys of the authors' state dict; keys without a counterpart do not change."""
    convolutions = _convolutions(theirs)
    renamed: dict[str, Tensor] = {}
    for key, value in theirs.items():
        new = re.sub(r"^pos_(embeder|module)\.", "pos_embed.", key)
        new = new.replace(".local_mp.norm.", ".local_mp.bn.")
        if match := _PROJ.fullmatch(new):
            index = int(match[1])
            stage = sum(i <= index for i in convolutions) - 1
            place = 2 * stage + (index not in convolutions)
            new = f"patch_embed.proj.{place}.{match[2]}"
        renamed[new] = value
    renamed = _fold_polynomials(renamed)
    # timm's filter splits qkv. It would also drop keys that an error must list: they bypass it.
    position = {k: renamed.pop(k) for k in list(renamed) if k.startswith("pos_embed.")}
    return {**checkpoint_filter_fn(renamed, model), **position}


def _fold_polynomials(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fold ``out * sum_i c_i (in * x)^i`` into one set of coefficients."""
    polynomials: dict[str, dict[str, Tensor]] = {}
    rest = {}
    for key, value in state.items():
        if match := _POLYNOMIAL.fullmatch(key):
            polynomials.setdefault(match[1], {})[match[2]] = value
        else:
            rest[key] = value
    for place, parts in polynomials.items():
        if "coef" not in parts:
            rest.update({f"{place}.act_layer.{name}": value for name, value in parts.items()})
            continue
        coefficients = parts["coef"].flatten(1)  # (channels, degree + 1)
        one = coefficients.new_ones(1)
        powers = torch.arange(coefficients.shape[1], device=coefficients.device)
        gain = parts.get("out_scale", one) * parts.get("in_scale", one) ** powers
        rest[f"{place}.coefficients"] = coefficients * gain
    return rest


def _read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights, and the arguments of the training script if they were saved."""
    content: Any = source
    arguments: Any = {}
    if isinstance(source, (str, Path)):
        try:
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(source, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AftModelsError(f"cannot read the checkpoint {source}: {reason}") from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        arguments = content.get("args", {})
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise AftModelsError(
            "expected a checkpoint: a mapping from names to tensors, or one under 'model'"
        )
    if isinstance(arguments, argparse.Namespace):
        arguments = vars(arguments)
    weights = {key.removeprefix("module."): value for key, value in content.items()}
    return weights, dict(arguments) if isinstance(arguments, Mapping) else {}


def _switches(arguments: Mapping[str, Any], degrees: Mapping[str, int]) -> dict[str, Any]:
    """Return the switches that saved arguments set; missing arguments set nothing.

    >>> _switches({"xca_norm_layer": "layer", "lr": 0.001}, {})
    {'norm': 'layer'}
    """
    switches: dict[str, Any] = {}
    for name, (switch, words) in _SWITCHES.items():
        if name not in arguments:
            continue
        value = str(arguments[name])
        if value not in words:
            raise _refused(arguments, [name], f"{', '.join(words)} can be loaded")
        if switch and switches.setdefault(switch, words[value]) != words[value]:
            raise _refused(arguments, ["mlp_act", "lpi_act"], "here both are the same")
    down = switches.get("downsample")
    fused = arguments.get("pe_fuse_down", True)
    if fused and down == "af" and switches.get("embed_activation") == "gelu":
        names = ["pe_down_af", "pe_fuse_down", "pe_act"]
        raise _refused(arguments, names, "their patch embedding then never sub-samples")
    if down == "stride" and switches.get("last_embed_activation") is False:
        names = ["pe_down_af", "pe_last_act"]
        raise _refused(arguments, names, "their patch embedding then sub-samples once too often")
    for name in ("pe_act", "mlp_act", "lpi_act"):
        if str(arguments.get(name)) == "up_poly":
            switch = "embed_degree" if name == "pe_act" else "block_degree"
            _check_polynomial(arguments, f"{name}_kwargs", degrees.get(switch))
    return switches


def _check_polynomial(arguments: Mapping[str, Any], name: str, stored: int | None) -> None:
    """Check the saved settings of a polynomial against the degree of the stored coefficients."""
    given = arguments.get(name) or {}
    try:
        options = dict(json.loads(given) if isinstance(given, str) else given)
    except ValueError as error:
        raise _refused(arguments, [name], "expected a JSON object") from error
    used = options.pop("degree", 2)
    if options.keys() - _INITIAL or used != stored:
        held = "none" if stored is None else f"some of degree {stored}, for up-sampling by 2"
        raise _refused(arguments, [name], f"of polynomials, the weights contain {held}")


def _refused(arguments: Mapping[str, Any], names: list[str], reason: str) -> AftModelsError:
    line = " ".join(f"--{name.replace('_', '-')} {arguments.get(name)}" for name in names)
    return AftModelsError(
        f"the checkpoint was trained with {line}, which this package does not support: {reason}"
    )


if __name__ == "__main__":  # python -m aft_models.authors CHECKPOINT ARCHITECTURE DIR
    convert_authors_checkpoint(*sys.argv[1:4])
