"""The image is formed anew by a camera that moved: rendered, or digitized from its file."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from typing_extensions import override

from shiftbench.errors import UsageError
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views


class Camera(Shift):
    """Images formed anew by a camera that moved by any fraction of a pixel."""

    digitizes = True
    moves_camera = True

    @override
    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        if scene is None:
            raise UsageError(
                "the attack 'camera' needs a data set of image files or rendered images, got "
                "images in memory. Use another attack, or `shiftbench run --data`"
            )
        return scene()


SHIFTS.register("camera", Camera())
ATTACKS.register(
    "camera",
    Attack(
        "camera",
        "camera",
        Fraction(1, 3),
        "the image is formed anew by a camera that moved",
        radius=3,
    ),
)
