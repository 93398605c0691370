"""Score swing: how far the score of an object varies over a grid of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import METRICS, Outcomes, View
from shiftbench.scores import ScoreName
from shiftbench.tables import Cells

FAMILY = "swing"


@dataclass(frozen=True)
class Swing(Adversarial):
    """Largest minus smallest score of an object over all offsets (swing:ATTACK).

    The score is that of the matched detection, 0 without one. Of a pixel it is the probability of
    its label, of an image that of the class predicted without a shift.
    """

    family: ClassVar[str] = FAMILY

    @override
    def views(self, image: str) -> Sequence[View]:
        return [view._replace(reference=0) for view in super().views(image)]

    @override
    def needed(self, cells: Cells) -> NDArray[np.bool_]:
        return ~cells.known | (cells.probabilities < 0)

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        """For every ring, the range of the scores up to it."""
        known = np.logical_and.accumulate(cells.probabilities >= 0, axis=1)
        spread = np.maximum.accumulate(cells.probabilities, 1) - np.minimum.accumulate(
            cells.probabilities, 1
        )
        last = [len(self.grid.up_to(ring)) - 1 for ring in range(self.radius + 1)]
        return {
            ScoreName(FAMILY, self.label, ring): np.where(
                known[:, column], spread[:, column].astype(np.float64), np.nan
            )
            for ring, column in enumerate(last)
        }

    @override
    def lower_is_better(self, name: ScoreName) -> bool:
        return True


METRICS.register(FAMILY, Swing)
