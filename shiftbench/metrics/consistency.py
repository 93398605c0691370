"""Consistency: is the prediction the same when the camera stands elsewhere?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, MetricOptions, column, image_rows
from shiftbench.metrics.search import keyed_integers
from shiftbench.registry import Registry
from shiftbench.scores import ScoreName

FAMILY, CHANGE = "consistency", "change"
MAX_SPAN = 32  # pixels: the random shifts of the paper


Pair = tuple[Offset, Offset]  # the two places an image is seen from


@dataclass(frozen=True)
class ConsistencyKind:
    """A way to draw the two views that are compared."""

    name: str
    shift: str  # a kind registered in shiftbench.shifts
    draw: Callable[[Sequence[int], int], Pair]  # from uniform integers and the span
    summary: str = ""  # one line for `shiftbench list metrics`

    @property
    def from_origin(self) -> bool:
        """Whether the first view is the clean one: rolls need no second random place."""
        return self.shift == "cyclic"

    def span(self, view: int, canvas: int) -> int:
        """How far draws go, for the smaller side of a view and of the image it is cut from.

        For cyclic kinds the largest whole shift on an axis, below half a period so that a small
        image is never shifted by all of it; for crops, the number of places on an axis.
        """
        span = min(MAX_SPAN, (view - 1) // 2) if self.from_origin else canvas - view
        if span < (1 if self.from_origin else 2):
            raise UsageError(
                f"consistency {self.name!r} has no other place to look from: the view has {view} "
                f"pixels and the image {canvas}. Use larger images, or leave this kind out"
            )
        return span

    def margin(self, span: int) -> int:
        """How many pixels around the view the draws read."""
        return 0 if self.from_origin else span // 2

    def pair(self, key: str, span: int, *, seed: int = 0, repeat: int = 0) -> Pair:
        """The views of one image: they follow from (seed, kind, key, repeat) alone."""
        purpose = f"consistency/{self.name}/{repeat}"
        return self.draw(keyed_integers(seed, purpose, key, 4), span)


def _draw_integer(numbers: Sequence[int], span: int) -> Pair:
    """Uniform over -span..span on each axis, (0, 0) left out."""
    side = 2 * span + 1
    index = numbers[0] % (side**2 - 1)
    index += index >= side**2 // 2  # the middle one is (0, 0)
    return ORIGIN, Offset(float(index // side - span), float(index % side - span))


def _draw_half(numbers: Sequence[int], span: int) -> Pair:
    """Such an integer plus half a pixel on both axes."""
    _, whole = _draw_integer(numbers, span)
    return ORIGIN, Offset(whole.dy + 0.5, whole.dx + 0.5)


def _draw_crop(numbers: Sequence[int], span: int) -> Pair:
    """Two independent crops, each corner uniform over 0..span-1 (Zhang 2019, section 4.2)."""
    ay, ax, by, bx = (float(number % span - span // 2) for number in numbers)
    return Offset(ay, ax), Offset(by, bx)


CONSISTENCIES: Registry[ConsistencyKind] = Registry("consistency")

for _kind in (
    ConsistencyKind("integer", "cyclic", _draw_integer, "cyclic, by whole pixels"),
    ConsistencyKind("half", "cyclic", _draw_half, "cyclic, by whole pixels and a half"),
    ConsistencyKind("crop", "crop", _draw_crop, "two crops of the resized image"),
):
    CONSISTENCIES.register(_kind.name, _kind)


@dataclass(frozen=True)
class Consistency(Metric):
    """Agreement at two random views, and how much the first class's probability changes.

    >>> Consistency("half", span=32).name
    'consistency_half'
    """

    views: str  # how they are drawn: a name of CONSISTENCIES
    span: int  # how far draws go, in pixels
    repeats: int = 1  # draws per image
    seed: int = 0

    summary = "the same prediction at random shifts"

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Every way of drawing."""
        return {n: f"{cls.summary}: {CONSISTENCIES.get(n).summary}" for n in CONSISTENCIES}

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Consistency:
        """The draws that the images allow."""
        span = CONSISTENCIES.get(argument).span(view, resize)
        return cls(argument, span, options.repeats, options.seed)

    @property
    def kind(self) -> ConsistencyKind:
        """How the views are drawn."""
        return CONSISTENCIES.get(self.views)

    @property
    def name(self) -> str:
        """`consistency_half`."""
        return ScoreName(FAMILY, self.views).stem

    @property
    def columns(self) -> Sequence[str]:
        """How many draws an image had, how many agreed, and the mean change of probability."""
        return [self._of(word) for word in ("draws", "agreed", "consistent", "change")]

    def _of(self, word: str) -> str:
        return f"{word}_{self.views}"

    def margin(self) -> int:
        """What the draws read."""
        return self.kind.margin(self.span)

    def passes(self, before: pd.DataFrame) -> int:
        """One or two views a draw."""
        left = self.repeats * len(before) - int(np.nansum(column(before, self._of("draws"))))
        return left * (1 if self.kind.from_origin else 2)

    @property
    def amount(self) -> int:
        """The draws."""
        return self.repeats

    def as_asked(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Images with exactly as many draws: a sum of more cannot be taken apart."""
        exact: pd.DataFrame = rows.loc[column(rows, self._of("draws")) == self.repeats]
        return exact

    def as_measured(self, rows: pd.DataFrame) -> Consistency:
        """As many draws as every image has."""
        draws = column(rows, self._of("draws"))
        return self if np.isnan(draws).all() else replace(self, repeats=int(np.nanmin(draws)))

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Draws and compares; the draws that are there already are kept."""
        draws = np.nan_to_num(column(before, self._of("draws")))
        agreed = np.nan_to_num(column(before, self._of("agreed")))
        change = np.nan_to_num(column(before, self._of("change"))) * draws
        near_tie, passes = np.zeros(len(draws), dtype=bool), np.zeros(len(draws), dtype=np.int64)
        kind = self.kind
        for repeat in range(int(draws.min()), self.repeats):
            rows = np.flatnonzero(draws <= repeat)
            chosen = rows.tolist()
            keys = [batch.keys[row] for row in chosen]
            drawn = [kind.pair(key, self.span, seed=self.seed, repeat=repeat) for key in keys]
            if kind.from_origin:
                first = batch.clean.take(rows)
            else:
                first = batch.predict_at(kind.shift, [pair[0] for pair in drawn], chosen)
            second = batch.predict_at(kind.shift, [pair[1] for pair in drawn], chosen)
            passes[rows] += 1 if kind.from_origin else 2
            predicted = first.prediction
            agreed[rows] += second.prediction == predicted
            change[rows] += np.abs(second.probability(predicted) - first.probability(predicted))
            near_tie[rows] |= first.near_tie | second.near_tie
        columns = {
            self._of("consistent"): agreed == self.repeats,
            self._of("agreed"): agreed.astype(np.int64),
            self._of("draws"): self.repeats,
            self._of("change"): change / self.repeats,
        }
        return image_rows(columns, near_tie=near_tie, passes=passes)

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """The share of an image's draws that agree, and its mean change."""
        draws = column(rows, self._of("draws"))
        return {
            ScoreName(FAMILY, self.views): column(rows, self._of("agreed")) / draws,
            ScoreName(CHANGE, self.views): column(rows, self._of("change")),
        }

    def lower_is_better(self, name: ScoreName) -> bool:
        """A probability should not change."""
        return name.family == CHANGE

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """More agreement than draws, or a change that is no difference of probabilities."""
        draws, agreed = column(rows, self._of("draws")), column(rows, self._of("agreed"))
        change, all_agree = column(rows, self._of("change")), column(rows, self._of("consistent"))
        drawn = ~np.isnan(draws)
        fraction = (draws % 1 != 0) | (agreed % 1 != 0)
        return {
            "has draws or agreements that are no counts": drawn
            & ((draws < 1) | (agreed < 0) | fraction),
            "agrees more often than it was drawn": agreed > draws,
            "is called consistent against its draws, or the reverse": drawn
            & (all_agree != (agreed == draws)),
            "has a change outside [0, 1]": (change < 0) | (change > 1),
        }


METRICS.register(FAMILY, Consistency)
