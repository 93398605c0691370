"""``blurpool``: a binomial filter behind every sub-sampling, Zhang, ICML 2019."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aft_models.remedies.context import RepairContext
from aft_models.remedies.layer import SlidingLayer, extend
from aft_models.remedies.window import Margins, Window, map_size


@dataclass
class BlurSampler:
    """Stride one and a binomial filter, then subsample by the stride.

    A convolution and the filter behind it are linear, so the cheapest order is used: the filter
    first if a convolution mixes channels, both in one wider kernel if each channel is separate.
    """

    taps: int

    @property
    def name(self) -> str:
        """Name of the remedy."""
        return f"blurpool:{self.taps}"

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """Sub-sample a map; see `layer.Sampler`."""
        window = layer.window
        if window.kind != "conv":
            y = layer.at_every_pixel(x)
            border = window.border if window.border != "zeros" else "replicate"
            y = extend(y, *self._margins(window, ((0, 0), (0, 0)), spare=True), border=border)
            return _filter(y, self._kernel(window, x), window.stride)
        reach = window.reach(map_size(x), full=False)
        wide = extend(x, *self._margins(window, reach), border=window.border)
        if window.pointwise:
            return layer.slide_over(
                _filter(wide, self._kernel(window, x), window.stride), full=True
            )
        if window.grouped and layer.original is nn.Conv2d and window.dilation == (1, 1):
            assert isinstance(layer, nn.Conv2d)
            weight = _widen(layer.weight, self._kernel(window, layer.weight))
            return F.conv2d(wide, weight, layer.bias, window.stride, groups=layer.groups)
        return layer.slide_over(_filter(wide, self._kernel(window, x), (1, 1)), full=False)

    def _kernel(self, window: Window, like: Tensor) -> Tensor:
        """Return the outer product of two binomial filters; one tap without a stride."""
        rows, columns = (binomial(self.taps if s > 1 else 1).to(like) for s in window.stride)
        return rows[:, None] * columns

    def _margins(self, window: Window, reach: Margins, *, spare: bool = False) -> Margins:
        """Return the pixels needed beyond the border, those of the filter included.

        ``spare``: the map is that at stride one, which has ``stride - 1`` pixels after its last.
        """
        (top, bottom), (left, right) = reach
        before, after = (self.taps - 1) // 2, self.taps // 2
        (a, b), (c, d) = (
            (before, after - (s - 1 if spare else 0)) if s > 1 else (0, 0) for s in window.stride
        )
        return (top + a, bottom + b), (left + c, right + d)


def binomial(taps: int) -> Tensor:
    """Return a row of Pascal's triangle, normalized to sum 1.

    >>> binomial(4)
    tensor([0.1250, 0.3750, 0.3750, 0.1250], dtype=torch.float64)
    """
    row = [math.comb(taps - 1, i) / 2 ** (taps - 1) for i in range(taps)]
    return torch.tensor(row, dtype=torch.float64)


def _filter(x: Tensor, kernel: Tensor, stride: tuple[int, int]) -> Tensor:
    """Filter each channel separately, without padding."""
    channels = x.shape[1]
    return F.conv2d(x, kernel.expand(channels, 1, *kernel.shape), stride=stride, groups=channels)


def _widen(weight: Tensor, kernel: Tensor) -> Tensor:
    """Return the kernels of one convolution equal to a convolution and a filter behind it."""
    rows, columns = kernel.shape[0] - 1, kernel.shape[1] - 1
    padded = F.pad(weight, (columns, columns, rows, rows))
    return F.conv2d(padded, kernel[None, None])  # symmetric: no need to flip it


def apply(context: RepairContext, taps: int) -> None:
    """Filter before every sub-sampling."""
    context.replace_strides(BlurSampler(taps), f"stride 1 and a filter of {taps} taps")
