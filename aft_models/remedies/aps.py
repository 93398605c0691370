"""``aps``: adaptive polyphase sampling, Chaman and Dokmanić, CVPR 2021."""

from __future__ import annotations

from aft_models.remedies.context import RepairContext
from aft_models.remedies.polyphase import PolyphaseSampler, install


def apply(context: RepairContext) -> None:
    """Keep the strongest polyphase component in every sub-sampling layer."""
    sampler = PolyphaseSampler("aps", context.forward_pass)
    install(context, sampler, "keeps the polyphase component of largest norm")
