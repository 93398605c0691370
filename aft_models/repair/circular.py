"""``circular``: the border stops being a landmark."""

from __future__ import annotations

from torch import nn

from aft_models.repair.layer import window_of, wrap_round
from aft_models.repair.patient import Patient
from aft_models.repair.polyphase import covers_map
from aft_models.repair.remedy import Remedy
from aft_models.repair.sampling import take

_PADDING = (nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d)


def make_circular(patient: Patient) -> None:
    """Puts every layer of a model on a torus."""
    for name, module in patient.layers():
        if isinstance(module, _PADDING):
            patient.left(name, "a padding layer of its own, of which the next layer knows nothing")
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
            patient.changed(name, layer, f"{window.kernel}: {before} padding becomes circular")
    patient.left_strays("border")


CIRCULAR = Remedy(
    name="circular",
    group="border",
    summary="zero padding becomes circular padding",
    exact_for="nothing by itself: it removes the border as a landmark",
    apply=lambda patient, _: make_circular(patient),
    needs_finetuning=False,
)
