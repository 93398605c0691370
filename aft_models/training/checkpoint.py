"""Checkpoints: everything that a run needs to resume bit for bit."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aft_models.errors import AftModelsError
from aft_models.files import write_atomic
from aft_models.presets import PRESETS
from aft_models.training.recipe import Recipe

FORMAT = 2  # 1 did not name the training data
LAST, BEST = "last.pt", "best.pt"
LONG = 60  # characters of a value that an error shows in full: names and sizes, not digests


@dataclass(frozen=True)
class Data:
    """Identity of a set of images."""

    name: str  # of the data set
    split: str = ""
    limit: int | None = None  # number of requested images; None: all
    images: int = 0  # number of images in the set
    fingerprint: str = ""  # digest of the images, if there is one


@dataclass(frozen=True)
class Identity:
    """Settings that must be equal before a run may resume from a checkpoint."""

    model: str
    recipe: Recipe
    seed: int
    classes: int
    data: Data  # training data
    scored: Mapping[str, Any] = field(default_factory=dict)  # data of the scores in the log
    start: str = ""  # digest of the initial weights; empty: random

    @property
    def architecture(self) -> str:
        """Name of the model, without the tag of the bundled weights that it started from.

        Only names of presets are parsed: `xcit_pico_6_p4.scenes+circular` is the model
        `xcit_pico_6_p4+circular`. A dot in the name of another model can have any meaning.
        """
        preset = re.split(r"[.+,]", self.model, maxsplit=1)[0]
        if preset not in PRESETS:
            return self.model
        return preset + re.sub(r"^\.[^+,]*", "", self.model.removeprefix(preset))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, one per setting that must be equal."""
        return {
            "model": self.model,
            "seed": self.seed,
            "classes": self.classes,
            "start": self.start,
            **{f"data.{name}": value for name, value in asdict(self.data).items()},
            **{f"scored.{name}": value for name, value in self.scored.items()},
            **{f"recipe.{name}": value for name, value in self.recipe.settings().items()},
        }


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically."""
    write_atomic(path, lambda place: torch.save(dict(content), place))


def load(path: Path, identity: Identity) -> dict[str, Any]:
    """Read a checkpoint of the same run.

    Raises:
        AftModelsError: The file is damaged, or belongs to another model, recipe or data set.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        theirs = content["identity"]
        for name, value in Recipe.defaults().items():  # fields newer than the checkpoint
            theirs.setdefault(f"recipe.{name}", value)
        if content["format"] != FORMAT:
            raise AftModelsError(
                f"{path} has checkpoint format {content['format']}, written by another version; "
                f"this one reads {FORMAT}: start over, or use another folder"
            )
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise AftModelsError(
            f"{path} is not a readable training checkpoint ({str(error).splitlines()[0]}); "
            "start over in another folder"
        ) from error
    ours = identity.as_dict()
    differing = [
        f"{key} {_shown(theirs.get(key))} there, {_shown(ours.get(key))} here"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]
    if differing:
        raise AftModelsError(
            f"{path} belongs to another run: {'; '.join(differing)}. Use the same settings, "
            "another folder, or start over"
        )
    return content


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONG else f"{text[:12]}..."


def random_state() -> dict[str, Any]:
    """Return the state of every generator that layers and transforms draw from."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - timm reads it
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), cached],
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore every generator to the state that `random_state` returned."""
    torch.set_rng_state(state["torch"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy_state = (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached)
    np.random.set_state(numpy_state)  # noqa: NPY002 - the generator that timm reads
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
