"""The crop window moves over the canvas by whole pixels."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from shiftbench.errors import UsageError
from shiftbench.grid import Grid, Offset
from shiftbench.shifts.attacks import ATTACKS, Attack
from shiftbench.shifts.base import SHIFTS, Scene, Views, check_reach, pick, view_size, window

if TYPE_CHECKING:
    from torch import Tensor


class Crop:
    """The window moves over the canvas by whole pixels, over the image's own pixels."""

    rendered = False

    def margin(self, grid: Grid) -> int:
        """As many pixels as the window moves."""
        if not grid.is_integer:
            raise UsageError(
                f"a crop moves by whole pixels, got a grid with step {grid.step}. Use a whole "
                "step, or the attack 'bilinear' or 'half' for parts of a pixel"
            )
        return math.ceil(grid.reach)

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
            return pick(window(canvas, top, left, height, width), rows)

        return views


SHIFTS.register("crop", Crop())
ATTACKS.register(
    "crop", Attack("crop", "crop", Fraction(1), "the crop window moves by whole pixels")
)
