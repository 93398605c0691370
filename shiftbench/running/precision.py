"""Average precision of detectors, as COCO defines it: shown beside scores, never ranked.

AP averages over objects and thresholds of the score, so an object that is lost at one offset hardly
changes it. It counts false detections, which the tables do not contain.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import View
from shiftbench.running.job import Job
from shiftbench.running.parts import PartBatch
from shiftbench.running.predict import choose_device, float32_arithmetic
from shiftbench.running.runner import (
    FULL_BATCHES,
    Execution,
    image_batch,
    load_ahead,
    make_predictor,
)
from shiftbench.shifts import ATTACKS

Labeled = tuple[NDArray[np.float64], NDArray[np.int64]]  # boxes and classes
Scored = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]  # and scores

DETECTIONS = 100  # of an image, at most
SIZES = (3, 4, 5)  # AP of small, medium and large objects among the statistics of pycocotools


def precision_by_offset(job: Job, execution: Execution) -> dict[Offset, float]:
    """Compute AP at each offset of the widest attack of a job, at all images.

    Labels are those parts of the objects that the view at the offset shows.

    Raises:
        UsageError: The job has no boxes, or the package pycocotools is not installed.
    """
    require_pycocotools()
    if not job.labeled or job.dataset.task != "detection":
        raise UsageError(
            f"average precision needs a detector and data with boxes, got {job.dataset.name}. "
            "Leave --ap out"
        )
    attacks = [r.metric for r in job.requests if isinstance(r.metric, Adversarial)]
    widest = max(attacks, key=lambda metric: metric.radius, default=None)
    views = [View("crop", Offset(0.0, 0.0))]
    if widest is not None:
        views = [View(ATTACKS.get(widest.attack).shift, offset) for offset in widest.grid]
    objects: list[list[Labeled]] = [[] for _ in views]
    found: list[list[Scored]] = [[] for _ in views]
    device = choose_device(execution.device)
    with float32_arithmetic(job.settings["precision"]):
        predictor = make_predictor(job, device, execution.batch_size)
        size, tables = FULL_BATCHES * predictor.batch_size, job.images()
        for canvases in load_ahead(job, job.keys, size, tables, workers=execution.workers):
            batch = image_batch(job, canvases, predictor)
            assert isinstance(batch, PartBatch)
            for row, column in np.ndindex(len(batch.keys), len(views)):
                view, seen = views[column], batch.seen(row)
                output, offset = batch.outputs([row], [view])[0]
                assert seen.target is not None
                boxes = seen.frame.in_view(seen.frame.resized(seen.target.boxes))
                objects[column].append((seen.frame.visible(boxes, view.offset), seen.target.labels))
                scored = output.moved(offset), output.labels.numpy(), output.scores.numpy()
                found[column].append(scored)
    return {
        view.offset: average_precision(objects[column], found[column])[0]
        for column, view in enumerate(views)
    }


def require_pycocotools() -> Any:
    """Import the evaluation of COCO.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        from pycocotools import coco, cocoeval
    except ImportError as error:
        raise UsageError(
            "average precision needs the package pycocotools: pip install 'shiftbench[coco]'"
        ) from error
    return coco.COCO, cocoeval.COCOeval


def average_precision(objects: Sequence[Labeled], found: Sequence[Scored]) -> list[float]:
    """Compute COCO's AP (IoU 0.5 to 0.95) of detections, per image.

    Returns:
        Fractions: AP of all objects, and of small, medium and large ones; -1 without such objects.

    >>> box, label = np.array([[0.0, 0.0, 9.0, 9.0]]), np.array([3])
    >>> average_precision([(box, label)], [(box, label, np.array([0.9]))])  # doctest: +SKIP
    [1.0, 1.0, -1.0, -1.0]
    """
    coco, cocoeval = require_pycocotools()
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image, (boxes, labels) in enumerate(objects, start=1):
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            if x2 > x1 and y2 > y1:  # some of the object is in the view
                entry = {"id": len(annotations) + 1, "image_id": image, "category_id": label}
                size = x2 - x1, y2 - y1
                annotations.append(
                    {**entry, "bbox": [x1, y1, *size], "area": size[0] * size[1], "iscrowd": 0}
                )
    for image, (boxes, labels, scores) in enumerate(found, start=1):
        for one in np.argsort(-scores, kind="stable")[:DETECTIONS]:
            x1, y1, x2, y2 = boxes[one].tolist()
            results.append(
                {"image_id": image, "category_id": int(labels[one]), "score": float(scores[one])}
                | {"bbox": [x1, y1, x2 - x1, y2 - y1]}
            )
    if not annotations or not results:
        return [0.0] * 4
    with redirect_stdout(io.StringIO()):  # it prints its progress
        truth = coco()
        categories = sorted({entry["category_id"] for entry in annotations})
        truth.dataset = {
            "images": [{"id": image} for image in range(1, len(objects) + 1)],
            "annotations": annotations,
            "categories": [{"id": category} for category in categories],
            "info": {},
        }
        truth.createIndex()
        known = [result for result in results if result["category_id"] in categories]
        if not known:
            return [0.0] * 4
        evaluation = cocoeval(truth, truth.loadRes(known), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(evaluation.stats[i]) for i in (0, *SIZES)]
