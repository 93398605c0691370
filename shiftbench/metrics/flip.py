"""Flip probability along a translation, as ImageNet-P defines it (Hendrycks and Dietterich 2019).

The view moves to the right by one pixel per frame. ImageNet-P has 41 frames from -20 to 20 px for
views of 224 px, CIFAR-10-P has 16 frames from -7 to 8 px.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from shiftbench.grid import Offset
from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.scores import ScoreName
from shiftbench.tables import Cells

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.running.job import Settings

FLIP = ScoreName("flip")
LARGE_VIEW = 224


@dataclass(frozen=True)
class Flip(Metric):
    """Fraction of frames of a translation whose class differs from the frame before."""

    first: int = -20  # horizontal offset of the first frame, in pixels
    last: int = 20

    name = FLIP.family

    @classmethod
    @override
    def plan(cls, argument: str, settings: Settings, geometry: Geometry) -> Flip:
        super().plan(argument, settings, geometry)
        return cls() if geometry.view // geometry.scale >= LARGE_VIEW else cls(-7, 8)

    @property
    @override
    def table(self) -> str:
        return f"{self.name}.{self.first}.{self.last}"

    @override
    def margin(self) -> int:
        return max(-self.first, self.last)

    @override
    def views(self, image: str) -> Sequence[View]:
        return [View("crop", Offset(0.0, float(x))) for x in range(self.first, self.last + 1)]

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        flips = (cells.classes[:, 2:] != cells.classes[:, 1:-1]).mean(1)
        return {FLIP: np.where(cells.known[:, 1:].all(1), flips, np.nan)}

    @override
    def lower_is_better(self, name: ScoreName) -> bool:
        return True


METRICS.register(FLIP.family, Flip)
