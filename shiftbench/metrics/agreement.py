"""Agreement of several random views: all of k crops, or rolls, get one answer.

The polyphase papers (Chaman and Dokmanic 2021 and those after it) report consistency like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, MetricOptions, column, image_rows
from shiftbench.metrics.consistency import CONSISTENCIES
from shiftbench.scores import ScoreName

FAMILY = "agreement"
VIEWS = {"crop": "crop", "roll": "integer"}  # the consistency whose second view is drawn


@dataclass(frozen=True)
class Agreement(Metric):
    """Whether k random views of an image all get the same class."""

    views: int  # k
    kind: str = "crop"  # or roll: cyclic shifts by whole pixels
    span: int = 0  # how far the draws go, in pixels
    seed: int = 0

    summary = "all of k random crops, or rolls, get one answer: agreement:5, agreement:5:roll"

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Five views are usual."""
        return {"5": "all of 5 random crops agree", "5:roll": "all of 5 random rolls agree"}

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Agreement:
        """`5` crops, or `5:roll`."""
        number, _, kind = (argument or "5").partition(":")
        kind = kind or "crop"
        if not number.isdecimal() or int(number) < 2 or kind not in VIEWS:
            raise UsageError(
                f"expected agreement:K or agreement:K:roll with K of 2 or more, got {argument!r}"
            )
        span = CONSISTENCIES.get(VIEWS[kind]).span(view, resize)
        return cls(int(number), kind, span, options.seed)

    @property
    def label(self) -> str:
        """`5`, or `5:roll`."""
        return str(self.views) if self.kind == "crop" else f"{self.views}:{self.kind}"

    @property
    def name(self) -> str:
        """`agreement_5`."""
        return ScoreName(FAMILY, self.label).stem

    @property
    def columns(self) -> Sequence[str]:
        """Whether all views agree."""
        return (f"agreement_{self.label}",)

    def margin(self) -> int:
        """What the draws read."""
        return CONSISTENCIES.get(VIEWS[self.kind]).margin(self.span)

    def passes(self, before: pd.DataFrame) -> int:
        """Every view."""
        return len(before) * self.views

    def offsets(self, key: str) -> list[Offset]:
        """The views of one image: they follow from seed and key."""
        kind, repeats = CONSISTENCIES.get(VIEWS[self.kind]), range(self.views)
        return [kind.pair(key, self.span, seed=self.seed, repeat=i)[1] for i in repeats]

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Predicts one view of every image at a time."""
        shift = CONSISTENCIES.get(VIEWS[self.kind]).shift
        drawn = zip(*(self.offsets(key) for key in batch.keys), strict=True)
        answers = [batch.predict_at(shift, offsets) for offsets in drawn]
        predictions = np.stack([answer.prediction for answer in answers])  # (views, B)
        agree = {self.columns[0]: (predictions == predictions[0]).all(0)}
        near_tie = np.any([answer.near_tie for answer in answers], axis=0)
        return image_rows(agree, near_tie=near_tie, passes=self.views)

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """1 where all views agree."""
        return {ScoreName(FAMILY, self.label): column(rows, self.columns[0])}


METRICS.register(FAMILY, Agreement)
