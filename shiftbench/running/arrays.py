"""Images in memory whose rows are objects or pixels, for `shiftbench.evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shiftbench.data.base import Target, content_digest
from shiftbench.errors import DataError
from shiftbench.metrics.base import Metric
from shiftbench.models import Model
from shiftbench.running.job import class_count
from shiftbench.running.parts import PartBatch
from shiftbench.running.predict import Predictor, measure
from shiftbench.tables import DIGEST, LABEL, Tables, identifier
from shiftbench.tasks.frames import Frame

Labeled = tuple[Tensor, Target | None]  # an image (C, H, W) and the labels of its parts


def is_labeled_by_parts(labels: Any) -> bool:
    """Return True for labels of objects or pixels: dicts of boxes and labels, or masks."""
    if isinstance(labels, Mapping):
        return True
    if isinstance(labels, Sequence) and len(labels) and not isinstance(labels, str):
        return is_labeled_by_parts(labels[0])
    return getattr(labels, "ndim", 0) >= 2


def read_images(images: Any, targets: Any) -> list[Labeled]:
    """Pair images with the labels of their parts.

    Args:
        images: A tensor or array (N, C, H, W), a list of (C, H, W), or without `targets` an
            iterable of (image, target) pairs.
        targets: A dict with boxes and labels per image, or a mask (H, W) per image; None: the
            images have no labels.

    Raises:
        DataError: Images and targets do not fit.
    """
    pairs = targets is None and not isinstance(images, Tensor | np.ndarray)
    items: Iterable[Any] = list(images)
    if not pairs or not all(isinstance(item, tuple) and len(item) == 2 for item in items):
        given = [None] * len(list(items)) if targets is None else list(targets)
        if len(given) != len(list(items)):
            raise DataError(
                f"expected as many targets as images, got {len(given)} targets for "
                f"{len(list(items))} images. Check how they were paired"
            )
        items = zip(items, given, strict=True)
    return [_read(torch.as_tensor(image), target, i) for i, (image, target) in enumerate(items)]


def _read(image: Tensor, target: Any, number: int) -> Labeled:
    if image.ndim != 3 or not image.is_floating_point():
        raise DataError(
            f"expected floating-point images (C, H, W), got {image.dtype} of shape "
            f"{tuple(image.shape)}. Normalize them as the model expects"
        )
    name, (height, width) = f"image {number}", image.shape[1:]
    if target is None:
        return image, None
    if not isinstance(target, Mapping):
        mask = np.asarray(target).astype(np.int64)
        return image, Target(np.empty((0, 4)), np.empty(0, np.int64), mask, name)
    if "boxes" not in target or "labels" not in target:
        raise DataError(f"expected boxes and labels for {name}, got {', '.join(map(str, target))}")
    boxes = np.asarray(target["boxes"], np.float64).reshape(-1, 4)
    labels = np.asarray(target["labels"]).astype(np.int64)
    bad = [tuple(b) for b in boxes if b[2] <= b[0] or b[3] <= b[1]]
    bad += [tuple(b) for b in boxes if b.min() < -1 or b[2] > width + 1 or b[3] > height + 1]
    if bad or len(labels) != len(boxes):
        got = f"{bad[0]}" if bad else f"{len(boxes)} boxes and {len(labels)} labels"
        raise DataError(
            f"expected boxes (x1, y1, x2, y2) inside {name} ({width} x {height} px) and a label "
            f"each, got {got}. Correct or remove them"
        )
    return image, Target(boxes.clip(0, [width, height] * 2), labels, name=name)


def measure_arrays(
    model: Model,
    items: Sequence[Labeled],
    metrics: Sequence[Metric],
    *,
    keys: Sequence[str],
    margin: int,
    threshold: float,
    predictor: Predictor,
) -> Tables:
    """Predict the cells that metrics need of images in memory.

    The window of each image is the image less a margin on each side, without any fill.
    """
    scale, spare = model.preprocessing.scale, model.preprocessing.margin
    tables = Tables(keys)
    tables.array(LABEL, 1)[:] = 0
    for names, part in _alike(items, keys, predictor.batch_size):
        canvas = torch.stack([image for image, _ in part])
        height, width = (side // scale for side in canvas.shape[-2:])
        window = height - 2 * (margin + spare), width - 2 * (margin + spare)
        zoom = 1 / scale, 1 / scale
        frame = Frame(height, width, margin, window, zoom=zoom, spare=spare)
        digests = [content_digest(i.float().cpu().contiguous().numpy().tobytes()) for i in canvas]
        tables.array(DIGEST, 1)[tables.rows(names), 0] = digests
        batch = PartBatch(
            predictor,
            names,
            canvas.to(predictor.device),
            scale * margin,
            identifiers=[identifier(digest) for digest in digests],
            scale=scale,
            remedies=model.remedies,
            frames=[frame] * len(part),
            targets=[target for _, target in part],
            classes=class_count(model),
            threshold=threshold,
        )
        for _ in measure(batch, [(metric, range(len(names))) for metric in metrics], tables):
            pass
    return tables


def _alike(
    items: Sequence[Labeled], keys: Sequence[str], size: int
) -> Iterator[tuple[list[str], list[Labeled]]]:
    """Yield neighboring images of one size in batches, with their keys."""
    pairs = list(zip(keys, items, strict=True))
    for _, same in groupby(pairs, key=lambda pair: pair[1][0].shape):
        group = list(same)
        for start in range(0, len(group), size):
            part = group[start : start + size]
            yield [key for key, _ in part], [item for _, item in part]
