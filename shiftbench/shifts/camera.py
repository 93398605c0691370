"""The scene is rendered again from the moved camera: what the other kinds imitate."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from shiftbench.errors import UsageError
from shiftbench.grid import Grid
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views


class Camera(Shift):
    """The scene rendered again from the moved camera, by any part of a pixel."""

    rendered = True

    def margin(self, grid: Grid) -> int:
        """None: what comes into view is rendered."""
        return 0

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        """Renders the batch again; only data sets that can render support this."""
        if scene is None:
            raise UsageError(
                "the camera cannot move over images that are only pixels: use another kind of "
                "shift, or data that can be rendered again, as --data scenes"
            )
        return scene()


SHIFTS.register("camera", Camera())
ATTACKS.register(
    "camera",
    Attack("camera", "camera", Fraction(1, 6), "the scene is rendered again from the moved camera"),
)
