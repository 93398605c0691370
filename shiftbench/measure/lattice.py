"""Where a tensor's numbers lie on the image, and how to move them there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shiftbench.grid import Offset
from shiftbench.shifts.cyclic import Cyclic

NOWHERE = 0  # the cell of numbers without a place: class tokens, padding, weights
Size = tuple[int, int]  # rows and columns


@dataclass(frozen=True)
class Place:
    """A tensor's cells on one lattice."""

    cells: Tensor  # int32, shaped like the tensor: 1 + (image * rows + row) * columns + column
    size: Size  # of the lattice

    def expand(self, shape: Sequence[int]) -> Place:
        """The same cells, broadcast."""
        return Place(self.cells.expand(tuple(shape)), self.size)

    def coordinates(self, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Image, row and column of cells, from 0; meaningless for `NOWHERE`."""
        rows, columns = self.size
        index = cells - 1
        return (
            index.div(rows * columns, rounding_mode="floor"),
            index.div(columns, rounding_mode="floor") % rows,
            index % columns,
        )

    def coarser(self, factor: int) -> Place:
        """The same numbers on a lattice of `factor` x `factor` times fewer cells."""
        if factor == 1:
            return self
        image, row, column = self.coordinates(self.cells)
        size = (self.size[0] // factor, self.size[1] // factor)
        cells = join(image, row // factor, column // factor, size)
        return Place(torch.where(self.cells == NOWHERE, NOWHERE, cells), size)

    def factors(self) -> list[int]:
        """By how much this lattice can be coarsened and still have more than one cell."""
        common = math.gcd(*self.size)
        return [f for f in range(1, common + 1) if common % f == 0 and f < max(self.size)]

    def varies(self, axis: int) -> bool:
        """Whether the cell changes along an axis."""
        if self.cells.shape[axis] == 1 or self.cells.stride(axis) == 0:
            return False
        return bool((self.cells != self.cells.narrow(axis, 0, 1)).any())


Places = tuple[Place, ...]  # none: no place; two: a product of places, such as an attention matrix
Known = Places | None  # None: it could not be followed


def join(image: Tensor, row: Tensor, column: Tensor, size: Size) -> Tensor:
    """Cells from coordinates."""
    return 1 + (image * size[0] + row) * size[1] + column


def raster(shape: Sequence[int], rows_axis: int, columns_axis: int) -> Place:
    """The cells of a tensor that is a map: images along axis 0, rows and columns where told."""
    size = (shape[rows_axis], shape[columns_axis])

    def along(axis: int) -> Tensor:
        index = torch.arange(shape[axis], dtype=torch.int32)
        return index.reshape([-1 if a == axis else 1 for a in range(len(shape))])

    cells = join(along(0), along(rows_axis), along(columns_axis), size)
    return Place(cells.expand(tuple(shape)), size)


@dataclass(frozen=True)
class _Lattice:
    """How to gather a tensor's numbers into maps (B, C, rows, columns), and to put them back."""

    size: Size
    axes: tuple[int, ...]  # of the tensor, along which the cell changes
    order: Tensor  # (B * rows * columns * copies,): entries along these axes, cell by cell
    entries: int  # along these axes, with those that have no place

    @classmethod
    def of(cls, place: Place, batch: int) -> _Lattice | None:
        """Finds the coarsest need: every cell of every image as often as any other."""
        axes = tuple(axis for axis in range(place.cells.ndim) if place.varies(axis))
        cells = place.cells
        for axis in range(cells.ndim):
            cells = cells if axis in axes else cells.narrow(axis, 0, 1)
        flat = Place(cells.reshape(-1), place.size)
        for factor in place.factors():
            coarse = flat.coarser(factor)
            placed = coarse.cells != NOWHERE
            counts = coarse.cells[placed].long().bincount()[1:]
            if len(counts) == batch * math.prod(coarse.size) and bool((counts == counts[0]).all()):
                order = coarse.cells.argsort(stable=True)[int((~placed).sum()) :]
                return cls(coarse.size, axes, order, len(coarse.cells))
        return None

    def entries_first(self, x: Tensor) -> Tensor:
        """(entries, numbers of each)."""
        return x.movedim(self.axes, tuple(range(len(self.axes)))).reshape(self.entries, -1)

    def to_map(self, x: Tensor, batch: int) -> Tensor:
        """(B, C, rows, columns): the numbers with a place."""
        rows, columns = self.size
        flat = self.entries_first(x)[self.order]
        return flat.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2)

    def with_map(self, x: Tensor, plane: Tensor) -> Tensor:
        """`x` with the numbers of a map in their places."""
        moved = x.movedim(self.axes, tuple(range(len(self.axes))))
        flat = moved.reshape(self.entries, -1).clone()
        flat[self.order] = plane.permute(0, 2, 3, 1).reshape(len(self.order), -1)
        return flat.reshape(moved.shape).movedim(tuple(range(len(self.axes))), self.axes)


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on the image: on no lattice, on one, or, an attention matrix, on two."""

    batch: int
    image: Size  # in pixels
    lattices: tuple[_Lattice, ...]

    @classmethod
    def of(cls, places: Known, batch: int, image: Size) -> Layout | None:
        """None where it is not known, or the cells are not those of whole images."""
        if places is None:
            return None
        found = [_Lattice.of(place, batch) for place in places]
        lattices = tuple(lattice for lattice in found if lattice is not None)
        return cls(batch, image, lattices) if len(lattices) == len(found) else None

    @property
    def size(self) -> Size | None:
        """Rows and columns of the lattice, where there is exactly one."""
        return self.lattices[0].size if len(self.lattices) == 1 else None

    def shift(self, x: Tensor, offset: Offset) -> Tensor:
        """A copy of the tensor as it should be once the image moved by `offset` pixels."""
        x = x.clone()
        for lattice in self.lattices:
            (rows, columns), (height, width) = lattice.size, self.image
            steps = Offset(offset.dy * rows / height, offset.dx * columns / width)
            plane = lattice.to_map(x, self.batch)
            x = lattice.with_map(x, CYCLIC.views(plane, 0)(steps))
        return x

    def placed(self, x: Tensor) -> Tensor:
        """The numbers of a tensor on one lattice, as maps (B, C, rows, columns)."""
        return self.lattices[0].to_map(x, self.batch)

    def unplaced(self, x: Tensor) -> Tensor:
        """The numbers of a tensor on one lattice that have no place: class tokens, padding."""
        lattice = self.lattices[0]
        mask = torch.ones(lattice.entries, dtype=torch.bool)
        mask[lattice.order] = False
        return lattice.entries_first(x)[mask]


CYCLIC = Cyclic()
