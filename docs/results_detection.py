"""Tables of detectors: objects that crops lose, pooled over all objects.

Scores of records are means over images. Here every object counts once, and intervals resample
images.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from records_tables import RESULTS, points, shown, table

from shiftbench.metrics.parts import Detected
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result, paired
from shiftbench.scores import ScoreName, find_score
from shiftbench.statistics import PairedComparison, compare_paired

DETECTORS = {"YOLOX-Nano": "yolox_nano", "NanoDet-m": "nanodet_m"}
PLAIN, FINER = 1, 2  # scales of the records
HALF_PIXELS = "crop[1/2]"  # label of the attack
REMEDY = "align:12"
SAMPLES = 10_000  # of the bootstrap
ROUNDING = 1e-6  # of scores in the tables
HALVES = {"first": slice(0, None, 2), "second": slice(1, None, 2)}  # of the images of a record
# Thresholds with the largest F1 on one half of the images (benchmarks/detection.py), reported on
# the other half.
CHOSEN = {
    ("YOLOX-Nano", "second"): 0.3,
    ("YOLOX-Nano", "first"): 0.25,
    ("NanoDet-m", "second"): 0.38,
    ("NanoDet-m", "first"): 0.4,
}


@cache
def records() -> dict[tuple[str, int, float], Result]:
    """Return the committed records by model, scale and score threshold."""
    return {
        (
            result.model.name.partition(" ")[0],
            result.data.geometry.get("scale", PLAIN),
            result.settings["score_threshold"],
        ): result
        for result in load_records([RESULTS / "detection"])
    }


@cache
def counts(
    result: Result, attack: str = "crop", threshold: float | None = None
) -> NDArray[np.float64]:
    """Count the objects of each image: all, and those detected at every crop up to each ring.

    Args:
        result: Record of a detector.
        attack: Label of the attack.
        threshold: Score from which a match counts, at least that of the record. Objects are matched
            at the threshold of the record.

    Returns:
        (images, 2 + radius).
    """
    request = next(
        r for r in result.requests if isinstance(r.loaded, Detected) and r.loaded.label == attack
    )
    metric, cells = request.loaded, result.cells(request)
    assert isinstance(metric, Detected)
    assert cells.images is not None
    found = cells.classes == cells.labels[:, None]
    if threshold is not None:
        assert threshold >= result.settings["score_threshold"]
        found &= cells.probabilities >= threshold - ROUNDING
    columns = [len(metric.grid.up_to(ring)) for ring in range(metric.radius + 1)]
    rows = np.stack([np.ones(len(found)), *(found[:, :c].all(1) for c in columns)], 1)
    sums = np.zeros((len(result.keys(request.images)), rows.shape[1]))
    np.add.at(sums, cells.images, rows)
    return sums


def loss(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of the detected objects that some crop loses; sums (..., columns)."""
    lost: NDArray[np.float64] = 1 - sums[..., -1] / np.maximum(sums[..., 1], 1)
    return lost


