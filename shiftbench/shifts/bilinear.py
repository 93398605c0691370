"""The canvas is read between its pixels by linear interpolation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from shiftbench.grid import Grid, Offset
from shiftbench.shifts.attacks import ATTACKS, Attack
from shiftbench.shifts.base import SHIFTS, Scene, Views, check_canvas, check_reach, pick, window

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _BilinearViews:
    canvas: Tensor
    margin: int

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        check_reach(offset, self.margin)
        height, width = (n - 2 * self.margin for n in self.canvas.shape[-2:])
        floor_y, floor_x = math.floor(offset.dy), math.floor(offset.dx)
        weight_y, weight_x = offset.dy - floor_y, offset.dx - floor_x
        # A whole offset reads one tap: the second may lie outside the canvas, and its weight is 0.
        taps_y, taps_x = int(weight_y > 0), int(weight_x > 0)
        images = window(
            self.canvas,
            self.margin + floor_y,
            self.margin + floor_x,
            height + taps_y,
            width + taps_x,
        )
        images = pick(images, rows)
        if taps_y:
            images = images[..., :-1, :].lerp(images[..., 1:, :], weight_y)
        if taps_x:
            images = images[..., :-1].lerp(images[..., 1:], weight_x)
        return images


class Bilinear:
    """The canvas read by two-tap linear interpolation on each axis, as most warping code does."""

    rendered = False

    def margin(self, grid: Grid) -> int:
        """As many whole pixels as the offsets reach."""
        return math.ceil(grid.reach)

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        """Each view is two lerps of a window of the canvas."""
        check_canvas(canvas, margin)
        return _BilinearViews(canvas, margin)


SHIFTS.register("bilinear", Bilinear())
ATTACKS.register(
    "bilinear",
    Attack("bilinear", "bilinear", Fraction(1, 6), "bilinear resampling by sixths of a pixel"),
)
