"""Preprocessing: the images that a network expects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CROP_PCT = 224 / 256  # fraction of a resized image that the paper's center crop keeps
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ASSUMED = "assumed"  # origin of a preprocessing whose mean and std are only a guess


@dataclass(frozen=True)
class Preprocessing:
    """The images that a network was trained on.

    >>> Preprocessing(224, margin=8).input_size
    240
    """

    size: int  # S: side of the images that the network itself takes, in pixels
    mean: tuple[float, ...] = IMAGENET_MEAN  # per channel, of pixels in [0, 1]
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bicubic"  # nearest, bilinear, bicubic, lanczos, ...
    resize: int | None = None  # R: the model's own shorter side before the crop; None: unknown
    squash: bool = False  # the model's own resize changes both sides to R, for any aspect ratio
    bgr: bool = False  # the network takes blue first; images are always red first
    enlarge: bool = False  # images of S x S pixels (CIFAR) are resized to R too
    origin: str = ""  # source of these facts: a tag of weights, a class, or ASSUMED
    margin: int = 0  # pixels that input remedies need on each side, in network pixels
    scale: int = 1  # image pixels per network pixel that input remedies need
    states_resize: bool = False  # the user's own transform or mapping states `resize`
    fill: tuple[float, ...] = (0.0, 0.0, 0.0)  # around whole images, levels of 255 per channel
    centered: bool = False  # whole images are centered in the fill; False: in the upper left

    def __post_init__(self) -> None:
        from aft_models.errors import AftModelsError

        for key, values in (("mean", self.mean), ("std", self.std)):
            largest = max(values, default=0.0)
            if largest > 1:
                raise AftModelsError(
                    f"expected the {key} of pixels in [0, 1], got {largest:g}: {key} {largest:g} "
                    f"is on the 0-255 scale; divide by 255 ({largest / 255:.3g})"
                )

    @property
    def input_size(self) -> int:
        """Side of the images that the model takes, in pixels."""
        return self.scale * (self.size + 2 * self.margin)

    @property
    def own_resize(self) -> int:
        """Shorter side before the crop, by the model's own rule or else by the usual one."""
        return self.resize or cropped_from(self.size, CROP_PCT)

    def at_size(self, size: int | None) -> Preprocessing:
        """Return the preprocessing for images of another size, with the same crop fraction."""
        if size in (None, self.size):
            return self
        assert size is not None
        resize = self.resize and round(self.resize * size / self.size)
        return replace(self, size=size, resize=resize)

    @classmethod
    def of(cls, model: object, *, img_size: int | None = None) -> Preprocessing:
        """Read the preprocessing that timm stores with a model.

        Models of other libraries have none: 224 px and ImageNet's statistics apply.
        """
        if not hasattr(model, "pretrained_cfg"):
            return cls(img_size or 224)
        from timm.data import resolve_model_data_config

        options = {"img_size": img_size} if img_size else None
        config = resolve_model_data_config(model, args=options)
        size = square(config["input_size"])
        return cls(
            size,
            tuple(config["mean"]),
            tuple(config["std"]),
            config["interpolation"],
            resize=cropped_from(size, config["crop_pct"]),
            squash=config["crop_mode"] == "squash",
        )


def cropped_from(size: int, fraction: float) -> int:
    """Return the side R of the resized image of which a crop of `size` pixels is a fraction.

    >>> cropped_from(224, 224 / 232)
    232
    """
    return math.floor(size / fraction + 1e-6)  # timm floors; rounding errors must not count


def resized_shape(width: int, height: int, short: int) -> tuple[int, int]:
    """Return width and height after a resize of the shorter side, rounded as in torchvision.

    >>> resized_shape(300, 200, 64)
    (96, 64)
    """
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def center_start(length: int, size: int) -> int:
    """Return the first pixel of a centered crop along an axis, rounded as in torchvision."""
    return round((length - size) / 2)


def square(size: int | Sequence[int]) -> int:
    """Return the side of a square, from a number, (S, S) or (channels, S, S).

    Raises:
        AftModelsError: The sides differ, or are not positive integers.
    """
    from aft_models.errors import AftModelsError

    sides = [size] if isinstance(size, int) else list(size)[-2:]
    if not all(isinstance(side, int) for side in sides) or len(set(sides)) != 1 or sides[0] <= 0:
        raise AftModelsError(
            f"expected square images, got {tuple(sides)} pixels. Pass square images to the model "
            "and resize them inside it (FILE.py)"
        )
    return int(sides[0])


def normalize(
    pixels: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Convert bytes (B, C, H, W) to network inputs: scaled to [0, 1], minus mean, over std."""
    import torch

    dtype = dtype or torch.float32
    shape = (-1, 1, 1)
    center = torch.tensor(mean, dtype=dtype, device=pixels.device).view(shape)
    scale = torch.tensor(std, dtype=dtype, device=pixels.device).view(shape)
    return pixels.to(dtype).div_(255).sub_(center).div_(scale)
