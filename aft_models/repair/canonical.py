"""``canonical``: an image is moved to a place of its own choosing before anything looks at it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.repair.context import RepairContext
from aft_models.repair.image import images_of
from aft_models.repair.remedy import Remedy
from aft_models.resample import working_dtype


def to_canonical(images: Tensor) -> Tensor:
    """Images ``(B, C, H, W)``, moved cyclically until their first harmonics have phase zero.

    The first harmonic along an axis is that of the sum over the other axis and the channels. Where
    it vanishes (below the rounding of the image) it has no phase, and the image is not moved along
    that axis. The Nyquist bins of an even size are dropped: no fractional shift keeps them.

    Law: an exact cyclic shift of the images, by any fraction, does not change the result.

    >>> line = torch.cos(2 * math.pi * torch.arange(8) / 8).expand(1, 1, 8, 8)
    >>> torch.allclose(to_canonical(line.roll(3, 3)), line, atol=1e-6)
    True
    """
    x = images.to(working_dtype(images.dtype))
    with torch.no_grad():
        ground = 64 * torch.finfo(x.dtype).eps * x.square().mean((1, 2, 3)).sqrt()  # (B,)
        shadow = x.mean(1)
        offsets = [_offset(shadow.mean(2), ground), _offset(shadow.mean(1), ground)]
    for axis, offset in zip((2, 3), offsets, strict=True):
        x = _move(x, offset, axis)
    return x.to(images.dtype)


def _offset(line: Tensor, ground: Tensor) -> Tensor:
    """How far to move each line ``(B, n)``, in samples."""
    n = line.shape[1]
    angle = 2 * math.pi / n * torch.arange(n, device=line.device, dtype=line.dtype)
    real, imaginary = (line * angle.cos()).mean(1), -(line * angle.sin()).mean(1)
    offset = -torch.atan2(imaginary, real) * n / (2 * math.pi)
    return torch.where(torch.hypot(real, imaginary) > ground, offset, 0.0)


def _move(x: Tensor, offset: Tensor, axis: int) -> Tensor:
    """``out[j] = x(j + offset)`` along an axis, another offset for each image, no Nyquist bin."""
    n = x.shape[axis]
    bins = torch.arange(n // 2 + 1, device=x.device, dtype=x.dtype)
    angle = 2 * math.pi / n * offset[:, None] * bins  # (B, bins)
    turn = torch.complex(angle.cos(), angle.sin()) * (2 * bins < n)
    shape = [x.shape[0], 1, 1, 1]
    shape[axis] = len(bins)
    moved: Tensor = torch.fft.irfft(torch.fft.rfft(x, dim=axis) * turn.view(shape), n=n, dim=axis)
    return moved


class Canonical:
    """A hook that hands the model its images in canonical position."""

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A forward pre-hook of the model."""
        images, *others = images_of(inputs, "canonical")
        return to_canonical(images), *others


def _apply(patient: RepairContext, _: int) -> None:
    patient.model.register_forward_pre_hook(Canonical())
    patient.changed("", patient.model, "the image is moved until its first harmonics have phase 0")


CANONICAL = Remedy(
    name="canonical",
    group="image",
    summary="the image is moved until the phase of its first harmonic is zero on both axes",
    exact_for="every cyclic shift, fractions included, for any model",
    apply=_apply,
    needs_finetuning=False,
)
