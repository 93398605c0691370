"""Augmentation of a batch: random windows, shifted windows of the same image, mixup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor

from aft_models.preprocessing import center_start
from aft_models.training.recipe import Recipe


@dataclass(frozen=True)
class Windows:
    """Position, orientation and size of the window of each image."""

    top: Tensor  # (B,), int64
    left: Tensor  # (B,), int64
    mirrored: Tensor  # (B,), bool
    size: int  # height and width

    @classmethod
    def draw(
        cls, count: int, canvas: int, size: int, *, flip: float, generator: torch.Generator
    ) -> Windows:
        """Draw windows of `size` pixels, uniform over their positions in the canvas."""
        top, left = torch.randint(canvas - size + 1, (2, count), generator=generator)
        return cls(top, left, torch.rand(count, generator=generator) < flip, size)

    @classmethod
    def centered(cls, count: int, canvas: int, size: int) -> Windows:
        """Return centered windows, at the position of the benchmark's view."""
        place = torch.full((count,), center_start(canvas, size))
        return cls(place, place, torch.zeros(count, dtype=torch.bool), size)

    def shifted(self, shift: int, canvas: int, generator: torch.Generator) -> Windows:
        """Shift each window by up to `shift` pixels within the canvas."""
        places = torch.stack([self.top, self.left])
        lowest = (places - shift).clamp(min=0)
        highest = (places + shift).clamp(max=canvas - self.size)
        steps = torch.rand(places.shape, generator=generator, dtype=torch.float64)
        top, left = lowest + (steps * (highest - lowest + 1)).long()
        return Windows(top, left, self.mirrored, self.size)

    def around_center(self, k: int, shift: int, canvas: int) -> list[Windows]:
        """List k x k windows with equal flips, evenly spaced up to `shift` px from the center."""
        middle, room = (canvas - self.size) / 2, canvas - self.size
        steps = torch.linspace(-shift, shift, k) if k > 1 else torch.zeros(k)
        places = [min(max(round(middle + float(step)), 0), room) for step in steps]
        rows = [torch.full_like(self.top, place) for place in places]
        return [Windows(y, x, self.mirrored, self.size) for y in rows for x in rows]

    def __getitem__(self, rows: slice) -> Windows:
        return Windows(self.top[rows], self.left[rows], self.mirrored[rows], self.size)

    def cut(self, images: Tensor) -> Tensor:
        """Cut the windows from images (B, C, H, W), as (B, C, size, size)."""
        places = images.unfold(2, self.size, 1).unfold(3, self.size, 1)  # (B, C, tops, lefts, S, S)
        windows = places[torch.arange(len(images)), :, self.top, self.left]
        return torch.where(self.mirrored[:, None, None, None], windows.flip(3), windows)


def draw_windows(
    recipe: Recipe, epoch: int, count: int, canvas: int, generator: torch.Generator
) -> list[Windows]:
    """Draw the windows of one update; all have one size, since they are resized together.

    Returns:
        One window per image, and a shifted second one for a recipe with `shift`.
    """
    if not recipe.learns:
        return [Windows.centered(count, canvas, recipe.image_size)]
    smallest, largest = recipe.windows_at(epoch)
    size = smallest
    if smallest < largest:
        size = int(torch.randint(smallest, largest + 1, (), generator=generator))
    first = Windows.draw(count, canvas, size, flip=recipe.flip, generator=generator)
    if not recipe.shift:
        return [first]
    return [first, first.shifted(recipe.shift, canvas, generator)]


def resized(images: Tensor, size: int) -> Tensor:
    """Resize images to another side length without aliasing; images of that size do not change."""
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)


class Mixing:
    """Mixup and cutmix by timm, drawn from a seed of their own.

    timm draws from numpy's global generator, whose state differs between processes. Here the draw
    depends on the seed and on the number of the batch alone.
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
        """Mix images in place; `batch` are the numbers that identify this batch.

        Returns:
            The images and their soft labels (B, classes).
        """
        with _global_numpy(mixed_seed(self._seed, *batch)):
            return cast(tuple[Tensor, Tensor], self._mixup(images, labels))


@contextmanager
def _global_numpy(seed: int) -> Iterator[None]:
    """Seed numpy's global generator in this context."""
    before = np.random.get_state()  # noqa: NPY002 - the generator that timm reads
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def mixed_seed(*parts: int) -> int:
    """Return one seed for several numbers, far apart for neighbors (numpy's SeedSequence)."""
    seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
    return seed >> 1  # torch seeds are signed
