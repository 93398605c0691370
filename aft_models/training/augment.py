"""Augmentation of a whole batch of pixels at once: one affine map per image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SHARP = 0.5  # share of the images that move by whole pixels only and so keep them as they are


def draw_maps(
    count: int, size: int, *, flip: float, shift: float, zoom: float, generator: torch.Generator
) -> Tensor:
    """Draws `count` maps from output to input coordinates, (count, 2, 3), as `affine_grid` reads.

    Args:
        count: Number of images.
        size: Their side in pixels.
        flip: Probability of a mirror image.
        shift: Largest move in pixels along each axis.
        zoom: Largest magnification; half of the images are not magnified and move by whole
            pixels, so that the network also sees pixels that no interpolation has softened.
        generator: Where the randomness comes from.
    """
    sharp = torch.rand(count, generator=generator) < SHARP
    scale = 1 / (1 + (zoom - 1) * torch.rand(count, generator=generator))
    scale = torch.where(sharp, 1.0, scale)
    move = (2 * torch.rand(count, 2, generator=generator) - 1) * shift
    move = torch.where(sharp[:, None], move.round(), move)
    mirror = torch.where(torch.rand(count, generator=generator) < flip, -1.0, 1.0)
    maps = torch.zeros(count, 2, 3)
    maps[:, 0, 0] = scale * mirror
    maps[:, 1, 1] = scale
    maps[:, :, 2] = move * 2 / size  # affine_grid's unit is half a side
    return maps


def apply_maps(images: Tensor, maps: Tensor) -> Tensor:
    """Resamples images (B, C, H, W) bilinearly, with the picture reflected at its border."""
    grid = F.affine_grid(maps.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def resized(images: Tensor, size: int) -> Tensor:
    """Images at another side length, without aliasing; at their own they stay as they are."""
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)
