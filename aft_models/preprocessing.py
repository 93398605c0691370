"""What a model's weights expect of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

CROP_PCT = 224 / 256  # of a resized image: the paper's center crop
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of a network.

    >>> Preprocessing(96).mean
    (0.485, 0.456, 0.406)
    """

    input_size: int  # S: height and width of the view in pixels
    mean: tuple[float, ...] = IMAGENET_MEAN  # per channel, of pixels in [0, 1]
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bicubic"  # nearest, bilinear, bicubic, lanczos, ...
    # The model's own geometry, used only on request: the part of the resized image that
    # the view keeps, and what the resize does to it (center, squash or border, as in timm).
    crop_pct: float = CROP_PCT
    crop_mode: str = "center"
    crop_corner: str = "round"  # of a crop that leaves half a pixel: round (torchvision) or floor
    canvas: int | None = None  # to what weights for finished images (CIFAR) had them enlarged
    origin: str = ""  # where this was read, in words: "IMAGENET1K_V1", "assumed"
    inner: int | None = None  # side of what the network itself takes of a wider view, if it does

    @property
    def network_size(self) -> int:
        """Side of what the network itself takes, by which an image is scaled."""
        return self.inner or self.input_size

    def widened(self, margin: int) -> Preprocessing:
        """At the same scale, with so many pixels more on each side.

        >>> Preprocessing(224).widened(8).input_size
        240
        """
        size = self.network_size
        return replace(self, input_size=size + 2 * margin, inner=size) if margin else self

    @classmethod
    def of(cls, model: nn.Module) -> Preprocessing:
        """As timm keeps it with a model; 224 px and ImageNet's statistics for any other."""
        known = getattr(model, "default_cfg", None) or {}
        return cls(
            input_size=known.get("input_size", (224,))[-1],
            mean=tuple(known.get("mean", IMAGENET_MEAN)),
            std=tuple(known.get("std", IMAGENET_STD)),
            interpolation=known.get("interpolation", cls.interpolation),
        )


def normalize(
    pixels: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes (B, C, H, W) to what the weights expect: scaled to [0, 1], minus mean, over std."""
    shape = (-1, 1, 1)
    center = torch.tensor(mean, dtype=dtype, device=pixels.device).view(shape)
    scale = torch.tensor(std, dtype=dtype, device=pixels.device).view(shape)
    return pixels.to(dtype).div_(255).sub_(center).div_(scale)
