"""Lanczos shifts: interpolation by a windowed sinc, which hardly blurs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from typing_extensions import override

from shiftbench.grid import Grid, Offset
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift, check_reach, pick, view_size

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views

LOBES = 6  # of the sinc on each side; the kernel has twice the number of taps


def lanczos_taps(fraction: float) -> list[float]:
    """Return the weights of the pixels -5 .. 6 for a value at `fraction` between pixels 0 and 1.

    Their sum is 1, so that a uniform image does not change.

    >>> [round(w, 3) for w in lanczos_taps(0.5)[4:8]]
    [-0.191, 0.629, 0.629, -0.191]
    """
    places = [tap - fraction for tap in range(1 - LOBES, 1 + LOBES)]
    weights = [_sinc(x) * _sinc(x / LOBES) for x in places]
    return [weight / sum(weights) for weight in weights]


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x) if x else 1.0


def _filter(images: Tensor, taps: list[float], axis: int, start: int, length: int) -> Tensor:
    """Sum `taps` times the windows that begin at `start`, `start + 1`, ... on an axis."""
    total = taps[0] * images.narrow(axis, start, length)
    for place, tap in enumerate(taps[1:], start=start + 1):
        total = total.add(images.narrow(axis, place, length), alpha=tap)
    return total


class Lanczos(Shift):
    """Shift by a Lanczos-windowed sinc of six lobes on each axis, with weights of sum 1.

    The amplitude of every wave up to 0.4 cycles per pixel is preserved within 3%; linear
    interpolation at half a pixel preserves 31%.
    """

    def margin(self, grid: Grid) -> int:
        """Return the margin for the offsets and the rest of the kernel (pixels)."""
        return super().margin(grid) + (0 if grid.is_integer else LOBES - 1)

    @override
    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        height, width = view_size(canvas, margin)

        def views(offset: Offset, rows: Tensor | None = None) -> Tensor:
            check_reach(offset, margin, taps=LOBES - 1)
            images = pick(canvas, rows)
            for axis, shift, length in ((-2, offset.dy, height), (-1, offset.dx, width)):
                start, part = margin + math.floor(shift), shift % 1
                if part:
                    images = _filter(images, lanczos_taps(part), axis, start + 1 - LOBES, length)
                else:
                    images = images.narrow(axis, start, length)
            return images

        return views


SHIFTS.register("lanczos", Lanczos())
ATTACKS.register(
    "lanczos",
    Attack(
        "lanczos",
        "lanczos",
        Fraction(1, 6),
        "resampling by sixths of a pixel that hardly blurs",
        opt_in=True,
    ),
)
