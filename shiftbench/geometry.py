"""The canvas of a run: resize, center crop, margin, padding (docs/reference/protocol.md).

The canvas is the view that a model takes plus a margin on each side that shifts read from. The
position of the view in the image does not depend on the margin. Sides are in camera pixels, the
pixels of the canvas; offsets are in network pixels, `scale` camera pixels each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image, Resampling

from aft_models.preprocessing import (
    CROP_PCT,
    Preprocessing,
    center_start,
    cropped_from,
    resized_shape,
)
from shiftbench.errors import UsageError
from shiftbench.registry import unknown_name

if TYPE_CHECKING:
    from torch import Tensor

Pixels = NDArray[np.uint8]  # (H, W, 3)
PADS = ("none", "reflect", "zeros")

PAPER_RATIO = 1 / CROP_PCT  # 256 / 224: the resize of the paper and of most evaluations

# torchvision's names for the filters of PIL, which antialias when they shrink.
INTERPOLATIONS = {
    "nearest": Resampling.NEAREST,
    "nearest-exact": Resampling.NEAREST,
    "bilinear": Resampling.BILINEAR,
    "bicubic": Resampling.BICUBIC,
    "box": Resampling.BOX,
    "hamming": Resampling.HAMMING,
    "lanczos": Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Geometry:
    """The pixels of an image that a canvas contains."""

    view: int  # side of the images that the model takes, in pixels
    resize: int  # R: the shorter side of the image after resizing
    margin: int  # m: pixels around the view on each side
    interpolation: str  # of the resize
    pad: str = "none"  # fills a margin that the image lacks: an error, reflected or black pixels
    crop: str = "paper"  # rule of R: the paper's, the model's own, or a fraction
    rendered: bool = False  # drawn at the resolution of the view: no resize, any margin
    squash: bool = False  # both sides are resized to R
    inner: int | None = None  # side of the network's own images within a wider view; None: no such
    scale: int = 1  # camera pixels per network pixel

    @property
    def side(self) -> int:
        """Side of the canvas in pixels."""
        return self.view + 2 * self.margin

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a record; `Geometry(**content)` reads them back."""
        content = asdict(self)
        if self.inner is None:
            del content["inner"]
        if not self.squash:
            del content["squash"]
        if self.scale == 1:
            del content["scale"]
        return content

    def canvas(self, image: Image) -> Tensor:
        """Resize and crop an RGB image to a canvas: uint8 (3, side, side)."""
        pixels = np.asarray(  # (H, W, 3)
            image.resize(self._size(image), INTERPOLATIONS[self.interpolation])
        )
        rows, above = self._span(pixels.shape[0])
        columns, left = self._span(pixels.shape[1])
        return self._padded(pixels[rows, columns], above, left, self.side)

    def digitized(self, image: Image, dy: float, dx: float) -> Tensor:
        """Resize an RGB image anew, as a camera does that moved by (dy, dx) camera pixels.

        Returns:
            The view without a margin: uint8 (3, view, view). At integer offsets it equals the
            window of the canvas, up to the rounding of gray levels.
        """
        lengths = self._size(image)
        (first_x, last_x), (first_y, last_y) = (
            self._seen(length, shift) for length, shift in zip(lengths, (dx, dy), strict=True)
        )
        per_x, per_y = (old / new for old, new in zip(image.size, lengths, strict=True))
        pixels = image.resize(
            (last_x - first_x, last_y - first_y),
            INTERPOLATIONS[self.interpolation],
            box=(
                per_x * (first_x + dx),
                per_y * (first_y + dy),
                min(per_x * (last_x + dx), image.width),
                min(per_y * (last_y + dy), image.height),
            ),
        )
        above, left = first_y - self._start(lengths[1]), first_x - self._start(lengths[0])
        return self._padded(np.asarray(pixels), above, left, self.view)

    def enlarges(self, image: Image) -> bool:
        """Return True if the image has fewer pixels than the resized image."""
        width, height = self._size(image)
        return image.width < width or image.height < height

    def _size(self, image: Image) -> tuple[int, int]:
        """Return width and height after the resize."""
        width, height = image.size
        if self.squash:
            return self.resize, self.resize
        return resized_shape(width, height, self.resize)

    def _start(self, length: int) -> int:
        """Return the first pixel of the view along an axis."""
        # The crop of the network's images. Subtracting the margin afterwards fixes the position of
        # the view: rounding (length - side) / 2 would change it with the margin.
        inner = self.inner or self.view
        return center_start(length, inner) - (self.view - inner) // 2

    def _seen(self, length: int, shift: float) -> tuple[int, int]:
        """Return the first and the last pixel of the view, plus 1, that the image contains."""
        start = self._start(length)
        return max(start, math.ceil(-shift)), min(start + self.view, math.floor(length - shift))

    def _padded(self, pixels: Pixels, above: int, left: int, side: int) -> Tensor:
        """Pad pixels to a square (3, side, side)."""
        import torch

        below, right = side - above - pixels.shape[0], side - left - pixels.shape[1]
        if above or below or left or right:
            assert self.pad != "none", "geometry_for raises for a margin that the image lacks"
            mode: Any = "reflect" if self.pad == "reflect" else "constant"
            pixels = np.pad(pixels, ((above, below), (left, right), (0, 0)), mode)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))

    def _span(self, length: int) -> tuple[slice, int]:
        """Return the pixels of an axis within the canvas, and the count missing before them."""
        start = self._start(length) - self.margin
        return slice(max(start, 0), min(start + self.side, length)), max(-start, 0)


