"""Clean accuracy: the prediction at (0, 0), of images, objects and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.tables import CLEAN, Cells


@dataclass(frozen=True)
class Accuracy(Metric):
    """Fraction of images classified correctly without a shift."""

    score_name: ClassVar[ScoreName] = ACCURACY
    name = ACCURACY.family
    table = CLEAN

    @override
    def views(self, image: str) -> Sequence[View]:
        return ()

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        return {self.score_name: np.where(cells.known, ~cells.wrong, np.nan)[:, 0]}


METRICS.register(ACCURACY.family, Accuracy)
