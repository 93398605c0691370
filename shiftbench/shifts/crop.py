"""The crop window moves over the canvas by whole pixels."""

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
    """The window moves over the canvas by whole pixels, over the image's own pixels."""

    moves_camera = True

    @override
    def require(self, grid: Grid, scale: int) -> None:
        if (grid.step * scale).denominator != 1:
            raise UsageError(
                f"expected a step of whole pixels of the canvas for crops, got {grid.step} px at "
                f"scale {scale}. Use --scale {grid.step.denominator}, a whole step, or the attack "
                "'bilinear' or 'camera'"
            )

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        """Every whole-batch view is a slice of the canvas: nothing is copied."""
        height, width = view_size(canvas, margin)

        def views(offset: Offset, rows: Tensor | None = None) -> Tensor:
            check_reach(offset, margin)
            if offset.dy % 1 or offset.dx % 1:
                raise UsageError(
                    f"a crop moves by whole pixels, got the offset ({offset.dy:g}, {offset.dx:g}). "
                    "Use the kind of shift 'bilinear' or 'cyclic' for parts of a pixel"
                )
            top, left = margin + int(offset.dy), margin + int(offset.dx)
            return pick(canvas[..., top : top + height, left : left + width], rows)

        return views


SHIFTS.register("crop", Crop())
ATTACKS.register(
    "crop", Attack("crop", "crop", Fraction(1), "the crop window moves by whole pixels")
)
