"""Consistency: the same class under random shifts, and the change of its probability."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.metrics.base import METRICS, Metric, Outcomes, View
from shiftbench.registry import Registry
from shiftbench.scores import ScoreName
from shiftbench.tables import Cells

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.running.job import Settings

FAMILY, CHANGE = "consistency", "change"
MAX_SPAN = 32  # pixels: the random shifts of the paper


def keyed_integers(seed: int, purpose: str, key: str, count: int) -> list[int]:
    """Return uniform 64-bit integers that follow from (seed, purpose, key).

    A hash function instead of a generator: its output is fixed by a standard (FIPS 202), where the
    streams of `random` and `numpy.random` may change between versions. Reducing modulo n has a
    bias of n / 2**64, far below anything that can be measured.
    """
    # The lengths distinguish ("a", "bc") from ("ab", "c").
    text = f"{seed}:{len(purpose)}:{purpose}:{len(key)}:{key}"
    digest = hashlib.shake_128(text.encode()).digest(8 * count)
    return [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 8 * count, 8)]


@dataclass(frozen=True)
class DrawKind:
    """A distribution of random views."""

    shift: str  # a shift type registered in shiftbench.shifts
    per_draw: int  # views: 1 is compared with the clean image, 2 with each other
    draw: Callable[[Sequence[int], int], tuple[Offset, ...]]  # of uniform integers and the span
    summary: str

    def span(self, geometry: Geometry, spare: int = 0) -> int:
        """Return the largest integer shift per axis; of crops, the number of positions per axis.

        Args:
            geometry: The canvas without a margin.
            spare: Network pixels on each side that crops leave to input remedies of other models.
        """
        sides = geometry.view, geometry.resize, geometry.inner or geometry.view
        view, resize, inner = (side // geometry.scale for side in sides)
        span = min(MAX_SPAN, (inner - 1) // 2) if self.per_draw == 1 else resize - view
        shared = resize - inner - 2 * spare
        if self.per_draw == 2 and shared >= 2:
            span = min(span, shared)
        if span < self.per_draw:
            raise UsageError(
                f"consistency needs images larger than the view (view {view} px, image {resize} "
                "px). Leave consistency out, or resize larger with --crop-pct"
            )
        return span


def _draw_integer(numbers: Sequence[int], span: int) -> tuple[Offset, ...]:
    """Draw uniformly over -span..span on each axis, (0, 0) excluded."""
    side = 2 * span + 1
    index = numbers[0] % (side**2 - 1)
    index += index >= side**2 // 2  # the middle one is (0, 0)
    return (Offset(float(index // side - span), float(index % side - span)),)


def _draw_half(numbers: Sequence[int], span: int) -> tuple[Offset, ...]:
    """Draw an integer offset plus half a pixel on both axes."""
    (whole,) = _draw_integer(numbers, span)
    return (Offset(whole.dy + 0.5, whole.dx + 0.5),)


def _draw_crops(numbers: Sequence[int], span: int) -> tuple[Offset, ...]:
    """Draw two independent crops, each corner uniform over 0..span-1 (Zhang 2019, section 4.2)."""
    ay, ax, by, bx = (float(number % span - span // 2) for number in numbers)
    return Offset(ay, ax), Offset(by, bx)


DRAWS: Registry[DrawKind] = Registry("consistency")
DRAWS.register("integer", DrawKind("cyclic", 1, _draw_integer, "cyclic, integer shifts"))
DRAWS.register("half", DrawKind("cyclic", 1, _draw_half, "cyclic, integer shifts plus 1/2 px"))
DRAWS.register("crop", DrawKind("crop", 2, _draw_crops, "two crops of the resized image"))


@dataclass(frozen=True)
class Consistency(Metric):
    """Fraction of random shifts with the same predicted class (consistency:integer|half|crop).

    >>> Consistency("half", span=32).name
    'consistency_half'
    """

    kind: str  # a name of DRAWS
    span: int  # in pixels
    samples: int = 1  # draws per image
    seed: int = 0

    @classmethod
    @override
    def plan(cls, argument: str, settings: Settings, geometry: Geometry) -> Consistency:
        span = DRAWS.get(argument).span(geometry, settings.remedy_margin)
        return cls(argument, span, settings.consistency_samples, settings.seed)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Identifier in a record, such as `consistency_half`."""
        return ScoreName(FAMILY, self.kind).stem

    @property
    @override
    def table(self) -> str:
        return f"{self.name}.{self.span}"

    @property
    def draws(self) -> DrawKind:
        """Distribution of the views."""
        return DRAWS.get(self.kind)

    @override
    def margin(self) -> int:
        return self.span // 2 if self.draws.per_draw == 2 else 0

    @override
    def views(self, image: str) -> Sequence[View]:
        views: list[View] = []
        for sample in range(self.samples):
            numbers = keyed_integers(self.seed, f"{FAMILY}/{self.kind}/{sample}", image, 4)
            # The class whose probability is compared: of the clean image, or of the first crop.
            reference = 0 if self.draws.per_draw == 1 else 1 + len(views)
            views += [
                View(self.draws.shift, offset, reference)
                for offset in self.draws.draw(numbers, self.span)
            ]
        return views

    @override
    def outcomes(self, cells: Cells) -> Outcomes:
        second = slice(self.draws.per_draw, None, self.draws.per_draw)
        first = slice(0, 1) if self.draws.per_draw == 1 else slice(1, None, 2)
        same = cells.classes[:, first] == cells.classes[:, second]
        p, q = (cells.probabilities[:, s].astype(np.float64) for s in (first, second))
        stored = (p >= 0).all(1) & (q >= 0).all(1)
        known = cells.known[:, second].all(1) & cells.known[:, first].all(1)
        return {
            ScoreName(FAMILY, self.kind): np.where(known, same.mean(1), np.nan),
            ScoreName(CHANGE, self.kind): np.where(stored, np.abs(p - q).mean(1), np.nan),
        }

    @override
    def lower_is_better(self, name: ScoreName) -> bool:
        return name.family == CHANGE


METRICS.register(FAMILY, Consistency)
