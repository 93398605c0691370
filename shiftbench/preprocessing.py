"""How an image becomes a canvas: resize, center crop, margin, padding (docs/protocol.md).

The canvas is the view a model sees plus a margin on each side that shifts read from. The place of
the view in the image does not depend on the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image, Resampling
from torch import Tensor

from aft_models.preprocessing import (
    CROP_PCT,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preprocessing,
    normalize,
)
from shiftbench.errors import ModelError, UsageError
from shiftbench.registry import unknown_name

Pixels = NDArray[np.uint8]  # (H, W, 3)
PADS = ("none", "reflect", "zeros")
CROP_MODES = ("center", "squash", "border")  # timm's words
CROP_CORNERS = ("round", "floor")  # torchvision's rule, and that of transformers

PAPER_RATIO = 1 / CROP_PCT  # 256 / 224: the resize of the paper and of most evaluations

# torchvision's words for the filters of PIL, which antialias when they shrink.
INTERPOLATIONS = {
    "nearest": Resampling.NEAREST,
    "nearest-exact": Resampling.NEAREST,
    "bilinear": Resampling.BILINEAR,
    "bicubic": Resampling.BICUBIC,
    "box": Resampling.BOX,
    "hamming": Resampling.HAMMING,
    "lanczos": Resampling.LANCZOS,
}

FIELDS = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")  # users' words

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Geometry",
    "Preprocessing",
    "as_preprocessing",
    "geometry_for",
    "normalize",
]


def as_preprocessing(
    value: Preprocessing | Mapping[str, Any], default: Preprocessing | None = None
) -> Preprocessing:
    """Reads a preprocessing from a mapping; what it does not name is the default's.

    >>> as_preprocessing({"input_size": (3, 96, 96), "mean": 0.5, "std": 0.25}).std
    (0.25, 0.25, 0.25)

    Args:
        value: `input_size` (a number, (S, S) or (3, S, S)), `mean` and `std` (one number or three,
            of pixels in [0, 1]), `interpolation`, `crop_pct`, `crop_mode`.
        default: 224 pixels, normalized as for ImageNet, where nothing else is known.
    """
    if isinstance(value, Preprocessing):
        return value
    default = default or Preprocessing(224, origin="assumed")
    unknown = sorted(map(str, set(value) - set(FIELDS)))
    if unknown:
        raise ModelError(
            f"a preprocessing has the fields {', '.join(FIELDS)}; got {', '.join(unknown)}"
        )
    size = square(value.get("input_size", default.input_size))
    mean, std = (
        _per_channel(key, value.get(key, getattr(default, key))) for key in ("mean", "std")
    )
    if min(std) <= 0:
        raise ModelError(f"expected std of each channel above 0, got {std}")
    words = value.get("interpolation", default.interpolation)
    return replace(
        default,
        input_size=size,
        mean=mean,
        std=std,
        interpolation=str(getattr(words, "value", words)),  # torchvision's modes are enums
        crop_pct=float(value.get("crop_pct", default.crop_pct)),
        crop_mode=str(value.get("crop_mode", default.crop_mode)),
        origin="given" if {"mean", "std"} <= value.keys() else default.origin,
    )


def card_preprocessing(card: Mapping[str, Any]) -> Preprocessing:
    """What weights expect of an image by the card beside them, which may lack fields."""
    given = as_preprocessing({key: card[key] for key in FIELDS if key in card})
    if "crop_pct" not in card:
        return given
    return replace(given, canvas=math.floor(given.input_size / given.crop_pct + 1e-6))


def square(size: int | Sequence[int]) -> int:
    """The side of a square input, from a number, (S, S) or (channels, S, S)."""
    sides = [size] if isinstance(size, int) else list(size)[-2:]
    if not all(isinstance(side, int) for side in sides) or len(set(sides)) != 1 or sides[0] <= 0:
        raise ModelError(
            f"expected a square input, got {tuple(sides)} pixels: only square images are measured, "
            "so give the model one and resize it inside the model (FILE.py)"
        )
    return int(sides[0])


def _per_channel(key: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """One number for every channel, or one each."""
    try:
        numbers = [float(x) for x in ([value] if isinstance(value, int | float) else value)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3):
        raise ModelError(f"expected {key} as one number or three numbers, got {value!r}")
    return tuple(numbers * 3 if len(numbers) == 1 else numbers)


@dataclass(frozen=True)
class Geometry:
    """Which pixels of an image a canvas holds."""

    view: int  # S: side of what the model sees
    resize: int  # R: the shorter side of the image after resizing
    margin: int  # m: pixels around the view on each side
    interpolation: str  # of the resize
    pad: str = "none"  # what fills a margin the image cannot: an error, reflected or black pixels
    crop: str = "paper"  # where R comes from: the rule of the paper, the model's recipe, a fraction
    rendered: bool = False  # drawn on the pixel lattice of the view: no resize, any margin
    crop_mode: str = "center"  # R is the shorter side; squash: both sides; border: the longer
    fill: tuple[int, ...] | None = None  # color of the border
    crop_corner: str = "round"  # where the view begins when half a pixel is left over
    inner: int | None = None  # side of what the network itself takes of a wider view, if it does

    @property
    def side(self) -> int:
        """Side of the canvas."""
        return self.view + 2 * self.margin

    def to_json(self) -> dict[str, Any]:
        """What the record carries; `Geometry(**content)` reads it back."""
        content = asdict(self)
        if self.inner is None:
            del content["inner"]
        if self.crop_mode == "center":  # as nearly always, and in records that know no other
            del content["crop_mode"], content["fill"]
        if self.crop_corner == "round":
            del content["crop_corner"]
        return content

    def canvas(self, image: Image) -> Tensor:
        """Resizes and crops an RGB image to its canvas: uint8 (3, S + 2m, S + 2m)."""
        resized = image.resize(self._size(image), INTERPOLATIONS[self.interpolation])
        pixels = np.asarray(resized)  # (H, W, 3)
        rows, above = self._span(pixels.shape[0])
        columns, left = self._span(pixels.shape[1])
        window = pixels[rows, columns]
        below, right = self.side - above - window.shape[0], self.side - left - window.shape[1]
        if above or below or left or right:
            window = self._filled(window, ((above, below), (left, right), (0, 0)))
        return torch.from_numpy(np.ascontiguousarray(window.transpose(2, 0, 1)))

    def _size(self, image: Image) -> tuple[int, int]:
        """Width and height after the resize, rounded as torchvision and timm do."""
        width, height = image.size
        if self.crop_mode == "squash":
            return self.resize, self.resize
        if self.crop_mode == "border":
            ratio = max(width, height) / self.resize
            return round(width / ratio), round(height / ratio)
        if width <= height:
            return self.resize, int(self.resize * height / width)
        return int(self.resize * width / height), self.resize

    def _filled(self, window: Pixels, widths: tuple[tuple[int, int], ...]) -> Pixels:
        if self.fill is not None:
            bordered = np.empty((self.side, self.side, 3), dtype=np.uint8)
            bordered[:] = self.fill
            (above, _), (left, _), _ = widths
            bordered[above : above + window.shape[0], left : left + window.shape[1]] = window
            return bordered
        assert self.pad != "none", "geometry_for refuses a margin that the image lacks"
        return np.pad(window, widths, "reflect" if self.pad == "reflect" else "constant")

    def _span(self, length: int) -> tuple[slice, int]:
        """Which pixels of an axis the canvas covers, and how many it lacks before the first."""
        # torchvision's CenterCrop of the view; subtracting the margin afterwards keeps the place
        # of the view, which rounding (length - side) / 2 would move for every other margin.
        inner = self.inner or self.view
        corner = (length - inner) / 2
        start = round(corner) if self.crop_corner == "round" else math.floor(corner)
        start -= (self.view - inner) // 2 + self.margin
        if length < self.view:  # only a border: the odd pixel goes after the image, as in timm
            start = -((self.view - length) // 2)
        return slice(max(start, 0), min(start + self.side, length)), max(-start, 0)


def _resize(recipe: Preprocessing, crop_pct: str | float, finished: bool) -> int:
    """R: by the one rule for every model, by the model's own recipe, or by a fraction."""
    if crop_pct == "paper":
        # Images as large as the view, such as CIFAR for a network made for it, stay as they are,
        # unless the weights say that they were trained on such images enlarged.
        own = recipe.canvas or recipe.network_size
        return own if finished else round(recipe.network_size * PAPER_RATIO)
    try:
        fraction = recipe.crop_pct if crop_pct == "model" else float(crop_pct)
    except ValueError:
        raise unknown_name("crop fraction", str(crop_pct), ("paper", "model", "0.875")) from None
    if not 0 < fraction <= 1:
        raise UsageError(
            f"a crop fraction lies in (0, 1], got {fraction:g}: 0.875 means 224 of 256"
        )
    # timm floors; 224 / (224 / 232) must stay 232
    return math.floor(recipe.network_size / fraction + 1e-6)


