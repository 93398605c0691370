"""`yolo:PATH`: image files in `images/`, and a text file of objects for each in `labels/`.

A line is `class cx cy w h`, in fractions of the image. Class names are read from the key `names` of
`data.yaml` or `dataset.yaml`; without them classes are the indices of the model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shiftbench.data.annotated import (
    BoxSet,
    beside,
    checked_boxes,
    names_in,
    object_digests,
    require_folder,
)
from shiftbench.data.base import ALL, DATA_SOURCES, DataRequest, DataSource, set_name
from shiftbench.errors import DataError, reason


def load_yolo(request: DataRequest) -> BoxSet:
    """Read the label files of a folder; an image without a label file has no objects."""
    folder = require_folder(request, "yolo")
    images, labels, names = beside(folder, "labels", request.split)
    read = [_read(labels / f"{Path(name).stem}.txt") for name in names]
    classes = [classes for classes, _ in read]
    count = 1 + max((int(own.max()) for own in classes if len(own)), default=0)
    class_names, named = names_in(folder, "data*.yaml", count)
    return BoxSet(
        set_name(folder.resolve().name),
        request.split or ALL,
        names,
        object_digests([boxes for _, boxes in read], classes),
        class_names,
        images,
        names,
        by_order=named,
        lookup=np.arange(len(class_names)),
        boxes=[boxes for _, boxes in read],
        classes=classes,
    )


def _read(file: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Read the classes and boxes of a label file, in fractions of the image."""
    if not file.is_file():
        return np.empty(0, np.int64), np.empty((0, 4))
    try:
        rows = np.array(
            [
                [float(word) for word in line.split()[:5]]
                for line in file.read_text("utf-8").splitlines()
            ]
        ).reshape(-1, 5)
    except (OSError, ValueError) as error:
        raise DataError(
            f"expected lines `class cx cy w h` in {file}, got {reason(error)}. Correct the file"
        ) from error
    classes, center, size = rows[:, 0], rows[:, 1:3], rows[:, 3:5]
    if len(rows) and ((classes < 0) | (classes % 1 != 0)).any():
        raise DataError(f"expected class indices from 0 in {file}, got {classes.min():g}")
    boxes = np.concatenate([center - size / 2, center + size / 2], 1)
    return classes.astype(np.int64), checked_boxes(boxes, str(file))


DATA_SOURCES.register(
    "yolo", DataSource("yolo:PATH, images/ and labels/ with lines `class cx cy w h`", load_yolo)
)
