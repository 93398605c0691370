"""Layers that see a whole map at once, and so know where things lie on it."""

from __future__ import annotations

from torch import nn

from aft_models.repair.context import RepairContext
from aft_models.repair.window import Window


def covers_map(patient: RepairContext, name: str, window: Window) -> bool:
    """Whether a layer sees a whole map in one window."""
    return any(window.covers(size) for size in patient.survey.sizes(name))


def is_flattened(patient: RepairContext, pool: nn.Module) -> bool:
    """Whether a layer pools to more than a pixel, and a linear layer takes each by itself."""
    if not isinstance(pool, nn.AdaptiveAvgPool2d) or pool.output_size in (1, (1, 1)):
        return False
    modules = [m for _, m in patient.layers()]
    after = modules[modules.index(pool) + 1 :]
    weighted = (m for m in after if isinstance(m, (nn.Linear, nn.Conv2d)))
    return isinstance(next(weighted, None), nn.Linear)
