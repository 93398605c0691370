"""Circular padding by one pixel, and the 3 x 3 convolution on a torus built on it.

``F.pad(mode="circular")`` loses the channels-last layout and its gradient goes through a chain of
slice copies. Here the border is copied once, in either layout, and folded back once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _CircularPad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:
        ctx.axis = axis
        return wrap_border(x, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return fold_border(grad, ctx.axis), None


def circular_pad(x: Tensor, axis: int) -> Tensor:
    """Wrap one pixel around the two axes ``axis`` and ``axis + 1``."""
    result: Tensor = _CircularPad.apply(x, axis)
    return result


def wrap_border(x: Tensor, axis: int) -> Tensor:
    """:func:`circular_pad` without a gradient."""
    if torch.compiler.is_compiling():  # a graph has no buffers to fill
        return wrap_line(wrap_line(x, axis + 1), axis)
    height, width = x.shape[axis], x.shape[axis + 1]
    out = x.new_empty([*x.shape[:axis], height + 2, width + 2, *x.shape[axis + 2 :]])
    rows = out.narrow(axis, 1, height)
    rows.narrow(axis + 1, 1, width).copy_(x)
    rows.select(axis + 1, 0).copy_(x.select(axis + 1, width - 1))
    rows.select(axis + 1, width + 1).copy_(x.select(axis + 1, 0))
    out.select(axis, 0).copy_(out.select(axis, height))
    out.select(axis, height + 1).copy_(out.select(axis, 1))
    return out


def wrap_line(x: Tensor, axis: int) -> Tensor:
    """Wrap one pixel around one axis."""
    return torch.cat([x.narrow(axis, x.shape[axis] - 1, 1), x, x.narrow(axis, 0, 1)], axis)


def fold_border(x: Tensor, axis: int) -> Tensor:
    """The transpose of :func:`wrap_border`: what fell on the border goes back round."""
    height, width = x.shape[axis] - 2, x.shape[axis + 1] - 2
    rows = x.narrow(axis, 1, height)
    core = rows.narrow(axis + 1, 1, width).clone(memory_format=torch.contiguous_format)
    core.select(axis + 1, width - 1).add_(rows.select(axis + 1, 0))
    core.select(axis + 1, 0).add_(rows.select(axis + 1, width + 1))
    for outside, inside in ((0, height - 1), (height + 1, 0)):
        edge = x.select(axis, outside)
        line = edge.narrow(axis, 1, width).clone()
        line.select(axis, width - 1).add_(edge.select(axis, 0))
        line.select(axis, 0).add_(edge.select(axis, width + 1))
        core.select(axis, inside).add_(line)
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