def geometry_for(
    preprocessing: Preprocessing,
    *,
    crop_pct: str | float = "paper",
    margin: int = 0,
    pad: str = "none",
    finished: bool = False,
    rendered: bool = False,
    shift: str = "this shift",
) -> Geometry:
    """The canvas of a model with a margin for its shifts.

    >>> half = (0.5, 0.5, 0.5)
    >>> geometry_for(Preprocessing(224, half, half)).resize
    256
    >>> geometry_for(Preprocessing(32, half, half), finished=True).resize
    32

    Args:
        preprocessing: What the model's weights expect.
        crop_pct: `paper` (R = S 256 / 224 for every model; images of S x S are not resized),
            `model` (its own recipe, squashing and borders included), or a fraction.
        margin: Pixels around the view.
        pad: What fills the margin where the image ends: `none` (an error), `reflect`, `zeros`.
        finished: All images of the data set have S x S pixels already (`ImageSet.has_size`).
        rendered: The data set draws the canvas itself, so every margin is there.
        shift: What needs the margin, for the error.
    """
    own = crop_pct == "model"
    mode = preprocessing.crop_mode if own else "center"
    for what, name, known in (
        ("padding", pad, PADS),
        ("interpolation", preprocessing.interpolation, tuple(INTERPOLATIONS)),
        ("crop mode", mode, CROP_MODES),
    ):
        if name not in known:
            raise unknown_name(what, name, known)
    if margin < 0:
        raise UsageError(f"a margin has 0 or more pixels, got {margin}")
    geometry = Geometry(
        view=preprocessing.input_size,
        resize=_resize(preprocessing, crop_pct, finished),
        margin=margin,
        interpolation=preprocessing.interpolation,
        pad=pad,
        crop=str(crop_pct),
        rendered=rendered,
        crop_mode=mode,
        fill=tuple(round(255 * x) for x in preprocessing.mean) if mode == "border" else None,
        crop_corner=preprocessing.crop_corner if own else "round",
        inner=preprocessing.inner,
    )
    if not rendered:
        _require_room(geometry, finished, shift)
    return geometry


def _require_room(geometry: Geometry, finished: bool, shift: str) -> None:
    """Refuses a margin that the images do not have."""
    view, resize = geometry.inner or geometry.view, geometry.resize
    margin = (geometry.side - view) // 2
    if margin > geometry.margin:
        shift = f"{shift} and the wider view" if geometry.margin else "the wider view"
    room = max(resize - view, 0) // 2
    if margin and geometry.crop_mode == "border":
        raise UsageError(
            f"{shift} needs {margin} pixels around the view, and the model's own recipe frames the "
            "image with a border instead: use --crop-pct paper, or attacks that need no margin"
        )
    if margin <= room or geometry.pad != "none":
        return
    enough = math.floor(1000 * view / (view + 2 * margin)) / 1000
    there = (
        f"the images have {view} px and are not resized"
        if finished and resize == view
        else f"resizing to {resize} px leaves {room}"
    )
    what = "number for select" if shift == "the wider view" else "max shift"
    smaller = f"choose a smaller {what}, or " if room else ""
    raise UsageError(
        f"{shift} needs {margin} pixels around the view of {view} px, but {there}: {smaller}fill "
        f"the margin with --pad reflect or zeros, or resize larger with --crop-pct {enough:g}"
    )
