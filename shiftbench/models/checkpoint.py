"""Weights from a file: safetensors or a torch file, out of the usual wrappings, all or nothing."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair import untrained
from aft_models.weights import WeightsCard, list_weights, load_state_dict, weights_card
from shiftbench.errors import ModelError, first_line
from shiftbench.preprocessing import Preprocessing, card_preprocessing

# What training scripts (timm, DeiT, lightning, ours) put around a state dict, best choice first:
# averaged weights are what their authors report.
WRAPPERS = ("model_ema", "state_dict_ema", "ema", "state_dict", "model", "module", "net")
PREFIXES = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel, torch.compile, lightning
SHOWN = 6  # how many keys an error lists


@dataclass(frozen=True)
class Weights:
    """Weights, and what is known of them."""

    state: Mapping[str, Tensor]  # empty: random ones
    origin: str = ""  # the file, for errors
    card: WeightsCard | None = None  # what training put beside them
    preprocessing: Preprocessing | None = None  # what they were trained on
    num_classes: int | None = None  # outputs of their classifier
    class_names: Sequence[str] = ()


def read_weights(path: Path) -> Weights:
    """Reads a file, or a folder that training exported; weights with a card must be those of it."""
    folder = path if path.is_dir() else path.parent
    names = list_weights(folder) if folder.is_dir() else []
    carded = [name for name in names if path.is_dir() or path.name == f"{name}.safetensors"]
    if len(carded) != 1:
        return Weights(read_state_dict(path), str(path))
    try:
        card = weights_card(carded[0], folder)
        state, recipe = load_state_dict(carded[0], folder), card_preprocessing(vars(card))
        return Weights(state, str(path), card, recipe, card.num_classes, card.class_names)
    except AftModelsError as error:
        raise ModelError(str(error)) from error


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a checkpoint, without running any code that it may hold."""
    path = _file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _load_tensors(path)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} is not a file of plain tensors, and its code is not run: save the state_dict "
            "alone with torch.save or safetensors"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the checkpoint {path}: {first_line(error)}") from error
    return _unwrap(content, path)


class _Placeholder:
    """Stands for an object of a training script (its settings, its paths), which is not needed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _load_tensors(path: Path) -> Any:
    """The content of a torch file; objects besides tensors, numbers and containers are left out.

    Lightning keeps the settings of a training beside the weights, as objects of any class.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        listing = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
        if listing is None or not zipfile.is_zipfile(path):  # before torch 2.6, or a file of 1.5
            raise
    # A class of its own each: torch asks for a name per class.
    stubs: list[Any] = [(type("_Left", (_Placeholder,), {}), name) for name in listing(path)]
    with torch.serialization.safe_globals(stubs):
        return torch.load(path, map_location="cpu", weights_only=True)


def _file(path: Path) -> Path:
    """The file itself, or the one safetensors file of an exported folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelError(f"no checkpoint at {path}")
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise ModelError(
            f"expected one .safetensors file in the folder {path}, found {len(files)}: "
            "name the file itself"
        )
    return files[0]


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


def load_state(module: nn.Module, weights: Weights, strip_prefix: str | None = None) -> None:
    """Loads weights whole or not at all; a mismatch lists the keys and shapes that do not fit.

    Weights of a model load into the same model with a learned remedy, which then stays untrained.
    `strip_prefix` takes the keys that begin so, and without it: `student.`.
    """
    expected, state, origin = module.state_dict(), weights.state, weights.origin
    if strip_prefix is not None:
        state = _under(strip_prefix, state, origin)
    state = without_prefixes(state, expected)
    learned = set(untrained(module))
    optional = learned if learned.isdisjoint(state) else set()
    needed = expected.keys() - optional
    missing = sorted(needed - state.keys())
    homes = _homes(state, needed) if missing else []
    if len(homes) == 1:  # one network among the parts of a larger one, such as its loss
        state = _under(homes[0], state, origin)
        missing = []
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
        hint = f"; choose one with --strip-prefix ({', '.join(homes)})" if homes else ""
        raise ModelError(
            f"{origin} does not fit the model: {', '.join(problems)}; nothing was loaded{hint}"
        )
    module.load_state_dict(dict(state))


def without_prefixes(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Drops a prefix that every key has, as long as the model's own keys do not have it."""
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state) and not any(
            key.startswith(prefix) for key in expected
        ):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _under(prefix: str, state: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    inside = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    if not inside:
        raise ModelError(
            f"no key of {origin} begins with {prefix!r}; they are {_shorten(sorted(state))}: "
            "choose another --strip-prefix"
        )
    return inside


def _homes(state: Mapping[str, Tensor], needed: set[str]) -> list[str]:
    """The prefixes under which every key that the model needs is there."""
    first = min(needed)
    prefixes = (key.removesuffix(first) for key in state if key.endswith(f".{first}"))
    return sorted(p for p in prefixes if all(f"{p}{key}" in state for key in needed))


def _shorten(keys: list[str]) -> str:
    rest = f", ... {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + rest
