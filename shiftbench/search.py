"""The worst case over a grid of offsets: one pass for the whole curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from shiftbench.draws import keyed_sample
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Grid
from shiftbench.predict import Answers, Model, ask, assemble, check_batch_size, check_labels
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score, wilson


@dataclass(frozen=True)
class Mode:
    """Which offsets a search visits."""

    samples: int | None = None  # random offsets per image besides (0, 0); None: the whole grid
    full: bool = False  # go on after an image broke, to know every offset's accuracy

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Reads `exhaustive`, `full_grid` or `sampled:K`."""
        if text == "exhaustive":
            return cls()
        if text == "full_grid":
            return cls(full=True)
        name, _, count = text.partition(":")
        if name == "sampled" and count.isdecimal() and int(count) > 0:
            return cls(samples=int(count))
        raise UsageError(
            f"unknown search mode {text!r}. Known: exhaustive, full_grid, sampled:K with K random "
            "offsets per image, such as sampled:20"
        )

    def is_exact(self, grid: Grid) -> bool:
        """Whether the search sees every offset; if not, its scores are upper bounds."""
        return self.samples is None or self.samples >= len(grid) - 1

    def visits(self, grid: Grid, keys: Sequence[str], seed: int) -> NDArray[np.int64]:
        """For each image the offsets to visit, as ascending indices into `grid.offsets`.

        (0, 0) comes first, and rings never decrease, so the first failure is the smallest ring.
        """
        if self.is_exact(grid):
            return np.broadcast_to(np.arange(len(grid)), (len(keys), len(grid)))
        assert self.samples is not None
        others = len(grid) - 1
        rows = [
            [0, *(1 + i for i in keyed_sample(seed, "search", key, others, self.samples))]
            for key in keys
        ]
        return np.array(rows, dtype=np.int64).reshape(len(keys), 1 + self.samples)


@dataclass(frozen=True)
class Trace:
    """What a search found, image by image."""

    broken_radius: NDArray[np.float64]  # smallest ring with a wrong answer; NaN: never wrong
    dy: NDArray[np.float64]  # the first offset with a wrong answer; NaN: never wrong
    dx: NDArray[np.float64]
    near_tie: NDArray[np.bool_]  # rounding may have decided an answer of the model
    passes: NDArray[np.int64]  # how often the model saw the image
    exact: bool  # False: only some offsets were tried, so survivors are an upper bound
    correct: NDArray[np.bool_] | None = None  # (images, offsets), when the full grid was asked for

    @property
    def forward_passes(self) -> int:
        """How many images went through the model, each offset counted."""
        return int(self.passes.sum())

    def adversarial_accuracy(self, s: int) -> Score:
        """The fraction of images that are right at every offset up to ring `s`."""
        return adversarial_accuracy(self.broken_radius, s)

    def to_frame(self, attack: str) -> pd.DataFrame:
        """A row per image: `<attack>_broken_radius`, `<attack>_dy`, `<attack>_dx`, nullable."""
        return pd.DataFrame(
            {
                f"{attack}_broken_radius": pd.Series(self.broken_radius).astype("Int64"),
                f"{attack}_dy": pd.Series(self.dy).astype("Float64"),
                f"{attack}_dx": pd.Series(self.dx).astype("Float64"),
            }
        )

    @classmethod
    def concatenate(cls, traces: Sequence[Trace]) -> Trace:
        """The trace of several sets of images, one after the other."""
        maps = [trace.correct for trace in traces if trace.correct is not None]
        assert len(maps) in (0, len(traces))
        return cls(
            broken_radius=np.concatenate([trace.broken_radius for trace in traces]),
            dy=np.concatenate([trace.dy for trace in traces]),
            dx=np.concatenate([trace.dx for trace in traces]),
            near_tie=np.concatenate([trace.near_tie for trace in traces]),
            passes=np.concatenate([trace.passes for trace in traces]),
            exact=all(trace.exact for trace in traces),
            correct=np.concatenate(maps) if maps else None,
        )


