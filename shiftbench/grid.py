"""Offsets in pixels, and the grids of offsets that attacks search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product

from shiftbench.errors import UsageError

MAX_DENOMINATOR = 1000  # of a step: reads 0.16666667 as 1/6


@dataclass(frozen=True, order=True)
class Offset:
    """Offset of a shift in pixels: `shifted[y, x] = image[y + dy, x + dx]`.

    >>> Offset(dy=0.5, dx=-1.0)
    Offset(dy=0.5, dx=-1.0)
    """

    dy: float  # positive is down; for an attack with one parameter, that parameter
    dx: float  # positive is right


ORIGIN = Offset(0.0, 0.0)


@dataclass(frozen=True)
class Grid:
    """Square {(i * step, j * step): -radius <= i, j <= radius}, ordered from the inside out.

    Ring r contains the points with max(|i|, |j|) = r. With the inside-out order, one pass over the
    grid gives the adversarial accuracy at every radius up to that of the grid.

    >>> grid = Grid(1, Fraction(1, 2))
    >>> len(grid), next(iter(grid)), grid.ring(Offset(0.5, -0.5))
    (9, Offset(dy=0.0, dx=0.0), 1)
    >>> [offset.dy for offset in Grid(2, Fraction(5), axes=1)]
    [0.0, -5.0, 5.0, -10.0, 10.0]
    """

    radius: int  # in steps
    step: Fraction = Fraction(1)  # in pixels; exact, so that six steps of 1/6 make one pixel
    axes: int = 2  # 1: a line {(i * step, 0)}, in the unit of an attack with one parameter

    def __post_init__(self) -> None:
        if not isinstance(self.radius, int) or self.radius < 0:
            raise UsageError(
                f"max shift must be an integer number of steps, 0 or more, got {self.radius}"
            )
        if not math.isfinite(self.step) or self.step < Fraction(1, MAX_DENOMINATOR):
            raise UsageError(
                f"the step of a grid must be at least 1/{MAX_DENOMINATOR} pixel, got {self.step}"
            )
        exact = Fraction(self.step).limit_denominator(MAX_DENOMINATOR)
        object.__setattr__(self, "step", exact)

    @property
    def reach(self) -> Fraction:
        """Extent of the grid: largest displacement on an axis (pixels)."""
        return self.radius * self.step

    @property
    def is_integer(self) -> bool:
        """True if every offset is an integer number of pixels."""
        return self.step.denominator == 1

    @cached_property
    def offsets(self) -> tuple[Offset, ...]:
        """All offsets in the grid's order; the first is (0, 0)."""
        return tuple(self._rings)

    @cached_property
    def rings(self) -> tuple[int, ...]:
        """Ring of each of `offsets`; never decreases."""
        return tuple(self._rings.values())

    @cached_property
    def _rings(self) -> dict[Offset, int]:
        span = range(-self.radius, self.radius + 1)
        indices = product(span, span if self.axes == 2 else (0,))
        rings = sorted((max(abs(i), abs(j)), i, j) for i, j in indices)
        return {Offset(float(i * self.step), float(j * self.step)): ring for ring, i, j in rings}

    def ring(self, offset: Offset) -> int:
        """Return the ring of an offset of this grid."""
        return self._rings[offset]

    def up_to(self, radius: int) -> Grid:
        """Return the same grid with a smaller radius."""
        return replace(self, radius=radius)

    def __iter__(self) -> Iterator[Offset]:
        return iter(self._rings)

    def __len__(self) -> int:
        return int((2 * self.radius + 1) ** self.axes)
