"""``af``: alias-free throughout, like the layers of `aft_models.layers`.

Circular padding, a low-pass before every sub-sampling, non-linearities on a finer grid, and norms
over the whole image. A ConvNeXt with this remedy is the alias-free ConvNet of Michaeli et al., CVPR
2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor, nn
from typing_extensions import override

from aft_models.layers.activation import chunk_images, in_chunks, phasewise_activation
from aft_models.layers.norm import alias_free_layer_norm
from aft_models.layers.pointwise import Fused, pointwise_of
from aft_models.remedies import circular
from aft_models.remedies.context import RepairContext
from aft_models.remedies.flc import SpectralSampler
from aft_models.remedies.layer import Repaired, SlidingLayer, change_class, extend, window_of
from aft_models.remedies.survey import is_activation
from aft_models.remedies.window import Window, map_size
from aft_models.resample import alias_free_downsample, alias_free_upsample, cut_spectrum

_NAME = "af"
# A function with a kink needs a finer grid than a smooth one for a small residue.
_SMOOTH = (nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.Softsign)
# Norms by the beginning of their names: not every version of torch and timm has all of them.
_PIXELWISE = ("RMSNorm", "RmsNorm", "SimpleNorm", "LocalResponseNorm")


class FineActivation(Repaired):
    """A pointwise function of a map, applied on a finer grid."""

    up: int  # factor of the finer grid
    channels_last: bool  # (B, H, W, C) instead of (B, C, H, W)
    pointwise: Fused | None  # the function for the fast path, if it has one

    @override
    def extra_repr(self) -> str:
        own = self.original.extra_repr(self)
        return f"{own}, up={self.up}" if own else f"up={self.up}"

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function on a finer grid; the shape does not change."""
        axis = 1 if self.channels_last else 2
        if x.ndim != 4 or max(x.shape[axis], x.shape[axis + 1]) == 1:
            own: Tensor = self.original.forward(self, x)
            return own
        if self.pointwise is None:
            planes = x.permute(0, 3, 1, 2) if self.channels_last else x
            fine = self.original.forward(self, alias_free_upsample(planes, self.up))
            y = alias_free_downsample(fine, self.up)
            return y.permute(0, 2, 3, 1) if self.channels_last else y
        if (
            axis == 2
            and not x.is_contiguous()
            and x.is_contiguous(memory_format=torch.channels_last)
        ):
            y = phasewise_activation(x.permute(0, 2, 3, 1), self.pointwise, up=self.up, axis=1)
            return y.permute(0, 3, 1, 2)
        return phasewise_activation(x, self.pointwise, up=self.up, axis=axis)


class WholeImageNorm(Repaired):
    """Layer norm with one deviation for the whole image instead of one per pixel."""

    channels_last: bool

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a map; the shape does not change."""
        assert isinstance(self, nn.LayerNorm)
        if x.ndim == 2:
            own: Tensor = self.original.forward(self, x)
            return own
        last = x if self.channels_last or x.ndim == 3 else x.permute(0, 2, 3, 1)
        tokens = last.flatten(1, -2)
        y = alias_free_layer_norm(tokens, self.weight, self.bias, eps=self.eps).view_as(last)
        y = y if last is x else y.permute(0, 3, 1, 2)
        for layer in self.children():  # timm's norms with dropout and activation
            y = layer(y)
        return y


@dataclass
class FineMaximum:
    """Max pooling on a finer grid, followed by a cut of the spectrum to the new size.

    The pixels of a window keep their distance. On the original grid the maximum is therefore that
    of the original layer.
    """

    up: int
    name: str = _NAME

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """Pool a map; see `layer.Sampler`."""
        planes = x.flatten(0, 1)[:, None]  # one channel at a time fits the cache
        fine = self.up**2 * x.shape[2] * x.shape[3]
        parts = in_chunks(chunk_images(planes, fine), planes)
        pooled = torch.cat([self._pool(layer.window, part) for (part,) in parts])
        return pooled.view(*x.shape[:2], *pooled.shape[2:])

    def _pool(self, window: Window, x: Tensor) -> Tensor:
        size, up = map_size(x), self.up
        before = [margin[0] for margin in window.reach(size, full=True)]
        reach = [(up * a, up * (e - 1 - a)) for a, e in zip(before, window.extent, strict=True)]
        fine = extend(alias_free_upsample(x, up), *reach, border="circular")
        # Rows, then columns: torch's own pooling is slow at stride one.
        for axis in (3, 2):
            taps, step = window.kernel[axis - 2], window.dilation[axis - 2] * up
            length = fine.shape[axis] - (taps - 1) * step
            fine = reduce(
                torch.maximum, [fine.narrow(axis, tap * step, length) for tap in range(taps)]
            )
        return cut_spectrum(fine, *window.outputs(size))


def apply(context: RepairContext, up: int) -> None:
    """Make padding, sub-sampling, activations and norms alias-free."""
    circular.apply(context)
    maximum, low_pass = FineMaximum(up + 1), SpectralSampler(_NAME)
    layouts = _channels_last(context.model)
    for name, module in context.layers():
        window = window_of(module)
        if window is not None and context.covers_map(name, window):
            layer = context.take(name, module)
            if layer is not None:
                after = ((0, window.extent[0] - 1), (0, window.extent[1] - 1))
                layer.window = replace(window, border="circular", margins=after)
                context.changed(name, layer, f"{window}: at every pixel instead of one")
        elif window is not None:
            if window.kind == "max":
                what = f"{window}: on a grid {maximum.up} times finer"
                context.give_sampler(name, module, maximum, what)
            elif window.strided:
                what = f"{window}: stride 1 and an ideal low-pass"
                context.give_sampler(name, module, low_pass, what)
        elif is_activation(module):
            if name in context.survey.tokens:
                context.left(name, f"{type(module).__name__} of tokens, whose grid is not known")
                continue
            fine = change_class(module, FineActivation)
            fine.up = up if isinstance(module, _SMOOTH) else up + 1
            fine.channels_last = layouts.get(module, False)
            fine.pointwise = pointwise_of(module)
            context.changed(name, fine, f"on a grid {fine.up} times finer")
        elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
            norm = change_class(module, WholeImageNorm)
            norm.channels_last = "2d" not in type(norm).__name__
            context.changed(name, norm, "one deviation for the whole image")
        elif type(module).__name__.startswith(_PIXELWISE):
            context.left(name, f"{type(module).__name__} normalizes each pixel separately")
        elif context.is_flattened(module):
            context.left(name, "a linear layer takes the pixels of its map one by one")
    context.note_unreached()
    context.left_functional("activation")


def _channels_last(model: nn.Module) -> dict[nn.Module, bool]:
    """Map each layer to True if it follows a linear layer among its siblings: channels are last."""
    layouts = {}
    for parent in model.modules():
        last = False
        for child in parent.children():
            if isinstance(child, (nn.Linear, nn.Conv2d)):
                last = isinstance(child, nn.Linear)
            layouts[child] = last
    return layouts
