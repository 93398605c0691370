"""Base class of shift types, and attacks: a shift type and the grid to search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from shiftbench.errors import UsageError
from shiftbench.grid import Grid, Offset
from shiftbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_RADIUS = 6  # steps, for every attack of the paper
PAPER_ATTACKS = ("integer", "half", "crop", "bilinear")


class Views(Protocol):
    """Views of a prepared batch: a call with an offset returns the shifted images."""

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        """Return (B, C, H, W) views at `offset`; `rows` selects images of the batch by index.

        `rows` is a LongTensor on the CPU; None means the whole batch, in order. The result may
        share memory with the canvas and must not be written to.
        """
        ...


Scene = Callable[[], Views]
"""Prepare a batch to be formed anew by moved cameras."""


class Shift(Protocol):
    """Base class of shift types; subclasses implement `views`."""

    digitizes: bool = False  # True if images are formed anew: the pixels of a canvas do not suffice
    # True if the offset moves the camera. Other shifts act on the network's own input: they need
    # scale 1 and no wider view.
    moves_camera: bool = False

    def margin(self, grid: Grid) -> int:
        """Return the margin around the view that the offsets of `grid` read (pixels)."""
        return math.ceil(grid.reach)

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        """Prepare a batch of canvases, (B, C, H + 2 margin, W + 2 margin), for many offsets.

        The margin may be wider than the offsets need: one canvas serves every shift type.
        Offsets are in pixels of the canvas. `scene` forms the same images anew, where that is
        possible.
        """
        ...

    def require(self, grid: Grid, scale: int) -> None:
        """Raise UsageError if the shift does not support a grid at a scale.

        Args:
            grid: Offsets in network pixels.
            scale: Pixels of the canvas per network pixel.
        """
        return None


SHIFTS: Registry[Shift] = Registry("shift type")


@dataclass(frozen=True)
class Attack:
    """Worst-case search over a grid of offsets of one shift type.

    >>> len(ATTACKS.get("half").grid(6)), ATTACKS.get("half").grid(6).reach
    (169, Fraction(3, 1))
    """

    name: str
    shift: str  # a shift type registered in SHIFTS
    step: Fraction  # between neighboring offsets, in `unit`
    summary: str  # one line for `shiftbench list attacks`
    opt_in: bool = False  # not part of `all`: only if requested by name
    unit: str = "px"  # unit of offsets, for example "°" for a rotation
    axes: int = 2  # a square of offsets; 1: a line, for a shift with one parameter, `Offset.dy`
    radius: int = DEFAULT_RADIUS  # usual max shift, in steps

    def grid(self, radius: int | None = None) -> Grid:
        """Return the grid of this attack up to `radius` steps, by default the usual ones."""
        return Grid(self.radius if radius is None else radius, self.step, self.axes)


ATTACKS: Registry[Attack] = Registry("attack")


def parse_attack(text: str) -> Attack:
    """Read an attack from `NAME` or `NAME:STEP`.

    >>> parse_attack("bilinear").step, parse_attack("bilinear:1/4").step
    (Fraction(1, 6), Fraction(1, 4))
    """
    name, colon, step = text.partition(":")
    attack = ATTACKS.get(name)
    if not colon:
        return attack
    try:
        return replace(attack, step=Grid(0, Fraction(step)).step)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"expected a step such as 1, 0.5 or 1/6, got {step!r}") from error


# --- functions for shift types


def view_size(canvas: Tensor, margin: int) -> tuple[int, int]:
    """Return height and width of the view inside the margin of floating-point images."""
    if canvas.ndim != 4 or not canvas.is_floating_point():
        raise UsageError(
            "expected a batch of floating-point images (B, C, H, W), got "
            f"{canvas.dtype} of shape {tuple(canvas.shape)}. Stack the images and convert them "
            "with .float()"
        )
    if margin < 0 or min(canvas.shape[-2:]) <= 2 * margin:
        raise UsageError(
            f"a margin of {margin} pixels on each side leaves no view in a canvas of "
            f"{canvas.shape[-2]}x{canvas.shape[-1]} pixels. Choose a smaller max shift, or larger "
            "or padded images"
        )
    return canvas.shape[-2] - 2 * margin, canvas.shape[-1] - 2 * margin


def check_reach(offset: Offset, margin: int, *, taps: int = 0) -> None:
    """Raise UsageError for an offset beyond the margin; a fraction reads `taps` more pixels."""
    needed = max(math.ceil(abs(d)) + (taps if d % 1 else 0) for d in (offset.dy, offset.dx))
    if needed > margin:
        raise UsageError(
            f"the offset ({offset.dy:g}, {offset.dx:g}) needs a margin of {needed} pixels around "
            f"the view, got {margin}. Choose a smaller max shift, or larger or padded images"
        )


def window(canvas: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Return the window (B, C, height, width) of a canvas at (top, left), without a copy."""
    return canvas[..., top : top + height, left : left + width]


def pick(images: Tensor, rows: Tensor | None) -> Tensor:
    """Select images by row; only these are copied."""
    # On the CPU, indexing reads a strided window four times faster than index_select does.
    return images if rows is None else images[rows.to(images.device)]
