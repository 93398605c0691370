"""Agreement: all of several random views receive one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from shiftbench.errors import UsageError
from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.metrics.consistency import Consistency
from shiftbench.scores import ScoreName
from shiftbench.tables import Cells

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.running.job import Settings

FAMILY = "agreement"
DEFAULT_COUNT = 5


@dataclass(frozen=True)
class Agreement(Metric):
    """Fraction of images whose first K random views have one class (agreement:K[:roll])."""

    count: int  # K
    kind: str  # distribution of the views: "crop" or "integer"
    span: int  # in pixels
    seed: int = 0

    @classmethod
    @override
    def plan(cls, argument: str, settings: Settings, geometry: Geometry) -> Agreement:
        count, _, kind = (argument or str(DEFAULT_COUNT)).partition(":")
        if not count.isdecimal() or int(count) < 2 or kind not in ("", "roll"):
            raise UsageError(
                f"expected agreement:K or agreement:K:roll with K of 2 or more, got {argument!r}"
            )
        drawn = Consistency.plan("integer" if kind else "crop", settings, geometry)
        return cls(int(count), drawn.kind, drawn.span, settings.seed)

    @property
    def score_name(self) -> ScoreName:
        """Name of the only score."""
        return ScoreName(FAMILY, f"{self.count}{'' if self.kind == 'crop' else ':roll'}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Identifier in a record, such as `agreement_5`."""
        return self.score_name.stem

    @property
    def drawn(self) -> Consistency:
        """Consistency metric with the same views."""
        return Consistency(self.kind, self.span, self.count, self.seed)

    @property
    @override
    def table(self) -> str:
        return self.drawn.table

    @override
    def margin(self) -> int:
        return self.drawn.margin()

    @override
    def views(self, image: str) -> Sequence[View]:
        return self.drawn.views(image)[: self.count]

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        same = (cells.classes[:, 1:] == cells.classes[:, 1:2]).all(1)
        return {self.score_name: np.where(cells.known[:, 1:].all(1), same, np.nan)}


METRICS.register(FAMILY, Agreement)
