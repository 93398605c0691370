"""Position on the image of each number inside a network, traced from the pixels op by op.

The pixels of a batch are on a grid of cells. A view, a permutation, a slice or a concatenation is
applied to the cells as to the numbers. A convolution or a pooling starts a new grid, as coarse as
its output. A sum over one cell keeps the cell, and a sum over all cells has no position. A product
of two positions (an attention matrix) has both. Shapes are never used: a matrix of 32 x 32 channels
has no position.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from shiftbench.auditing.calls import tensors_in
from shiftbench.auditing.lattice import NOWHERE, Known, Place, Places, Size, join, raster

# Operators that only move numbers; the first argument is the tensor, or a list of tensors.
MOVES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_copy", "permute", "transpose", "t", "expand"}
    | {"unsqueeze", "squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "cat"}
    | {"stack", "roll", "flip", "rot90", "index", "index_select", "gather", "repeat", "unfold"}
    | {"pixel_shuffle", "pixel_unshuffle", "channel_shuffle"}
)
PADS = {  # with their modes
    "pad": None,  # an argument of the call
    "constant_pad_nd": "constant",
    "reflection_pad2d": "reflect",
    "replication_pad2d": "replicate",
}
# Operators on neighbors in (B, C, rows, columns).
LOCAL = frozenset(
    {"convolution", "_convolution", "max_pool2d_with_indices", "avg_pool2d"}
    | {"_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d"}
    | {"upsample_bicubic2d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa"}
    | {"_upsample_bicubic2d_aa"}
)
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}  # argument indices
REDUCTIONS = frozenset(
    {"mean", "sum", "amax", "amin", "max", "min", "median", "var", "var_mean", "std", "std_mean"}
    | {"linalg_vector_norm", "norm", "prod", "logsumexp", "argmax", "argmin"}
)
ATTENTION = "scaled_dot_product_attention"


def merge(places: Sequence[Known], shape: Sequence[int]) -> Known:
    """Merge the positions of several tensors for an elementwise operator."""
    merged: list[Place] = []
    for known in places:
        for place in known or ():
            try:
                place = Place(place.cells.expand(tuple(shape)), place.size)
            except RuntimeError:
                return None  # not elementwise
            for index, other in enumerate(merged):
                if (both := _agree(other, place)) is not None:
                    merged[index] = both
                    break
            else:
                merged.append(place)
    if len(merged) > 2 or (not merged and any(known is None for known in places)):
        return None
    # A tensor of unknown position, added to a map of the same shape, has the positions of the map.
    return tuple(merged)


def _agree(a: Place, b: Place) -> Place | None:
    """Return one position for two that are equal or of which one is nowhere, otherwise None."""
    if a is b or (a.size == b.size and a.cells.data_ptr() == b.cells.data_ptr()):
        return a
    if a.size != b.size:
        fine, coarse = (a, b) if a.size > b.size else (b, a)
        factor = fine.size[0] // coarse.size[0]
        if (coarse.size[0] * factor, coarse.size[1] * factor) != fine.size:
            return None
        a, b = fine.coarser(factor), coarse
        if fine.is_complete() and _same(a, b):
            return fine  # cells that were repeated on a finer map are on that map
        # Otherwise a strided slice of the finer map is combined with a coarser map.
    return Place(torch.maximum(a.cells, b.cells), a.size) if _same(a, b) else None


def _same(a: Place, b: Place) -> bool:
    nowhere = (a.cells == NOWHERE) | (b.cells == NOWHERE)
    return bool(((a.cells == b.cells) | nowhere).all())


def summed(places: Known, axes: Sequence[int]) -> Known:
    """Return the positions of sums over `axes`, which keep length 1."""
    kept, spread = _summands(places, axes)
    return kept or spread


def _summands(places: Known, axes: Sequence[int]) -> tuple[Places, Known]:
    """Return the positions that are constant along `axes`, and the sums of the others."""
    if places is None:
        return (), None
    kept: list[Place] = []
    spread: list[Place] = []
    known = True
    for place in places:
        enclosing = _enclosing(place, axes)
        if enclosing is None:
            known = False
        elif enclosing and enclosing[0].size == place.size:
            kept.extend(enclosing)
        else:
            spread.extend(enclosing)
    return tuple(kept), tuple(spread) if known else None


def _enclosing(place: Place, axes: Sequence[int]) -> Known:
    """Return the finest cell that encloses each sum over `axes`; no position for entire images."""
    cells = place.cells
    for axis in axes:
        if cells.stride(axis) == 0:
            cells = cells.narrow(axis, 0, 1)
    placed = cells != NOWHERE
    some = placed.amax(tuple(axes), keepdim=True)
    far = torch.iinfo(cells.dtype).max
    bounds = []
    for coordinate in place.coordinates(cells):
        first = torch.where(placed, coordinate, far).amin(tuple(axes), keepdim=True)
        last = torch.where(placed, coordinate, -1).amax(tuple(axes), keepdim=True)
        bounds.append((torch.where(some, first, 0), torch.where(some, last, 0)))
    image, *sides = bounds

    def within(factor: int) -> bool:
        return all(torch.equal(first // factor, last // factor) for first, last in sides)

    whole = [(f == 0) & (g == size - 1) for (f, g), size in zip(sides, place.size, strict=True)]
    if not within(1) and bool((~some | (whole[0] & whole[1])).all()):
        return ()
    for factor in place.factors():
        if torch.equal(*image) and within(factor):
            coarse = (place.size[0] // factor, place.size[1] // factor)
            (row, _), (column, _) = sides
            joined = join(image[0], row // factor, column // factor, coarse)
            return (Place(torch.where(some, joined, NOWHERE), coarse),)
    return None


def _product(a: Known, b: Known, shape: Sequence[int]) -> Known:
    """Return the positions of a matrix product, which sums rows of `a` and columns of `b`."""
    (rows, row_sums), (columns, column_sums) = _summands(a, [-1]), _summands(b, [-2])
    if rows or columns:
        # A token that attends to others (a row of attention) keeps its own position.
        return merge([rows, columns], shape)
    if row_sums is None or column_sums is None:
        return None
    return merge([row_sums, column_sums], shape)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that traces the positions of every tensor computed from `images`.

    Enter it under `torch.inference_mode`: autograd would hide views behind copies of themselves.
    """

    def __init__(self, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.image: Size = (images.shape[2], images.shape[3])
        self._known: MutableMapping[Tensor, Known] = WeakTensorKeyDictionary()
        self.put(images, (raster(images.shape, 2, 3, images.device),))

    def get(self, x: Tensor) -> Known:
        """Return the positions of a tensor; weights and constants have none."""
        return self._known.get(x, ())

    def carry_over(self, source: Tensor, target: Tensor) -> None:
        """Copy the layout of the source to a target of unknown position, perhaps coarser."""
        places = self.get(source)
        if not places or len(places) > 1 or self.get(target) is not None:
            return
        if source.ndim != target.ndim:
            return
        axes = [axis for axis in range(source.ndim) if places[0].varies(axis)]
        if all(source.shape[axis] == target.shape[axis] for axis in axes):
            cells = places[0].cells
            for axis in set(range(source.ndim)) - set(axes):
                cells = cells.narrow(axis, 0, 1)
            self.put(target, merge([(Place(cells, places[0].size),)], target.shape))
        elif len(axes) == 3 and axes[0] == 0 and self._fits(target.shape, axes[1], axes[2]):
            self.put(target, (raster(target.shape, axes[1], axes[2], target.device),))

    def put(self, x: Tensor, places: Known) -> None:
        """Store the positions of a tensor."""
        self._known[x] = places

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if not (name in PADS or name in LOCAL or name == ATTENTION):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        outputs = tensors_in(result)
        rule = self._rule(name, func, args, kwargs, outputs)
        for output, places in zip(outputs, rule, strict=True):
            unseen = not places and self.get(output) is None
            self.put(output, None if unseen else places)
        return result

    def _rule(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[Tensor],
    ) -> Sequence[Known]:
        """Return the positions of each output of an operator."""
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        shapes = [output.shape for output in outputs]
        if name in MOVES:
            return self._moved(func, args, kwargs, len(outputs))
        if name in PADS:
            mode = PADS[name] or given.get("mode", "constant")
            return [_padded(self.get(args[0]), args[1], mode)]
        if name in LOCAL:
            return [self._local(self.get(args[0]), shape) for shape in shapes]
        if name in PRODUCTS:
            a, b = (self.get(args[index]) for index in PRODUCTS[name])
            return [_product(a, b, shapes[0])]
        if name == ATTENTION:
            return [merge([summed(self.get(args[0]), [-1])], shapes[0])]
        if name in REDUCTIONS:
            return [_reduced(self.get(args[0]), given.get("dim"), shape) for shape in shapes]
        if "empty" in name:  # filled later, possibly by untraced operators
            return [None] * len(outputs)
        if name.startswith("new_") or name.endswith("_like"):
            return [()] * len(outputs)
        inputs = [self.get(x) for x in tensors_in(list(given.values()))]
        return [merge(inputs, shape) for shape in shapes]

    def _moved(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: int
    ) -> Sequence[Known]:
        """Apply an operator that moves numbers to the cells."""
        listed = isinstance(args[0], list | tuple)
        tensors = tensors_in(args[0])
        known = [self.get(x) for x in tensors]
        moved: list[list[Place]] = [[] for _ in range(outputs)]
        for index in range(max(len(places or ()) for places in known)):
            parts = [places[index] if places and len(places) > index else None for places in known]
            sizes = {part.size for part in parts if part is not None}
            if len(sizes) > 1:
                return [None] * outputs
            # Same memory layout as the numbers, so that a view of them is a view of the cells.
            cells = [
                torch.zeros_like(x, dtype=torch.int32)
                if part is None
                else torch.empty_like(x, dtype=torch.int32).copy_(part.cells)
                for x, part in zip(tensors, parts, strict=True)
            ]
            rearranged = func(cells if listed else cells[0], *args[1:], **kwargs)
            for output, x in zip(moved, tensors_in(rearranged), strict=True):
                output.append(Place(x, *sizes))
        if any(places is None for places in known):
            return [None] * outputs
        return [tuple(place for place in places if bool(place.cells.any())) for places in moved]

    def _local(self, places: Known, shape: Sequence[int]) -> Known:
        """Return a new grid as coarse as the output, if the input is a map of the image."""
        if tuple(shape[2:]) == (1, 1):
            return ()
        if not places:
            return places
        if len(places) > 1 or len(shape) != 4 or not _is_map(places[0]):
            return None
        device = places[0].cells.device
        return (raster(shape, 2, 3, device),) if self._fits(shape, 2, 3) else None

    def _fits(self, shape: Sequence[int], rows_axis: int, columns_axis: int) -> bool:
        """Return True if a map has the image's proportions."""
        return shape[rows_axis] * self.image[1] == shape[columns_axis] * self.image[0]


def _padded(places: Known, pad: Sequence[int], mode: str) -> Known:
    """Pad the cells: padding repeats cells, or adds numbers without a position."""
    if places is None:
        return None
    # Only floating-point images can be reflected; these integers are exact in float64.
    return tuple(
        Place(F.pad(place.cells.double(), list(pad), mode=mode).to(torch.int32), place.size)
        for place in places
    )


def _reduced(places: Known, dim: Any, shape: Sequence[int]) -> Known:
    if not places:
        return places
    every = list(range(places[0].cells.ndim))
    axes = [dim] if isinstance(dim, int) else list(dim or every)
    sums = summed(places, axes)
    return sums and tuple(Place(place.cells.reshape(tuple(shape)), place.size) for place in sums)


def _is_map(place: Place) -> bool:
    """Return True if rows are on axis 2 and columns on axis 3, for all channels."""
    cells = place.cells
    if cells.ndim != 4 or place.varies(1):
        return False
    cells = cells[:, :1]
    placed = cells != NOWHERE
    image, row, column = place.coordinates(cells)
    first = torch.arange(len(cells), device=cells.device).reshape(-1, 1, 1, 1)

    def same(value: Tensor, axis: int) -> bool:
        high = torch.where(placed, value, -1).amax(axis, keepdim=True)
        return bool(((value == high) | ~placed).all())

    return bool(((image == first) | ~placed).all()) and same(row, 3) and same(column, 2)
