"""FFT reference of the resampling: slow, short, easy to check against the paper."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def fft_upsample_1d(x: Tensor, up: int) -> Tensor:
    """Zero-pad the spectrum of the last axis; an even size shares its Nyquist bin."""
    n = x.shape[-1]
    spectrum = torch.fft.rfft(x)
    if n % 2 == 0 and up > 1:
        spectrum = torch.cat([spectrum[..., :-1], spectrum[..., -1:] / 2], dim=-1)
    padded: Tensor = torch.fft.irfft(spectrum, n=n * up) * up
    return padded


def fft_downsample_1d(x: Tensor, m: int) -> Tensor:
    """Keep the bins strictly below ``m / 2`` of the last axis and sample at ``m`` points."""
    n = x.shape[-1]
    kept = torch.fft.rfft(x)[..., : (m - 1) // 2 + 1]
    sampled: Tensor = torch.fft.irfft(kept, n=m) * (m / n)
    return sampled


def fft_shift_1d(x: Tensor, offset: float) -> Tensor:
    """Multiply bin k of the last axis by exp(2 pi i k offset / n), Nyquist by its real part."""
    n = x.shape[-1]
    bins = torch.arange(n // 2 + 1, dtype=x.dtype, device=x.device)
    angle = 2 * torch.pi * bins * offset / n
    sine = torch.sin(angle)
    if n % 2 == 0:
        sine[-1] = 0
    phase = torch.complex(torch.cos(angle), sine)
    shifted: Tensor = torch.fft.irfft(torch.fft.rfft(x) * phase, n=n)
    return shifted


def fft_upsample(x: Tensor, up: int) -> Tensor:
    """Up-sample both axes of ``(..., H, W)``."""
    return _both_axes(x, lambda y, _: fft_upsample_1d(y, up))


def fft_downsample(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Down-sample both axes of ``(..., H, W)`` to ``size``."""
    return _both_axes(x, lambda y, axis: fft_downsample_1d(y, size[axis]))


def fft_shift(x: Tensor, dy: float, dx: float) -> Tensor:
    """Shift both axes of ``(..., H, W)``: ``out[y, x] = in[y + dy, x + dx]``."""
    return _both_axes(x, lambda y, axis: fft_shift_1d(y, (dy, dx)[axis]))


def fft_activation(
    x: Tensor, function: Callable[[Tensor], Tensor], *, up: int = 2, down: int = 1
) -> Tensor:
    """Apply an alias-free activation to ``(..., H, W)``: up-sample, apply, low-pass, sub-sample."""
    height, width = x.shape[-2:]
    return fft_downsample(function(fft_upsample(x, up)), (height // down, width // down))


def _both_axes(x: Tensor, operator: Callable[[Tensor, int], Tensor]) -> Tensor:
    x = operator(x.transpose(-2, -1), 0).transpose(-2, -1)
    return operator(x, 1)
