"""The first convolution, batch norm, alias-free activation and down-sampling as one operator.

A fractional shift commutes with a circular convolution and with the affine map of a batch norm.
So instead of shifting the many-channel, full-resolution feature map to each of its phases, shift
the three-channel image and convolve each phase. Nothing of the feature map is saved: the
backward pass convolves again, which is the cheapest convolution of the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from aft_models.layers.activation import AxisPhases, chunk_images, chunk_starts
from aft_models.layers.padding import fold_border, wrap_border
from aft_models.layers.pointwise import Pointwise
from aft_models.resample import contract, working_dtype

_aten = torch.ops.aten
_ROWS, _COLUMNS = 2, 3


class _PhasewiseStem(torch.autograd.Function):
    """``down(function(up(conv(image))))``, phase by phase, recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        weight: Tensor,
        bias: Tensor,
        function: Pointwise,
        up: int,
        down: int,
        *params: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(image, weight, bias, *params)
        ctx.settings = (function, up, down)
        with torch.autocast(image.device.type, enabled=False):
            return _forward(image, weight, bias, function, up, down, params)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, weight, bias, *params = ctx.saved_tensors
        function, up, down = ctx.settings
        with torch.autocast(image.device.type, enabled=False):
            grads, param_grads = _backward(
                grad, image, weight, bias, function, up, down, params, ctx.needs_input_grad[0]
            )
        return (*grads, None, None, None, *param_grads)


