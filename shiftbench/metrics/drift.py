"""Drift: how far the features of an image move while the camera does.

For any model that exposes features, with or without a head: 1 means as far as the features of
another photograph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.errors import UsageError
from shiftbench.grid import Grid
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, MetricOptions, column, image_rows
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS

FAMILY = "drift"
COMPARED = 1000  # images whose features are compared with each other, at most


@dataclass(frozen=True)
class Drift(Metric):
    """The largest 1 - cos of an image's features over a grid, over the median of other images."""

    attack: str
    radius: int  # of the grid, in steps of the attack

    summary = "how far features move, over the distance to another image"
    searched = True

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Every attack."""
        return {name: f"{cls.summary}: {ATTACKS.get(name).summary}" for name in ATTACKS}

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Drift:
        """`crop`, or another attack."""
        return cls(ATTACKS.get(argument or "crop").name, options.max_shift)

    @property
    def name(self) -> str:
        """`drift_crop`."""
        return ScoreName(FAMILY, self.attack).stem

    @property
    def series(self) -> str:
        """One grid each: the largest distance of a wider one says nothing of a narrower one."""
        return f"{self.name}.{self.radius}"

    def supersedes(self, other: Metric) -> bool:
        """A grid of another radius is measured anew."""
        return isinstance(other, Drift) and other.name == self.name

    @property
    def columns(self) -> Sequence[str]:
        """The largest distance, and the clean features that distances are compared with."""
        return (f"{self.name}_distance", f"{self.name}_features")

    @property
    def _grid(self) -> Grid:
        return ATTACKS.get(self.attack).grid(self.radius)

    def margin(self) -> int:
        """What the kind of shift reads."""
        return SHIFTS.get(ATTACKS.get(self.attack).shift).margin(self._grid)

    def passes(self, before: pd.DataFrame) -> int:
        """Every offset."""
        return len(before) * len(self._grid)

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Compares the features at every offset with the clean ones."""
        extract = getattr(batch.model, "features", None)
        if extract is None:
            raise UsageError(
                "drift compares features, and this model exposes none: leave the metric out"
            )
        views, size = batch.views(ATTACKS.get(self.attack).shift), batch.batch_size
        count = len(batch.keys)
        chunks = [torch.arange(i, min(i + size, count)) for i in range(0, count, size)]

        def features(offset_views: list[Tensor]) -> Tensor:
            with torch.no_grad():
                rows = torch.cat([extract(images).detach().float() for images in offset_views])
            return torch.nn.functional.normalize(rows.flatten(1).double(), dim=1).cpu()

        clean: Tensor | None = None
        largest = torch.zeros(count, dtype=torch.float64)
        for offset in self._grid:  # (0, 0) comes first
            here = features([views(offset, chunk) for chunk in chunks])
            clean = here if clean is None else clean
            largest = torch.maximum(largest, 1 - (here * clean).sum(1))
        assert clean is not None
        packed = [row.tobytes() for row in clean.numpy().astype(np.float16)]
        columns = dict(zip(self.columns, (largest.numpy(), packed), strict=True))
        return image_rows(columns, near_tie=False, passes=len(self._grid))  # no class is chosen

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """Each image's largest distance over the median distance of two different images."""
        distance = column(rows, self.columns[0])
        if self.columns[1] in rows:
            distance = distance / typical_distance(rows[self.columns[1]].dropna())
        return {ScoreName(FAMILY, self.attack): distance}

    def unit(self, name: ScoreName) -> str:
        """Distances to another image."""
        return "of another image"

    def lower_is_better(self, name: ScoreName) -> bool:
        """Features should stay where they are."""
        return True

    def code(self) -> tuple[object, ...]:
        """The kind of shift, too."""
        return type(self), SHIFTS.get(ATTACKS.get(self.attack).shift)

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """A cosine outside [-1, 1]."""
        distance = column(rows, self.columns[0])
        return {"has a distance that no cosine has": (distance < -1e-6) | (distance > 2 + 1e-6)}


def typical_distance(packed: pd.Series) -> float:
    """The median 1 - cos between different images; NaN where there are fewer than two."""
    chosen = packed.iloc[:: max(1, -(-len(packed) // COMPARED))]
    if len(chosen) < 2:
        return float("nan")
    features = np.stack([np.frombuffer(row, dtype=np.float16) for row in chosen]).astype(np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    cosines = features @ features.T
    median = float(np.median(1 - cosines[np.triu_indices(len(cosines), k=1)]))
    return max(median, 1e-12)


METRICS.register(FAMILY, Drift)
