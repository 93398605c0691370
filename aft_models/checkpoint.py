"""Weights in files, and the matching of their keys to a network.

A file is safetensors or a torch file of plain tensors, inside the wrappers of training scripts. A
card beside the file adds classes and preprocessing. Weights are loaded completely or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from aft_models.cards import WeightsCard, card_file, list_weights, weights_card
from aft_models.classifier import classifier_names, replace_classifier
from aft_models.errors import AftModelsError
from aft_models.files import file_safe, write_atomic
from aft_models.presets import PRESETS

State = Mapping[str, Tensor]

# Keys under which training scripts (timm, DeiT, lightning, this project) store a state dict, best
# choice first: published scores are those of averaged weights.
WRAPPERS = ("model_ema", "state_dict_ema", "ema", "state_dict", "model", "module", "net")
PREFIXES = ("module.", "_orig_mod.", "model.")  # DistributedDataParallel, torch.compile, lightning
SHOWN = 6  # keys per category that an error lists
AUTHORS_KEYS = (".local_mp.norm.", "pos_embeder.", "pos_module.", "cls_attn_blocks.0.attn.qkv.")


@dataclass(frozen=True)
class Weights:
    """Tensors, and the facts that are stored with them."""

    state: State
    origin: str = "the state dict"  # the file, for errors
    card: WeightsCard | None = None


def read_weights(path: Path) -> Weights:
    """Read a file, or the one set of weights in a folder; a card is read too if there is one."""
    folder = path if path.is_dir() else path.parent
    names = list_weights(folder) if folder.is_dir() else []
    names = [name for name in names if path.is_dir() or path.name == f"{name}.safetensors"]
    if len(names) != 1:
        return Weights(read_state_dict(path), str(path))
    return read_carded(names[0], folder)


def read_carded(name: str, folder: str | Path | None = None) -> Weights:
    """Read weights by the name of their card, and compare them with its digest.

    Args:
        name: ``"<architecture>.<tag>"``.
        folder: Folder that `save_weights` wrote; by default that of the bundled weights.
    """
    card = weights_card(name, folder)
    path = card_file(name, folder)
    path = path.with_name(f"{path.name.removesuffix('.json')}.safetensors")
    state = read_state_dict(path)
    digest = state_dict_digest(state)
    if digest != card.digest:
        raise AftModelsError(
            f"expected the weights of its card in {path} (digest {card.digest[:12]}), got "
            f"{digest[:12]}: copy or export the file again"
        )
    return Weights(state, str(path), card)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, without running code that is stored in it.

    Returns:
        The tensors by name.
    """
    path = _file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _load_tensors(path)
    except pickle.UnpicklingError as error:
        raise AftModelsError(
            f"cannot read {path}: it contains more than plain tensors, and its code is not run. "
            "Save the state_dict alone with torch.save or safetensors"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AftModelsError(f"cannot read the checkpoint {path}: {reason}") from error
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise AftModelsError(
            f"expected a state dict in {path}, a mapping from names to tensors, got "
            f"{type(content).__name__}: save model.state_dict()"
        )
    return tensors


def _file(path: Path) -> Path:
    """Return the file itself, or the only safetensors file of a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise AftModelsError(f"no checkpoint at {path}: name an existing file or folder")
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise AftModelsError(
            f"expected one .safetensors file in the folder {path}, got {len(files)}: name the file"
        )
    return files[0]


class _Placeholder:
    """Stand-in for an object of a training script, for example its settings."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _load_tensors(path: Path) -> Any:
    """Read a torch file; objects besides tensors, numbers and containers are left out.

    Lightning stores the settings of a training beside the weights, as objects of any class.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        listing = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
        if listing is None or not zipfile.is_zipfile(path):  # before torch 2.6, or a file of 1.5
            raise
    # One class per name: torch registers a class under a single name.
    stubs: list[Any] = [(type("_Left", (_Placeholder,), {}), name) for name in listing(path)]
    with torch.serialization.safe_globals(stubs):
        return torch.load(path, map_location="cpu", weights_only=True)


def load_state(network: nn.Module, weights: Weights, strip_prefix: str | None = None) -> None:
    """Load weights completely or not at all.

    Args:
        network: The network to fill.
        weights: The weights; their keys may have a prefix.
        strip_prefix: Take the keys that begin with this prefix, such as `student.`.

    Raises:
        AftModelsError: A key or shape does not fit; the message lists them.
    """
    expected = network.state_dict()
    state = fitted(weights, expected.keys(), strip_prefix)
    _require_fit(weights, expected, state)
    network.load_state_dict(dict(state))


def load_backbone(
    model: nn.Module, weights: Weights | State, *, size: int = 224, strip_prefix: str | None = None
) -> list[str]:
    """Load trained weights; a classifier with another number of classes is not loaded.

    Args:
        model: Any classifier.
        weights: Weights of the same architecture, with any number of classes.
        size: Side of the input images (pixels).
        strip_prefix: As for `load_state`.

    Returns:
        The keys that keep their random values: those of the classifier, or none.
    """
    weights = weights if isinstance(weights, Weights) else Weights(weights)
    heads = tuple(f"{name}." for name in classifier_names(model, size=size))
    own = model.state_dict()
    new = {key for key in own if key.startswith(heads)}
    state = fitted(weights, own.keys(), strip_prefix)
    if own.keys() - state.keys() - new:  # weights without a classifier
        state = fitted(weights, own.keys() - new, strip_prefix)
    if all(key in state and state[key].shape == own[key].shape for key in new):
        new = set()  # weight and bias belong together
    loaded = {key: value for key, value in state.items() if not (new and key.startswith(heads))}
    _require_fit(weights, {key: own[key] for key in own.keys() - new}, loaded)
    model.load_state_dict(loaded, strict=False)
    return sorted(new)


def fitted(weights: Weights, needed: Collection[str], strip_prefix: str | None = None) -> State:
    """Return the tensors under the names that a network has for them.

    A prefix of all keys is removed, like `strip_prefix`. The prefix of a submodule that contains
    every needed key is removed too, for example of the network inside a stored loss.
    """
    state = weights.state
    if strip_prefix is not None:
        state = _under(strip_prefix, state)
        if not state:
            raise AftModelsError(
                f"no key of {weights.origin} begins with {strip_prefix!r}: they are "
                f"{_shorten(sorted(weights.state))}. Choose another --strip-prefix"
            )
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state) and not any(
            key.startswith(prefix) for key in needed
        ):
            state = _under(prefix, state)
    if all(key in state for key in needed):
        return state
    homes = _homes(state, needed)
    return _under(homes[0], state) if len(homes) == 1 else state


def _under(prefix: str, state: State) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _homes(state: State, needed: Collection[str]) -> list[str]:
    """List the prefixes under which every needed key is present."""
    first = min(needed)
    prefixes = (key.removesuffix(first) for key in state if key.endswith(f".{first}"))
    return sorted(p for p in prefixes if all(f"{p}{key}" in state for key in needed))


def _require_fit(weights: Weights, expected: State, state: State) -> None:
    problems = misfit(expected, state)
    if problems:
        homes = _homes(state, expected.keys()) if expected.keys() - state.keys() else []
        hint = f"; choose one with --strip-prefix ({', '.join(homes)})" if homes else ""
        if any(part in key for key in state for part in AUTHORS_KEYS):
            hint = (
                ". The keys are those of the paper's authors: convert the file with `python -m "
                "aft_models.authors FILE ARCHITECTURE DIR` and pass --checkpoint DIR"
            )
        raise AftModelsError(
            f"{weights.origin} does not fit the model: {problems}; nothing was loaded{hint}"
        )


def misfit(expected: State, state: State) -> str:
    """List the keys of a state dict that do not fit a model; empty if all do.

    >>> misfit({"head.bias": torch.zeros(3)}, {"head.bias": torch.zeros(5)})
    '1 of another shape (head.bias (5,) instead of (3,))'
    """
    shapes = [
        (key, tuple(state[key].shape), tuple(expected[key].shape))
        for key in sorted(expected.keys() & state.keys())
    ]
    problems = {
        "missing": sorted(expected.keys() - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "of another shape": [f"{key} {a} instead of {b}" for key, a, b in shapes if a != b],
    }
    return ", ".join(f"{len(k)} {kind} ({_shorten(k)})" for kind, k in problems.items() if k)


def _shorten(keys: list[str]) -> str:
    more = f", ... {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def state_dict_digest(state: State) -> str:
    """Compute the sha256 of sorted keys, dtypes, shapes and bytes, on any device."""
    total = hashlib.sha256()
    for key in sorted(state):
        tensor = state[key].detach().cpu().contiguous()
        total.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def load_weights(
    name: str, folder: str | Path | None = None, *, model: nn.Module | None = None
) -> nn.Module:
    """Build a model with trained weights, in evaluation mode on the CPU.

    Args:
        name: ``"<architecture>.<tag>"``.
        folder: Folder that `save_weights` wrote; by default that of the bundled weights.
        model: The architecture of the card, if `timm.create_model` does not build it. A
            classifier with another number of classes is replaced.
    """
    import timm

    weights = read_carded(name, folder)
    card = weights.card
    assert card is not None
    if model is not None:
        replace_classifier(model, card.num_classes, size=card.input_size)
    elif timm.is_model(card.architecture):
        options = {"num_classes": card.num_classes, "img_size": card.input_size, **card.switches}
        model = timm.create_model(card.architecture, **options)
    else:
        raise AftModelsError(
            f"cannot build {card.architecture!r} of {card.name}: timm does not contain it. Build "
            "the model and pass it to load_weights(..., model=...)"
        )
    assert model is not None
    load_state(model, weights)
    return model.eval()


def save_weights(model: nn.Module, folder: str | Path, card: WeightsCard) -> Path:
    """Write ``<card.name>.safetensors`` and its card, each atomically.

    The file of ``timm:resnet50+af.birds`` is named ``timm_resnet50_af.birds``. The digest and the
    switches of the card, those that differ from the preset, are filled in from the model.

    Returns:
        The path of the card.
    """
    if card.name != f"{card.architecture}.{card.tag}":
        raise AftModelsError(
            f"a card's name must be '<architecture>.<tag>': expected "
            f"{card.architecture + '.' + card.tag!r}, got {card.name!r}"
        )
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    # Copies, because a file cannot contain two names of one tensor (shared modules).
    state = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    card = dataclasses.replace(
        card, digest=state_dict_digest(state), switches=_switches(model, card.architecture)
    )
    text = json.dumps(dataclasses.asdict(card), indent=2, ensure_ascii=False) + "\n"
    stem = file_safe(card.name)
    target = where / f"{stem}.json"
    # The card is written last: weights without a card are not listed.
    # Not save_file, whose files only their owner may read.
    write_atomic(where / f"{stem}.safetensors", save(state, metadata={"format": "pt"}))
    write_atomic(target, text.encode())
    return target


def _switches(model: nn.Module, architecture: str) -> dict[str, Any]:
    config = getattr(model, "cfg", None)
    if config is None or architecture not in PRESETS:
        return {}
    preset = dataclasses.asdict(PRESETS[architecture])
    return {k: v for k, v in dataclasses.asdict(config).items() if v != preset[k]}
