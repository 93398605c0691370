"""Positions of a tensor's numbers on the image, and shifts of the numbers to other positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shiftbench.grid import ORIGIN, Offset
from shiftbench.shifts.cyclic import Cyclic

NOWHERE = 0  # cell of numbers without a position: class tokens, padding, weights
Size = tuple[int, int]  # rows and columns
CYCLIC = Cyclic()  # independent of the operators that an audited model may be built from


@dataclass(frozen=True)
class Place:
    """Cells of a tensor on one feature-map grid."""

    cells: Tensor  # int32, shaped like the tensor: 1 + (image * rows + row) * columns + column
    size: Size  # of the grid

    def coordinates(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return image, row and column of cells, from 0; meaningless for `NOWHERE`."""
        rows, columns = self.size
        index = cells - 1
        return (
            index.div(rows * columns, rounding_mode="floor"),
            index.div(columns, rounding_mode="floor") % rows,
            index % columns,
        )

    def coarser(self, factor: int) -> Place:
        """Return the same numbers on a grid with `factor` x `factor` times fewer cells."""
        if factor == 1:
            return self
        image, row, column = self.coordinates(self.cells)
        size = (self.size[0] // factor, self.size[1] // factor)
        cells = join(image, row // factor, column // factor, size)
        return Place(torch.where(self.cells == NOWHERE, NOWHERE, cells), size)

    def factors(self) -> list[int]:
        """List the factors by which the grid can be coarsened and still have more than one cell."""
        common = math.gcd(*self.size)
        return [f for f in range(1, common + 1) if common % f == 0 and f < max(self.size)]

    def is_complete(self) -> bool:
        """Return True if every cell of some complete images occurs."""
        counts = self.cells.flatten().long().bincount()[1:]
        return int((counts > 0).sum()) % math.prod(self.size) == 0

    def varies(self, axis: int) -> bool:
        """Return True if the cell changes along an axis."""
        if self.cells.shape[axis] == 1 or self.cells.stride(axis) == 0:
            return False
        return bool((self.cells != self.cells.narrow(axis, 0, 1)).any())


Places = tuple[Place, ...]  # none: no position; two: product of positions (attention)
Known = Places | None  # None: not traceable


def join(image: Tensor, row: Tensor, column: Tensor, size: Size) -> Tensor:
    """Compute cells from coordinates."""
    return 1 + (image * size[0] + row) * size[1] + column


def raster(shape: Sequence[int], rows_axis: int, columns_axis: int, device: torch.device) -> Place:
    """Return the cells of a map: images along axis 0, rows and columns along the given axes."""
    size = (shape[rows_axis], shape[columns_axis])

    def along(axis: int) -> Tensor:
        index = torch.arange(shape[axis], dtype=torch.int32, device=device)
        return index.reshape([-1 if a == axis else 1 for a in range(len(shape))])

    cells = join(along(0), along(rows_axis), along(columns_axis), size)
    return Place(cells.expand(tuple(shape)), size)


@dataclass(frozen=True)
class _Lattice:
    """Rule to gather a tensor's numbers into maps (B, C, rows, columns), and to put them back."""

    size: Size
    axes: tuple[int, ...]  # axes of the tensor along which the cell changes
    order: Tensor  # (B * rows * columns * copies,): entries along these axes, cell by cell
    entries: int  # along these axes, including those without a position

    @classmethod
    def of(cls, place: Place, batch: int) -> _Lattice | None:
        """Return the finest grid on which every cell of every image occurs equally often."""
        axes = tuple(axis for axis in range(place.cells.ndim) if place.varies(axis))
        cells = place.cells
        for axis in set(range(cells.ndim)) - set(axes):
            cells = cells.narrow(axis, 0, 1)
        flat = Place(cells.reshape(-1), place.size)
        for factor in place.factors():
            coarse = flat.coarser(factor)
            placed = coarse.cells != NOWHERE
            counts = coarse.cells[placed].long().bincount()[1:]
            if len(counts) == batch * math.prod(coarse.size) and bool((counts == counts[0]).all()):
                order = coarse.cells.argsort(stable=True)[int((~placed).sum()) :]
                return cls(coarse.size, axes, order, len(coarse.cells))
        return None

    @cached_property
    def in_order(self) -> bool:
        """True if there is nothing to gather, as in every plain map: no copy is needed."""
        return torch.equal(self.order, torch.arange(self.entries, device=self.order.device))

    def axes_first(self, x: Tensor) -> Tensor:
        """Return a view of `x` that begins with the axes along which the cell changes."""
        return x.movedim(self.axes, tuple(range(len(self.axes))))

    def to_map(self, x: Tensor, batch: int) -> Tensor:
        """Return the numbers with a position as maps (B, C, rows, columns)."""
        plane = self.axes_first(x)
        if not self.in_order:
            plane = plane.reshape(self.entries, -1)[self.order]
        return plane.reshape(batch, *self.size, -1).permute(0, 3, 1, 2)

    def with_map(self, x: Tensor, plane: Tensor) -> Tensor:
        """Return `x` with the numbers of a map at their positions."""
        first, flat = self.axes_first(x), plane.permute(0, 2, 3, 1)
        if not self.in_order:
            gathered = flat.reshape(len(self.order), -1)
            flat = first.reshape(self.entries, -1).clone()
            flat[self.order] = gathered
        return flat.reshape(first.shape).movedim(tuple(range(len(self.axes))), self.axes)

    def unplaced(self, x: Tensor) -> Tensor:
        """Return the numbers without a position, (entries, numbers of each)."""
        mask = torch.ones(self.entries, dtype=torch.bool, device=self.order.device)
        mask[self.order] = False
        return self.axes_first(x).reshape(self.entries, -1)[mask]


@dataclass(frozen=True)
class Layout:
    """Arrangement of a tensor on the image: on no grid, on one, or (an attention matrix) on two."""

    batch: int
    image: Size  # in pixels
    lattices: tuple[_Lattice, ...]

    @classmethod
    def of(cls, places: Known, batch: int, image: Size) -> Layout | None:
        """Build the layout; None for unknown positions or cells of incomplete images."""
        if places is None:
            return None
        candidates = [_Lattice.of(place, batch) for place in places]
        lattices = tuple(lattice for lattice in candidates if lattice is not None)
        if len(lattices) < len(candidates):
            return None
        if len(lattices) == 2:
            # Within windows a row of attention has only its own columns: no shift of it alone.
            shared = set(lattices[0].axes) & set(lattices[1].axes)
            if not shared <= {0} or places[0].cells.shape[0] != batch:
                return None
        return cls(batch, image, lattices)

    @property
    def size(self) -> Size | None:
        """Rows and columns of the grid, if there is exactly one."""
        return self.lattices[0].size if len(self.lattices) == 1 else None

    def shift(self, x: Tensor, offset: Offset) -> Tensor:
        """Return a copy of the tensor as expected after a shift of the image by `offset` pixels."""
        if not self.lattices or offset == ORIGIN:
            return x.clone()
        for lattice in self.lattices:
            (rows, columns), (height, width) = lattice.size, self.image
            steps = Offset(offset.dy * rows / height, offset.dx * columns / width)
            plane = lattice.to_map(x, self.batch)
            x = lattice.with_map(x, CYCLIC.views(plane, 0)(steps))
        return x

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split a tensor into maps (B, C, rows, columns) and numbers without a position.

        Class tokens and padding have no position, nor have the numbers of a tensor on no grid or on
        two.
        """
        if self.size is None:
            return x.new_zeros(0), x
        [lattice] = self.lattices
        unplaced = x.new_zeros(0) if lattice.in_order else lattice.unplaced(x)
        return lattice.to_map(x, self.batch), unplaced
