"""``canonical``: every image is shifted cyclically to a canonical position first."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from aft_models.remedies.inputs import InputRemedy, Undo, same
from aft_models.resample import shift_matrices, without_autocast, working_dtype


class Canonical(InputRemedy):
    """Cyclic shift of images until their first harmonics have phase zero.

    The first harmonic along an axis is that of the sum over the other axis and the channels. Where
    it vanishes (below the rounding of the image) it has no phase: the image is not shifted along
    that axis. The Nyquist bins of an even size are dropped, since no fractional shift keeps them.

    Property: invariant to exact cyclic shifts of the images, by any fraction of a pixel.

    >>> line = torch.cos(2 * math.pi * torch.arange(8) / 8).expand(1, 1, 8, 8)
    >>> shown, _ = Canonical().show(line.roll(3, 3))
    >>> torch.allclose(shown, line, atol=1e-6)
    True
    """

    @override
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        rows, columns = self.place(images).unbind(1)
        with without_autocast(images):
            x = images.to(rows.dtype)
            x = shift_matrices(rows, x.shape[2])[:, None] @ x  # (B, 1, H, H) @ (B, C, H, W)
            x = x @ shift_matrices(columns, x.shape[3])[:, None].mT
        return x.to(images.dtype), same

    @torch.no_grad()
    def place(self, images: Tensor) -> Tensor:
        """Compute the shift of each image in pixels: ``(B, 2)``, rows and columns."""
        x = images.to(working_dtype(images.dtype))
        ground = 64 * torch.finfo(x.dtype).eps * x.square().mean((1, 2, 3)).sqrt()  # (B,)
        shadow = x.mean(1)
        return torch.stack([_offset(shadow.mean(axis), ground) for axis in (2, 1)], 1)


def _offset(line: Tensor, ground: Tensor) -> Tensor:
    """Compute the shift of each line ``(B, n)``, in samples."""
    n = line.shape[1]
    angle = 2 * math.pi / n * torch.arange(n, device=line.device, dtype=line.dtype)
    real, imaginary = (line * angle.cos()).mean(1), -(line * angle.sin()).mean(1)
    offset = -torch.atan2(imaginary, real) * n / (2 * math.pi)
    return torch.where((real.square() + imaginary.square()).sqrt() > ground, offset, 0.0)


def build() -> Canonical:
    """Build the remedy."""
    return Canonical()
