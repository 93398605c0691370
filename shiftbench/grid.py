"""Where the camera goes: offsets in pixels, and the grids of them that attacks search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from typing_extensions import Self

from shiftbench.errors import UsageError

MAX_DENOMINATOR = 1000  # of a step: reads 0.16666667 as 1/6


@dataclass(frozen=True, order=True)
class Offset:
    """A camera move in pixels: `shifted[y, x] = scene[y + dy, x + dx]`.

    >>> Offset(dy=0.5, dx=-1.0)
    Offset(dy=0.5, dx=-1.0)
    """

    dy: float  # down is positive; of an attack with one parameter, that parameter
    dx: float  # right is positive


ORIGIN = Offset(0.0, 0.0)


@dataclass(frozen=True)
class Grid:
    """The square {(i * step, j * step): -radius <= i, j <= radius}, ordered from the inside out.

    Ring r holds the points with max(|i|, |j|) = r. The inside-out order lets one pass over the
    grid yield the adversarial accuracy at every radius up to the grid's own.

    >>> grid = Grid(1, Fraction(1, 2))
    >>> len(grid), next(iter(grid)), grid.ring(Offset(0.5, -0.5))
    (9, Offset(dy=0.0, dx=0.0), 1)
    """

    radius: int  # in steps
    step: Fraction = Fraction(1)  # in pixels; exact, so that six steps of 1/6 make one pixel

    def __post_init__(self) -> None:
        if not isinstance(self.radius, int) or self.radius < 0:
            raise UsageError(
                f"max shift must be a whole number of steps, 0 or more, got {self.radius}"
            )
        if not math.isfinite(self.step) or self.step < Fraction(1, MAX_DENOMINATOR):
            raise UsageError(
                f"the step of a grid must be at least 1/{MAX_DENOMINATOR} pixel, got {self.step}"
            )
        exact = Fraction(self.step).limit_denominator(MAX_DENOMINATOR)
        object.__setattr__(self, "step", exact)

    @property
    def reach(self) -> Fraction:
        """The largest displacement on an axis, in pixels."""
        return self.radius * self.step

    @property
    def is_integer(self) -> bool:
        """Whether every offset is a whole number of pixels."""
        return self.step.denominator == 1

    @cached_property
    def offsets(self) -> tuple[Offset, ...]:
        """Every offset in the grid's order; the first is (0, 0)."""
        return tuple(self._rings)

    @cached_property
    def rings(self) -> tuple[int, ...]:
        """The ring of each of `offsets`; never decreases."""
        return tuple(self._rings.values())

    @cached_property
    def _rings(self) -> dict[Offset, int]:
        indices = sorted(self._indices(), key=lambda p: max(map(abs, p)))
        return {self._offset(i, j): max(abs(i), abs(j)) for i, j in indices}

    def _indices(self) -> Iterable[tuple[int, int]]:
        span = range(-self.radius, self.radius + 1)
        return ((i, j) for i in span for j in span)

    def _offset(self, i: int, j: int) -> Offset:
        return Offset(float(i * self.step), float(j * self.step))

    def ring(self, offset: Offset) -> int:
        """The ring an offset of this grid lies on."""
        return self._rings[offset]

    def up_to(self, radius: int) -> Self:
        """The same grid cut down to a smaller radius."""
        return replace(self, radius=radius)

    def __iter__(self) -> Iterator[Offset]:
        return iter(self._rings)

    def __len__(self) -> int:
        return (2 * self.radius + 1) ** 2

    def __contains__(self, offset: object) -> bool:
        return offset in self._rings


@dataclass(frozen=True)
class Line(Grid):
    """The grid of an attack with one parameter, such as an angle: {(i * step, 0)}.

    Steps, rings and `reach` count in the unit of the attack (`Attack.unit`).

    >>> [offset.dy for offset in Line(2, Fraction(5))]
    [0.0, -5.0, 5.0, -10.0, 10.0]
    """

    def _indices(self) -> Iterable[tuple[int, int]]:
        return ((i, 0) for i in range(-self.radius, self.radius + 1))

    def __len__(self) -> int:
        return 2 * self.radius + 1
