"""Circular padding, and the 3 x 3 convolution on a torus built on it.

``F.pad(mode="circular")`` loses the channels-last layout and its gradient goes through a chain of
slice copies. Here the border is copied once, in either layout, and folded back once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Margin = tuple[int, int]  # pixels before the first and after the last

_LAST = torch.channels_last


class _CircularPad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, rows: Margin, columns: Margin) -> Tensor:
        ctx.geometry = (axis, rows, columns)
        return _wrap_border(x, axis, rows, columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _fold_border(grad, *ctx.geometry), None, None, None


def circular_pad(x: Tensor, axis: int, rows: Margin = (1, 1), columns: Margin = (1, 1)) -> Tensor:
    """Wrap the two axes ``axis`` and ``axis + 1``, by default by a pixel at each end.

    A margin may not be wider than the image.

    >>> circular_pad(torch.tensor([[[[1.0, 2.0, 3.0]]]]), 2, rows=(0, 0), columns=(2, 1))
    tensor([[[[2., 3., 1., 2., 3., 1.]]]])
    """
    result: Tensor = _CircularPad.apply(x, axis, rows, columns)
    return result


def _wrap_border(x: Tensor, axis: int, rows: Margin, columns: Margin) -> Tensor:
    (top, bottom), (left, right) = rows, columns
    if torch.compiler.is_compiling():  # a graph has no buffers to fill
        return wrap_line(wrap_line(x, axis + 1, left, right), axis, top, bottom)
    height, width = x.shape[axis], x.shape[axis + 1]
    sides = [top + height + bottom, left + width + right]
    shape = [*x.shape[:axis], *sides, *x.shape[axis + 2 :]]
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=_LAST)
    out = x.new_empty(shape)
    if last:
        out = torch.empty_like(out, memory_format=_LAST)
    core = out.narrow(axis, top, height)
    core.narrow(axis + 1, left, width).copy_(x)
    for line, count, source in ((0, left, width), (left + width, right, left)):
        if count:
            core.narrow(axis + 1, line, count).copy_(core.narrow(axis + 1, source, count))
    for line, count, source in ((0, top, height), (top + height, bottom, top)):
        if count:
            out.narrow(axis, line, count).copy_(out.narrow(axis, source, count))
    return out


def wrap_line(x: Tensor, axis: int, before: int = 1, after: int = 1) -> Tensor:
    """Wrap so many pixels around one axis."""
    ends = (x.narrow(axis, x.shape[axis] - before, before), x, x.narrow(axis, 0, after))
    return torch.cat(ends, axis)


def _fold_border(x: Tensor, axis: int, rows: Margin, columns: Margin) -> Tensor:
    """The transpose of :func:`_wrap_border`: adds the border to the pixels that it repeats."""
    (top, bottom), (left, right) = rows, columns
    height, width = x.shape[axis] - top - bottom, x.shape[axis + 1] - left - right

    def fold_columns(part: Tensor) -> Tensor:
        core = part.narrow(axis + 1, left, width).clone(memory_format=torch.preserve_format)
        if left:
            core.narrow(axis + 1, width - left, left).add_(part.narrow(axis + 1, 0, left))
        if right:
            core.narrow(axis + 1, 0, right).add_(part.narrow(axis + 1, left + width, right))
        return core

    core = fold_columns(x.narrow(axis, top, height))
    if top:
        core.narrow(axis, height - top, top).add_(fold_columns(x.narrow(axis, 0, top)))
    if bottom:
        core.narrow(axis, 0, bottom).add_(fold_columns(x.narrow(axis, top + height, bottom)))
    return core


class CircularConv2d(nn.Conv2d):
    """``nn.Conv2d(kernel_size=3, padding=1, padding_mode="circular")``, same parameters, faster."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)``; a channels-last input stays channels-last."""
        if x.is_contiguous():
            padded = circular_pad(x, 2)
        else:
            padded = circular_pad(x.permute(0, 2, 3, 1), 1).permute(0, 3, 1, 2)
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def conv3x3(
    in_channels: int,
    out_channels: int,
    *,
    padding: str,
    stride: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps the size, padded with ``"zeros"`` or ``"circular"``."""
    if padding == "circular":
        return CircularConv2d(
            in_channels,
            out_channels,
            kernel_size=3,
            stride=stride,
            padding=1,
            padding_mode="circular",
            groups=groups,
            bias=bias,
        )
    return nn.Conv2d(
        in_channels, out_channels, kernel_size=3, stride=stride, padding=1, groups=groups, bias=bias
    )
