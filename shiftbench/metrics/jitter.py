"""Jitter: how much the true class's score moves while the view slides along the diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from shiftbench.grid import Offset
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, column, image_rows
from shiftbench.scores import ScoreName

FAMILY = "jitter"
STEPS = range(-5, 5)  # pixels, down and to the right alike


@dataclass(frozen=True)
class Jitter(Metric):
    """The variance over ten diagonal crops of the true class's logit, and of its probability."""

    summary = "variance of the true class's logit and probability over diagonal shifts"
    name = FAMILY
    columns = ("jitter_logit", "jitter_probability")

    def unit(self, name: ScoreName) -> str:
        """Squares of logits, which every network scales as it likes, or of probabilities."""
        return "squared logits" if name.kind == "logit" else "variance"

    def lower_is_better(self, name: ScoreName) -> bool:
        """Steady answers do not vary."""
        return True

    def margin(self) -> int:
        """As far as the view slides."""
        return max(map(abs, STEPS))

    def passes(self, before: pd.DataFrame) -> int:
        """Every step."""
        return len(before) * len(STEPS)

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Takes the population variance of each image."""
        label = torch.from_numpy(batch.labels)[:, None]
        answers = [batch.predict_at("crop", Offset(float(d), float(d))) for d in STEPS]
        logits = torch.stack([a.logits.double().gather(1, label)[:, 0] for a in answers])
        probabilities = np.stack([answer.probability(batch.labels) for answer in answers])
        columns = {
            "jitter_logit": logits.var(0, correction=0).numpy(),
            "jitter_probability": probabilities.var(0),
        }
        return image_rows(columns, near_tie=False, passes=len(STEPS))  # no class is chosen

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """The variances."""
        kinds = ("logit", "probability")
        return {ScoreName(FAMILY, kind): column(rows, f"jitter_{kind}") for kind in kinds}

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """A negative variance, or one that no probability has."""
        logit, probability = (column(rows, name) for name in self.columns)
        return {
            "has a negative variance": (logit < 0) | (probability < 0),
            "has a variance that no probability has": probability > 0.25,
        }


METRICS.register(FAMILY, Jitter)
