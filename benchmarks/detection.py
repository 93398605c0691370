"""Objects that detectors lose under crops, pooled over all objects, from records.

    python benchmarks/detection.py RECORD... [--thresholds 0.25,0.3,0.4]

Scores of records are means over images. Here every object counts once, and intervals resample
images (10,000 times, seed 0). The scores of matches are in the tables, so other thresholds need no
forward pass; matching is that of the record's own threshold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shiftbench.metrics.parts import Detected
from shiftbench.records.folder import load_record
from shiftbench.records.result import Result, image_ids

SAMPLES = 10_000


def counts(result: Result, threshold: float | None) -> tuple[list[int], NDArray[np.float64]]:
    """Count the objects of each image: all, and those detected at every crop up to each ring.

    Returns:
        Identifiers of the images, and counts (images, 2 + radius).
    """
    request = next(r for r in result.requests if isinstance(r.loaded, Detected))
    metric, cells = request.loaded, result.cells(request)
    assert isinstance(metric, Detected)
    assert cells.images is not None
    found = cells.classes == cells.labels[:, None]
    if threshold is not None:
        missed = cells.classes == cells.classes.max()  # the class after the last
        found = (found | missed) & (cells.probabilities >= threshold)
    columns = [len(metric.grid.up_to(ring)) for ring in range(metric.radius + 1)]
    kept = np.stack([np.ones(len(found)), *(found[:, :c].all(1) for c in columns)], 1)
    images = np.unique(cells.images)
    sums = np.stack([kept[cells.images == image].sum(0) for image in images])
    ids = image_ids(result.tables)[result.tables.rows(result.keys(request.images))]
    return [int(ids[image]) for image in images], sums


def loss(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of the detected objects that some crop loses; sums (..., columns)."""
    lost: NDArray[np.float64] = 1 - sums[..., -1] / np.maximum(sums[..., 1], 1)
    return lost


def resampled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums over images drawn with replacement: (samples, columns)."""
    drawn = np.random.default_rng(0).multinomial(len(sums), [1 / len(sums)] * len(sums), SAMPLES)
    totals: NDArray[np.float64] = drawn @ sums
    return totals


def interval(values: NDArray[np.float64]) -> str:
    """Format the central 95% of values in percent."""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Print a line per record and threshold, then paired differences to the first record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--thresholds", default="")
    arguments = parser.parse_args()
    results = [load_record(path) for path in arguments.records]
    for threshold in [None, *map(float, filter(None, arguments.thresholds.split(",")))]:
        measured = [counts(result, threshold) for result in results]
        for result, (_, sums) in zip(results, measured, strict=True):
            t = threshold or result.settings["score_threshold"]
            total = sums.sum(0)
            rings = " / ".join(f"{100 * ring / total[0]:.1f}" for ring in total[1:])
            print(
                f"{result.model.name}, t {t:g}: {int(total[0])} objects of {len(sums)} images, "
                f"detected {rings}, lost {100 * loss(total):.1f} {interval(loss(resampled(sums)))}"
            )
            for half, rows in (("first", slice(0, None, 2)), ("second", slice(1, None, 2))):
                part = sums[rows].sum(0)
                print(
                    f"  {half} half: detected {100 * part[1] / part[0]:.1f}, lost "
                    f"{100 * loss(part):.1f} {interval(loss(resampled(sums[rows])))}"
                )
        ids, first = measured[0]
        for result, (others, sums) in zip(results[1:], measured[1:], strict=True):
            common = sorted(set(ids) & set(others))
            a, b = (
                np.stack([s[k.index(i)] for i in common]) for k, s in ((ids, first), (others, sums))
            )
            difference = loss(resampled(b)) - loss(resampled(a))  # the same images are drawn
            value = loss(b.sum(0)) - loss(a.sum(0))
            print(
                f"{result.model.name} minus {results[0].model.name}: lost {100 * value:+.1f} "
                f"{interval(difference)} on {len(common)} images"
            )


if __name__ == "__main__":
    main()
