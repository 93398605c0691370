"""Causes of the equivariance error of a layer.

Three measurements of the layer alone distinguish the causes. Integer steps of the coarsest
feature-map grid among input and output are exact for layers that are equal at all positions: the
remaining error is caused by the border or by a dependence on the position. Integer steps of the
input grid are exact for pointwise layers: the remaining error in the interior is caused by
sub-sampling. Other errors appear at fractional steps only: frequencies above the Nyquist limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

NEGLIGIBLE = 1e-4  # relative error of float32 arithmetic alone: has no cause
FRAME = 8  # the border is at least side / FRAME wide


BORDER, SUBSAMPLING = "border", "sub-sampling"
NONLINEARITY, POSITION = "non-linearity", "position"
CAUSES = {  # with an explanation
    BORDER: "padding depends on the position of the image border",
    SUBSAMPLING: "the sampled pixels depend on the position of the grid",
    NONLINEARITY: "creates frequencies above the Nyquist limit of the grid",
    POSITION: "weights or windows depend on the position in the image",
}


@dataclass(frozen=True)
class Split:
    """Relative error, split into border and interior: border^2 + interior^2 = total^2."""

    border: float  # in addition to the error of the interior, extended to the border
    interior: float  # as if the error of the interior applied to the entire map

    @property
    def total(self) -> float:
        """Relative error of border and interior together."""
        return math.hypot(self.border, self.interior)

    @classmethod
    def mean(cls, splits: Sequence[Split]) -> Split:
        """Return the root mean square of several errors, separately for border and interior."""
        many = math.sqrt(len(splits))
        border, interior = zip(*((s.border, s.interior) for s in splits), strict=True)
        return cls(math.hypot(*border) / many, math.hypot(*interior) / many)


def frame_width(module: nn.Module, size: Sequence[int]) -> int:
    """Return the width of the border on each side (cells of the output).

    The width covers half a kernel and one step of shift, and at least an eighth of the side,
    because the ringing of a fractional shift extends that far.
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
    """Split the error of maps (B, C, rows, columns) into a border of `width` cells and interior.

    `unplaced` is the squared error of numbers without a position, such as a class token. These have
    no border. `reference` is the squared norm of the expected output.
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
    """Determine the cause of an error.

    The errors are those at the offsets of the audit, at an integer step of the coarsest grid, and
    at one of the input grid.

    Returns:
        The cause, and the error split into the share of the border and the rest.
    """
    limited = _limit_border(own, whole_step)
    if limited.border > limited.interior:
        return BORDER, limited
    if whole_step.interior >= limited.interior / 2:
        return POSITION, limited
    if _limit_border(input_step, whole_step).interior >= limited.interior / 2:
        return SUBSAMPLING, limited
    return NONLINEARITY, limited


def _limit_border(error: Split, whole_step: Split) -> Split:
    """Limit the border error to the error that padding explains.

    Images are not periodic, so errors of any cause concentrate at the wrap-around boundary. Only
    padding causes errors there at integer steps too.
    """
    border = min(error.border, whole_step.total)
    return Split(border, math.sqrt(max(0.0, error.total**2 - border**2)))
