"""Adversarial accuracy: correct at every offset of a grid, for every registered attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.grid import Grid, Offset
from shiftbench.metrics.base import METRICS, ImageBatch, Metric, MetricOptions, column, image_rows
from shiftbench.metrics.search import Mode, Trace, search, survives
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, Attack, parse_attack
from shiftbench.statistics import FRACTION, Score, mean_score

FAMILY, WORST = "adversarial", "worst-confidence"
TRACE = {"broken_radius": "Int64", "dy": "Float64", "dx": "Float64", "prediction": "Int64"}
FULL = ("bitmap", "worst_margin")  # columns of searches that visit every offset


@dataclass(frozen=True)
class Adversarial(Metric):
    """The worst case over the grid of one attack."""

    attack: Attack
    grid: Grid
    mode: Mode
    seed: int = 0  # of random offsets, where the mode samples

    summary = "correct at every offset of a grid: the whole curve"
    searched = True

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Every attack."""
        return {name: f"correct at every offset: {ATTACKS.get(name).summary}" for name in ATTACKS}

    @classmethod
    def plan(cls, argument: str, options: MetricOptions, *, view: int, resize: int) -> Adversarial:
        """The search of an attack; a step of its own may follow, as in `bilinear:1/4`."""
        name, _, step = argument.partition(":")
        step = step or options.step or ""
        searched = parse_attack(f"{name}:{step}" if step else name)
        grid, mode = searched.grid(options.max_shift), Mode.parse(options.mode)
        if mode.samples is not None and mode.is_exact(grid):
            mode = Mode()  # as many samples as there are offsets
        return cls(ATTACKS.get(name), grid, mode, 0 if mode.samples is None else options.seed)

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> Adversarial:
        """The search of a record; an attack that is not registered here cannot be measured."""
        name, step = str(settings["attack"]), Fraction(settings["step"])
        attack = ATTACKS.get(name) if name in ATTACKS else Attack(name, "", step, "")
        grid = replace(attack, step=step).grid(int(settings["radius"]))
        return cls(attack, grid, Mode.parse(settings["mode"]), settings.get("seed", 0))

    def settings(self) -> dict[str, Any]:
        """The grid and how it was searched."""
        sampled = {"seed": self.seed} if self.mode.samples is not None else {}
        return {
            "attack": self.attack.name,
            "step": str(self.grid.step),
            "radius": self.grid.radius,
            "mode": str(self.mode),
            "upper_bound": self.is_upper_bound,
            **sampled,
        }

    @property
    def label(self) -> str:
        """The attack, with the step of the grid where that is not the attack's own."""
        own = self.grid.step == self.attack.step
        return self.attack.name if own else f"{self.attack.name}[{self.grid.step}]"

    @property
    def name(self) -> str:
        """`adversarial_crop`."""
        return ScoreName(FAMILY, self.label).stem

    @property
    def columns(self) -> Sequence[str]:
        """How far an image was searched, and what broke it."""
        return [self._of(word) for word in ("reach", *TRACE, "sampled", *FULL)]

    def _of(self, word: str) -> str:
        return f"{self.label}_{word}"

    def margin(self) -> int:
        """What the kind of shift reads."""
        return SHIFTS.get(self.attack.shift).margin(self.grid)

    def passes(self, before: pd.DataFrame) -> int:
        """Every offset that was not visited yet; an image that breaks early needs fewer."""
        if self.mode.samples is not None:
            return len(before) * min(self.mode.samples, len(self.grid) - 1)
        radii = self._searched_radius(before).tolist()
        return sum(len(self.grid) - (len(self.grid.up_to(r)) if r >= 0 else 1) for r in radii)

    # --- growing

    @property
    def series(self) -> str:
        """A search that stops at the first failure widens; others are of one grid each."""
        if self.mode == Mode():
            return self.name
        return f"{self.name}.{self.mode}.{self.grid.radius}".replace(":", "")

    def supersedes(self, other: Metric) -> bool:
        """A search of as large a grid that leaves nothing out which the other one visited."""
        if not isinstance(other, Adversarial) or other.name != self.name:
            return False
        if self.mode.samples is not None and other.mode.samples is not None:
            return self.grid == other.grid and self.mode.samples >= other.mode.samples
        return self.grid.radius >= other.grid.radius and _detail(self.mode) >= _detail(other.mode)

    @property
    def amount(self) -> int:
        """The rings."""
        return self.grid.radius

    def answered(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Images that are broken, or searched as far as the grid goes."""
        broken = column(rows, self._of("broken_radius")) <= self.grid.radius
        return super().answered(rows) | broken

    def as_asked(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Searched exactly as far as the grid goes: what lies beyond is unknown here.

        A broken image stays broken further out, which needs no search.
        """
        rows = rows[self.answered(rows)].copy()
        beyond = column(rows, self._of("broken_radius")) > self.grid.radius
        if beyond.any():
            rows.loc[beyond, [self._of(word) for word in TRACE]] = pd.NA
        rows[self._of("reach")] = pd.array([self.grid.radius] * len(rows), dtype="Int64")
        return rows

    def as_measured(self, rows: pd.DataFrame) -> Adversarial:
        """The grid and the mode of the rows."""
        searched_radius, sampled = (column(rows, self._of(word)) for word in ("reach", "sampled"))
        measured = ~np.isnan(searched_radius)
        if not measured.any():
            return self
        if not np.isnan(sampled).all():
            mode = Mode(samples=int(np.nanmax(sampled)))
        else:
            full = self._of("bitmap") in rows and rows[self._of("bitmap")][measured].notna().all()
            mode = Mode(full=bool(full))
        return replace(self, grid=self.grid.up_to(int(np.nanmax(searched_radius))), mode=mode)

    def _searched_radius(self, before: pd.DataFrame) -> NDArray[np.int64]:
        """How far each image was searched in a way that this search continues; -1: not at all."""
        if self.mode != Mode():
            return np.full(len(before), -1)
        return np.nan_to_num(column(before, self._of("reach")), nan=-1).astype(np.int64)

    def _inner(self, before: pd.DataFrame) -> Trace | None:
        """What is known of the inner rings."""
        searched_radius = self._searched_radius(before)
        if (searched_radius < 0).all():
            return None
        broken_radius, dy, dx, prediction = (column(before, self._of(word)) for word in TRACE)
        return Trace(
            broken_radius,
            dy,
            dx,
            prediction,
            near_tie=np.zeros(len(before), dtype=bool),
            passes=np.zeros(len(before), dtype=np.int64),
            searched_radius=searched_radius,
            exact=True,
        )

    # --- measuring and scoring

    def measure(self, batch: ImageBatch, before: pd.DataFrame) -> pd.DataFrame:
        """Searches; what is known of the inner rings is not searched again."""
        trace = search(
            batch.model,
            batch.views(self.attack.shift),
            batch.labels,
            self.grid,
            batch_size=batch.batch_size,
            mode=self.mode,
            clean=batch.clean,
            keys=batch.keys,
            seed=self.seed,
            inner=self._inner(before),
        )
        count = len(batch.keys)
        columns: dict[str, Any] = {
            word: pd.array(getattr(trace, word), dtype=dtype) for word, dtype in TRACE.items()
        }
        columns["reach"] = pd.array([self.grid.radius] * count, dtype="Int64")
        if not trace.exact:
            columns["sampled"] = pd.array([self.mode.samples] * count, dtype="Int64")
        if trace.correct is not None:
            columns["bitmap"] = [row.tobytes() for row in np.packbits(trace.correct, 1)]
            columns["worst_margin"] = trace.worst_margin
        named = {self._of(word): cells for word, cells in columns.items()}
        return image_rows(named, near_tie=trace.near_tie, passes=trace.passes)

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """For every ring, 1 where an image is correct at every offset up to it."""
        searched_radius = column(rows, self._of("reach"))
        broken = column(rows, self._of("broken_radius"))
        outcomes = {
            ScoreName(FAMILY, self.label, s): np.where(
                searched_radius >= s, survives(broken, s), np.nan
            )
            for s in range(self.grid.radius + 1)
        }
        if self.mode.full:
            outcomes[ScoreName(WORST, self.label)] = column(rows, self._of("worst_margin"))
        return outcomes

    def unit(self, name: ScoreName) -> str:
        """The worst margin is a difference of logits."""
        return "logits" if name.family == WORST else FRACTION

    @property
    def is_upper_bound(self) -> bool:
        """Whether offsets were left out, which might break further images."""
        return not self.mode.is_exact(self.grid)

    def offset_scores(self, rows: pd.DataFrame) -> dict[Offset, Score]:
        """The accuracy at each offset, from the bitmaps of a full grid."""
        if not self.mode.full:
            return {}
        correct = self._unpack(rows[self._of("bitmap")].dropna())
        return {offset: mean_score(correct[:, i]) for i, offset in enumerate(self.grid)}

    def _unpack(self, bitmaps: pd.Series) -> NDArray[np.uint8]:
        """(images, offsets): where the answers were right."""
        packed = np.frombuffer(b"".join(bitmaps), dtype=np.uint8)
        size = len(self.grid)
        return np.unpackbits(packed.reshape(-1, -(-size // 8)), axis=1, count=size)

    # --- trust

    def code(self) -> tuple[object, ...]:
        """The kind of shift, too."""
        known = self.attack.shift in SHIFTS
        return (type(self), *((SHIFTS.get(self.attack.shift),) if known else ()))

    def conditions(self) -> dict[str, Any]:
        """Exact searches of one grid agree however they were made; sampled ones only alike."""
        if not self.is_upper_bound:
            return {"step": str(self.grid.step), "mode": "exact"}
        return {"step": str(self.grid.step), "mode": str(self.mode), "seed": self.seed}

    def contradictions(self, rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """Rows that no search could have left."""
        broken, reach = (column(rows, self._of(word)) for word in ("broken_radius", "reach"))
        label, wrong_class = column(rows, "label"), column(rows, self._of("prediction"))
        wrong = column(rows, "prediction") != label
        ring = np.maximum(*(np.abs(column(rows, self._of(word))) for word in ("dy", "dx")))
        searched, fails = ~np.isnan(reach), ~np.isnan(broken)
        problems = {
            "is broken beyond the rings that were searched": broken > reach,
            "was searched to a ring that is not there": searched & ((reach < 0) | (reach % 1 != 0)),
            "is wrong where it stands but not broken at ring 0, or the reverse": searched
            & (wrong != (broken == 0)),
            "was broken by an offset that is not on its ring": fails
            & ~np.isclose(ring / float(self.grid.step), broken),
            "was broken by the right answer": wrong_class == label,
            "was not searched but is broken": fails & ~searched,
        }
        if self.mode.full:
            problems |= self._bitmap_problems(rows, broken, searched)
        return problems

    def _bitmap_problems(
        self, rows: pd.DataFrame, broken: NDArray[np.float64], searched: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.bool_]]:
        """Bitmaps of another length, or that say something else than the curve."""
        bitmaps, size = rows[self._of("bitmap")], -(-len(self.grid) // 8)
        fits = np.array([isinstance(b, bytes) and len(b) == size for b in bitmaps], dtype=bool)
        correct = self._unpack(bitmaps[fits])
        first_ring = np.full(len(rows), np.nan)  # of a wrong answer
        first_wrong = np.array(self.grid.rings)[correct.argmin(1)]
        first_ring[fits] = np.where(correct.all(1), np.nan, first_wrong)
        worst = column(rows, self._of("worst_margin"))
        return {
            "has a bitmap of another grid": searched & ~fits,
            "has a bitmap that contradicts its broken radius": searched
            & fits
            & ~np.isclose(first_ring, broken, equal_nan=True),
            "has a worst margin that contradicts its broken radius": searched
            & (worst != 0)
            & ((worst < 0) == np.isnan(broken)),
        }


def _detail(mode: Mode) -> int:
    """How much a search says: some offsets, the first failure, or every offset."""
    return 2 if mode.full else int(mode.samples is None)


METRICS.register(FAMILY, Adversarial)
