"""Clean accuracy: the prediction at (0, 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.scores import ACCURACY
from shiftbench.tables import CLEAN, Cells


@dataclass(frozen=True)
class Accuracy(Metric):
    """Fraction of images classified correctly without a shift."""

    name = ACCURACY.family
    table = CLEAN

    @override
    def views(self, image: str) -> Sequence[View]:
        return ()

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        return {ACCURACY: np.where(cells.known, ~cells.wrong, np.nan)[:, 0]}


METRICS.register(ACCURACY.family, Accuracy)
