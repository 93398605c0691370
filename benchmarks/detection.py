"""Score thresholds and AP of a detector without a shift, by parts of a data set.

    python benchmarks/detection.py MODEL DATA [--max-shift 3]

For each half of the images, the threshold with the largest F1 (IoU 0.5, correct class): `shiftbench
run --score-threshold` measures the other half there, and `docs/results_detection.py` reports the
halves. AP is that of objects by their area in the file, and of random parts of the images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shiftbench.data import load_dataset
from shiftbench.metrics.base import CLEAN_VIEW
from shiftbench.models import load_model
from shiftbench.running.job import Job, Settings, make_job
from shiftbench.running.precision import Labeled, Scored, average_precision
from shiftbench.running.runner import image_batch, load_ahead, make_predictor
from shiftbench.tasks.detection import box_ious, match

THRESHOLDS = np.arange(5, 96) / 100
COCO_SHARES = (0.41, 0.34, 0.24)  # of small, medium and large objects, as commonly quoted
DRAWS = 20  # random parts of each size

Pair = tuple[Labeled, Scored]  # objects and detections of one image


def unshifted(job: Job) -> Iterator[Pair]:
    """Yield the objects and detections of each image, boxes in pixels of the file."""
    predictor = make_predictor(job, torch.device("cpu"), 8)
    for canvases in load_ahead(job, job.keys, 32, job.images(), workers=0):
        batch = image_batch(job, canvases, predictor)
        rows = range(len(batch.keys))
        for row, (output, offset) in zip(
            rows, batch.outputs(rows, [CLEAN_VIEW] * len(rows)), strict=True
        ):
            seen = batch.seen(row)
            assert seen is not None
            assert seen.target is not None
            boxes = seen.frame.from_view(output.moved(offset)) / np.tile(seen.frame.zoom[::-1], 2)
            scored = boxes, output.labels.numpy(), output.scores.numpy().astype(np.float64)
            yield (seen.target.boxes, seen.target.labels), scored


def best_threshold(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the threshold with the largest F1, and that F1."""
    correct, scores, objects = [], [], 0
    for (boxes, classes), (found, labels, values) in pairs:
        ious = box_ious(boxes, found) * (classes[:, None] == labels)
        matches = match(ious, classes, labels, values, 0.0)
        correct.append(values[matches[matches >= 0]])
        scores.append(values)
        objects += len(classes)
    right, every = np.concatenate(correct), np.concatenate(scores)
    f1 = [2 * (right >= t).sum() / ((every >= t).sum() + objects) for t in THRESHOLDS]
    best = int(np.argmax(f1))
    return float(THRESHOLDS[best]), float(f1[best])


def size_shares(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Return the fractions of small, medium and large objects."""
    areas = np.concatenate([(b[:, 2:] - b[:, :2]).prod(1) for (b, _), _ in pairs])
    sizes = np.digitize(areas, [32**2, 96**2])
    shares: NDArray[np.float64] = np.bincount(sizes, minlength=3) / len(sizes)
    return shares


def main() -> None:
    """Print thresholds and AP."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--max-shift", type=int, default=3)
    options = parser.parse_args()
    settings = Settings(attacks=("crop",), consistency=(), max_shift=options.max_shift)
    job = make_job(load_model(options.model), load_dataset(options.data), settings)
    pairs = list(unshifted(job))
    for half, own in (("first", pairs[::2]), ("second", pairs[1::2])):
        t, f1 = best_threshold(own)
        print(f"{half} half ({len(own)} images): F1 {100 * f1:.1f} at t = {t:g}")
    whole, *by_size = average_precision(*zip(*pairs, strict=True))
    shares = size_shares(pairs)
    print(f"AP {100 * whole:.1f}; small, medium, large", *(f"{100 * ap:.1f}" for ap in by_size))
    print("shares of objects", *(f"{100 * share:.0f}" for share in shares))
    for name, weights in (("the sample", shares), ("COCO", np.array(COCO_SHARES))):
        mean = float(np.average(by_size, weights=weights))
        print(f"mean AP of the sizes, weighted by the shares of {name}: {100 * mean:.1f}")
    random = np.random.default_rng(0)
    for images in (16, 32, 64, len(pairs)):
        drawn = [[pairs[i] for i in random.permutation(len(pairs))[:images]] for _ in range(DRAWS)]
        values = 100 * np.array([average_precision(*zip(*part, strict=True))[0] for part in drawn])
        print(f"AP of {images} random images: {values.mean():.1f}, sd {values.std():.1f}")


if __name__ == "__main__":
    main()