@dataclass(frozen=True)
class _Plan:
    """Sizes and matrices of one call. Feature maps are ``(b, H, W, C)`` or ``(b, C, H, W)``."""

    rows: AxisPhases
    columns: AxisPhases
    axis: int  # of the rows in a feature map; the columns follow
    shape: tuple[int, int, int]  # channels, height, width of the full-size feature map
    down: int
    images: int  # per chunk

    @staticmethod
    def of(image: Tensor, channels: int, up: int, down: int, dtype: torch.dtype) -> _Plan:
        height, width = image.shape[2:]
        rows, columns = (AxisPhases.of(n, up, down, image.device, dtype) for n in (height, width))
        # On a CPU, convolving three channels is several times faster with the channels last.
        last = image.device.type == "cpu" or not image.is_contiguous()
        images = chunk_images(image, channels * height * width)
        return _Plan(rows, columns, 1 if last else 2, (channels, height, width), down, images)

    def buffer(
        self, like: Tensor, dtype: torch.dtype, count: int, *, rows: int, columns: int
    ) -> Tensor:
        """Room for feature maps, the two sides divided by ``rows`` and ``columns``."""
        channels, height, width = self.shape
        sides = [height // rows, width // columns]
        shape = [count, *sides, channels] if self.axis == 1 else [count, channels, *sides]
        return like.new_empty(shape, dtype=dtype)

    def params(self, params: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Coefficients ``(degree + 1, C)``, shaped to broadcast over a feature map."""
        return [p.to(dtype) if self.axis == 1 else p.to(dtype)[:, :, None, None] for p in params]

    def phases(self, part: Tensor, r: int) -> Iterator[tuple[int, Tensor]]:
        """Column phase ``r`` of the image in each row phase, wrapped: ``(b, C, H + 2, W + 2)``."""
        v = part if r == 0 else contract(self.columns.forth[r], part, _COLUMNS)
        v = self.features(v)  # before the rows: a product along them does not mind the layout
        for p, matrix in enumerate(self.rows.forth):
            phase = contract(matrix, v, self.axis) if p else v
            yield p, self.images_first(wrap_border(phase, self.axis))

    def features(self, x: Tensor) -> Tensor:
        """A convolution's ``(b, C, H, W)`` as a contiguous feature map, or back to front."""
        return x.permute(0, 2, 3, 1).contiguous() if self.axis == 1 else x.contiguous()

    def total(self, x: Tensor) -> Tensor:
        """The sum of a feature map over all pixels."""
        if self.axis == 2:
            return x.sum((0, 2, 3))
        # On a CPU a product with ones is faster than a sum, and several times as a convolution's.
        pixels = x.flatten(0, 2)
        return (pixels.new_ones(1, pixels.shape[0]) @ pixels)[0]

    def images_first(self, x: Tensor) -> Tensor:
        """A feature map as ``(b, C, H, W)``, whatever its memory."""
        return x.permute(0, 3, 1, 2) if self.axis == 1 else x


def _forward(
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    function: Pointwise,
    up: int,
    down: int,
    params: Sequence[Tensor],
) -> Tensor:
    dtype = working_dtype(weight.dtype)
    plan = _Plan.of(image, weight.shape[0], up, down, dtype)
    wide = plan.params(params, dtype)
    w, b = weight.to(dtype), bias.to(dtype)
    axis, batch = plan.axis, image.shape[0]
    y = plan.buffer(image, dtype, batch, rows=down, columns=down)
    gathered = plan.buffer(image, dtype, plan.images, rows=down, columns=1)
    for start in chunk_starts(batch, plan.images):
        part = image[start : start + plan.images].to(dtype).contiguous()
        out, size = y[start : start + plan.images], part.shape[0]
        column = gathered[:size]
        for r in range(up):
            for p, padded in plan.phases(part, r):
                z = plan.features(F.conv2d(padded, w, b))
                function.apply_(z, wide)
                contract(plan.rows.back[p], z, axis, out=column, keep=float(p > 0))
                del z  # so that the next phase finds its memory free, and still in the cache
            back = plan.columns.back[r]
            contract(back, column, axis + 1, out=out, keep=float(r > 0), scale=1.0 / up**2)
    return plan.images_first(y).to(weight.dtype)


def _backward(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    function: Pointwise,
    up: int,
    down: int,
    params: Sequence[Tensor],
    image_needs_grad: bool,
) -> tuple[tuple[Tensor | None, Tensor, Tensor], list[Tensor]]:
    dtype = working_dtype(weight.dtype)
    plan = _Plan.of(image, weight.shape[0], up, down, dtype)
    wide = plan.params(params, dtype)
    param_grads = [torch.zeros_like(p) for p in wide]
    w, b = weight.to(dtype), bias.to(dtype)
    grad_w, grad_b = torch.zeros_like(w), torch.zeros_like(b)
    grad_image = image.new_zeros(image.shape, dtype=dtype) if image_needs_grad else None
    axis, batch = plan.axis, image.shape[0]
    spread = plan.buffer(image, dtype, plan.images, rows=1, columns=1)
    wanted = [image_needs_grad, True, False]
    for start in chunk_starts(batch, plan.images):
        part = image[start : start + plan.images].to(dtype).contiguous()
        g = plan.features(grad[start : start + plan.images].to(dtype) * (1.0 / up**2))
        gz = spread[: part.shape[0]]
        for r in range(up):
            q = contract(plan.columns.back[r].t(), g, axis + 1)
            column = torch.zeros_like(part) if image_needs_grad else None
            for p, padded in plan.phases(part, r):
                z = plan.features(F.conv2d(padded, w, b))
                contract(plan.rows.back[p].t(), q, axis, out=gz)
                function.pull_back(gz, z, gz, wide, param_grads)
                del z
                grad_padded, dw, _ = _aten.convolution_backward(
                    plan.images_first(gz), padded, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0],
                    1, wanted,
                )  # fmt: skip
                grad_w += dw
                grad_b += plan.total(gz)
                if column is not None:
                    phase = fold_border(grad_padded, _ROWS)
                    contract(plan.rows.forth[p].t(), phase, _ROWS, out=column, keep=1.0)
            if grad_image is not None and column is not None:
                target = grad_image[start : start + plan.images]
                contract(plan.columns.forth[r].t(), column, _COLUMNS, out=target, keep=1.0)
    narrow = [g.view(p.shape).to(p.dtype) for g, p in zip(param_grads, params, strict=True)]
    if grad_image is not None:
        grad_image = grad_image.to(image.dtype)
    return (grad_image, grad_w.to(weight.dtype), grad_b.to(bias.dtype)), narrow


def fold_batch_norm(image: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution followed by the batch norm, in the norm's mode.

    In training the statistics are those of the feature map, without computing it: its mean is
    linear, and its variance quadratic, in the weights, given the image's mean and the covariances
    of what any two taps of the kernel see. (Exact, since circular padding makes every tap see every
    pixel; so a covariance depends only on how far apart the two are.)
    """
    weight = conv.weight
    with torch.autocast(image.device.type, enabled=False):
        if norm.training or norm.running_mean is None or norm.running_var is None:
            mean, variance = _conv_statistics(image, weight)
            if norm.training and norm.track_running_stats:
                _update_running(norm, mean.detach(), variance.detach(), image)
        else:
            mean, variance = norm.running_mean, norm.running_var
        gain = norm.weight * torch.rsqrt(variance + norm.eps)
        return weight * gain[:, None, None, None], norm.bias - mean * gain


def _conv_statistics(image: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    x = image.to(weight.dtype)
    batch, channels, height, width = x.shape
    channel_mean = x.mean((0, 2, 3))
    mean = torch.einsum("ocyx,c->o", weight, channel_mean)
    rows = torch.arange(height + 2, device=x.device) % height
    wrapped = (x - channel_mean[:, None, None]).index_select(_ROWS, rows)
    # What the three columns of the kernel see, channel by channel, as one long line of pixels each.
    seen = torch.stack([wrapped.roll(1 - tap, _COLUMNS) for tap in range(3)], 1)
    seen = seen.view(batch, 3 * channels, (height + 2) * width)
    pixels = height * width
    above = seen[:, :, :pixels]
    # Covariances of what one row of the kernel sees with what the row ``lag`` below it sees.
    by_lag = [
        torch.bmm(above, seen[:, :, lag * width : lag * width + pixels].transpose(1, 2)).sum(0)
        for lag in range(3)
    ]
    taps = weight.permute(2, 0, 3, 1).flatten(2)  # (row, output, column and input channel)
    variance = torch.zeros_like(mean)
    for i in range(3):
        for j in range(i, 3):
            pair = ((taps[i] @ by_lag[j - i]) * taps[j]).sum(1)
            variance = variance + (pair if i == j else 2 * pair)
    return mean, variance.clamp_min(0) / (batch * pixels)


def _update_running(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, image: Tensor) -> None:
    """What ``nn.BatchNorm2d`` does with the statistics of a batch."""
    count = image.numel() // image.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    with torch.no_grad():
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        for running, batch in ((norm.running_mean, mean), (norm.running_var, unbiased)):
            assert running is not None
            if norm.momentum is None:  # cumulative average, kept on the device
                step = 1.0 / norm.num_batches_tracked.to(running.dtype)
                running.lerp_(batch.to(running.dtype), step)
            else:
                running.lerp_(batch.to(running.dtype), norm.momentum)


def phasewise_stem(
    image: Tensor,
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    function: Pointwise,
    params: Sequence[Tensor],
    *,
    up: int,
    down: int,
) -> Tensor:
    """Equal to ``activation(norm(conv(image)))`` for an alias-free activation with ``down > 1``.

    ``params`` are the coefficients of a polynomial, ``(degree + 1, C)``, or nothing.
    """
    weight, bias = fold_batch_norm(image, conv, norm)
    result: Tensor = _PhasewiseStem.apply(image, weight, bias, function, up, down, *params)
    return result
