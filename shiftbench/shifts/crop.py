"""The crop window moves over the canvas by whole pixels."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from shiftbench.errors import UsageError
from shiftbench.grid import Grid, Offset
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift, check_reach, pick, view_size

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views


class Crop(Shift):
    """The window moves over the canvas by whole pixels, over the image's own pixels."""

    def margin(self, grid: Grid) -> int:
        """As many pixels as the window moves."""
        if not grid.is_integer:
            raise UsageError(
                f"a crop moves by whole pixels, got a grid with step {grid.step}. Use a whole "
                "step, or the attack 'bilinear' or 'half' for parts of a pixel"
            )
        return super().margin(grid)

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
