"""Crop shifts: the crop window moves over the canvas by integer pixels."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from typing_extensions import override

from shiftbench.errors import UsageError
from shiftbench.grid import Grid, Offset
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift, check_reach, pick, view_size

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views


class Crop(Shift):
    """Integer shift of the crop window over the pixels of the canvas."""

    moves_camera = True

    @override
    def require(self, grid: Grid, scale: int) -> None:
        if (grid.step * scale).denominator != 1:
            raise UsageError(
                f"expected a step of integer pixels of the canvas for crops, got {grid.step} px at "
                f"scale {scale}. Use --scale {grid.step.denominator}, an integer step, or the "
                "attack 'bilinear' or 'camera'"
            )

    @override
    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        # A view of the entire batch is a slice of the canvas: nothing is copied.
        height, width = view_size(canvas, margin)

        def views(offset: Offset, rows: Tensor | None = None) -> Tensor:
            check_reach(offset, margin)
            if offset.dy % 1 or offset.dx % 1:
                raise UsageError(
                    f"a crop needs an integer offset, got ({offset.dy:g}, {offset.dx:g}). "
                    "Use the shift type 'bilinear' or 'cyclic' for fractions of a pixel"
                )
            top, left = margin + int(offset.dy), margin + int(offset.dx)
            return pick(canvas[..., top : top + height, left : left + width], rows)

        return views


SHIFTS.register("crop", Crop())
ATTACKS.register("crop", Attack("crop", "crop", Fraction(1), "integer shifts of the crop window"))
