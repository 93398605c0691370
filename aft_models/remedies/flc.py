"""``flc``: frequency low-cut pooling, Grabinski et al., ECCV 2022, with the exact Nyquist rule.

The published form keeps a bin at the new Nyquist frequency on one side only, and is not exactly
equivariant there; here that bin is zeroed, as in `aft_models.resample`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aft_models.remedies.context import RepairContext
from aft_models.remedies.layer import SlidingLayer
from aft_models.remedies.window import map_size
from aft_models.resample import cut_spectrum


@dataclass
class SpectralSampler:
    """Stride one and an ideal low-pass, then subsample by the stride.

    With circular padding a convolution and the low-pass commute: the cheaper order is used.
    """

    name: str

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """Sub-sample a map; see `layer.Sampler`."""
        window, size = layer.window, map_size(x)
        outputs = window.outputs(size)
        if window.pointwise and window.unpadded:
            low = cut_spectrum(layer.extend(x, full=True), *outputs)
            return layer.slide_over(low, full=True)
        circular = window.border == "circular" and all(
            n == m * s for n, m, s in zip(size, outputs, window.stride, strict=True)
        )
        if circular and window.kind == "conv" and not window.grouped:
            return layer.at_stride(cut_spectrum(x, *outputs, sample=False))
        return cut_spectrum(layer.at_every_pixel(x), *outputs)


def apply(context: RepairContext) -> None:
    """Cut the spectrum before every sub-sampling."""
    context.replace_strides(SpectralSampler("flc"), "stride 1 and an ideal low-pass")
