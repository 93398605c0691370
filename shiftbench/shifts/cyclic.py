"""Cyclic shifts: the view as one period of a band-limited image, sinc interpolation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from typing_extensions import override

from shiftbench.grid import Grid, Offset
from shiftbench.shifts.base import ATTACKS, SHIFTS, Attack, Shift, pick, view_size, window

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts.base import Scene, Views

MAX_PHASES = 3  # per batch, besides the images: enough for half-pixel grids


def shift_axis(images: Tensor, offset: float, dim: int) -> Tensor:
    """Read a periodic signal `offset` samples further along `dim`.

    Bin k of the spectrum is multiplied by exp(2 pi i k offset / n). For even n the Nyquist bin
    belongs to both +n/2 and -n/2, so its factor is the mean of both, cos(pi offset): a real signal
    stays real, and an integer offset equals `roll`.

    `aft_models.resample` computes the same with matrices. The two implementations are independent
    on purpose: a model must not be measured with the operator it is built from, and matrix products
    lose digits on GPUs with TF32, FFTs do not. The tests compare both.
    """
    import torch

    n = images.shape[dim]
    # FFTs of half precision exist only for powers of two, and on some devices not at all.
    signal = images if images.dtype == torch.float64 else images.float()
    turns = torch.arange(n // 2 + 1, dtype=torch.float64) * (2 * math.pi * offset / n)
    factors = torch.polar(torch.ones_like(turns), turns)
    if n % 2 == 0:
        factors[-1] = math.cos(math.pi * offset)
    spectrum = torch.fft.rfft(signal, dim=dim)
    factors = factors.to(device=spectrum.device, dtype=spectrum.dtype)
    factors = factors.reshape([-1 if d == dim % images.ndim else 1 for d in range(images.ndim)])
    shifted: Tensor = torch.fft.irfft(spectrum * factors, n=n, dim=dim)
    return shifted.to(images.dtype)


def _split(offset: float) -> tuple[int, float]:
    """Split an offset into integer and fraction in [0, 1); equal fractions compare equal."""
    whole = math.floor(offset)
    part = round(offset - whole, 12)
    return (whole + 1, 0.0) if part == 1.0 else (whole, part)


class Cyclic(Shift):
    """Shift of one period of a band-limited periodic image by sinc interpolation."""

    @override
    def margin(self, grid: Grid) -> int:
        return 0

    def views(self, canvas: Tensor, margin: int, scene: Scene | None = None) -> Views:
        """Prepare a batch for many offsets.

        Integer offsets are rolls and need no FFT. A fraction selects the polyphase image that is
        rolled: half-pixel grids share three polyphase images per batch.
        """
        height, width = view_size(canvas, margin)
        whole = window(canvas, margin, margin, height, width)
        phases = {(0.0, 0.0): whole}

        def phase(part_y: float, part_x: float, rows: Tensor | None) -> Tensor:
            if (part_y, part_x) in phases:
                return pick(phases[part_y, part_x], rows)
            # The backward pass frees the inputs of a phase: with gradients each view has its own.
            keep = len(phases) <= MAX_PHASES and not whole.requires_grad
            images = whole if keep else pick(whole, rows)
            if part_y:
                images = shift_axis(images, part_y, -2)
            if part_x:
                images = shift_axis(images, part_x, -1)
            if not keep:
                return images
            phases[part_y, part_x] = images
            return pick(images, rows)

        def views(offset: Offset, rows: Tensor | None = None) -> Tensor:
            (whole_y, part_y), (whole_x, part_x) = _split(offset.dy), _split(offset.dx)
            images = phase(part_y, part_x, rows)
            return images.roll((-whole_y, -whole_x), (-2, -1)) if whole_y or whole_x else images

        return views


SHIFTS.register("cyclic", Cyclic())
ATTACKS.register(
    "integer",
    Attack("integer", "cyclic", Fraction(1), "cyclic integer shifts (T_integer)"),
)
ATTACKS.register(
    "half", Attack("half", "cyclic", Fraction(1, 2), "cyclic half-pixel sinc shifts (T_half)")
)
