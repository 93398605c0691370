"""The seam every kind of shift implements."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from shiftbench.grid import Grid, Offset
from shiftbench.registry import Registry


class Views(Protocol):
    """A prepared batch: call it with an offset to see the (chosen rows of the) batch shifted."""

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        """Returns (B, C, H, W) views at `offset`; `rows` selects images of the batch by index."""
        ...


class Shift(Protocol):
    """A kind of shift."""

    def margin(self, grid: Grid) -> int:
        """How many pixels around the view the offsets of `grid` read."""
        ...

    def views(self, canvas: Tensor, margin: int) -> Views:
        """Prepares a batch of canvases, (B, C, H + 2 margin, W + 2 margin), for many offsets."""
        ...


SHIFTS: Registry[Shift] = Registry("kind of shift")
