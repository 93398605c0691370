"""``aps``: adaptive polyphase sampling, Chaman and Dokmanić, CVPR 2021."""

from __future__ import annotations

from aft_models.repair.context import RepairContext
from aft_models.repair.polyphase import PolyphaseSampler, install
from aft_models.repair.remedy import Remedy


def _apply(patient: RepairContext, _: int) -> None:
    sampler = PolyphaseSampler("aps", patient.forward_pass)
    install(patient, sampler, "keeps the polyphase component of largest norm")


APS = Remedy(
    name="aps",
    group="sampling",
    summary="stride by keeping the polyphase component of largest l2 norm",
    exact_for="whole pixels",
    apply=_apply,
    needs_finetuning=False,
)
