"""``canonical``: every image is moved cyclically to a canonical position first."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aft_models.repair.context import RepairContext
from aft_models.repair.remedy import Remedy, register
from aft_models.resample import without_autocast, working_dtype


class Canonical:
    """Moves images cyclically until their first harmonics have phase zero.

    The first harmonic along an axis is that of the sum over the other axis and the channels. Where
    it vanishes (below the rounding of the image) it has no phase, and the image is not moved along
    that axis. The Nyquist bins of an even size are dropped: no fractional shift keeps them.

    Law: an exact cyclic shift of the images, by any fraction, does not change the result.

    >>> line = torch.cos(2 * math.pi * torch.arange(8) / 8).expand(1, 1, 8, 8)
    >>> torch.allclose(Canonical()(line.roll(3, 3)), line, atol=1e-6)
    True
    """

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` in canonical position."""
        rows, columns = self.place(images).unbind(1)
        with without_autocast(images):
            x = images.to(rows.dtype)
            x = _shift_matrix(rows, x.shape[2])[:, None] @ x  # (B, 1, H, H) @ (B, C, H, W)
            x = x @ _shift_matrix(columns, x.shape[3])[:, None].mT
        return x.to(images.dtype)

    @torch.no_grad()
    def place(self, images: Tensor) -> Tensor:
        """How far to move each image: ``(B, 2)``, rows and columns, fractions included."""
        x = images.to(working_dtype(images.dtype))
        ground = 64 * torch.finfo(x.dtype).eps * x.square().mean((1, 2, 3)).sqrt()  # (B,)
        shadow = x.mean(1)
        return torch.stack([_offset(shadow.mean(axis), ground) for axis in (2, 1)], 1)


def _offset(line: Tensor, ground: Tensor) -> Tensor:
    """How far to move each line ``(B, n)``, in samples."""
    n = line.shape[1]
    angle = 2 * math.pi / n * torch.arange(n, device=line.device, dtype=line.dtype)
    real, imaginary = (line * angle.cos()).mean(1), -(line * angle.sin()).mean(1)
    offset = -torch.atan2(imaginary, real) * n / (2 * math.pi)
    return torch.where((real.square() + imaginary.square()).sqrt() > ground, offset, 0.0)


def _shift_matrix(offset: Tensor, n: int) -> Tensor:
    """``out[j] = x(j + offset)`` on a circle of n samples, no Nyquist bin: ``(B, n, n)``.

    Real sums instead of a complex spectrum: what ONNX can express.
    """
    steps = torch.arange(n, device=offset.device)
    bins = torch.arange(1, (n - 1) // 2 + 1, device=offset.device)
    # Reducing bin * step modulo n in integers keeps these angles small.
    angle = (steps[:, None] * bins % n) + offset[:, None, None] * bins  # (B, n, bins)
    kernel = (1 + 2 * torch.cos(2 * math.pi / n * angle).sum(2)) / n
    return kernel[:, (steps[:, None] - steps) % n]


def _apply(context: RepairContext, _: int) -> None:
    what = "the image is moved until its first harmonics have phase 0"
    context.move_images("canonical", Canonical(), what)


register(
    Remedy(
        name="canonical",
        group="placement",
        summary="the image is moved until the phase of its first harmonic is zero on both axes",
        apply=_apply,
        treats=("position",),
        exact="all",
    )
)
