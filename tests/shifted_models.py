"""Images, shifts and random weights for tests of the shift sensitivity of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import fft_reference as reference
import torch
from torch import Tensor, nn

from aft_models.resample import fractional_shift

Model = TypeVar("Model", bound=nn.Module)


def scene(height: int, width: int, count: int = 2) -> Tensor:
    """Return random images with the spectrum of natural images and no Nyquist frequency."""
    white = torch.randn(count, 3, height, width, dtype=torch.float64)
    rows = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(width, dtype=torch.float64)
    falling = 1 / (0.02 + torch.hypot(rows, columns))
    x = torch.fft.irfft2(torch.fft.rfft2(white) * falling, s=(height, width))
    return reference.fft_downsample(x / x.std(), (height, width))


@torch.no_grad()
def changes(model: nn.Module, x: Tensor, shifts: Iterable[tuple[float, float]]) -> list[float]:
    """Return the relative change of the logits under each shift."""
    still = model(x)
    return [
        float((model(fractional_shift(x, *shift)) - still).norm() / still.norm())
        for shift in shifts
    ]


def disturbed(model: Model) -> Model:
    """Change every parameter and statistic from its initial value; in evaluation mode."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
            elif name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
    return model.eval()