def geometry_for(
    preprocessing: Preprocessing,
    *,
    crop_pct: str | float = "paper",
    margin: int = 0,
    pad: str = "none",
    finished: bool = False,
    rendered: bool = False,
    scale: int | None = None,
    shift: str = "this shift",
    remedy: str = "the wider view",
    advice: Callable[[int], Sequence[str]] = lambda available: (),
) -> Geometry:
    """Plan the canvas of a model with a margin for its shifts.

    >>> half = (0.5, 0.5, 0.5)
    >>> geometry_for(Preprocessing(224, half, half)).resize
    256
    >>> geometry_for(Preprocessing(32, half, half), finished=True).resize
    32

    Args:
        preprocessing: The images that the model takes.
        crop_pct: `paper` (R = S 256 / 224 for every model; images of S x S are not resized),
            `model` (the model's own R and squashing), or a fraction.
        margin: Network pixels around the view.
        pad: Fills the margin beyond the image: `none` (an error), `reflect`, `zeros`.
        finished: All images of the data set have S x S pixels already (`ImageSet.has_size`).
        rendered: The data set renders the canvas, with any margin.
        scale: Camera pixels per network pixel, a multiple of that of the model's input remedies;
            None: theirs.
        shift: The shift that needs the margin, for the error.
        remedy: The input remedies that need a wider view, for the error.
        advice: From the margin that the images have (network px) to further ways out, for the
            error.
    """
    for what, name, known in (
        ("padding", pad, PADS),
        ("interpolation", preprocessing.interpolation, tuple(INTERPOLATIONS)),
    ):
        if name not in known:
            raise unknown_name(what, name, known)
    if margin < 0:
        raise UsageError(f"expected a margin of 0 or more pixels, got {margin}: increase it")
    scale = checked_scale(preprocessing, scale, remedy)
    view = scale // preprocessing.scale * preprocessing.input_size
    inner = scale * preprocessing.size
    geometry = Geometry(
        view=view,
        resize=scale * _resize(preprocessing, crop_pct, finished),
        margin=scale * margin,
        interpolation=filter_of(preprocessing, scale),
        pad=pad,
        crop=str(crop_pct),
        rendered=rendered,
        squash=crop_pct == "model" and preprocessing.squash,
        inner=None if inner == view else inner,
        scale=scale,
    )
    if not rendered:
        _require_margin(geometry, finished, shift, remedy, advice)
    return geometry


def checked_scale(preprocessing: Preprocessing, scale: int | None, remedy: str) -> int:
    """Return the scale of a run; None: that of the model's input remedies.

    Raises:
        UsageError: The scale is no multiple of theirs.
    """
    scale = scale or preprocessing.scale
    if scale % preprocessing.scale:
        raise UsageError(
            f"expected a scale that is a multiple of {preprocessing.scale}, which {remedy} needs, "
            f"got {scale}. Use --scale {preprocessing.scale}, or {remedy}:1 for scale 1"
        )
    return scale


def filter_of(preprocessing: Preprocessing, scale: int) -> str:
    """Return the filter of the resize to the canvas.

    At a finer scale the canvas is the picture of a camera, which the model resizes itself.
    """
    return preprocessing.interpolation if scale == 1 else "bicubic"


def _resize(preprocessing: Preprocessing, crop_pct: str | float, finished: bool) -> int:
    """Return R in network pixels: by the paper's rule, the model's own, or a fraction."""
    size = preprocessing.size
    if crop_pct == "paper":
        # Images as large as the view, such as CIFAR for a network of that size, are not resized,
        # unless the weights were trained on such images enlarged.
        if finished:
            return preprocessing.own_resize if preprocessing.enlarge else size
        return round(size * PAPER_RATIO)
    if crop_pct == "model":
        return preprocessing.own_resize
    try:
        fraction = float(crop_pct)
    except ValueError:
        raise unknown_name("crop fraction", str(crop_pct), ("paper", "model", "0.875")) from None
    if not 0 < fraction <= 1:
        raise UsageError(
            f"expected a crop fraction in (0, 1], got {fraction:g}: 0.875 means 224 of 256"
        )
    return cropped_from(size, fraction)


def _require_margin(
    geometry: Geometry,
    finished: bool,
    shift: str,
    remedy: str,
    advice: Callable[[int], Sequence[str]],
) -> None:
    """Raise UsageError for a margin that the images lack."""
    scale = geometry.scale
    view, resize = (geometry.inner or geometry.view) // scale, geometry.resize // scale
    margin = (geometry.side // scale - view) // 2
    available = max(resize - view, 0) // 2
    if margin <= available or geometry.pad != "none":
        return
    own = geometry.margin // scale
    who = [shift] * (own > 0) + [remedy] * (margin > own)
    unresized = ", which are not resized," if finished and resize == view else ""
    enough = math.floor(1000 * view / (view + 2 * margin)) / 1000
    ways = [*advice(available), "--pad reflect", f"--crop-pct {enough:g}"]
    raise UsageError(
        f"{' and '.join(who)} {'need' if len(who) > 1 else 'needs'} a margin of {margin} px, "
        f"{resize} px{unresized} leave {available} around the view of {view} px. Use "
        f"{', '.join(ways[:-1])} or {ways[-1]}"
    )
