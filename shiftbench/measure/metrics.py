"""What is measured on a shard of images: a row per image from each task, and its score so far.

A new metric is a new task: `name`, `measure`, `score`; the runner saves, resumes and distributes
its rows like any other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.grid import Grid, Offset
from shiftbench.measure.answers import Answers, ask_unshifted
from shiftbench.measure.attacks import Attack
from shiftbench.measure.consistency import ConsistencyKind, consistency
from shiftbench.measure.search import adversarial_accuracy, search
from shiftbench.run.engine import Engine
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score, wilson

UNSHIFTED = "unshifted"  # the task whose rows hold key, label and prediction


@dataclass(frozen=True)
class Shard:
    """Some images on the device, with the answers at (0, 0), ready for every task."""

    canvas: Tensor  # (B, C, S + 2 margin, S + 2 margin), normalised
    margin: int
    images: NDArray[np.int64]  # their numbers in the data set
    keys: Sequence[str]
    labels: NDArray[np.int64]
    unshifted: Answers
    camera: Callable[[], Views] | None = None  # renders again from moved cameras
    _views: dict[str, Views] = field(default_factory=dict)

    def views(self, shift: str) -> Views:
        """The images prepared by a kind of shift, once for all tasks that use it."""
        if shift not in self._views:
            if shift == "camera":
                assert self.camera is not None
                self._views[shift] = self.camera()
            else:
                self._views[shift] = SHIFTS.get(shift).views(self.canvas, self.margin)
        return self._views[shift]

    def take(self, rows: Sequence[int]) -> Shard:
        """Some of the images."""
        chosen = torch.tensor(rows)
        camera = self.camera
        return Shard(
            canvas=self.canvas[chosen.to(self.canvas.device)],
            margin=self.margin,
            images=self.images[rows],
            keys=[self.keys[row] for row in rows],
            labels=self.labels[rows],
            unshifted=replace(self.unshifted, logits=self.unshifted.logits[chosen]),
            camera=camera and (lambda: _SomeViews(camera(), chosen)),
        )

    @classmethod
    def ask(
        cls,
        engine: Engine,
        canvas: Tensor,
        margin: int,
        images: NDArray[np.int64],
        keys: Sequence[str],
        labels: NDArray[np.int64],
        camera: Callable[[], Views] | None = None,
    ) -> Shard:
        """Asks the model about the unshifted images: every task starts from these answers."""
        views = SHIFTS.get("crop").views(canvas, margin)
        answers = ask_unshifted(engine, views, len(keys), batch_size=engine.batch_size)
        return cls(canvas, margin, images, keys, labels, answers, camera)


@dataclass(frozen=True)
class _SomeViews:
    views: Views
    chosen: Tensor

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        return self.views(offset, self.chosen if rows is None else self.chosen[rows])


class Task(Protocol):
    """A measurement that yields a row per image."""

    @property
    def name(self) -> str:
        """Names the folder of its parts."""
        ...

    def measure(self, engine: Engine, shard: Shard) -> pd.DataFrame:
        """Returns a row per image: its own columns, and `near_tie` and `passes`."""
        ...

    def score(self, rows: pd.DataFrame) -> Score:
        """The score of the images measured so far."""
        ...


@dataclass(frozen=True)
class UnshiftedTask:
    """The answers at (0, 0)."""

    name: str = UNSHIFTED

    def measure(self, engine: Engine, shard: Shard) -> pd.DataFrame:
        """Takes the answers the shard has already."""
        return pd.DataFrame(
            {
                "key": list(shard.keys),
                "label": shard.labels,
                "prediction": shard.unshifted.prediction,
                "margin": shard.unshifted.margin(shard.labels),
                "near_tie": shard.unshifted.near_tie,
                "passes": 1,
            }
        )

    def score(self, rows: pd.DataFrame) -> Score:
        """Accuracy."""
        return wilson(int((rows["label"] == rows["prediction"]).sum()), len(rows))


@dataclass(frozen=True)
class AttackTask:
    """The worst case over a grid."""

    attack: Attack
    grid: Grid
    mode: str
    seed: int

    @property
    def name(self) -> str:
        """The attack's name."""
        return self.attack.name

    def measure(self, engine: Engine, shard: Shard) -> pd.DataFrame:
        """Searches; with a full grid, keeps every image's outcomes as a bitmap."""
        trace = search(
            engine,
            shard.views(self.attack.shift),
            shard.labels,
            self.grid,
            batch_size=engine.batch_size,
            mode=self.mode,
            unshifted=shard.unshifted,
            keys=shard.keys,
            seed=self.seed,
        )
        rows = trace.to_frame(self.name).assign(near_tie=trace.near_tie, passes=trace.passes)
        if trace.correct is not None:
            rows[f"{self.name}_bitmap"] = [row.tobytes() for row in np.packbits(trace.correct, 1)]
        return rows

    def score(self, rows: pd.DataFrame) -> Score:
        """Adversarial accuracy over the whole grid."""
        return adversarial_accuracy(rows[f"{self.name}_broken_radius"], self.grid.radius)


@dataclass(frozen=True)
class ConsistencyTask:
    """Agreement under random shifts."""

    kind: ConsistencyKind
    span: int
    repeats: int
    seed: int

    @property
    def name(self) -> str:
        """The kind's name, kept apart from the attack's."""
        return f"consistency_{self.kind.name}"

    def measure(self, engine: Engine, shard: Shard) -> pd.DataFrame:
        """Draws and compares."""
        found = consistency(
            engine,
            shard.views(self.kind.shift),
            shard.keys,
            self.kind,
            span=self.span,
            batch_size=engine.batch_size,
            repeats=self.repeats,
            seed=self.seed,
            unshifted=shard.unshifted,
        )
        return pd.DataFrame(
            {
                f"consistent_{self.kind.name}": found.consistent.all(1),
                f"agreed_{self.kind.name}": found.consistent.sum(1),  # of `repeats` draws
                f"change_{self.kind.name}": found.change.mean(1),
                "near_tie": found.near_tie,
                "passes": found.forward_passes // len(shard.keys),
            }
        )

    def score(self, rows: pd.DataFrame) -> Score:
        """The fraction of draws that agree."""
        return wilson(int(rows[f"agreed_{self.kind.name}"].sum()), len(rows) * self.repeats)

    def mean_change(self, rows: pd.DataFrame) -> float:
        """The mean absolute change of the first class's probability."""
        return float(rows[f"change_{self.kind.name}"].mean())


def offset_counts(bitmaps: pd.Series, offsets: int) -> NDArray[np.int64]:
    """How many images are right at each offset, from the bitmaps of a full grid."""
    packed = np.frombuffer(b"".join(bitmaps), dtype=np.uint8).reshape(len(bitmaps), -1)
    counts: NDArray[np.int64] = np.unpackbits(packed, axis=1, count=offsets).sum(0, dtype=np.int64)
    return counts
