"""Agreement under random shifts: is the answer the same when the camera stands elsewhere?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.draws import keyed_integers
from shiftbench.metrics.predictions import Model, Predictions, predict_at, predict_clean
from shiftbench.registry import Registry
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score, mean_score

MAX_REACH = 32  # pixels: the random shifts of the paper


@dataclass(frozen=True)
class Pair:
    """The two places an image is seen from."""

    first: Offset
    second: Offset


@dataclass(frozen=True)
class ConsistencyKind:
    """A way to draw the two views that are compared."""

    name: str
    shift: str  # a kind registered in shiftbench.shifts
    draw: Callable[[Sequence[int], int], Pair]  # from uniform integers and the span
    from_origin: bool  # the first view is always the unshifted one
    summary: str = ""  # one line for `shiftbench list metrics`

    def span(self, view: int, canvas: int) -> int:
        """How far draws go, in pixels: the record keeps it.

        Args:
            view: Height or width of the view, whichever is smaller.
            canvas: The same of the image that the view was cut from.

        Returns:
            For cyclic kinds the largest whole shift on an axis, below half a period so that a small
            image is never shifted by all of it; for crops, the number of places on an axis.
        """
        span = min(MAX_REACH, (view - 1) // 2) if self.shift == "cyclic" else canvas - view
        if span < (1 if self.shift == "cyclic" else 2):
            raise UsageError(
                f"consistency {self.name!r} has no other place to look from: the view has {view} "
                f"pixels and the image {canvas}. Use larger images, or leave this kind out"
            )
        return span

    def margin(self, span: int) -> int:
        """How many pixels around the view the draws read."""
        return 0 if self.shift == "cyclic" else span // 2

    def pair(self, key: str, span: int, *, seed: int = 0, repeat: int = 0) -> Pair:
        """The views of one image: they follow from (seed, kind, key, repeat) alone."""
        purpose = f"consistency/{self.name}/{repeat}"
        return self.draw(keyed_integers(seed, purpose, key, 4), span)


def _draw_integer(numbers: Sequence[int], span: int) -> Pair:
    """Uniform over -span..span on each axis, (0, 0) left out."""
    side = 2 * span + 1
    index = numbers[0] % (side**2 - 1)
    index += index >= side**2 // 2  # the middle one is (0, 0)
    return Pair(ORIGIN, Offset(float(index // side - span), float(index % side - span)))


def _draw_half(numbers: Sequence[int], span: int) -> Pair:
    """Such an integer plus half a pixel on both axes."""
    whole = _draw_integer(numbers, span).second
    return Pair(ORIGIN, Offset(whole.dy + 0.5, whole.dx + 0.5))


def _draw_crop(numbers: Sequence[int], span: int) -> Pair:
    """Two independent crops, each corner uniform over 0..span-1 (Zhang 2019, section 4.2)."""
    ay, ax, by, bx = (float(number % span - span // 2) for number in numbers)
    return Pair(Offset(ay, ax), Offset(by, bx))


CONSISTENCIES: Registry[ConsistencyKind] = Registry("consistency")

for _kind in (
    ConsistencyKind("integer", "cyclic", _draw_integer, True, "cyclic, by whole pixels"),
    ConsistencyKind("half", "cyclic", _draw_half, True, "cyclic, by whole pixels and a half"),
    ConsistencyKind("crop", "crop", _draw_crop, False, "two crops of the resized image"),
):
    CONSISTENCIES.register(_kind.name, _kind)


@dataclass(frozen=True)
class Consistency:
    """What random shifts did, image by image.

    >>> agree = np.array([[True, True], [True, False]])
    >>> Consistency(agree, np.zeros((2, 2)), np.zeros(2, dtype=bool), passes=2).score.value
    0.75
    """

    consistent: NDArray[np.bool_]  # (images, draws): the same class at both views
    change: NDArray[np.float64]  # (images, draws): |change| of the first class's probability
    near_tie: NDArray[np.bool_]  # (images,): rounding may have decided an answer
    passes: int  # per image

    @property
    def score(self) -> Score:
        """The fraction of draws that agree; the interval treats images as the units."""
        return mean_score(self.consistent.mean(1))

    @property
    def mean_change(self) -> float:
        """The mean absolute change of the probability of the class predicted at the first view."""
        return float(self.change.mean())


def consistency(
    model: Model,
    views: Views,
    keys: Sequence[str],
    kind: ConsistencyKind,
    *,
    span: int,
    batch_size: int,
    repeats: int | range = 1,
    seed: int = 0,
    unshifted: Predictions | None = None,
) -> Consistency:
    """Compares the model's answers at two views of each image, whether or not they are right.

    Args:
        model: Maps images (B, C, H, W) to logits (B, classes).
        views: The images, prepared by `kind.shift`.
        keys: A stable name per image; its draws follow from it.
        kind: How the two views are drawn; an entry of `CONSISTENCIES`.
        span: How far draws go: `kind.span(...)`.
        batch_size: How many images the model sees at once.
        repeats: How many draws per image, or which: `range(3, 5)` are the fourth and the fifth.
        seed: Another seed, other draws.
        unshifted: The answers at (0, 0) when they are known already. Kinds whose first view is
            drawn as well (`crop`) do not use them.
    """
    draws = range(repeats) if isinstance(repeats, int) else repeats
    if not draws:
        raise UsageError(f"expected 1 or more repeats, got {repeats}")
    agree, change, near_tie, passes = [], [], np.zeros(len(keys), dtype=bool), 0
    if kind.from_origin and unshifted is None:
        unshifted = predict_clean(model, views, len(keys), batch_size=batch_size)
        passes += 1
    for repeat in draws:
        pairs = [kind.pair(key, span, seed=seed, repeat=repeat) for key in keys]
        if kind.from_origin:
            assert unshifted is not None
            first = unshifted
        else:
            first = predict_at(model, views, [pair.first for pair in pairs], batch_size=batch_size)
            passes += 1
        second = predict_at(model, views, [pair.second for pair in pairs], batch_size=batch_size)
        passes += 1
        predicted = first.prediction
        agree.append(second.prediction == predicted)
        change.append(np.abs(second.probability(predicted) - first.probability(predicted)))
        near_tie |= first.near_tie | second.near_tie
    return Consistency(np.stack(agree, 1), np.stack(change, 1), near_tie, passes)
