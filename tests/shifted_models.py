"""Images and shifts that tell whether a model holds still."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from aft_models import reference
from aft_models.resample import fractional_shift


def scene(height: int, width: int, count: int = 2) -> Tensor:
    """Images with the falling spectrum of photographs and nothing at the Nyquist frequency."""
    white = torch.randn(count, 3, height, width, dtype=torch.float64)
    rows = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(width, dtype=torch.float64)
    falling = 1 / (0.02 + torch.hypot(rows, columns))
    x = torch.fft.irfft2(torch.fft.rfft2(white) * falling, s=(height, width))
    return reference.fft_downsample(x / x.std(), (height, width))


@torch.no_grad()
def changes(model: nn.Module, x: Tensor, shifts: Iterable[tuple[float, float]]) -> list[float]:
    """Relative change of the logits under each shift."""
    still = model(x)
    return [
        float((model(fractional_shift(x, *shift)) - still).norm() / still.norm())
        for shift in shifts
    ]
