"""``flc``: frequency low-cut pooling, Grabinski et al., ECCV 2022, with the exact Nyquist rule.

The published form keeps a bin at the new Nyquist frequency on one side only, and is not exactly
equivariant there; here that bin is zeroed, as in :mod:`aft_models.resample`.
"""

from __future__ import annotations

from aft_models.repair.layer import window_of
from aft_models.repair.patient import Patient
from aft_models.repair.remedy import Remedy
from aft_models.repair.sampling import give_sampler, note_unreached
from aft_models.repair.spectral import SpectralSampler


def _apply(patient: Patient, _: int) -> None:
    sampler = SpectralSampler("flc")
    for name, module in patient.layers():
        window = window_of(module)
        if window is not None and window.strided and give_sampler(patient, name, module, sampler):
            what = f"{window}: stride 1 and an ideal low-pass"
            patient.changed(name, module, what)
    note_unreached(patient)


FLC = Remedy(
    name="flc",
    group="sampling",
    summary="stride by cutting the spectrum to its centre",
    exact_for="linear layers",
    apply=_apply,
    needs_finetuning=True,
)
