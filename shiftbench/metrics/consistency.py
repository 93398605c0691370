"""Consistency: agreement under random shifts, for every way of drawing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.metrics.base import METRICS, NEAR_TIE, PASSES, Metric, Request, Shard, column
from shiftbench.metrics.random_views import CONSISTENCIES, ConsistencyKind, consistency
from shiftbench.scores import ScoreName

FAMILY, CHANGE = "consistency", "change"


@dataclass(frozen=True)
class RandomConsistency(Metric):
    """Agreement of the answers at two views, and how much the first class's probability moves."""

    kind: ConsistencyKind
    span: int  # how far draws go, in pixels
    repeats: int = 1  # draws per image
    seed: int = 0

    summary = "the same answer at random shifts"

    @classmethod
    def arguments(cls) -> Sequence[str]:
        """Every way of drawing."""
        return CONSISTENCIES.names()

    @classmethod
    def about(cls, argument: str) -> str:
        """Which shifts are drawn."""
        return f"{cls.summary}: {CONSISTENCIES.get(argument).summary}"

    @classmethod
    def plan(cls, argument: str, request: Request) -> RandomConsistency:
        """The draws that the images allow."""
        kind = CONSISTENCIES.get(argument)
        return cls(kind, kind.span(request.view, request.resize), request.repeats, request.seed)

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> RandomConsistency:
        """The draws of a record."""
        kind = CONSISTENCIES.get(str(settings["views"]))
        return cls(kind, settings["span"], settings["repeats"], settings["seed"])

    @property
    def name(self) -> str:
        """`consistency_half`."""
        return ScoreName(FAMILY, self.kind.name).stem

    @property
    def columns(self) -> Sequence[str]:
        """How many draws an image had, how many agreed, and the mean change of probability."""
        return [self._of(word) for word in ("draws", "agreed", "consistent", "change")]

    def _of(self, word: str) -> str:
        return f"{word}_{self.kind.name}"

    def score_names(self) -> list[ScoreName]:
        """Agreement, and the change of probability."""
        return [ScoreName(family, self.kind.name) for family in (FAMILY, CHANGE)]

    def lower_is_better(self, name: ScoreName) -> bool:
        """A probability should not change."""
        return name.family == CHANGE

    def margin(self) -> int:
        """What the draws read."""
        return self.kind.margin(self.span)

    def settings(self) -> dict[str, Any]:
        """How the views were drawn."""
        draws = {"span": self.span, "repeats": self.repeats, "seed": self.seed}
        return {"views": self.kind.name, **draws}

    def passes(self, before: pd.DataFrame) -> int:
        """One or two views a draw."""
        left = self.repeats * len(before) - int(np.nansum(column(before, self._of("draws"))))
        return left * (1 if self.kind.from_origin else 2)

    def missing(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Images with fewer draws."""
        return ~(column(rows, self._of("draws")) >= self.repeats)

    def measure(self, shard: Shard, before: pd.DataFrame) -> pd.DataFrame:
        """Draws and compares; the draws that are there already are kept."""
        draws = np.nan_to_num(column(before, self._of("draws"))).astype(np.int64)
        agreed = np.nan_to_num(column(before, self._of("agreed")))
        change = np.nan_to_num(column(before, self._of("change"))) * draws
        near_tie, passes = np.zeros(len(draws), dtype=bool), np.zeros(len(draws), dtype=np.int64)
        for start in np.unique(draws):  # images that have as many draws go on together
            rows = np.flatnonzero(draws == start)
            part = shard.take(rows.tolist())
            found = consistency(
                part.model,
                part.views(self.kind.shift),
                part.keys,
                self.kind,
                span=self.span,
                batch_size=part.batch_size,
                repeats=range(int(start), self.repeats),
                seed=self.seed,
                unshifted=part.unshifted,
            )
            agreed[rows] += found.consistent.sum(1)
            change[rows] += found.change.sum(1)
            near_tie[rows] = found.near_tie
            passes[rows] = found.passes
        return pd.DataFrame(
            {
                self._of("consistent"): agreed == self.repeats,
                self._of("agreed"): agreed.astype(np.int64),
                self._of("draws"): self.repeats,
                self._of("change"): change / self.repeats,
                NEAR_TIE: near_tie,
                PASSES: passes,
            }
        )

    def contradictions(self, rows: pd.DataFrame) -> list[str]:
        """More agreement than draws, or a change that is no difference of probabilities."""
        draws, agreed = column(rows, self._of("draws")), column(rows, self._of("agreed"))
        change = column(rows, self._of("change"))
        return self._named(
            rows,
            {
                "agrees more often than it was drawn": agreed > draws,
                "has a change outside [0, 1]": (change < 0) | (change > 1),
            },
        )

    def as_measured(self, rows: pd.DataFrame) -> RandomConsistency:
        """As many draws as every image has."""
        return replace(self, repeats=int(np.nanmin(column(rows, self._of("draws")))))

    def conditions(self) -> dict[str, Any]:
        """The same draws, as far: a view of another size has another span."""
        return {"span": self.span, "repeats": self.repeats, "seed": self.seed}

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """The share of an image's draws that agree, and its mean change."""
        draws = column(rows, self._of("draws"))
        return {
            ScoreName(FAMILY, self.kind.name): column(rows, self._of("agreed")) / draws,
            ScoreName(CHANGE, self.kind.name): column(rows, self._of("change")),
        }


METRICS.register(FAMILY, RandomConsistency)
