"""How an image becomes a canvas: resize, centre crop, margin, padding (docs/protocol.md).

The canvas is the view a model sees plus a margin on each side that shifts read from. The place of
the view in the image does not depend on the margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as transforms

from shiftbench.errors import UsageError
from shiftbench.registry import unknown_name

if TYPE_CHECKING:
    from shiftbench.models.classifier import Preprocessing

Pad = Literal["none", "reflect", "zeros"]

INTERPOLATIONS = {mode.value: mode for mode in InterpolationMode}


@dataclass(frozen=True)
class Geometry:
    """Which pixels of an image a canvas holds."""

    view: int  # S: side of what the model sees
    resize: int  # R: the shorter side of the image after resizing
    margin: int  # m: pixels around the view on each side
    interpolation: str  # of the resize
    pad: Pad = "none"  # what fills a margin the image cannot: an error, reflected or black pixels
    crop: str = "paper"  # where R comes from: the paper's 256/224, the model's recipe, a fraction
    rendered: bool = False  # drawn on the pixel lattice of the view: no resize, any margin

    @property
    def side(self) -> int:
        """Side of the canvas."""
        return self.view + 2 * self.margin

    def to_json(self) -> dict[str, Any]:
        """What the record carries."""
        return asdict(self)

    def canvas(self, image: Image) -> Tensor:
        """Resizes and crops an RGB image to its canvas: uint8 (3, S + 2m, S + 2m)."""
        mode = INTERPOLATIONS[self.interpolation]
        resized = transforms.resize(image, [self.resize], mode, antialias=True)
        pixels = np.asarray(resized)  # (H, W, 3)
        rows, above = self._span(pixels.shape[0])
        columns, left = self._span(pixels.shape[1])
        window = pixels[rows, columns]
        below, right = self.side - above - window.shape[0], self.side - left - window.shape[1]
        if above or below or left or right:
            assert self.pad != "none", "geometry_for refuses a margin that the image lacks"
            widths = ((above, below), (left, right), (0, 0))
            window = np.pad(window, widths, "reflect" if self.pad == "reflect" else "constant")
        return torch.from_numpy(np.ascontiguousarray(window.transpose(2, 0, 1)))

    def _span(self, length: int) -> tuple[slice, int]:
        """Which pixels of an axis the canvas covers, and how many it lacks before the first."""
        # torchvision's CenterCrop of the view; subtracting the margin afterwards keeps the place
        # of the view, which rounding (length - side) / 2 would move for every other margin.
        start = round((length - self.view) / 2) - self.margin
        return slice(max(start, 0), min(start + self.side, length)), max(-start, 0)


def _resize(view: int, crop_pct: str | float, recipe: Preprocessing) -> int:
    if crop_pct == "paper":
        return round(view * 256 / 224)
    try:
        fraction = recipe.crop_pct if crop_pct == "model" else float(crop_pct)
    except ValueError:
        raise unknown_name("crop fraction", str(crop_pct), ("paper", "model", "0.875")) from None
    if not 0 < fraction <= 1:
        raise UsageError(
            f"a crop fraction lies in (0, 1], got {fraction:g}: 0.875 means 224 of 256"
        )
    return math.floor(view / fraction + 1e-6)  # timm floors; 224 / (224 / 232) must stay 232


def geometry_for(
    preprocessing: Preprocessing,
    *,
    crop_pct: str | float = "paper",
    margin: int = 0,
    pad: str = "none",
    rendered: bool = False,
    shift: str = "this shift",
) -> Geometry:
    """The canvas of a model with a margin for its shifts.

    Args:
        preprocessing: What the model's weights expect.
        crop_pct: `paper` (R = S 256 / 224 for every model), `model` (its own), or a fraction.
        margin: Pixels around the view.
        pad: What fills the margin where the image ends: `none` (an error), `reflect`, `zeros`.
        rendered: The data set draws the canvas itself, so every margin is there.
        shift: What needs the margin, for the error.
    """
    view = preprocessing.input_size
    if pad not in get_args(Pad):
        raise unknown_name("padding", pad, get_args(Pad))
    if preprocessing.interpolation not in INTERPOLATIONS:
        raise unknown_name("interpolation", preprocessing.interpolation, INTERPOLATIONS)
    if margin < 0:
        raise UsageError(f"a margin has 0 or more pixels, got {margin}")
    resize = _resize(view, crop_pct, preprocessing)
    room = (resize - view) // 2
    if margin > room and pad == "none" and not rendered:
        enough = math.floor(1000 * view / (view + 2 * margin)) / 1000
        raise UsageError(
            f"{shift} needs {margin} pixels around the view of {view} px, but resizing to {resize} "
            f"px leaves {max(room, 0)}: choose a smaller max shift, or fill the margin with --pad "
            f"reflect or zeros, or resize larger with --crop-pct {enough:g}"
        )
    return Geometry(
        view=view,
        resize=resize,
        margin=margin,
        interpolation=preprocessing.interpolation,
        pad=pad,  # type: ignore[arg-type]
        crop=str(crop_pct),
        rendered=rendered,
    )


def normalise(
    canvas: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes (B, C, H, W) to what the weights expect: scaled to [0, 1], minus mean, over std."""
    shape = (-1, 1, 1)
    centre = torch.tensor(mean, dtype=dtype, device=canvas.device).view(shape)
    scale = torch.tensor(std, dtype=dtype, device=canvas.device).view(shape)
    return canvas.to(dtype).div_(255).sub_(centre).div_(scale)