def adversarial_accuracy(broken_radius: ArrayLike | pd.Series, s: int) -> Score:
    """The fraction of images whose smallest broken ring lies beyond `s` or does not exist.

    Args:
        broken_radius: Per image; NaN or null when no offset broke it.
        s: The largest ring, in steps of the grid. Rings the search never visited look unbroken:
            ask only up to the radius of the grid.
    """
    radius = pd.Series(broken_radius).astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    if len(radius) == 0:
        raise DataError("expected at least one image, got none. Check the path and the filters")
    return wilson(int((~(radius <= s)).sum()), len(radius))


def search(
    model: Model,
    views: Views,
    labels: ArrayLike,
    grid: Grid,
    *,
    batch_size: int,
    mode: str = "exhaustive",
    unshifted: Answers | None = None,
    keys: Sequence[str] | None = None,
    seed: int = 0,
) -> Trace:
    """Finds for each image the smallest ring of the grid that holds a wrong answer.

    Every image visits its offsets from the inside out and leaves at its first wrong answer. A
    batch takes the waiting images whose next offset comes first in the grid: all images advance
    nearly in step, a batch holds few distinct offsets, and it is full as long as `batch_size`
    images are left. Give it several batches' worth of images at a time, so that the end of the
    search, when fewer are left, weighs little. What an image visits does not depend on the others,
    so neither does its result.

    Args:
        model: Maps images (B, C, H, W) to logits (B, classes).
        views: The images, prepared by a kind of shift.
        labels: One class index per image.
        grid: The offsets to search.
        batch_size: How many images the model sees at once.
        mode: `exhaustive`; `full_grid`, which also keeps every image at every offset in
            `Trace.correct`; or `sampled:K`, which tries K random offsets per image, so that its
            adversarial accuracy is an upper bound (`Trace.exact` is False).
        unshifted: The answers at (0, 0) when they are known already: they are not asked again.
        keys: A stable name per image, which random offsets follow from; by default its position.
        seed: Another seed, other random offsets.

    Raises:
        ModelError: The model's answers are not finite logits for the classes of the labels.
        DataError: There are no images, or negative labels.
        UsageError: The mode or the batch size cannot be.
    """
    check_batch_size(batch_size)
    truth = np.asarray(labels, dtype=np.int64)
    count = len(truth)
    if count == 0:
        raise DataError("expected at least one image, got none. Check the path and the filters")
    names = [str(i) for i in range(count)] if keys is None else keys
    plan = Mode.parse(mode)
    visits = plan.visits(grid, names, seed)
    rings, offsets = np.array(grid.rings), grid.offsets

    first_wrong = np.full(count, -1)  # index into offsets
    near_tie = np.zeros(count, dtype=bool)
    correct = np.zeros((count, len(grid)), dtype=bool) if plan.full else None
    step = np.zeros(count, dtype=np.int64)  # position in visits
    waiting = np.arange(count)

    def note(rows: NDArray[np.int64], indices: NDArray[np.int64], answers: Answers) -> None:
        check_labels(truth[rows], answers.logits.shape[1])
        right = answers.prediction == truth[rows]
        near_tie[rows] |= answers.near_tie
        newly = ~right & (first_wrong[rows] < 0)
        first_wrong[rows[newly]] = indices[newly]
        if correct is not None:
            correct[rows, indices] = right
        step[rows] += 1

    def still_waiting() -> NDArray[np.int64]:
        stay = (step < visits.shape[1]) & (plan.full | (first_wrong < 0))
        return np.flatnonzero(stay)

    if unshifted is not None:
        note(waiting, visits[:, 0], unshifted)
        waiting = still_waiting()
    while len(waiting):
        upcoming = visits[waiting, step[waiting]]
        chosen = np.argsort(upcoming, kind="stable")[:batch_size]
        rows, indices = waiting[chosen], upcoming[chosen]
        images = assemble(views, [offsets[i] for i in indices], rows.tolist())
        note(rows, indices, ask(model, images))
        waiting = still_waiting()

    broken = first_wrong >= 0
    where = np.array([(offset.dy, offset.dx) for offset in offsets])[first_wrong]  # (images, 2)
    return Trace(
        broken_radius=np.where(broken, rings[first_wrong], np.nan),
        dy=np.where(broken, where[:, 0], np.nan),
        dx=np.where(broken, where[:, 1], np.nan),
        near_tie=near_tie,
        passes=step - (unshifted is not None),
        exact=plan.is_exact(grid),
        correct=correct,
    )
