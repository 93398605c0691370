"""Adversarial accuracy: right at every offset of a grid, for every attack that is registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.grid import Grid, Offset
from shiftbench.metrics.base import METRICS, NEAR_TIE, PASSES, Metric, Request, Shard, column
from shiftbench.metrics.search import Mode, Trace, search, survives
from shiftbench.scores import ScoreName
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.attacks import ATTACKS, Attack, parse_attack
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

    summary = "right at every offset of a grid: the whole curve"
    searched = True

    @classmethod
    def arguments(cls) -> Sequence[str]:
        """Every attack."""
        return ATTACKS.names()

    @classmethod
    def about(cls, argument: str) -> str:
        """What the attack does."""
        return f"right at every offset: {ATTACKS.get(argument).summary}"

    @classmethod
    def plan(cls, argument: str, request: Request) -> Adversarial:
        """The search of one attack."""
        attack = ATTACKS.get(argument)
        searched = parse_attack(f"{argument}:{request.step}" if request.step else argument)
        mode = Mode.parse(request.mode)
        seed = 0 if mode.samples is None else request.seed
        return cls(attack, searched.grid(request.max_shift), mode, seed)

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> Adversarial:
        """The search of a record; an attack that is not registered here has no shift to make."""
        name, step = str(settings["attack"]), Fraction(settings["step"])
        attack = ATTACKS.get(name) if name in ATTACKS else Attack(name, "", step, "")
        grid = replace(attack, step=step).grid(int(settings["radius"]))
        return cls(attack, grid, Mode.parse(settings["mode"]), settings.get("seed", 0))

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
        """What broke an image, and how far the search went for it."""
        return [self._of(word) for word in ("reach", *TRACE, "sampled", *FULL)]

    def _of(self, word: str) -> str:
        return f"{self.label}_{word}"

    def score_names(self) -> list[ScoreName]:
        """The whole curve; of a full grid, the smallest margin of the label over it too."""
        worst = [ScoreName(WORST, self.label)] if self.mode.full else []
        return [ScoreName(FAMILY, self.label, s) for s in range(self.grid.radius + 1)] + worst

    def margin(self) -> int:
        """What the kind of shift reads."""
        return SHIFTS.get(self.attack.shift).margin(self.grid)

    def settings(self) -> dict[str, Any]:
        """The grid and how it was searched."""
        sampled = {"seed": self.seed} if self.mode.samples is not None else {}
        return {
            "attack": self.attack.name,
            "step": str(self.grid.step),
            "radius": self.grid.radius,
            "mode": str(self.mode),
            "upper_bound": not self.mode.is_exact(self.grid),
            **sampled,
        }

    def passes(self, before: pd.DataFrame) -> int:
        """Every offset that was not visited yet; an image that breaks early needs fewer."""
        if self.mode.samples is not None:
            return len(before) * min(self.mode.samples, len(self.grid) - 1)
        visited = [len(self.grid.up_to(int(r))) if r >= 0 else 1 for r in self._resumed(before)]
        return sum(len(self.grid) - count for count in visited)

    def missing(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Images that are unbroken and not searched so far out, or were not searched like this."""
        reach, sampled = column(rows, self._of("reach")), column(rows, self._of("sampled"))
        exact = np.isnan(sampled)
        if self.mode.full:
            return ~(exact & (reach >= self.grid.radius) & self._has_bitmap(rows))
        broken = ~np.isnan(column(rows, self._of("broken_radius")))
        done = exact & ((reach >= self.grid.radius) | broken)
        if self.mode.samples is not None:
            done |= (sampled == self.mode.samples) & (reach == self.grid.radius)
        return ~done

    def complete_rows(self, rows: pd.DataFrame, asked: NDArray[np.bool_]) -> pd.DataFrame:
        """A broken image stays broken further out: its row needs no search to say so."""
        for word in ("sampled", *FULL):  # of a mode that no image was searched in
            if self._of(word) in rows and rows[self._of(word)].isna().all():
                rows = rows.drop(columns=self._of(word))
        reach, radius = self._of("reach"), self.grid.radius
        if reach not in rows or self.mode.full or self.mode.samples is not None:
            return rows
        known = rows[self._of("broken_radius")].notna() & (column(rows, reach) < radius)
        known &= np.isnan(column(rows, self._of("sampled"))) & asked
        return rows.assign(**{reach: rows[reach].mask(known, radius)})

    def measure(self, shard: Shard, before: pd.DataFrame) -> pd.DataFrame:
        """Searches; what is known of the inner rings is not searched again."""
        trace = search(
            shard.model,
            shard.views(self.attack.shift),
            shard.labels,
            self.grid,
            batch_size=shard.batch_size,
            mode=self.mode,
            unshifted=shard.unshifted,
            keys=shard.keys,
            seed=self.seed,
            inner=self._trace(before),
        )
        rows = pd.DataFrame(
            {
                self._of(word): pd.array(getattr(trace, word), dtype=nullable)
                for word, nullable in TRACE.items()
            }
        )
        rows[self._of("reach")] = pd.array([self.grid.radius] * len(rows), dtype="Int64")
        if not trace.exact:
            rows[self._of("sampled")] = pd.array([self.mode.samples] * len(rows), dtype="Int64")
        if trace.correct is not None:
            rows[self._of("bitmap")] = [row.tobytes() for row in np.packbits(trace.correct, 1)]
            rows[self._of("worst_margin")] = trace.worst_margin
        return rows.assign(**{NEAR_TIE: trace.near_tie, PASSES: trace.passes})

    def _has_bitmap(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        name = self._of("bitmap")
        return rows[name].notna().to_numpy() if name in rows else np.zeros(len(rows), dtype=bool)

    def _resumed(self, before: pd.DataFrame) -> NDArray[np.float64]:
        """How far each image was searched in a way that this search can go on from; else -1."""
        reach = column(before, self._of("reach"))
        usable = ~np.isnan(reach) & np.isnan(column(before, self._of("sampled")))
        usable &= self.mode.samples is None
        if self.mode.full:
            usable &= self._has_bitmap(before)
        return np.where(usable, np.minimum(np.nan_to_num(reach), self.grid.radius), -1)

    def _trace(self, before: pd.DataFrame) -> Trace | None:
        reach = self._resumed(before).astype(np.int64)
        if (reach < 0).all():
            return None
        correct = None
        if self.mode.full:
            correct = np.zeros((len(before), len(self.grid)), dtype=bool)
            for row, bitmap in enumerate(before[self._of("bitmap")]):
                if reach[row] >= 0:
                    seen = len(self.grid.up_to(int(reach[row])))
                    correct[row, :seen] = np.unpackbits(
                        np.frombuffer(bitmap, dtype=np.uint8), count=seen
                    )
        return Trace(
            **{word: column(before, self._of(word)) for word in TRACE},
            near_tie=np.zeros(len(before), dtype=bool),
            passes=np.zeros(len(before), dtype=np.int64),
            reach=reach,
            exact=True,
            correct=correct,
            worst_margin=column(before, self._of("worst_margin")) if self.mode.full else None,
        )

    def outcomes(self, rows: pd.DataFrame) -> dict[ScoreName, NDArray[np.float64]]:
        """For every ring, 1 where an image is right at every offset up to it."""
        reach = column(rows, self._of("reach"))
        if np.isnan(reach).all():
            return {}
        broken = column(rows, self._of("broken_radius"))
        found = {
            ScoreName(FAMILY, self.label, s): np.where(reach >= s, survives(broken, s), np.nan)
            for s in range(int(np.nanmax(reach)) + 1)
        }
        if self._of("worst_margin") in rows:
            found[ScoreName(WORST, self.label)] = column(rows, self._of("worst_margin"))
        return found

    def contradictions(self, rows: pd.DataFrame) -> list[str]:
        """Rows that no search could have left."""
        found = rows[rows[self._of("reach")].notna()]
        broken, reach = (column(found, self._of(word)) for word in ("broken_radius", "reach"))
        dy, dx = column(found, self._of("dy")), column(found, self._of("dx"))
        label, wrong_answer = column(found, "label"), column(found, self._of("prediction"))
        wrong = column(found, "prediction") != label
        ring = np.maximum(np.abs(dy), np.abs(dx)) / float(self.grid.step)
        astray = ~np.isnan(broken) & ~np.isclose(ring, broken)
        return self._named(
            found,
            {
                "is broken beyond the rings that were searched": broken > reach,
                "is wrong unshifted but not broken at ring 0, or right but so": wrong
                != (broken == 0),
                "was broken by an offset that is not on its ring": astray,
                "was broken by the right answer": wrong_answer == label,
            },
        )

    def unit(self, name: ScoreName) -> str:
        """The worst margin is a difference of logits."""
        return "logits" if name.family == WORST else FRACTION

    def as_measured(self, rows: pd.DataFrame) -> Adversarial:
        """The grid and the mode of the rows."""
        reach, sampled = column(rows, self._of("reach")), column(rows, self._of("sampled"))
        measured = ~np.isnan(reach)
        if not np.isnan(sampled).all():
            mode = Mode(samples=int(np.nanmin(sampled)))
        else:
            mode = Mode(full=bool(self._has_bitmap(rows)[measured].all()))
        return replace(self, grid=self.grid.up_to(int(np.nanmax(reach))), mode=mode)

    def conditions(self) -> dict[str, Any]:
        """Exact searches of one grid agree however they were made; sampled ones only alike."""
        if self.mode.is_exact(self.grid):
            return {"step": str(self.grid.step), "mode": "exact"}
        return {"step": str(self.grid.step), "mode": str(self.mode), "seed": self.seed}

    def offset_scores(self, rows: pd.DataFrame) -> dict[Offset, Score]:
        """The accuracy at each offset, from the bitmaps of a full grid."""
        if not self.mode.full:
            return {}
        packed = np.frombuffer(b"".join(rows[self._of("bitmap")].dropna()), dtype=np.uint8)
        size = len(self.grid)
        right = np.unpackbits(packed.reshape(-1, -(-size // 8)), axis=1, count=size)
        return {offset: mean_score(right[:, i]) for i, offset in enumerate(self.grid)}


METRICS.register(FAMILY, Adversarial)
