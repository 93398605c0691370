"""Bilinear shifts: linear interpolation between the pixels of the canvas."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from typing_extensions import override

from shiftbench.grid import Offset
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift, check_reach, pick, view_size

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views


class Bilinear(Shift):
    """Shift by two-tap linear interpolation on each axis, as in most warping code."""

    @override
    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        height, width = view_size(canvas, margin)

        def views(offset: Offset, rows: Tensor | None = None) -> Tensor:
            check_reach(offset, margin)
            floor_y, floor_x = math.floor(offset.dy), math.floor(offset.dx)
            weight_y, weight_x = offset.dy - floor_y, offset.dx - floor_x
            # An integer offset reads one tap: the second has weight 0, and may be off the canvas.
            rows_read, columns_read = height + (weight_y > 0), width + (weight_x > 0)
            top, left = margin + floor_y, margin + floor_x
            images = pick(canvas[..., top : top + rows_read, left : left + columns_read], rows)
            if weight_y:
                images = images[..., :-1, :].lerp(images[..., 1:, :], weight_y)
            if weight_x:
                images = images[..., :-1].lerp(images[..., 1:], weight_x)
            return images

        return views


SHIFTS.register("bilinear", Bilinear())
ATTACKS.register(
    "bilinear",
    Attack("bilinear", "bilinear", Fraction(1, 6), "bilinear resampling by sixths of a pixel"),
)
