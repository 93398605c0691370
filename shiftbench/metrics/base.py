"""The seam every metric implements, and what it is given to measure.

A metric turns images into rows, one per image, and rows into outcomes, one number per image and
score. Everything else follows from the outcomes and is written once: scores with their intervals,
paired comparisons, what an unfinished record still lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.metrics.predictions import Model, Predictions, predict_clean
from shiftbench.registry import Registry
from shiftbench.scores import ScoreName, Scores
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.base import Scene, Views
from shiftbench.statistics import FRACTION, Score, mean_score

NEAR_TIE, PASSES = "near_tie", "passes"  # columns of every metric's rows, besides its own


@dataclass(frozen=True)
class Shard:
    """Some images on the device, with the answers at (0, 0), ready for every metric."""

    model: Model  # images (B, C, H, W) -> logits (B, classes)
    batch_size: int  # how many images the model sees at once; no number depends on it
    canvas: Tensor  # (B, C, S + 2 margin, S + 2 margin), normalized
    margin: int
    keys: Sequence[str]  # a stable name per image; its random draws follow from it
    labels: NDArray[np.int64]
    unshifted: Predictions
    scene: Scene | None = None  # renders the images again, where that is possible
    _views: dict[str, Views] = field(default_factory=dict)

    @classmethod
    def predict(
        cls,
        model: Model,
        canvas: Tensor,
        margin: int,
        keys: Sequence[str],
        labels: NDArray[np.int64],
        *,
        batch_size: int,
        scene: Scene | None = None,
    ) -> Shard:
        """Asks the model about the unshifted images: every metric starts from these answers."""
        views = SHIFTS.get("crop").views(canvas, margin)
        answers = predict_clean(model, views, len(keys), batch_size=batch_size)
        return cls(model, batch_size, canvas, margin, keys, labels, answers, scene)

    def views(self, shift: str) -> Views:
        """The images prepared by a kind of shift, once for all metrics that use it."""
        if shift not in self._views:
            self._views[shift] = SHIFTS.get(shift).views(self.canvas, self.margin, self.scene)
        return self._views[shift]

    def take(self, rows: Sequence[int]) -> Shard:
        """Some of the images."""
        if len(rows) == len(self.keys):
            return self
        chosen = torch.tensor(rows)
        scene = self.scene
        return Shard(
            model=self.model,
            batch_size=self.batch_size,
            canvas=self.canvas[chosen.to(self.canvas.device)],
            margin=self.margin,
            keys=[self.keys[row] for row in rows],
            labels=self.labels[rows],
            unshifted=self.unshifted.take(chosen.numpy()),
            scene=scene and (lambda: _SomeViews(scene(), chosen)),
        )


@dataclass(frozen=True)
class _SomeViews:
    views: Views
    chosen: Tensor

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        return self.views(offset, self.chosen if rows is None else self.chosen[rows])


@dataclass(frozen=True)
class Request:
    """What a metric is planned for."""

    view: int  # side of what the model sees, in pixels
    resize: int  # shorter side of the image that the view is cut from
    max_shift: int = 6  # radius of grids, in steps
    step: str | None = None  # pixels between offsets, such as "1/4"; None: the attack's own
    mode: str = "exhaustive"  # how grids are searched
    repeats: int = 1  # random draws per image
    seed: int = 0


class Metric(ABC):
    """A measurement that yields a row per image, and outcomes that follow from the rows alone.

    A new metric is one class in one file: `measure` and `outcomes`, and whatever of the rest does
    not fit it as it stands. `METRICS.register(name, TheClass)` makes it known.
    """

    summary: ClassVar[str]  # one line for `shiftbench list metrics`
    searched: ClassVar[bool] = False  # so costly that `--search-limit` cuts its images

    @classmethod
    def arguments(cls) -> Sequence[str]:
        """What may follow its name after a colon, as in `adversarial:crop`; often nothing."""
        return ()

    @classmethod
    def about(cls, argument: str) -> str:
        """One line about the metric of an argument."""
        return cls.summary

    @classmethod
    def plan(cls, argument: str, request: Request) -> Self:
        """The metric of a request."""
        if argument:
            raise UsageError(f"this metric takes nothing after its name, got {argument!r}")
        return cls()

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> Self:
        """The metric whose `settings` a record keeps."""
        return cls(**settings)

    @property
    @abstractmethod
    def name(self) -> str:
        """Names its rows in a run and its settings in a record: `adversarial_crop`."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Every column that its rows may have, the one that is never empty first."""

    @abstractmethod
    def measure(self, shard: Shard, before: pd.DataFrame) -> pd.DataFrame:
        """Measures every image of a shard.

        Args:
            shard: The images.
            before: What is there already, in the same order: a metric that can go on from an
                earlier, smaller measurement does.

        Returns:
            A row per image, in the same order: its own columns, `near_tie` and `passes`.
        """

    @abstractmethod
    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """One number per image and score, whose mean is the score; NaN: not measured."""

    def score_names(self) -> list[ScoreName]:
        """The scores that its rows will give, known before any is there."""
        return [ScoreName(self.name)]

    def unit(self, name: ScoreName) -> str:
        """What a score of it is counted in: fractions are shown in percent."""
        return FRACTION

    def lower_is_better(self, name: ScoreName) -> bool:
        """Whether a score of it says how much goes wrong."""
        return False

    def margin(self) -> int:
        """How many pixels around the view it reads."""
        return 0

    def settings(self) -> dict[str, Any]:
        """What its numbers depend on besides model and images, as plain values."""
        return {}

    def passes(self, before: pd.DataFrame) -> int:
        """At most how many forward passes the images of these rows still need, (0, 0) aside."""
        return len(before)

    def missing(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Which images have still to be measured.

        Args:
            rows: What is there already, a row per image; empty cells where there is nothing.
        """
        first = self.columns[0]
        return rows[first].isna().to_numpy() if first in rows else np.ones(len(rows), dtype=bool)

    def complete_rows(self, rows: pd.DataFrame, asked: NDArray[np.bool_]) -> pd.DataFrame:
        """Completes rows that are not missing, where that needs no measurement.

        Args:
            rows: A row per image.
            asked: Which of them this metric was asked for. The others stay as they are: to complete
                only those that need no measurement would choose images by their outcome.
        """
        return rows

    def as_measured(self, rows: pd.DataFrame) -> Self:
        """The metric as the rows have it, which may be more than this one asks for."""
        return self

    def contradictions(self, rows: pd.DataFrame) -> list[str]:
        """What cannot be true of a table that this metric measured, one sentence each."""
        return []

    def _named(self, rows: pd.DataFrame, checks: Mapping[str, NDArray[np.bool_]]) -> list[str]:
        """A sentence for each check that some image fails."""
        found = []
        for words, bad in checks.items():
            if bad.any():
                first, count = rows["key"].iloc[int(bad.argmax())], int(bad.sum())
                found.append(f"{self.name}: {first!r} {words} ({count} such images)")
        return found

    def conditions(self) -> dict[str, Any]:
        """Those of its settings that must agree before two records' scores are compared."""
        return self.settings()

    def offset_scores(self, rows: pd.DataFrame) -> dict[Offset, Score]:
        """Scores by offset, where every offset was measured for every image."""
        return {}


METRICS: Registry[type[Metric]] = Registry("metric")


def plan_metric(text: str, request: Request) -> Metric:
    """The metric of a text such as `adversarial:crop`."""
    name, _, argument = text.partition(":")
    return METRICS.get(name).plan(argument, request)


def load_metric(kind: str, settings: Mapping[str, Any]) -> Metric | None:
    """The metric that a record's settings describe; None when no one here knows its kind."""
    return METRICS.get(kind).load(settings) if kind in METRICS else None


def score_rows(metrics: Sequence[Metric], rows: pd.DataFrame) -> Scores:
    """Every score of a table of images: a pure function of the table."""
    found = {}
    for metric in metrics:
        for name, values in metric.outcomes(rows).items():
            measured = values[~np.isnan(values)]
            if len(measured):
                found[name] = mean_score(measured, unit=metric.unit(name))
    return Scores(found)


def column(rows: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as floats; NaN where a cell is empty, and all of it where there is no column."""
    if name not in rows:
        return np.full(len(rows), np.nan)
    values = rows[name]
    if values.dtype == object:
        values = values.astype("Float64")
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
