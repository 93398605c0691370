"""Checkpoints released with the paper, brought to the key names and settings of this package.

Their names differ in five places: the patch embedding counts its down-sampling layers, the batch
norm of the local patch interaction is called ``norm``, the positional encoding ``pos_embeder``,
class attention has one ``qkv`` matrix, and a polynomial keeps input and output scales apart.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models.xcit import checkpoint_filter_fn
from torch import Tensor

from aft_models.errors import AftModelsError
from aft_models.presets import create_xcit
from aft_models.xcit import XCiT

_SHOWN = 12  # keys listed in an error
_PROJ = re.compile(r"patch_embed\.proj\.(\d+)\.(.*)")
_POLYNOMIAL = re.compile(r"(.*)\.act_layer\.(coef|in_scale|out_scale)")


def load_authors_checkpoint(
    source: str | Path | Mapping[str, Any], architecture: str, **kwargs: Any
) -> XCiT:
    """A model of this package with weights that the paper's authors released.

    Alias-free norms get ``norm_mean="channel"`` and class attention normalises all its tokens: so
    their code trained them.

    Args:
        source: checkpoint file, or its content; a training checkpoint's ``"model"`` is used.
        architecture: a preset, such as ``"xcit_nano_12_p16_af"``.
        **kwargs: passed on to the model; ``num_classes`` is read from the weights.

    Returns:
        The model in evaluation mode.

    Raises:
        AftModelsError: the file cannot be read, or a key is missing, unexpected or misshapen.
    """
    theirs = _state_dict(source)
    settings: dict[str, Any] = {"norm_mean": "channel", "tokens_norm": True, **kwargs}
    if "head.weight" in theirs:
        settings.setdefault("num_classes", theirs["head.weight"].shape[0])
    model = create_xcit(architecture, **settings)
    ours = rename_keys(theirs, model)
    expected = model.state_dict()
    missing = sorted(expected.keys() - ours.keys())
    unexpected = sorted(ours.keys() - expected.keys())
    misshapen = [
        f"{key} {tuple(ours[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & ours.keys())
        if ours[key].shape != expected[key].shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    if any(problems.values()):
        text = "; ".join(f"{what}: {_listed(keys)}" for what, keys in problems.items() if keys)
        raise AftModelsError(
            f"the checkpoint does not fit {architecture}: {text}. Choose the architecture it was "
            "trained as"
        )
    model.load_state_dict(ours)
    return model.eval()


def rename_keys(theirs: Mapping[str, Tensor], model: XCiT) -> dict[str, Tensor]:
    """Their state dict under our names; keys without a counterpart keep their own."""
    convolutions = sorted(
        {int(m[1]) for k in theirs if (m := _PROJ.fullmatch(k)) and m[2] == "0.weight"}
    )
    renamed: dict[str, Tensor] = {}
    for key, value in theirs.items():
        new = key.replace("pos_embeder.", "pos_embed.")
        new = new.replace(".local_mp.norm.", ".local_mp.bn.")
        if match := _PROJ.fullmatch(new):
            index = int(match[1])
            stage = sum(i <= index for i in convolutions) - 1
            place = 2 * stage + (index not in convolutions)
            new = f"patch_embed.proj.{place}.{match[2]}"
        renamed[new] = value
    renamed = _fold_polynomials(renamed)
    # timm's filter splits qkv; it would also drop what we must report, so that waits outside.
    position = {k: renamed.pop(k) for k in list(renamed) if k.startswith("pos_embed.")}
    return {**checkpoint_filter_fn(renamed, model), **position}


def _fold_polynomials(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """``out * sum_i c_i (in * x)^i`` as one set of coefficients."""
    found: dict[str, dict[str, Tensor]] = {}
    rest = {}
    for key, value in state.items():
        if match := _POLYNOMIAL.fullmatch(key):
            found.setdefault(match[1], {})[match[2]] = value
        else:
            rest[key] = value
    for place, parts in found.items():
        if "coef" not in parts:
            rest.update({f"{place}.act_layer.{name}": value for name, value in parts.items()})
            continue
        coefficients = parts["coef"].flatten(1)  # (channels, degree + 1)
        one = coefficients.new_ones(1)
        powers = torch.arange(coefficients.shape[1], device=coefficients.device)
        gain = parts.get("out_scale", one) * parts.get("in_scale", one) ** powers
        rest[f"{place}.coefficients"] = coefficients * gain
    return rest


def _state_dict(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    content: Any = source
    if isinstance(source, (str, Path)):
        try:
            # Their training script stores its arguments beside the weights.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(source, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AftModelsError(f"cannot read the checkpoint {source}: {reason}") from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise AftModelsError(
            "expected a checkpoint: a mapping from names to tensors, or one under 'model'"
        )
    return {key.removeprefix("module."): value for key, value in content.items()}


def _listed(keys: list[str]) -> str:
    more = f", ... {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
