"""What happened to the images of a record, in few bytes: where they broke, which, and how nearly.

Whatever metric leaves columns of these names in the table of images is shown: `*_dy` and `*_dx`,
the offset that broke an image, and `margin` or `*_margin`, how far its answer was from wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import RecordError
from shiftbench.metrics.base import column
from shiftbench.records.record import KEY, MetricInfo, Record
from shiftbench.report.table import Column

CLASSES = 12  # of the table by class: those that lose the most
EXAMPLES = 5  # images named for each search
MAP_SIDE = 25  # cells of a heat map; larger grids are binned
BINS = 20  # of a histogram, about


@dataclass(frozen=True)
class _Breaks:
    """What one search did to the images."""

    title: str
    searched: NDArray[np.bool_]
    dy: NDArray[np.float64]  # the offset that broke an image, in pixels; NaN: nothing did
    dx: NDArray[np.float64]
    answer: NDArray[np.float64]  # the class predicted there; NaN: not known
    step: float
    radius: int

    @property
    def wrong_clean(self) -> NDArray[np.bool_]:
        """Images that were wrong before any shift."""
        return np.equal(self.dy, 0) & np.equal(self.dx, 0)

    @property
    def by_shift(self) -> NDArray[np.bool_]:
        """Images that a shift broke."""
        return ~np.isnan(self.dy) & ~self.wrong_clean


def describe_images(record: Record) -> dict[str, Any] | None:
    """Counts of a record's table of images; None where there is no such table."""
    loaded = ((info, info.load()) for info in record.metrics.values())
    columns = [(info, list(metric.columns)) for info, metric in loaded if metric is not None]
    endings = ("_dy", "_dx", "_prediction", "margin")
    # The first column of a metric is empty where it did not measure an image.
    shown = [n for _, names in columns for n in names if n == names[0] or n.endswith(endings)]
    try:
        samples = record.samples([KEY, "label", *shown])
    except RecordError:
        return None
    searches = [breaks for info, names in columns for breaks in _searches(info, names, samples)]
    return {
        "broken": [_where(breaks) for breaks in searches],
        "classes": _classes(samples, searches, record.data.class_name),
        "examples": [
            [b.title, _examples(samples, b, record.data.class_name)]
            for b in searches
            if b.by_shift.any()
        ],
        "histograms": [
            _histogram(name, samples)
            for name in shown
            if name.endswith("margin") and np.isfinite(column(samples, name)).any()
        ],
    }


def number(value: float) -> str:
    """A coordinate in pixels.

    >>> number(1 / 3), number(-2.0)
    ('0.33', '-2')
    """
    return f"{round(value, 2) + 0.0:g}"


def _searches(info: MetricInfo, names: Sequence[str], samples: pd.DataFrame) -> Iterator[_Breaks]:
    """What the searches of one metric did, by the columns that they left."""
    for name in [n.removesuffix("_dy") for n in names if n.endswith("_dy") and n in samples]:
        if f"{name}_dx" in samples and {"step", "radius"} <= set(info.settings):
            yield _Breaks(
                title=Column(info.scores[0]).title,
                searched=samples[names[0]].notna().to_numpy(),
                dy=column(samples, f"{name}_dy"),
                dx=column(samples, f"{name}_dx"),
                answer=column(samples, f"{name}_prediction"),
                step=float(Fraction(info.settings["step"])),
                radius=int(info.settings["radius"]),
            )


