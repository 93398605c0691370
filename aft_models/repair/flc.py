"""``flc``: frequency low-cut pooling, Grabinski et al., ECCV 2022, with the exact Nyquist rule.

The published form keeps a bin at the new Nyquist frequency on one side only, and is not exactly
equivariant there; here that bin is zeroed, as in :mod:`aft_models.resample`.
"""

from __future__ import annotations

from aft_models.repair.context import RepairContext
from aft_models.repair.remedy import Remedy
from aft_models.repair.sampling import replace_strides
from aft_models.repair.spectral import SpectralSampler


def _apply(patient: RepairContext, _: int) -> None:
    replace_strides(patient, SpectralSampler("flc"), "stride 1 and an ideal low-pass")


FLC = Remedy(
    name="flc",
    group="sampling",
    summary="stride by cutting the spectrum to its center",
    exact_for="linear layers",
    apply=_apply,
    needs_finetuning=True,
)
