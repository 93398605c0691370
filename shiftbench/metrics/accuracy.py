"""Clean accuracy: the predictions at (0, 0)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.metrics.base import METRICS, ImageBatch, Metric, column, image_rows
from shiftbench.scores import ACCURACY, ScoreName


@dataclass(frozen=True)
class Accuracy(Metric):
    """The fraction of images that are classified correctly where they stand."""

    summary = "the fraction of images that are classified correctly, not shifted"
    name = ACCURACY.family
    columns = ("prediction", "label", "margin")

    def passes(self, before: pd.DataFrame) -> int:
        """None of its own: all metrics share the pass at (0, 0)."""
        return 0

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Takes the clean predictions of the batch."""
        columns = {
            "label": batch.labels,
            "prediction": batch.clean.prediction,
            "margin": batch.clean.logit_margin(batch.labels),
        }
        return image_rows(columns, near_tie=batch.clean.near_tie, passes=1)

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """A margin of the other sign than the prediction; ties have none."""
        margin, right = column(rows, "margin"), self.outcomes(rows)[ACCURACY] == 1
        bad = (margin != 0) & ((margin > 0) != right)
        return {"has a margin that contradicts its prediction": bad}

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """1 where the prediction is the label."""
        prediction = column(rows, "prediction")
        right = np.where(np.isnan(prediction), np.nan, prediction == column(rows, "label"))
        return {ACCURACY: right}


METRICS.register(ACCURACY.family, Accuracy)