def _where(breaks: _Breaks) -> dict[str, Any]:
    """How many images each offset broke: a matrix over the grid, binned where that is large."""
    width = math.ceil((2 * breaks.radius + 1) / MAP_SIDE) | 1  # odd, so that 0 is in the middle
    most = round(breaks.radius / width)
    counts = np.zeros((2 * most + 1, 2 * most + 1), dtype=int)
    chosen = breaks.by_shift
    places = [np.rint(axis[chosen] / breaks.step / width) for axis in (breaks.dy, breaks.dx)]
    rows, columns = (np.clip(place, -most, most).astype(int) + most for place in places)
    np.add.at(counts, (rows, columns), 1)
    axis = [number(i * width * breaks.step) for i in range(-most, most + 1)]
    total, searched = int(chosen.sum()), int(breaks.searched.sum())
    caption = f"{total:,} of {searched:,} images broken by a shift"
    return {
        "title": breaks.title,
        "caption": caption,
        "label": f"Where images broke, {breaks.title}: {caption}",
        "axis": axis,
        "values": [[int(x) for x in row] for row in counts],
    }


def _classes(
    samples: pd.DataFrame, searches: Sequence[_Breaks], named: Callable[[int], str]
) -> dict[str, Any] | None:
    """The classes that lose the most images, search by search: each cell a text and a share."""
    if "label" not in samples or not any((b.by_shift | b.wrong_clean).any() for b in searches):
        return None
    labels = samples["label"].to_numpy(dtype=np.int64)
    lost = sum(breaks.by_shift.astype(int) for breaks in searches)
    total = pd.Series(lost).groupby(labels).sum()
    order = sorted(total.index, key=lambda label: (-total[label], label))
    rows = []
    for label in order[:CLASSES]:
        mine = labels == label
        cells = [_share(mine & searches[0].wrong_clean, mine & searches[0].searched)]
        cells += [_share(mine & b.by_shift, mine & b.searched) for b in searches]
        rows.append([named(int(label)), f"{mine.sum():,}", cells])
    return {
        "heads": ["class", "images", "wrong clean", *(breaks.title for breaks in searches)],
        "rows": rows,
        "more": len(order) - len(rows),
    }


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> list[Any]:
    count, of = int(part.sum()), int(whole.sum())
    return [f"{count:,}", round(count / of, 3) if of else 0, f"{count:,} of {of:,} images"]


def _examples(
    samples: pd.DataFrame, breaks: _Breaks, named: Callable[[int], str]
) -> list[list[str]]:
    """The images that the smallest shifts broke: key, class, offset, answer."""
    chosen = np.flatnonzero(breaks.by_shift)
    far = np.maximum(np.abs(breaks.dy[chosen]), np.abs(breaks.dx[chosen]))
    first = chosen[np.argsort(far, kind="stable")[:EXAMPLES]]
    keys, labels = samples[KEY], samples["label"]
    return [
        [
            str(keys.iloc[i]),
            named(int(labels.iloc[i])),
            f"dy {number(breaks.dy[i])}, dx {number(breaks.dx[i])} px",
            "" if np.isnan(breaks.answer[i]) else named(int(breaks.answer[i])),
        ]
        for i in first
    ]


def _histogram(name: str, samples: pd.DataFrame) -> dict[str, Any]:
    """Counts in bins of a round width, one edge of which is 0: left of it answers are wrong."""
    values = column(samples, name)
    values = values[np.isfinite(values)]
    low, high = min(0.0, np.quantile(values, 0.002)), max(0.0, np.quantile(values, 0.998))
    width = _round_width((high - low) / BINS)
    first, last = math.floor(low / width), max(math.ceil(high / width), math.floor(low / width) + 1)
    bins = np.clip(np.floor(values / width), first, last - 1).astype(int)  # the ends hold the tails
    counts = np.bincount(bins - first, minlength=last - first)
    below = int((values < 0).sum())
    caption = f"{below:,} of {len(values):,} below 0"
    return {
        "title": name.replace("_", " "),
        "caption": caption,
        "label": f"Histogram of {name.replace('_', ' ')}: {caption}",
        "edges": [f"{i * width:.4g}" for i in range(first, last + 1)],
        "zero": -first,
        "counts": [int(x) for x in counts],
    }


def _round_width(width: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width)) if width > 0 else 1.0
    return next(power * m for m in (1, 2, 5, 10) if power * m >= width * (1 - 1e-9))
