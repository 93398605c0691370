"""The paper's hyperparameters next to those of the recipes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aft_models.presets import get_config
from aft_models.training.recipe import Recipe
from aft_models.training.recipes import get_recipe
from shiftbench.report.paper import read_published

# One model for each column of the paper's table.
MODELS = {"baseline": "xcit_nano_12_p16", "AF, APS": "xcit_nano_12_p16_af"}
SIZES = {"nano": "xcit_nano_12_p16", "small": "xcit_small_12_p16"}


@dataclass(frozen=True)
class Hyperparameter:
    """A published value and the value of a recipe."""

    category: str
    name: str
    published: str
    ours: str

    @property
    def same(self) -> bool:
        """True if both texts have the same numbers, or the same word without numbers."""
        numbers = [sorted(map(float, re.findall(_NUMBER, t))) for t in (self.published, self.ours)]
        if numbers[0]:
            return numbers[0] == numbers[1]
        return self.published.lower() == self.ours.lower()


_NUMBER = r"(?<![\w-])\d+(?:\.\d+)?(?:e-?\d+)?"


def _recipe(model: str) -> Recipe:
    return get_recipe("xcit-imagenet").for_model(model)


def _by(models: dict[str, str], value: Callable[[Recipe], Any]) -> str:
    return ", ".join(f"{value(_recipe(model)):g} ({name})" for name, model in models.items())


def _epochs() -> str:
    small = get_recipe("xcit-small-sets").epochs
    return f"{_recipe('').epochs} (ImageNet), {small} (smaller sets)"


OURS: dict[str, Callable[[], str]] = {
    "optimizer": lambda: _recipe("").optimizer,
    "betas": lambda: ", ".join(map(str, _recipe("").betas)),
    "weight_decay": lambda: str(_recipe("").weight_decay),
    "base_lr": lambda: _by(MODELS, lambda recipe: recipe.peak_lr),
    "warmup_epochs": lambda: f"{_recipe('').warmup_epochs:g}",
    "decay": lambda: "cosine",  # of every recipe
    "min_lr": lambda: f"{_recipe('').min_lr:g}",
    "epochs": _epochs,
    "resolution": lambda: str(_recipe("").image_size),
    "batch_size": lambda: _by(MODELS, lambda recipe: recipe.batch_size),
    "layer_scale_init": lambda: str(get_config(SIZES["nano"]).layer_scale),
    "stochastic_depth": lambda: _by(SIZES, lambda recipe: recipe.drop_path),
}


def hyperparameters() -> list[Hyperparameter]:
    """Compare the table of the paper with the recipes `xcit-imagenet` and `xcit-small-sets`."""
    return [
        Hyperparameter(row["category"], row["parameter"], row["value"], OURS[row["parameter"]]())
        for row in read_published("hyperparameters")
    ]
