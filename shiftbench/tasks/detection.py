"""Detection: objects are the rows, the class of the matched detection is the cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from shiftbench.errors import ModelError
from shiftbench.grid import Offset
from shiftbench.tables import Parts
from shiftbench.tasks.base import TASKS, TIE_TOLERANCE, Filled, Seen, Task, on_cpu

FIELDS = ("boxes", "labels", "scores")
MATCH = 0.5  # smallest IoU of a match
IOU_TOLERANCE = 1e-4  # below this distance from MATCH, rounding decides whether boxes match


@dataclass(frozen=True)
class Detections:
    """Detections of one image."""

    boxes: Tensor  # (n, 4): x1, y1, x2, y2 in pixels of the model's image
    labels: Tensor  # (n,): class index
    scores: Tensor  # (n,): 0 to 1

    def moved(self, offset: Offset) -> NDArray[np.float64]:
        """Return the boxes of a view at an offset in pixels of the unshifted view."""
        boxes: NDArray[np.float64] = self.boxes.numpy() + np.array([offset.dx, offset.dy] * 2)
        return boxes


class Detection(Task):
    """Boxes with a class and a score."""

    name = "detection"
    attacks = ("crop", "integer")
    metrics = {"accuracy": "objects", "adversarial": "detected", "swing": "swing"}  # noqa: RUF012

    further_classes = 1  # "not detected"

    @override
    def settings(self, *, labeled: bool, threshold: float) -> dict[str, Any]:
        return {
            **super().settings(labeled=labeled, threshold=threshold),
            "score_threshold": threshold,
        }

    @override
    def recognizes(self, output: Any) -> bool:
        return isinstance(output, list | tuple) and all(
            isinstance(one, Mapping) and "boxes" in one for one in output
        )

    @override
    def read(self, output: Any, images: Tensor, name: str) -> list[Detections]:
        if len(output) != len(images):
            raise ModelError(
                f"expected detections of {len(images)} images from {name}, got {len(output)}. "
                "Return one dict per image"
            )
        return [_read(one, name) for one in output]

    @override
    def checked(self, output: Any, images: Tensor, name: str) -> list[Detections]:
        outputs = [
            Detections(on_cpu(one.boxes), one.labels.cpu(), on_cpu(one.scores)) for one in output
        ]
        for one in outputs:
            if not (one.boxes.isfinite().all() and one.scores.isfinite().all()):
                raise ModelError(
                    f"expected finite boxes and scores from {name}, got NaN or infinity. Check "
                    "the weights, or use --precision fp32"
                )
        return outputs

    @override
    def class_count(self, outputs: list[Detections], class_names: Sequence[str]) -> int:
        return len(class_names)

    @override
    def numbers(self, outputs: list[Detections]) -> list[float]:
        return [float(score) for score in outputs[0].scores.sort(descending=True).values[:1]]

    @override
    def difference(self, alone: list[Detections], within: list[Detections]) -> tuple[float, float]:
        a, b = (
            float(one[0].scores.max()) if len(one[0].scores) else 0.0 for one in (alone, within)
        )
        return abs(a - b), 1.0

    @override
    def parts(self, seen: Seen, output: Detections, offset: Offset) -> Parts:
        frame = seen.frame
        if seen.target is not None:
            boxes, labels = frame.resized(seen.target.boxes), seen.target.labels
        else:
            found = output.scores.numpy() >= seen.threshold
            boxes = frame.from_view(output.moved(offset)[found])
            labels = output.labels.numpy()[found].astype(np.int64)
        whole = frame.whole(frame.in_view(boxes))
        return Parts(np.arange(1, len(labels) + 1), labels, whole, boxes)

    @override
    def cells(self, seen: Seen, output: Detections, offset: Offset) -> Filled:
        assert seen.parts is not None
        objects = seen.frame.visible(seen.frame.in_view(seen.parts.boxes), offset)
        moved = output.moved(offset)
        labels, scores = output.labels.numpy(), output.scores.numpy().astype(np.float64)
        ious = box_ious(objects, moved)
        matches = match(ious, seen.parts.labels, labels, scores, seen.threshold)
        matched = matches >= 0
        classes = np.where(matched, np.append(labels, 0)[matches], seen.classes)
        found = np.where(matched, np.append(scores, 0.0)[matches], 0.0)
        classes[found < seen.threshold] = seen.classes
        near = (ious > MATCH - IOU_TOLERANCE) & (
            (np.abs(scores - seen.threshold) < TIE_TOLERANCE)
            | (np.abs(ious - MATCH) < IOU_TOLERANCE)
        )
        return Filled(classes, found, np.asarray(near.any(1)))


def _read(output: Mapping[str, Any], name: str) -> Detections:
    missing = [field for field in FIELDS if field not in output]
    if missing:
        raise ModelError(
            f"expected boxes, labels and scores from {name}, got no {missing[0]}. Return "
            '{"boxes": (n, 4), "labels": (n,), "scores": (n,)} per image'
        )
    boxes, labels, scores = (torch.as_tensor(output[field]) for field in FIELDS)
    boxes = boxes.reshape(-1, 4) if boxes.numel() == 0 else boxes
    if boxes.shape != (len(labels), 4) or scores.shape != (len(labels),):
        raise ModelError(
            f"expected boxes (n, 4), labels (n,) and scores (n,) from {name}, got "
            f"{tuple(boxes.shape)}, {tuple(labels.shape)} and {tuple(scores.shape)}"
        )
    return Detections(boxes, labels.long(), scores)


def box_ious(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the intersection over union of all pairs of boxes: (n, m)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1] - common
    ious: NDArray[np.float64] = common / np.maximum(union, 1e-12)
    return ious


def match(
    ious: NDArray[np.float64],
    objects: NDArray[np.int64],
    labels: NDArray[np.int64],
    scores: NDArray[np.float64],
    threshold: float,
) -> NDArray[np.intp]:
    """Assign detections to objects one to one, as COCO does.

    Detections choose in the order of their scores, each the free object with the largest IoU of at
    least 0.5. Detections with a score of at least `threshold` choose among objects of their class,
    then those left over among all free objects. Weaker detections choose last, among objects of
    their class.

    Args:
        ious: (objects, detections).
        objects: Class of each object.
        labels: Class of each detection.
        scores: Score of each detection.
        threshold: Score from which a detection counts.

    Returns:
        The detection of each object; -1: none.
    """
    matches = np.full(len(objects), -1, np.intp)
    order = np.argsort(-scores, kind="stable")
    strong, weak = order[scores[order] >= threshold], order[scores[order] < threshold]
    same = objects[:, None] == labels
    for chosen, allowed in ((strong, same), (strong, np.ones_like(same)), (weak, same)):
        for one in chosen:
            if one in matches:
                continue
            fit = np.where((matches < 0) & allowed[:, one], ious[:, one], 0.0)
            if len(fit) and fit.max() >= MATCH:
                matches[fit.argmax()] = one
    return matches


DETECTION = Detection()
TASKS.register(DETECTION.name, DETECTION)
