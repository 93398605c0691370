"""Why a layer breaks shift-equivariance, and what treats it.

Three measurements of the layer alone tell the causes apart. A shift by whole steps of the coarsest
lattice that the layer sees is exact for whatever is the same everywhere: what is left comes from
the border, or from a dependence on the position. A shift by whole steps of its input is exact for
whatever works point by point: what is left in the interior comes from sub-sampling. The rest
appears at fractions of a step only: frequencies that the lattice cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

NEGLIGIBLE = 1e-4  # relative error that float32 arithmetic can make by itself: has no cause
FRAME = 8  # the border is at least one part in so many of the side


BORDER, SUBSAMPLING = "border", "sub-sampling"
NONLINEARITY, POSITION = "non-linearity", "position"
CAUSES = {  # and what happens there
    BORDER: "padding marks where the image ends",
    SUBSAMPLING: "the samples that are kept depend on where the grid lies",
    NONLINEARITY: "it makes frequencies that the grid cannot hold",
    POSITION: "its weights or windows are tied to places in the image",
}


@dataclass(frozen=True)
class Split:
    """A relative error, its two parts measured apart: border^2 + interior^2 = total^2."""

    border: float  # beyond what the layer would err there if it erred as in the interior
    interior: float  # what the layer errs if its whole map errs as the interior does

    @property
    def total(self) -> float:
        """The relative error of the whole."""
        return math.hypot(self.border, self.interior)

    @classmethod
    def mean(cls, splits: Sequence[Split]) -> Split:
        """The root mean square of several, part by part."""
        many = math.sqrt(len(splits))
        border, interior = zip(*((s.border, s.interior) for s in splits), strict=True)
        return cls(math.hypot(*border) / many, math.hypot(*interior) / many)


def frame_width(module: nn.Module, size: Sequence[int]) -> int:
    """How many cells of the output count as border, from each side.

    As far as a kernel reaches and one step of shift; an eighth of the side where that is wider,
    because a fraction of a step rings on.
    """
    side = min(size, default=0)
    kernel, stride, dilation = (
        _largest(getattr(module, name, 1)) for name in ("kernel_size", "stride", "dilation")
    )
    if kernel > 1:
        return max(math.ceil((kernel - 1) * dilation / 2 / stride) + 1, side // FRAME)
    return min(max(1, side // FRAME), (side - 1) // 2)


def _largest(value: object) -> int:
    values = value if isinstance(value, tuple | list) else (value,)
    return max((int(v) for v in values if isinstance(v, int)), default=1)


def split(error: Tensor, unplaced: float, reference: float, width: int) -> Split:
    """Measures the border, `width` cells, and the interior of maps (B, C, rows, columns) apart.

    `unplaced` is the squared error of numbers without a place, such as a class token: no border;
    `reference` is the squared norm of what was expected.
    """
    if not error.numel():
        return Split(0.0, math.sqrt(unplaced / reference))
    rows, columns = error.shape[2:]
    whole = float(error.square().sum())
    core = error[:, :, width : rows - width, width : columns - width]
    cells = core.shape[2] * core.shape[3]
    spread = float(core.square().sum()) * rows * columns / cells if cells else 0.0
    interior = min(whole, spread)
    return Split(
        math.sqrt((whole - interior) / reference), math.sqrt((interior + unplaced) / reference)
    )


def find_cause(own: Split, whole_step: Split, input_step: Split) -> tuple[str, Split]:
    """The cause of an error, and the error split into what the border is to blame for and the rest.

    The errors are at the offsets of the audit, at a whole step of the coarsest lattice, and at one
    of the input's lattice.
    """
    blamed = _blame(own, whole_step)
    if blamed.border > blamed.interior:
        return BORDER, blamed
    if whole_step.interior >= blamed.interior / 2:
        return POSITION, blamed
    if _blame(input_step, whole_step).interior >= blamed.interior / 2:
        return SUBSAMPLING, blamed
    return NONLINEARITY, blamed


def _blame(error: Split, whole_step: Split) -> Split:
    """The error, its border no larger than padding can explain.

    An image is not periodic, so that whatever else goes wrong is often worst at the seam, but only
    padding goes wrong there at whole steps too.
    """
    border = min(error.border, whole_step.total)
    return Split(border, math.sqrt(max(0.0, error.total**2 - border**2)))
