"""Weights from a file: safetensors or a torch file, out of the usual wrappings, all or nothing."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from shiftbench.errors import ModelError
from shiftbench.models.classifier import first_line

# What training scripts (timm, DeiT, lightning, ours) put around a state dict, best choice first:
# averaged weights are what their authors report.
WRAPPERS = ("model_ema", "state_dict_ema", "ema", "state_dict", "model", "module", "net")
PREFIXES = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel, torch.compile, lightning
SHOWN = 6  # how many keys an error lists


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a checkpoint, without running any code that it may hold."""
    path = weights_file(path)
    try:
        content: Any
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} is not a file of plain tensors, and its code is not run: save the state_dict "
            "alone with torch.save or safetensors"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the checkpoint {path}: {first_line(error)}") from error
    return _unwrap(content, path)


def weights_file(path: Path) -> Path:
    """The file itself, or the one safetensors file of an exported folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelError(f"no checkpoint at {path}")
    found = sorted(path.glob("*.safetensors"))
    if len(found) != 1:
        raise ModelError(
            f"expected one .safetensors file in the folder {path}, found {len(found)}: "
            "name the file itself"
        )
    return found[0]


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise ModelError(f"{path} holds no state dict: expected a mapping from names to tensors")
    return tensors


def load_state(module: nn.Module, state: Mapping[str, Tensor], *, origin: str) -> None:
    """Loads weights whole or not at all; a mismatch lists the keys and shapes that do not fit."""
    expected = module.state_dict()
    state = _without_prefixes(state, expected)
    missing = sorted(expected.keys() - state.keys())
    unexpected = sorted(state.keys() - expected.keys())
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & state.keys())
        if state[key].shape != expected[key].shape
    ]
    if missing or unexpected or shapes:
        problems = [
            f"{len(keys)} {what} ({_shorten(keys)})"
            for what, keys in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("of another shape", shapes),
            )
            if keys
        ]
        raise ModelError(
            f"{origin} does not fit the model: {', '.join(problems)}; nothing was loaded"
        )
    module.load_state_dict(dict(state))


def _without_prefixes(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Drops a prefix that every key has, as long as the model's own keys do not have it."""
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state) and not any(
            key.startswith(prefix) for key in expected
        ):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _shorten(keys: list[str]) -> str:
    rest = f", ... {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + rest
