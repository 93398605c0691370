"""Sub-sampling by polyphase components, the same in the whole network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.layers import SpaceToDepth
from torch import Tensor, nn

from aft_models.layers.polyphase import Phase, strongest
from aft_models.remedies.context import RepairContext
from aft_models.remedies.layer import Repaired, SlidingLayer, change_class, window_of
from aft_models.remedies.phases import ForwardPass, roll_each
from aft_models.remedies.window import map_size


@dataclass
class PolyphaseSampler:
    """Sub-sampling at the strongest component of the first map of its size."""

    name: str
    forward_pass: ForwardPass

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """Sub-sample a map; see `layer.Sampler`."""
        window, size = layer.window, map_size(x)
        if window.covers(size):
            return layer.at_stride(centered(x))
        if not window.strided:
            return layer.at_stride(x)
        phase = self.forward_pass.find(layer, size, window.stride)
        if phase is None:
            grad = torch.is_grad_enabled()
            with torch.no_grad():
                y = layer.at_every_pixel(x)
                phase = strongest(y, window.stride)
            self.forward_pass.keep(layer, size, window.stride, phase)
            if not grad:
                return phase.component(y)
        return follow(layer, x, phase)


def follow(layer: SlidingLayer, x: Tensor, phase: Phase) -> Tensor:
    """Compute the layer's output at one component alone."""
    if layer.window.kind != "conv":
        return phase.component(layer.at_every_pixel(x))
    extended = layer.extend(x, full=True)
    if layer.window.pointwise:
        return layer.slide_over(phase.component(extended), full=True)
    return layer.slide_over(phase.crop(extended), full=False)


def centered(x: Tensor) -> Tensor:
    """Roll a map so that its strongest pixel is in the middle, for a head of flattened pixels.

    The input of the head is then equal at every position of the image.
    """
    with torch.no_grad():
        strongest_pixel = Phase.largest(torch.linalg.vector_norm(x.detach(), dim=1))
    height, width = map_size(x)
    return roll_each(x, height // 2 - strongest_pixel.rows, width // 2 - strongest_pixel.columns)


class CenteredPool(Repaired):
    """Adaptive pooling to several pixels that a linear layer reads flattened."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool ``x``, rolled so that its strongest pixel is in the middle."""
        own: Tensor = self.original.forward(self, centered(x))
        return own


class AlignedUpsample(Repaired):
    """Up-sampling that restores the positions of the coarser map's pixels."""

    forward_pass: ForwardPass
    mode: str

    def forward(self, x: Tensor) -> Tensor:
        """Up-sample, then roll by the phases of the coarser map."""
        y: Tensor = self.original.forward(self, x)
        origin = self.forward_pass.origin(map_size(x), map_size(y))
        return y if origin is None else roll_each(y, *origin)


class AnchoredUnshuffle(Repaired):
    """Blocks of pixels into channels; blocks begin at the strongest phase of the map."""

    block: int
    forward_pass: ForwardPass

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C block^2, H / block, W / block)``."""
        size, stride = map_size(x), (self.block, self.block)
        phase = self.forward_pass.find(self, size, stride)
        if phase is None:
            phase = strongest(x, stride)
            self.forward_pass.keep(self, size, stride, phase)
        y: Tensor = self.original.forward(self, roll_each(x, -phase.rows, -phase.columns))
        return y


def install(context: RepairContext, sampler: PolyphaseSampler, what: str) -> None:
    """Give every sub-sampling layer of a model the same sampler."""
    for name, module in context.layers():
        window = window_of(module)
        if window is not None and (window.strided or context.covers_map(name, window)):
            say = what if window.strided else "strongest pixel of its map rolled to the middle"
            context.give_sampler(name, module, sampler, f"{window}: {say}")
        elif context.is_flattened(module):
            pool = change_class(module, CenteredPool)
            context.changed(name, pool, "strongest pixel of its map rolled to the middle")
        elif isinstance(module, (nn.PixelUnshuffle, SpaceToDepth)):
            block = module.downscale_factor if isinstance(module, nn.PixelUnshuffle) else module.bs
            unshuffle = change_class(module, AnchoredUnshuffle)
            unshuffle.block, unshuffle.forward_pass = int(block), context.forward_pass
            context.changed(
                name, unshuffle, f"blocks of {block} begin at the phase of largest norm"
            )
        elif isinstance(module, nn.Upsample):
            upsample = change_class(module, AlignedUpsample)
            upsample.forward_pass = context.forward_pass
            context.changed(name, upsample, "uses the phases of the coarser map")
            if module.mode != "nearest":
                context.left(name, f"{module.mode} up-sampling mixes pixels across the border")
    context.model.register_forward_pre_hook(context.forward_pass)
    context.model.register_forward_hook(context.forward_pass)
    context.note_unreached()
