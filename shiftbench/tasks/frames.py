"""Views of whole images: resized by the longer side, a moving window, and a fill that stays.

An image is resized so that its longer side has S + 2m pixels. The window of (h - 2m) x (w - 2m)
pixels moves by the offset. The model's own fill around the window, up to S x S, does not move.
Input remedies cut the window out of one that has `spare` further pixels on each side.

All of these are network pixels. The canvas has `scale` camera pixels for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from typing_extensions import override

from aft_models.preprocessing import Preprocessing
from shiftbench.geometry import INTERPOLATIONS, Geometry, checked_scale, filter_of
from shiftbench.grid import Offset

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Frame:
    """Position of a resized image within the views of a model, in network pixels."""

    height: int  # of the resized image
    width: int
    margin: int  # m: pixels that offsets move the window by, on each side
    view: tuple[int, int]  # height and width of the model's images
    top: int = 0  # position of the window within the view
    left: int = 0
    zoom: tuple[float, float] = (1.0, 1.0)  # resized pixels per pixel of the file: y, x
    spare: int = 0  # further pixels on each side, which input remedies choose from

    @property
    def border(self) -> int:
        """Pixels of the resized image around the unshifted window, on each side."""
        return self.margin + self.spare

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.height - 2 * self.border, self.width - 2 * self.border

    def resized(self, boxes: NDArray[Any]) -> NDArray[np.float32]:
        """Convert boxes (n, 4) of the file to pixels of the resized image."""
        zy, zx = self.zoom
        moved: NDArray[np.float32] = (boxes * [zx, zy, zx, zy]).astype(np.float32)
        return moved

    def in_view(self, boxes: NDArray[Any]) -> NDArray[np.float64]:
        """Convert boxes (n, 4) of the resized image to pixels of the unshifted view."""
        return boxes.astype(np.float64) + self._corner

    def from_view(self, boxes: NDArray[Any]) -> NDArray[np.float32]:
        """Convert boxes (n, 4) of the unshifted view to pixels of the resized image."""
        most = [self.width, self.height] * 2
        moved: NDArray[np.float32] = np.clip(boxes - self._corner, 0, most).astype(np.float32)
        return moved

    @property
    def _corner(self) -> NDArray[np.float64]:
        return np.array([self.left - self.border, self.top - self.border] * 2, np.float64)

    def whole(self, boxes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the largest shift (px) at which boxes of the view stay in the window; -1: none."""
        (height, width), (top, left) = self.window, (self.top, self.left)
        x1, y1, x2, y2 = boxes.T
        edges = np.stack([x1 - left, y1 - top, left + width - x2, top + height - y2])
        # Coordinates are rounded to float32.
        largest = np.floor(edges.min(0, initial=1e9) + 1e-3)
        whole: NDArray[np.int64] = np.maximum(largest, -1).astype(np.int64)
        return whole

    def visible(self, boxes: NDArray[Any], offset: Offset) -> NDArray[np.float64]:
        """Cut boxes of the view to what the window shows at an offset, in unshifted positions."""
        (height, width), shift = self.window, np.array([offset.dx, offset.dy] * 2)
        low = np.array([self.left, self.top] * 2)
        cut: NDArray[np.float64] = np.clip(boxes - shift, low, low + [width, height] * 2) + shift
        return cut

    def paste(self, window: Tensor, fill: Tensor) -> Tensor:
        """Surround a window (C, h, w) by the fill (C,), up to the size of the view."""
        if tuple(window.shape[1:]) == self.view:
            return window
        view = fill.view(-1, 1, 1).expand(-1, *self.view).clone()
        height, width = self.window
        view[:, self.top : self.top + height, self.left : self.left + width] = window
        return view


@dataclass(frozen=True)
class Fitted(Geometry):
    """The canvas of a whole image, resized by its longer side: nothing is cut off."""

    spare: int = 0  # pixels beyond the margin on each side, for input remedies
    centered: bool = False  # the window is in the center of the view; False: in its upper left
    fill: tuple[float, ...] = (0.0, 0.0, 0.0)  # around the window, levels of 255 per channel

    @property
    @override
    def side(self) -> int:
        return self.view + 2 * (self.margin + self.spare)

    @override
    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "fill": list(self.fill)}

    def frame(self, width: int, height: int) -> Frame:
        """Return the frame of an image file of this size."""
        columns, rows = self._fit(width, height)
        view, margin, spare = (n // self.scale for n in (self.view, self.margin, self.spare))
        inner = (side - 2 * (margin + spare) for side in (rows, columns))
        top, left = ((view - side) // 2 if self.centered else 0 for side in inner)
        zoom = rows / height, columns / width
        return Frame(rows, columns, margin, (view, view), top, left, zoom, spare)

    def _fit(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the resized image in network pixels.

        Each leaves a window of one pixel or more.
        """
        side, view = self.side // self.scale, self.view // self.scale
        ratio, least = side / max(width, height), side - view + 1
        return max(round(width * ratio), least), max(round(height * ratio), least)

    @override
    def _size(self, image: Image) -> tuple[int, int]:
        width, height = self._fit(*image.size)
        return self.scale * width, self.scale * height

    @override
    def canvas(self, image: Image) -> Tensor:
        """Resize an RGB image into the upper left corner of a canvas: uint8 (3, side, side)."""
        import torch

        filter_ = INTERPOLATIONS[self.interpolation]
        pixels = np.asarray(image.resize(self._size(image), filter_))
        canvas = np.zeros((3, self.side, self.side), np.uint8)
        canvas[:, : pixels.shape[0], : pixels.shape[1]] = pixels.transpose(2, 0, 1)
        return torch.from_numpy(canvas)


def fitted_for(
    preprocessing: Preprocessing, *, margin: int, spare: int, scale: int | None, remedy: str
) -> Fitted:
    """Plan the canvas of whole images.

    Args:
        preprocessing: The images that the model takes, with its fill.
        margin: Network pixels that offsets move the window by.
        spare: Network pixels on each side that input remedies of compared models need.
        scale: Camera pixels per network pixel, as for `geometry_for`.
        remedy: The input remedies that need a finer scale, for the error.
    """
    scale = checked_scale(preprocessing, scale, remedy)
    spare = max(spare, preprocessing.margin)
    return Fitted(
        view=scale * preprocessing.size,
        resize=scale * (preprocessing.size + 2 * (margin + spare)),
        margin=scale * margin,
        interpolation=filter_of(preprocessing, scale),
        crop="whole",
        scale=scale,
        spare=scale * spare,
        centered=preprocessing.centered,
        fill=preprocessing.fill,
    )
