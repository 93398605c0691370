"""Mixup and cutmix by timm, drawn from a seed of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
from timm.data import Mixup
from torch import Tensor

from aft_models.training.data import mixed_seed
from aft_models.training.recipe import Recipe


class Mixing:
    """Blends each image of a batch with another, and their labels likewise.

    timm draws from numpy's global generator, whose state in a new process is anyone's guess. Here
    the draw depends on the seed and on which batch it is for, and on nothing that came before.
    """

    def __init__(self, recipe: Recipe, *, classes: int, seed: int) -> None:
        self._seed = seed
        self._mixup = Mixup(
            mixup_alpha=recipe.mixup,
            cutmix_alpha=recipe.cutmix,
            switch_prob=recipe.mixup_switch,
            label_smoothing=recipe.label_smoothing,
            num_classes=classes,
        )

    def __call__(self, images: Tensor, labels: Tensor, *batch: int) -> tuple[Tensor, Tensor]:
        """Mixes images in place; `batch` are the numbers that tell this batch from all others."""
        with _global_numpy(mixed_seed(self._seed, *batch)):
            return cast(tuple[Tensor, Tensor], self._mixup(images, labels))


@contextmanager
def _global_numpy(seed: int) -> Iterator[None]:
    """Seeds numpy's global generator for a while."""
    before = np.random.get_state()  # noqa: NPY002 - what timm reads
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
