"""Augmentation of a whole batch of pixels at once: a random window, perhaps mirrored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Which part of each image is seen."""

    top: Tensor  # (B,), int64
    left: Tensor  # (B,), int64
    mirrored: Tensor  # (B,), bool
    size: int  # height and width

    @classmethod
    def draw(
        cls, count: int, canvas: int, size: int, *, flip: float, generator: torch.Generator
    ) -> Windows:
        """Draws windows of `size` pixels, uniform over the places that a canvas has for them."""
        top, left = torch.randint(canvas - size + 1, (2, count), generator=generator)
        return cls(top, left, torch.rand(count, generator=generator) < flip, size)

    def __getitem__(self, rows: slice) -> Windows:
        return Windows(self.top[rows], self.left[rows], self.mirrored[rows], self.size)

    def cut(self, images: Tensor) -> Tensor:
        """The windows of images (B, C, H, W), as (B, C, size, size)."""
        places = images.unfold(2, self.size, 1).unfold(3, self.size, 1)  # (B, C, tops, lefts, S, S)
        windows = places[torch.arange(len(images)), :, self.top, self.left]
        return torch.where(self.mirrored[:, None, None, None], windows.flip(3), windows)


def center(images: Tensor, size: int) -> Tensor:
    """The window in the middle, where the benchmark puts its view."""
    top, left = (round((length - size) / 2) for length in images.shape[-2:])
    return images[..., top : top + size, left : left + size]


def resized(images: Tensor, size: int) -> Tensor:
    """Images at another side length, without aliasing; at their own they stay as they are."""
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)
