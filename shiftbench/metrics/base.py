"""The seam every metric implements, and what it is given to measure.

A metric turns images into rows, one per image, and rows into outcomes, one number per image and
score. Scores with their intervals, paired comparisons and what a record still lacks follow from
these and are written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.predictions import Model, Predictions, predict_at
from shiftbench.registry import Registry
from shiftbench.scores import ScoreName, Scores
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.base import Scene, Views
from shiftbench.statistics import FRACTION, Score, mean_score

KEY = "key"  # names the image of a row
NEAR_TIE_COLUMN, PASSES = "near_tie", "passes"  # columns of every metric's rows, besides its own


@dataclass(frozen=True)
class ImageBatch:
    """Images on the device with their clean predictions, ready for every metric."""

    model: Model  # images (B, C, H, W) -> logits (B, classes)
    batch_size: int  # how many images the model sees at once; no number depends on it
    canvas: Tensor  # (B, C, H + 2 margin, W + 2 margin), normalized
    margin: int
    keys: Sequence[str]  # a stable name per image; its random draws follow from it
    labels: NDArray[np.int64]
    clean: Predictions  # at (0, 0)
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
    ) -> ImageBatch:
        """Makes the clean predictions that every metric starts from."""
        views = SHIFTS.get("crop").views(canvas, margin)
        clean = predict_at(model, views, [ORIGIN] * len(keys), batch_size=batch_size)
        return cls(model, batch_size, canvas, margin, keys, labels, clean, scene)

    def views(self, shift: str) -> Views:
        """The images prepared by a kind of shift, once for all metrics that use it."""
        if shift not in self._views:
            self._views[shift] = SHIFTS.get(shift).views(self.canvas, self.margin, self.scene)
        return self._views[shift]

    def predict_at(
        self,
        shift: str,
        offsets: Offset | Sequence[Offset],
        rows: Sequence[int] | None = None,
    ) -> Predictions:
        """What the model says about images `rows`, by default all, at an offset for all or each."""
        if isinstance(offsets, Offset):
            offsets = [offsets] * len(self.keys if rows is None else rows)
        views = self.views(shift)
        return predict_at(self.model, views, offsets, rows=rows, batch_size=self.batch_size)

    def take(self, rows: Sequence[int]) -> ImageBatch:
        """Some of the images."""
        if len(rows) == len(self.keys):
            return self
        chosen, scene = torch.tensor(rows), self.scene

        def part() -> Views:
            assert scene is not None
            views = scene()
            return lambda offset, rows=None: views(offset, chosen if rows is None else chosen[rows])

        return ImageBatch(
            model=self.model,
            batch_size=self.batch_size,
            canvas=self.canvas[chosen.to(self.canvas.device)],
            margin=self.margin,
            keys=[self.keys[row] for row in rows],
            labels=self.labels[rows],
            clean=self.clean.take(chosen.numpy()),
            scene=part if scene else None,
        )


@dataclass(frozen=True)
class MetricOptions:
    """What a user may choose for all metrics of a run."""

    max_shift: int = 6  # radius of grids, in steps
    step: str | None = None  # pixels between offsets, such as "1/4"; None: each attack's own
    mode: str = "exhaustive"  # or "full_grid", or "sampled:K": then scores are upper bounds
    repeats: int = 1  # random draws per image
    seed: int = 0


class Metric(ABC):
    """A measurement that yields a row per image, and outcomes that follow from the rows alone.

    A new metric is one class in one file: a frozen dataclass whose fields are its settings, with
    `name`, `columns`, `measure` and `outcomes`. `METRICS.register(name, TheClass)` makes it known.
    """

    summary: ClassVar[str]  # one line for `shiftbench list metrics`
    searched: ClassVar[bool] = False  # so expensive that `--search-limit` cuts its images

    # --- from names to metrics and back

    @classmethod
    def entries(cls) -> Mapping[str, str]:
        """What may follow its name after a colon, as in `adversarial:crop`, with a summary each."""
        return {"": cls.summary}

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Self:
        """The metric of what follows its name after a colon, and of what the user chose for all.

        The model sees `view` x `view` pixels, cut from an image whose shorter side is `resize`.
        """
        if argument:
            raise UsageError(f"this metric takes nothing after its name, got {argument!r}")
        return cls()

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> Self:
        """The metric whose `settings` a record keeps."""
        return cls(**settings)

    def settings(self) -> dict[str, Any]:
        """What its numbers depend on besides model and images, as plain values."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @property
    @abstractmethod
    def name(self) -> str:
        """Names it in a record: `adversarial_crop`."""

    # --- from images to rows

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Every column that its rows may have, the one that is never empty first."""

    @abstractmethod
    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """A row per image of a batch, in its order, made by `image_rows`.

        `before` has the rows of an earlier, smaller measurement, with empty cells where there is
        none. A metric that can continue from them does.
        """

    def rows(self, batch: ImageBatch, before: pd.DataFrame | None = None) -> pd.DataFrame:
        """What it measures of a batch, by the keys of the images."""
        nothing = pd.DataFrame(index=range(len(batch.keys)))
        rows = self.measure(batch, nothing if before is None else before)
        return rows.set_index(pd.Index(batch.keys, name=KEY))

    def margin(self) -> int:
        """How many pixels around the view it reads."""
        return 0

    def passes(self, before: pd.DataFrame) -> int:
        """At most how many forward passes the images of these rows still need, (0, 0) aside."""
        return len(before)

    # --- growing: which rows answer a request

    @property
    def series(self) -> str:
        """Rows of one series may be continued and combined; those of two never are."""
        return self.name

    def supersedes(self, other: Metric) -> bool:
        """Whether it says all that a metric of another series says."""
        return False

    @property
    def amount(self) -> int | None:
        """How much it measures of an image, in the unit of its first column; None: all or nothing.

        Draws, or rings of a grid: a later run may ask for more of them.
        """
        return None

    def answered(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Which rows say at least what this metric asks."""
        measured = column(rows, self.columns[0])
        return ~np.isnan(measured) if self.amount is None else measured >= self.amount

    def as_asked(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that answer, reduced to exactly what this metric asks.

        A stopped run may have measured more of some images than a later one asks for. Which images
        is an accident, so that more must not enter the record.
        """
        return rows[self.answered(rows)]

    def as_measured(self, rows: pd.DataFrame) -> Self:
        """The metric that a table of images shows, which may be more than this one asks for."""
        return self

    # --- from rows to scores

    @abstractmethod
    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """One number per image and score, whose mean is the score; NaN: not measured."""

    def score_names(self) -> list[ScoreName]:
        """The scores that its rows give, known before there are any."""
        return list(self.outcomes(pd.DataFrame()))

    def unit(self, name: ScoreName) -> str:
        """The unit of a score of it; fractions are shown in percent."""
        return FRACTION

    def lower_is_better(self, name: ScoreName) -> bool:
        """Whether a score of it counts what goes wrong."""
        return False

    @property
    def is_upper_bound(self) -> bool:
        """Whether its scores can only be too high."""
        return False

    def offset_scores(self, rows: pd.DataFrame) -> dict[Offset, Score]:
        """Scores by offset, where every offset was measured for every image."""
        return {}

    # --- trust

    def code(self) -> tuple[object, ...]:
        """The objects that its numbers depend on: a plug-in may define and later change them."""
        return (type(self),)

    def conditions(self) -> dict[str, Any]:
        """Those of its settings that must agree before scores of two records are compared."""
        return self.settings()

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """What cannot be true of an image's row, in words, and of which rows it is said."""
        return {}


METRICS: Registry[type[Metric]] = Registry("metric")


def plan_metric(text: str, options: MetricOptions, *, view: int, resize: int) -> Metric:
    """The metric of a text such as `adversarial:crop`."""
    name, _, argument = text.partition(":")
    return METRICS.get(name).plan(argument, options, view=view, resize=resize)


def kind_of(metric: Metric) -> str:
    """The name under which the class of a metric is registered."""
    return next(kind for kind in METRICS if type(metric) is METRICS.get(kind))


def score_rows(metrics: Sequence[Metric], rows: pd.DataFrame) -> Scores:
    """Every score of a table of images: a pure function of the table."""
    scores = {}
    for metric in metrics:
        for name, values in metric.outcomes(rows).items():
            measured = values[~np.isnan(values)]
            if len(measured):
                scores[name] = mean_score(measured, unit=metric.unit(name))
    return Scores(scores)


def image_rows(columns: Mapping[str, Any], *, near_tie: Any, passes: Any) -> pd.DataFrame:
    """What a metric measured: its columns, whether rounding may have decided, forward passes."""
    return pd.DataFrame({**columns, NEAR_TIE_COLUMN: near_tie, PASSES: passes})


def column(rows: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as floats; NaN where a cell is empty, and all of it where there is no column."""
    if name not in rows:
        return np.full(len(rows), np.nan)
    values = rows[name]
    if values.dtype == object:
        values = values.astype("Float64")
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