def resampled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums over images with objects, drawn with replacement: (samples, columns)."""
    sums = sums[sums[:, 0] > 0]
    drawn = np.random.default_rng(0).multinomial(len(sums), [1 / len(sums)] * len(sums), SAMPLES)
    totals: NDArray[np.float64] = drawn @ sums
    return totals


def interval(values: NDArray[np.float64]) -> str:
    """Format the central 95% of values in percent."""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def detected(sums: NDArray[np.float64]) -> str:
    """Format the fraction of objects that are detected without a shift."""
    total = sums.sum(0)
    return f"{100 * total[1] / total[0]:.1f}"


def at_every_crop(sums: NDArray[np.float64]) -> str:
    """Format the fraction of objects that are detected at every crop up to each ring."""
    total = sums.sum(0)
    return " / ".join(f"{100 * ring / total[0]:.1f}" for ring in total[2:])


def lost(sums: NDArray[np.float64]) -> str:
    """Format the fraction of the detected objects that some crop loses, with its interval."""
    return f"{100 * loss(sums.sum(0)):.1f} {interval(loss(resampled(sums)))}"


def fewer_lost(first: NDArray[np.float64], second: NDArray[np.float64]) -> str:
    """Format the loss of the second record minus that of the first, in points."""
    # The same images are drawn for both.
    samples = loss(resampled(second)) - loss(resampled(first))
    return f"{100 * (loss(second.sum(0)) - loss(first.sum(0))):+.1f} {interval(samples)}"


def numbers(sums: NDArray[np.float64]) -> str:
    """Format the numbers of objects and of the images that have some."""
    return f"{sums[:, 0].sum():.0f} ({(sums[:, 0] > 0).sum()})"


def detectors() -> str:
    """Tabulate both detectors at scale 1."""
    found = [records()[name, PLAIN, 0.3] for name in DETECTORS.values()]
    sums = [counts(one) for one in found]
    rows = [
        ["objects (images)", *map(numbers, sums)],
        ["detected without a shift", *map(detected, sums)],
        ["detected at *every* crop up to 1 / 2 / 3 px", *map(at_every_crop, sums)],
        ["of the detected ones, lost under crops up to 3 px", *map(lost, sums)],
        ["loss minus that of YOLOX-Nano, points", "", fewer_lost(*sums)],
        ["score swing, mean over images", *(_swing(one) for one in found)],
    ]
    return table(["t = 0.3", *DETECTORS], rows)


def _swing(result: Result) -> str:
    return shown(find_score(result.scores, "swing_crop@3"))


def detectors_halves() -> str:
    """Tabulate each half of the images at the threshold that was chosen on the other half."""
    rows = []
    for (title, half), t in CHOSEN.items():
        known = [
            own for name, scale, own in records() if (name, scale) == (DETECTORS[title], PLAIN)
        ]
        record = records()[DETECTORS[title], PLAIN, max(own for own in known if own <= t)]
        sums = counts(record, threshold=t)[HALVES[half]]
        row = [numbers(sums), detected(sums), at_every_crop(sums), lost(sums)]
        rows.append([f"{title}, {half} half", f"{t:g}", *row])
    header = ["t", "objects (images)", "detected", "at every crop to 1 / 2 / 3 px", "lost"]
    return table(["reported on", *header], rows)


def detectors_aligned() -> str:
    """Tabulate both detectors with and without `align` at scale 2."""
    columns, header = [], []
    for title, name in DETECTORS.items():
        pair = [records()[f"{name}{end}", FINER, 0.3] for end in ("", f"+{REMEDY}")]
        for head, one in zip((title, f"`+{REMEDY}`"), pair, strict=True):
            sums = counts(one)
            cells = [numbers(sums), detected(sums), at_every_crop(sums), lost(sums)]
            half = counts(one, HALF_PIXELS) if _has_half_pixels(one) else None
            halves = [] if half is None else [detected(half), at_every_crop(half), lost(half)]
            columns.append([*cells, *(halves or [""] * 3)])
            header.append(head)
    titles = [
        "objects (images)",
        "detected without a shift",
        "at every crop up to 1 / 2 / 3 px",
        "of the detected ones, lost",
        "half pixels up to 1 px: detected without a shift",
        "at every half-pixel crop up to 0.5 / 1 px",
        "of the detected ones, lost",
    ]
    rows = [[title, *row] for title, *row in zip(titles, *columns, strict=True)]
    return table(["t = 0.3", *header], rows)


def _has_half_pixels(result: Result) -> bool:
    return ScoreName("detected", HALF_PIXELS, 2) in result.scores


def detectors_paired() -> str:
    """Tabulate the effect of `align`, paired on the same images."""
    rows = []
    for title, name in DETECTORS.items():
        first, second = (records()[f"{name}{end}", FINER, 0.3] for end in ("", f"+{REMEDY}"))
        losses = [
            fewer_lost(counts(first, attack), counts(second, attack))
            if attack == "crop" or _has_half_pixels(second)
            else ""
            for attack in ("crop", HALF_PIXELS)
        ]
        rows.append([title, *losses, *(points(test) for test in _tests(first, second))])
    header = ["lost, 3 px", "lost, half pixels to 1 px", "`detected`", "`detected_crop@3`"]
    return table(["points", *header], rows)


def _tests(first: Result, second: Result) -> list[PairedComparison]:
    names = ScoreName("detected"), ScoreName("detected", "crop", 3)
    return [compare_paired(*paired(first, second, name)) for name in names]
