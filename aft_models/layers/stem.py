"""The first convolution, batch norm, alias-free activation and down-sampling as one operator.

A fractional shift commutes with a circular convolution and with the affine map of a batch norm.
Therefore the three-channel image is shifted and each phase convolved, instead of the many-channel,
full-resolution feature map. Only the shifted images are saved. The backward pass repeats the
convolution, which is the cheapest of the network.

In memory the channels are last or first. Below, ``axis`` is the axis of the rows, 1 or 2, in the
memory layout ``(b, H, W, C)`` or ``(b, C, H, W)``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from aft_models.layers.activation import (
    AliasFreeActivation,
    AxisPhases,
    chunk_images,
    in_chunks,
    sample_fine_grid,
)
from aft_models.layers.padding import circular_pad, wrap_line
from aft_models.layers.pointwise import Fused, Polynomial, pointwise
from aft_models.resample import contract, shift_matrix, without_autocast, working_dtype

_aten = torch.ops.aten
_ROWS, _COLUMNS = 2, 3


def _rows_axis(image: Tensor) -> int:
    """Return the axis of the rows in the fastest layout.

    On a CPU, three channels are convolved several times faster channels-last. A compiler chooses
    the layout of the feature maps itself.
    """
    if torch.compiler.is_compiling():
        return 2
    return 1 if image.device.type == "cpu" or not image.is_contiguous() else 2


def _as_stored(x: Tensor, axis: int) -> Tensor:
    """Permute ``(b, C, H, W)`` to the memory layout of ``axis``, contiguous."""
    return x.permute(0, 2, 3, 1).contiguous() if axis == 1 else x.contiguous()


def _as_image(x: Tensor, axis: int) -> Tensor:
    """Permute a tensor in memory layout to ``(b, C, H, W)``."""
    return x.permute(0, 3, 1, 2) if axis == 1 else x


def _image_phases(image: Tensor, up: int, axis: int) -> list[Tensor]:
    """List the phases of the image, padded circularly by one pixel.

    Returns:
        Tensors ``(B, C, H + 2, W + 2)``: all row phases of the first column phase, then of the
            next.
    """
    phases = []
    for r in range(up):
        v = _as_stored(_shift_and_wrap(image, r / up, _COLUMNS), axis)
        phases += [_as_image(_shift_and_wrap(v, p / up, axis), axis) for p in range(up)]
    return phases


def _shift_and_wrap(x: Tensor, offset: float, axis: int) -> Tensor:
    """Shift ``x`` circularly along an axis and pad it by one sample at either end."""
    if offset == 0:
        return wrap_line(x, axis)
    matrix = shift_matrix(x.shape[axis], offset, device=x.device, dtype=x.dtype)
    return contract(torch.cat([matrix[-1:], matrix, matrix[:1]]), x, axis)


class _PhasewiseStem(torch.autograd.Function):
    """``down(function(conv(.)))`` of the phases of an image; the backward pass convolves again."""

    @staticmethod
    def forward(
        ctx: Any, fused: Fused | None, up: int, down: int, axis: int, *tensors: Any
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.settings = (fused, up, down, axis)
        return _Stem(*ctx.settings, *tensors).forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(grad):
            stem = _Stem(*ctx.settings, *ctx.saved_tensors)
            first_phase = ctx.needs_input_grad[7]  # after settings, coefficients, weight, bias
            grads = stem.backward(grad, image_needs_grad=first_phase)
        return (None, None, None, None, *grads)


class _Stem:
    """Sizes and matrices of one call."""

    def __init__(
        self,
        fused: Fused | None,
        up: int,
        down: int,
        axis: int,
        coefficients: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *phases: Tensor,
    ) -> None:
        self.function, self.phases = pointwise(fused, coefficients, bias.dtype), phases
        self.up, self.down, self.axis = up, down, axis
        # Same layout as the feature maps: no convolution reorders it again.
        layout = torch.channels_last if axis == 1 else torch.contiguous_format
        self.weight, self.bias = weight.contiguous(memory_format=layout), bias
        self.batch, _, height, width = self.phases[0].shape
        self.height, self.width = height - 2, width - 2
        self.images = chunk_images(self.phases[0], len(bias) * self.height * self.width)

    def matrices(self) -> tuple[AxisPhases, AxisPhases]:
        """Return the matrices along the height and along the width."""
        like = self.up, self.down, self.bias.device, self.bias.dtype
        return AxisPhases.of(self.height, *like), AxisPhases.of(self.width, *like)

    def convolve(self, phase: Tensor) -> Tensor:
        """Convolve a phase to a feature map in memory layout."""
        return _as_stored(F.conv2d(phase, self.weight, self.bias), self.axis)

    def forward(self) -> Tensor:
        """Return the output ``(B, C, H / down, W / down)``."""
        axis, up, down = self.axis, self.up, self.down
        if torch.compiler.is_compiling():
            return self.forward_on_the_fine_grid()
        rows, columns = self.matrices()
        sides, channels = [self.height // down, self.width // down], len(self.bias)
        shape = [*sides, channels] if axis == 1 else [channels, *sides]
        y = self.bias.new_empty(self.batch, *shape)
        for out, *phases in in_chunks(self.images, y, *self.phases):
            for r in range(up):
                column: Tensor | None = None
                for p in range(up):
                    z = self.convolve(phases[r * up + p])
                    self.function.apply_to(z, z)
                    column = contract(rows.back[p], z, axis, out=column, keep=1.0)
                    del z  # frees the memory for the next phase while it is in the cache
                assert column is not None
                back = columns.back[r]
                contract(back, column, axis + 1, out=out, keep=float(r > 0), scale=1.0 / up**2)
        return _as_image(y, axis)

    def forward_on_the_fine_grid(self) -> Tensor:
        """Compute `forward` for a compiler: neighbors in a phase are ``up`` fine pixels apart."""
        up, phases = self.up, self.phases
        lines = [torch.stack(phases[i : i + up], 3).flatten(2, 3) for i in range(0, up**2, up)]
        image = torch.stack(lines, 4).flatten(3, 4)
        fine = self.function(F.conv2d(image, self.weight, self.bias, dilation=up))
        return sample_fine_grid(fine, self.height // self.down, self.width // self.down, _ROWS)

    def backward(self, grad: Tensor, *, image_needs_grad: bool) -> list[Tensor | None]:
        """Return the gradients of the coefficients, the weight, the bias and the phases."""
        axis, up = self.axis, self.up
        rows, columns = self.matrices()
        grad_weight, grad_bias = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        grad_phases = [torch.empty_like(x) for x in self.phases] if image_needs_grad else []
        wanted = [image_needs_grad, True, False]
        for grad_part, *rest in in_chunks(self.images, grad, *self.phases, *grad_phases):
            phases, towards_phases = rest[: up**2], rest[up**2 :]
            g = _as_stored(grad_part, axis) * (1.0 / up**2)
            for r in range(up):
                column = contract(columns.back[r].t(), g, axis + 1)
                for p in range(up):
                    phase = phases[r * up + p]
                    z = self.convolve(phase)
                    gz = contract(rows.back[p].t(), column, axis)
                    self.function.pull_back(gz, z, gz)
                    del z
                    towards_image, dw, _ = _aten.convolution_backward(
                        _as_image(gz, axis), phase, self.weight, None, [1, 1], [0, 0], [1, 1],
                        False, [0, 0], 1, wanted,
                    )  # fmt: skip
                    grad_weight += dw
                    grad_bias += self.total(gz)
                    if image_needs_grad:
                        towards_phases[r * up + p].copy_(towards_image)
                    del gz
        towards: list[Tensor | None] = [*grad_phases] if image_needs_grad else [None] * up**2
        total = self.function.grad if isinstance(self.function, Polynomial) else None
        return [total, grad_weight, grad_bias, *towards]

    def total(self, x: Tensor) -> Tensor:
        """Sum a feature map over all pixels."""
        if self.axis == 2:
            return x.sum((0, 2, 3))
        # On a CPU a product with ones is faster than a sum, and faster still as a convolution.
        pixels = x.flatten(0, 2)
        return (pixels.new_ones(1, pixels.shape[0]) @ pixels)[0]


def fold_batch_norm(image: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Fold a batch norm into the weight and bias of a convolution, in the norm's mode.

    In training mode the statistics are those of the feature map, which is not computed: its mean is
    linear and its variance quadratic in the weights, given the mean of the image and the
    covariances of the inputs of any two taps of the kernel. This is exact, since with circular
    padding every tap reads every pixel. A covariance therefore depends only on the distance between
    two taps.

    Returns:
        The weight and the bias.
    """
    weight = conv.weight
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
    wrapped = circular_pad(x - channel_mean[:, None, None])
    # Inputs of the three columns of the kernel, channel by channel, each as one line of pixels.
    seen = torch.stack([wrapped.narrow(_COLUMNS, tap, width) for tap in range(3)], 1)
    seen = seen.view(batch, 3 * channels, (height + 2) * width)
    pixels = height * width
    above = seen[:, :, :pixels]
    # Covariances of the inputs of one kernel row with those of the row ``lag`` below.
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
    """Update the running statistics like ``nn.BatchNorm2d``."""
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
    activation: AliasFreeActivation,
) -> Tensor:
    """Compute ``activation(norm(conv(image)))`` for an activation with ``down > 1``."""
    axis = _rows_axis(image)
    dtype = working_dtype(conv.weight.dtype)
    with without_autocast(image):
        weight, bias = (t.to(dtype) for t in fold_batch_norm(image, conv, norm))
        phases = _image_phases(image.to(dtype).contiguous(), activation.up, axis)
        settings = activation.pointwise, activation.up, activation.down, axis
        powers = activation.powers(axis)
        result: Tensor = _PhasewiseStem.apply(*settings, powers, weight, bias, *phases)
    return result.to(conv.weight.dtype)
