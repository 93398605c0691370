"""Adversarial accuracy: correct at every offset of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shiftbench.grid import Grid, Offset
from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, parse_attack
from shiftbench.statistics import Score, mean_score
from shiftbench.tables import Cells

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.running.job import Settings

FAMILY, AVERAGE = "adversarial", "average"


@dataclass(frozen=True)
class Adversarial(Metric):
    """Fraction of images classified correctly at every offset of an attack (adversarial:ATTACK).

    >>> Adversarial("crop", radius=1, step="1").grid.offsets[1]
    Offset(dy=-1.0, dx=-1.0)
    """

    family: ClassVar[str] = FAMILY  # of its scores

    attack: str
    radius: int  # in steps
    step: str  # in the unit of the attack: "1/6"
    full_grid: bool = False  # predict every offset, also after the first misclassified one

    @classmethod
    @override
    def plan(cls, argument: str, settings: Settings, geometry: Geometry) -> Adversarial:
        text = argument if ":" in argument or not settings.step else f"{argument}:{settings.step}"
        attack = parse_attack(text)
        radius = attack.radius if settings.max_shift is None else settings.max_shift
        return cls(attack.name, radius, str(attack.step), settings.full_grid)

    @property
    def label(self) -> str:
        """Name of the attack, with the step if that is not the attack's own."""
        usual = self.attack not in ATTACKS or Fraction(self.step) == ATTACKS.get(self.attack).step
        return self.attack if usual else f"{self.attack}[{self.step}]"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Identifier in a record, such as `adversarial_crop`."""
        return ScoreName(self.family, self.label).stem

    @property
    @override
    def table(self) -> str:
        return ScoreName(FAMILY, self.label).stem

    @property
    def grid(self) -> Grid:
        """Offsets; column i of the table is offset i."""
        return _grid(self.attack, self.radius, self.step)

    @override
    def margin(self) -> int:
        if self.attack not in ATTACKS:  # of a record whose plug-in is not loaded
            return math.ceil(self.grid.reach)
        return SHIFTS.get(ATTACKS.get(self.attack).shift).margin(self.grid)

    @override
    def extent(self) -> int:
        return math.ceil(self.grid.reach)

    @override
    def views(self, image: str) -> Sequence[View]:
        return _views(self.attack, self.grid)

    @override
    def needed(self, cells: Cells) -> NDArray[np.bool_]:
        """Select the first unknown offset before the first misclassified one, for each image."""
        if self.full_grid:
            return ~cells.known
        unknown = ~cells.known & ~np.logical_or.accumulate(cells.wrong, axis=1)
        first: NDArray[np.bool_] = unknown & (np.cumsum(unknown, axis=1) == 1)
        return first

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        """Set 1 for the images that are correct at every offset up to a ring, for every ring.

        A full grid adds `average`: the fraction of offsets at which an image is correct.
        """
        wrong = np.logical_or.accumulate(cells.wrong, axis=1)
        known = np.logical_and.accumulate(cells.known, axis=1)
        last = [len(self.grid.up_to(ring)) - 1 for ring in range(self.radius + 1)]
        outcomes = {
            ScoreName(self.family, self.label, ring): np.where(
                wrong[:, column], 0.0, np.where(known[:, column], 1.0, np.nan)
            )
            for ring, column in enumerate(last)
        }
        if self.full_grid:
            average = np.where(known[:, -1], (~cells.wrong).mean(1), np.nan)
            outcomes[ScoreName(AVERAGE, self.label)] = average
        return outcomes

    def first_wrong(self, cells: Cells) -> NDArray[np.intp]:
        """Return the index of the first misclassified offset of each image; -1: none."""
        return np.where(cells.wrong.any(1), cells.wrong.argmax(1), -1)

    def accuracy_by_offset(self, cells: Cells) -> dict[Offset, Score]:
        """Compute the accuracy at each offset that is known for all images: a heat map."""
        known = np.flatnonzero(cells.known.all(axis=0)).tolist()
        offsets = self.grid.offsets
        return {
            offsets[column]: mean_score(cells.shares(~cells.wrong[:, column])) for column in known
        }


@cache
def _grid(attack: str, radius: int, step: str) -> Grid:
    axes = ATTACKS.get(attack).axes if attack in ATTACKS else 2
    return Grid(radius, Fraction(step), axes)


@cache
def _views(attack: str, grid: Grid) -> tuple[View, ...]:
    shift = ATTACKS.get(attack).shift if attack in ATTACKS else ""
    return tuple(View(shift, offset) for offset in grid.offsets[1:])


METRICS.register(FAMILY, Adversarial)
