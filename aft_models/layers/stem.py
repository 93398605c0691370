"""The first convolution, batch norm, alias-free activation and down-sampling as one operator.

A fractional shift commutes with a circular convolution and with the affine map of a batch norm.
So instead of shifting the many-channel, full-resolution feature map to each of its phases, shift
the three-channel image and convolve each phase. Nothing of the feature map is saved: the
backward pass convolves again, which is the cheapest convolution of the network.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_weight

from aft_models.layers.activation import AxisPhases, chunk_images
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


def _axes(image: Tensor, up: int, down: int, dtype: torch.dtype) -> list[AxisPhases]:
    return [AxisPhases.of(image.shape[a], up, down, image.device, dtype) for a in (_ROWS, _COLUMNS)]


def _padded_phases(rows: AxisPhases, columns: AxisPhases, part: Tensor, p: int) -> Tensor:
    """Row phase ``p`` of the image with all its column phases: ``(up * b, channels, ...)``."""
    v = part if p == 0 else contract(rows.forth[p], part, _ROWS)
    phases = [v, *(contract(s, v, _COLUMNS) for s in columns.forth[1:])]
    return wrap_border(torch.cat(phases), _ROWS)


def _forward(
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    function: Pointwise,
    up: int,
    down: int,
    params: tuple[Tensor, ...],
) -> Tensor:
    dtype = working_dtype(weight.dtype)
    wide = [p.to(dtype) for p in params]
    rows, columns = _axes(image, up, down, dtype)
    batch, _, height, width = image.shape
    channels = weight.shape[0]
    y = image.new_empty([batch, channels, height // down, width // down], dtype=dtype)
    images = chunk_images(image, up * channels * height * width)
    gathered = image.new_empty([images, channels, height, width // down], dtype=dtype)
    for start in range(0, batch, images):
        part = image[start : start + images].to(dtype)
        out, size = y[start : start + images], part.shape[0]
        row = gathered[:size]
        for p in range(up):
            z = F.conv2d(_padded_phases(rows, columns, part, p), weight.to(dtype), bias.to(dtype))
            function.apply_(z, wide)
            for r, phase in enumerate(torch.split(z, size)):
                contract(columns.back[r], phase, _COLUMNS, out=row, keep=float(r > 0))
            contract(rows.back[p], row, _ROWS, out=out, keep=float(p > 0), scale=1.0 / up**2)
    return y


def _backward(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    function: Pointwise,
    up: int,
    down: int,
    params: list[Tensor],
    image_needs_grad: bool,
) -> tuple[tuple[Tensor | None, Tensor, Tensor], list[Tensor]]:
    dtype = working_dtype(weight.dtype)
    wide = [p.to(dtype) for p in params]
    param_grads = [torch.zeros_like(p) for p in wide]
    w, b = weight.to(dtype), bias.to(dtype)
    grad_w, grad_b = torch.zeros_like(w), torch.zeros_like(b)
    grad_image = torch.zeros_like(image, dtype=dtype) if image_needs_grad else None
    rows, columns = _axes(image, up, down, dtype)
    batch, _, height, width = image.shape
    channels = weight.shape[0]
    images = chunk_images(image, up * channels * height * width)
    spread = image.new_empty([up, images, channels, height, width], dtype=dtype)
    for start in range(0, batch, images):
        part = image[start : start + images].to(dtype)
        size = part.shape[0]
        g = (grad[start : start + images].to(dtype) * (1.0 / up**2)).contiguous()
        gz = spread.view(-1, channels, height, width)[: up * size]
        for p in range(up):
            padded = _padded_phases(rows, columns, part, p)
            z = F.conv2d(padded, w, b)
            q = contract(rows.back[p].t(), g, _ROWS)
            for r, phase in enumerate(torch.split(gz, size)):
                contract(columns.back[r].t(), q, _COLUMNS, out=phase)
            function.pull_back(gz, z, gz, wide, param_grads)
            grad_padded, dw, db = _aten.convolution_backward(
                gz, padded, w, [channels], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
                [image_needs_grad, True, True],
            )  # fmt: skip
            grad_w += dw
            grad_b += db
            if grad_image is not None:
                target = grad_image[start : start + images]
                row = torch.zeros_like(part)
                for r, phase in enumerate(torch.split(fold_border(grad_padded, _ROWS), size)):
                    contract(columns.forth[r].t(), phase, _COLUMNS, out=row, keep=1.0)
                contract(rows.forth[p].t(), row, _ROWS, out=target, keep=1.0)
    narrow = [g.to(p.dtype) for g, p in zip(param_grads, params, strict=True)]
    if grad_image is not None:
        grad_image = grad_image.to(image.dtype)
    return (grad_image, grad_w.to(weight.dtype), grad_b.to(bias.dtype)), narrow


def fold_batch_norm(image: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution followed by the batch norm, in the norm's mode.

    In training the statistics are those of the feature map, without computing it: its mean is
    linear, and its variance quadratic, in the weights, given the image's mean and its
    auto-correlation over the 5 x 5 offsets that two taps of a 3 x 3 kernel can have. (Exact,
    since circular padding makes every tap see every pixel.)
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
    channels = x.shape[1]
    channel_mean = x.mean((0, 2, 3))
    mean = torch.einsum("ocyx,c->o", weight, channel_mean)
    centred = x - channel_mean[:, None, None]
    padded = F.pad(centred, (2, 2, 2, 2), mode="circular")
    taps_shape = [channels, channels, 5, 5]
    correlation: Tensor = conv2d_weight(padded, taps_shape, centred)  # type: ignore[no-untyped-call]
    correlation = correlation / (x.numel() // channels)
    # Covariance of tap (c, a, b) with tap (d, e, f) is the correlation at offset (e - a, f - b).
    taps = torch.arange(3, device=x.device)
    offset = taps - taps[:, None] + 2
    covariance = correlation[:, :, offset[:, None, :, None], offset[None, :, None, :]]
    variance = torch.einsum("ocab,cdabef,odef->o", weight, covariance, weight)
    return mean, variance.clamp_min(0)


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
    params: tuple[Tensor, ...],
    *,
    up: int,
    down: int,
) -> Tensor:
    """Equal to ``activation(norm(conv(image)))`` for an alias-free activation with ``down > 1``."""
    weight, bias = fold_batch_norm(image, conv, norm)
    result: Tensor = _PhasewiseStem.apply(
        image.contiguous(), weight, bias, function, up, down, *params
    )
    return result
