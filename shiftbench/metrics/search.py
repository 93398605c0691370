"""The worst case over a grid of offsets: one pass for the whole curve."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from shiftbench.errors import UsageError, no_images
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.metrics.predictions import (
    Model,
    Predictions,
    SeenInputs,
    assemble,
    check_batch_size,
    check_labels,
)
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score, mean_score

# --- randomness keyed by image: a draw depends on its key alone, never on batch, order or process


def keyed_integers(seed: int, purpose: str, key: str, count: int) -> list[int]:
    """Returns `count` uniform 64-bit integers that follow from (seed, purpose, key).

    A hash instead of a generator: its output is fixed by a standard (FIPS 202), where the streams
    of `random` and `numpy.random` may change between versions. Reducing modulo n has a bias of
    n / 2**64, far below anything that can be measured.
    """
    # The lengths keep ("a", "bc") and ("ab", "c") apart.
    text = f"{seed}:{len(purpose)}:{purpose}:{len(key)}:{key}"
    digest = hashlib.shake_128(text.encode()).digest(8 * count)
    return [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 8 * count, 8)]


def keyed_sample(seed: int, purpose: str, key: str, population: int, count: int) -> list[int]:
    """Returns `count` distinct integers of range(population), sorted, uniform over all subsets."""
    assert 0 <= count <= population
    # Floyd's algorithm: as many draws as samples, and no list of the whole population.
    chosen: set[int] = set()
    numbers = keyed_integers(seed, purpose, key, count)
    for top, number in zip(range(population - count, population), numbers, strict=True):
        candidate = number % (top + 1)
        chosen.add(top if candidate in chosen else candidate)
    return sorted(chosen)


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

    def __str__(self) -> str:
        if self.samples is not None:
            return f"sampled:{self.samples}"
        return "full_grid" if self.full else "exhaustive"

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
        drawn = [keyed_sample(seed, "search", key, others, self.samples) for key in keys]
        return np.array([[0, *(1 + i for i in indices)] for indices in drawn], dtype=np.int64)


@dataclass(frozen=True)
class Trace:
    """What a search found, image by image.

    >>> import torch
    >>> from shiftbench.shifts import SHIFTS
    >>> views = SHIFTS.get("cyclic").views(torch.rand(2, 3, 8, 8), 0)
    >>> trace = search(lambda x: x.flatten(1)[:, :2], views, [0, 0], Grid(1), batch_size=4)
    >>> trace.forward_passes <= 2 * 9
    True
    """

    broken_radius: NDArray[np.float64]  # smallest ring with a wrong answer; NaN: never wrong
    dy: NDArray[np.float64]  # the first offset with a wrong answer; NaN: never wrong
    dx: NDArray[np.float64]
    prediction: NDArray[np.float64]  # the wrong answer it got there; NaN: never wrong
    near_tie: NDArray[np.bool_]  # rounding may have decided a prediction
    passes: NDArray[np.int64]  # how often the model saw the image
    searched_radius: NDArray[np.int64]  # rings searched; -1: none
    exact: bool  # False: only some offsets were tried, so survivors are an upper bound
    correct: NDArray[np.bool_] | None = None  # (images, offsets), when the full grid was asked for
    worst_margin: NDArray[np.float64] | None = None  # smallest margin of the label over the grid

    @property
    def forward_passes(self) -> int:
        """How many images went through the model, each offset counted."""
        return int(self.passes.sum())

    def adversarial_accuracy(self, s: int) -> Score:
        """The fraction of images that are right at every offset up to ring `s`."""
        return adversarial_accuracy(self.broken_radius, s)


def survives(broken_radius: NDArray[np.float64], s: int) -> NDArray[np.bool_]:
    """Which images are right at every offset up to ring `s`; NaN: never broken.

    >>> survives(np.array([0.0, 2.0, np.nan]), 1).tolist()
    [False, True, True]
    """
    kept: NDArray[np.bool_] = ~(broken_radius <= s)
    return kept


def adversarial_accuracy(broken_radius: ArrayLike | pd.Series, s: int) -> Score:
    """The fraction of images whose smallest broken ring lies beyond `s` or does not exist.

    Args:
        broken_radius: Per image; NaN or null when no offset broke it.
        s: The largest ring, in steps of the grid. Rings the search never visited look unbroken:
            ask only up to the radius of the grid.

    >>> adversarial_accuracy([0, 2, None, None], 1).value
    0.75
    """
    radius = pd.Series(broken_radius).astype("Float64").to_numpy(np.float64, na_value=np.nan)
    if len(radius) == 0:
        raise no_images()
    return mean_score(survives(np.asarray(radius, dtype=np.float64), s))


def search(
    model: Model,
    views: Views,
    labels: ArrayLike,
    grid: Grid,
    *,
    batch_size: int,
    mode: Mode | str = "exhaustive",
    clean: Predictions | None = None,
    keys: Sequence[str] | None = None,
    seed: int = 0,
    inner: Trace | None = None,
) -> Trace:
    """Finds for each image the smallest ring of the grid that holds a wrong answer.

    Every image visits its offsets from the inside out and leaves at its first wrong answer. A
    batch takes the waiting images whose next offset comes first in the grid, so that it holds few
    distinct offsets and is full as long as `batch_size` images are left: give it several batches'
    worth. What an image visits, and so its result, does not depend on the others.

    Args:
        model: Maps images (B, C, H, W) to logits (B, classes).
        views: The images, prepared by a kind of shift.
        labels: One class index per image.
        grid: The offsets to search.
        batch_size: How many images the model sees at once.
        mode: `exhaustive`, `full_grid` or `sampled:K`.
        clean: The predictions at (0, 0) when they are known already.
        keys: A stable name per image, which random offsets follow from; by default its position.
        seed: Another seed, other random offsets.
        inner: What an exact search of smaller grids with the same step found: its rings are not
            searched again.
    """
    check_batch_size(batch_size)
    truth = np.asarray(labels, dtype=np.int64)
    count = len(truth)
    if count == 0:
        raise no_images()
    mode = mode if isinstance(mode, Mode) else Mode.parse(mode)
    # Offsets go by their index in `grid.offsets`.
    names = [str(i) for i in range(count)] if keys is None else keys
    visits = mode.visits(grid, names, seed)  # (images, visits)
    step = np.zeros(count, dtype=np.int64)  # how many visits are done
    passes = np.zeros(count, dtype=np.int64)
    first_wrong = np.full(count, -1)
    prediction = np.full(count, np.nan)  # the answer given there
    near_tie = np.zeros(count, dtype=bool)
    correct = np.zeros((count, len(grid) if mode.full else 0), dtype=bool)
    worst_margin = np.full(count, np.inf)
    if inner is not None:
        assert mode == Mode(), "other searches visit each grid anew"
        index = {offset: i for i, offset in enumerate(grid)}
        for row in np.flatnonzero(inner.searched_radius >= 0):
            step[row] = len(grid.up_to(int(inner.searched_radius[row])))
            if not np.isnan(inner.broken_radius[row]):
                first_wrong[row] = index[Offset(inner.dy[row], inner.dx[row])]
                prediction[row] = inner.prediction[row]

    def note(rows: NDArray[np.int64], indices: NDArray[np.int64], predictions: Predictions) -> None:
        """Enters the answers about images `rows`, seen at offsets `indices`."""
        check_labels(truth[rows], predictions.logits.shape[1])
        right = predictions.prediction == truth[rows]
        unbroken = first_wrong[rows] < 0
        # What follows the first wrong answer decides nothing, so its ties do not count.
        near_tie[rows] |= predictions.near_tie & unbroken
        newly = unbroken & ~right
        first_wrong[rows[newly]] = indices[newly]
        prediction[rows[newly]] = predictions.prediction[newly]
        if mode.full:
            correct[rows, indices] = right
            np.minimum.at(worst_margin, rows, predictions.logit_margin(truth[rows]))
        step[rows] += 1

    seen = SeenInputs(model)
    if clean is not None:
        new = np.flatnonzero(step == 0)
        note(new, np.zeros_like(new), clean.take(new))
        for rows in np.array_split(new, range(batch_size, len(new), batch_size)):
            seen.remember(rows, views(ORIGIN, torch.from_numpy(rows)), clean.take(rows))
    while True:
        unfinished = step < visits.shape[1]
        waiting = np.flatnonzero(unfinished & (mode.full | (first_wrong < 0)))
        if len(waiting) == 0:
            break
        upcoming = visits[waiting, step[waiting]]
        chosen = np.argsort(upcoming, kind="stable")[:batch_size]
        rows, indices = waiting[chosen], upcoming[chosen]
        images = assemble(views, [grid.offsets[i] for i in indices], rows.tolist())
        predictions, is_new = seen.predict(rows, images)
        note(rows, indices, predictions)
        passes[rows] += is_new
    broken = first_wrong >= 0
    places = np.array([(offset.dy, offset.dx) for offset in grid])[first_wrong]
    return Trace(
        broken_radius=np.where(broken, np.array(grid.rings)[first_wrong], np.nan),
        dy=np.where(broken, places[:, 0], np.nan),
        dx=np.where(broken, places[:, 1], np.nan),
        prediction=prediction,
        near_tie=near_tie,
        passes=passes,
        searched_radius=np.full(count, grid.radius),
        exact=mode.is_exact(grid),
        correct=correct if mode.full else None,
        worst_margin=worst_margin if mode.full else None,
    )
