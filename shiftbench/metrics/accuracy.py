"""Accuracy: the answers at (0, 0)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.metrics.base import METRICS, NEAR_TIE, PASSES, Metric, Shard, column
from shiftbench.scores import ACCURACY, ScoreName


@dataclass(frozen=True)
class Accuracy(Metric):
    """The fraction of images that are right unshifted."""

    summary = "the fraction of images that are right unshifted"
    name = ACCURACY.family
    columns = ("prediction", "label", "margin")

    def passes(self, before: pd.DataFrame) -> int:
        """None of its own: the pass at (0, 0) is everyone's."""
        return 0

    def measure(self, shard: Shard, before: pd.DataFrame) -> pd.DataFrame:
        """Takes the answers that the shard has already."""
        return pd.DataFrame(
            {
                "label": shard.labels,
                "prediction": shard.unshifted.prediction,
                "margin": shard.unshifted.margin(shard.labels),
                NEAR_TIE: shard.unshifted.near_tie,
                PASSES: 1,
            }
        )

    def contradictions(self, rows: pd.DataFrame) -> list[str]:
        """A margin of the other sign than the answer; ties have none."""
        margin, right = column(rows, "margin"), self.outcomes(rows)[ACCURACY] == 1
        bad = (margin != 0) & ((margin > 0) != right)
        return self._named(rows, {"has a margin that contradicts its answer": bad})

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """1 where the prediction is the label."""
        prediction = column(rows, "prediction")
        right = np.where(np.isnan(prediction), np.nan, prediction == column(rows, "label"))
        return {ACCURACY: right}


METRICS.register(ACCURACY.family, Accuracy)
