"""``circular``: circular padding in every layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from aft_models.remedies.context import RepairContext
from aft_models.remedies.layer import Repaired, SlidingLayer, change_class, window_of

_PADDING = (nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d)


class WrappedPadding(Repaired):
    """Padding layer that rolls the map instead.

    The following layer has circular padding and reads each pixel at its position after padding.
    """

    padding: tuple[int, int, int, int]  # left, right, top, bottom

    def forward(self, x: Tensor) -> Tensor:
        """Roll a map; the size does not change."""
        left, _, top, _ = self.padding
        return torch.roll(x, (top, left), (-2, -1))


def apply(context: RepairContext) -> None:
    """Replace all padding with circular padding."""
    for name, module in context.layers():
        if isinstance(module, _PADDING) and not isinstance(module, WrappedPadding):
            module = change_class(module, WrappedPadding)
            context.changed(name, module, "padding becomes a roll")
        elif isinstance(module, nn.ConvTranspose2d) and max(module.kernel_size) > 1:
            context.left(name, "ConvTranspose2d has a border of its own")
        window = window_of(module)
        if window is None or context.covers_map(name, window):
            continue
        if window.border == "circular" and (
            isinstance(module, SlidingLayer) or window.fits_circular
        ):
            continue
        if window.pointwise and window.unpadded and not window.strided:
            continue  # a single pixel has no border, nor has a following filter
        layer = context.take(name, module)
        if layer is None:
            continue
        # Required even if no window crosses the border: at stride one some would.
        layer.window = replace(window, border="circular")
        if window.crosses_border or not window.unpadded:
            before = "no" if window.unpadded else window.border
            what = "becomes circular" if before != "circular" else "fits the stride"
            context.changed(name, layer, f"{window}: {before} padding {what}")
    context.left_functional("border")
