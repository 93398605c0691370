"""``aps``: adaptive polyphase sampling, Chaman and Dokmanić, CVPR 2021."""

from __future__ import annotations

from aft_models.repair.context import RepairContext
from aft_models.repair.polyphase import PolyphaseSampler, install
from aft_models.repair.remedy import Remedy, register


def _apply(context: RepairContext, _: int) -> None:
    sampler = PolyphaseSampler("aps", context.forward_pass)
    install(context, sampler, "keeps the polyphase component of largest norm")


register(
    Remedy(
        name="aps",
        group="sampling",
        summary="a stride keeps the polyphase component of largest norm",
        apply=_apply,
        treats=("sub-sampling",),
        exact="whole pixels",
    )
)
