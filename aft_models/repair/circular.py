"""``circular``: the border stops being a landmark."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aft_models.repair.context import RepairContext
from aft_models.repair.heads import covers_map
from aft_models.repair.layer import Repaired, change_class, window_of, wrap_round
from aft_models.repair.remedy import Remedy
from aft_models.repair.sampling import take

_PADDING = (nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d)


class WrappedPadding(Repaired):
    """A padding layer on a torus: what it leaves to do is to move the map.

    The layer behind it wraps round by itself, and finds each pixel where padding had put it.
    """

    padding: tuple[int, int, int, int]  # left, right, top, bottom

    def forward(self, x: Tensor) -> Tensor:
        """The same size."""
        left, _, top, _ = self.padding
        return torch.roll(x, (top, left), (-2, -1))


def make_circular(patient: RepairContext) -> None:
    """Puts every layer of a model on a torus."""
    for name, module in patient.layers():
        if isinstance(module, _PADDING) and not isinstance(module, WrappedPadding):
            change_class(module, WrappedPadding, type(module))
            patient.changed(name, module, "padding becomes the move that it leaves on a torus")
        window = window_of(module)
        if window is None or window.border == "circular" or covers_map(patient, name, window):
            continue
        if window.pointwise and window.unpadded and not window.strided:
            continue  # sees no border, nor will a filter behind it
        layer = take(patient, name, module)
        if layer is None:
            continue
        wrap_round(layer)  # even where no window lies across the border: at stride one some would
        if window.crosses_border or not window.unpadded:
            before = "no" if window.unpadded else window.border
            patient.changed(name, layer, f"{window}: {before} padding becomes circular")
    patient.left_strays("border")


CIRCULAR = Remedy(
    name="circular",
    group="border",
    summary="zero padding becomes circular padding",
    exact_for="nothing by itself: it removes the border as a landmark",
    apply=lambda patient, _: make_circular(patient),
    needs_finetuning=True,
)
