"""Flip probability and top-5 distance along a translation, as ImageNet-P defines them.

Hendrycks and Dietterich 2019: a sequence of frames in which the view moves to the right, a pixel at
a time. ImageNet-P has 41 frames from -20 to 20 px for views of 224 px, CIFAR-10-P 16 frames from -7
to 8 px; here the frames are cut from the canvas as they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.grid import Offset
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, MetricOptions, column, image_rows
from shiftbench.scores import ScoreName
from shiftbench.statistics import FRACTION

FLIP, DISTANCE = ScoreName("flip"), ScoreName("flip", "top5_distance")
TOP = 5  # classes whose order the distance looks at
LARGE_VIEW = 224


@dataclass(frozen=True)
class Flip(Metric):
    """How often the answer changes from one frame to the next, and how far the top five move."""

    first: int = -20  # horizontal offset of the first frame, in pixels
    last: int = 20

    summary = "how often the answer flips along a translation (ImageNet-P), and top-5 distance"
    name = "flip"
    columns = ("flips", "top5_distance")

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Flip:
        """The frames of ImageNet-P, or of CIFAR-10-P for smaller views."""
        super().plan(argument, options, view=view, resize=resize)
        return cls() if view >= LARGE_VIEW else cls(-7, 8)

    def unit(self, name: ScoreName) -> str:
        """The distance counts places in the ranking."""
        return FRACTION if name == FLIP else "places"

    def lower_is_better(self, name: ScoreName) -> bool:
        """Steady answers neither flip nor change places."""
        return True

    def margin(self) -> int:
        """As far as the frames go."""
        return max(abs(self.first), abs(self.last))

    def passes(self, before: pd.DataFrame) -> int:
        """Every frame."""
        return len(before) * (self.last - self.first + 1)

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Compares each frame with the one before it."""
        count = len(batch.keys)
        changes, distance = np.zeros(count), np.zeros(count)
        near_tie = np.zeros(count, dtype=bool)
        previous: Tensor | None = None
        for dx in range(self.first, self.last + 1):
            frame = batch.predict_at("crop", Offset(0.0, float(dx)))
            near_tie |= frame.near_tie
            if previous is not None:
                changes += (frame.logits.argmax(1) != previous.argmax(1)).numpy()
                distance += top_distance(previous, frame.logits).numpy()
            previous = frame.logits
        steps = self.last - self.first
        columns = {"flips": changes / steps, "top5_distance": distance / steps}
        return image_rows(columns, near_tie=near_tie, passes=steps + 1)

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """The mean over the frames of an image."""
        return {FLIP: column(rows, "flips"), DISTANCE: column(rows, "top5_distance")}

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """A share of flips outside [0, 1], or a distance that five places cannot have."""
        flips, distance = column(rows, "flips"), column(rows, "top5_distance")
        return {
            "has a share of flips outside [0, 1]": (flips < 0) | (flips > 1),
            "has an impossible top-5 distance": (distance < 0) | (distance > TOP * TOP),
        }


def top_distance(first: Tensor, second: Tensor) -> Tensor:
    """How far the five best classes of one answer have moved in another's ranking, (B,).

    A class that was in place i (from 0) and is in place j moves by |i - min(j, 5)|.

    >>> a = torch.tensor([[6.0, 5, 4, 3, 2, 1]])
    >>> top_distance(a, a).item(), top_distance(a, a.flip(1)).item()
    (0.0, 13.0)
    """
    top = min(TOP, first.shape[1])
    best = torch.argsort(first, dim=1, descending=True, stable=True)[:, :top]  # (B, top) classes
    order = torch.argsort(second, dim=1, descending=True, stable=True)
    ranks = order.argsort(1)  # (B, classes) places
    moved = ranks.gather(1, best).clamp(max=TOP) - torch.arange(top, device=ranks.device)
    total: Tensor = moved.abs().sum(1).double()
    return total


METRICS.register("flip", Flip)
