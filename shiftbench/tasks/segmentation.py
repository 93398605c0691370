"""Segmentation: some pixels of an image are the rows, their classes the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from typing_extensions import override

from shiftbench.errors import DataError, ModelError
from shiftbench.grid import Offset
from shiftbench.metrics.consistency import keyed_integers
from shiftbench.tables import Parts
from shiftbench.tasks.base import TASKS, Filled, Seen, Task, on_cpu
from shiftbench.tasks.classification import check_labels, near_ties
from shiftbench.tasks.frames import Frame

PIXELS = 256  # rows of an image
PROBED = 8  # values of the first map that identify a network


class Segmentation(Task):
    """One class per pixel."""

    name = "segmentation"
    attacks = ("crop", "integer")
    metrics = {"accuracy": "pixels", "adversarial": "segmented", "swing": "swing"}  # noqa: RUF012

    @override
    def recognizes(self, output: Any) -> bool:
        return getattr(_map(output), "ndim", 0) == 4

    @override
    def read(self, output: Any, images: Tensor, name: str) -> Tensor:
        maps = torch.as_tensor(_map(output))
        if len(maps) != len(images) or maps.shape[1] < 2:
            raise ModelError(
                f"expected maps of shape ({len(images)}, classes, h, w) with at least 2 classes "
                f"from {name}, got {tuple(maps.shape)}"
            )
        return maps

    @override
    def checked(self, output: Any, images: Tensor, name: str) -> Tensor:
        maps = on_cpu(output)
        if not maps.isfinite().all():
            raise ModelError(
                f"expected finite maps from {name}, got NaN or infinity. Check the weights, or "
                "use --precision fp32"
            )
        return maps

    @override
    def class_count(self, outputs: Tensor, class_names: Sequence[str]) -> int:
        return int(outputs.shape[1])

    @override
    def numbers(self, outputs: Tensor) -> list[float]:
        values = on_cpu(outputs[0]).flatten()
        picked: list[float] = values[:: -(-len(values) // PROBED)].tolist()
        return picked

    @override
    def difference(self, alone: Tensor, within: Tensor) -> tuple[float, float]:
        return float((alone - within).abs().max()), float(within.abs().max())

    @override
    def parts(self, seen: Seen, output: Tensor, offset: Offset) -> Parts:
        frame = seen.frame
        edge = frame.border + frame.margin  # pixels that some view does not contain
        rows, columns = np.mgrid[edge : frame.height - edge, edge : frame.width - edge]
        if seen.target is None:
            known = np.arange(rows.size)
        else:
            mask = _resized(seen, rows, columns)
            known = np.flatnonzero(mask >= 0)
        chosen = known[_draw(seen.key, len(known))]
        y, x = rows.flat[chosen], columns.flat[chosen]
        boxes = np.stack([x, y, x + 1, y + 1], 1).astype(np.float32)
        if seen.target is None:
            labels = _values(output, frame, boxes, offset).argmax(1).numpy()
        else:
            labels = mask.flat[chosen]
        whole = np.full(len(chosen), frame.margin)
        return Parts(np.arange(1, len(chosen) + 1), labels.astype(np.int64), whole, boxes)

    @override
    def cells(self, seen: Seen, output: Tensor, offset: Offset) -> Filled:
        assert seen.parts is not None
        logits = _values(output, seen.frame, seen.parts.boxes, offset).double()
        check_labels(seen.parts.labels, logits.shape[1])
        labels = torch.from_numpy(seen.parts.labels)[:, None]
        scores = logits.softmax(1).gather(1, labels)[:, 0]
        return Filled(logits.argmax(1).numpy(), scores.numpy(), near_ties(logits, 0.0))


def _map(output: Any) -> Any:
    """Return the map in an output of a network: itself, `out` of a dict, or `logits`."""
    if isinstance(output, Mapping):
        return output.get("out", output.get("logits"))
    return getattr(output, "logits", output)


def _resized(seen: Seen, rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.int64]:
    """Return the classes of pixels of the resized image, each of the nearest pixel of the mask."""
    assert seen.target is not None
    mask, (zy, zx) = seen.target.mask, seen.frame.zoom
    assert mask is not None
    size = round(seen.frame.height / zy), round(seen.frame.width / zx)
    if mask.shape != size:
        raise DataError(
            f"expected a mask of {size[1]} x {size[0]} pixels for {seen.target.name}, got "
            f"{mask.shape[1]} x {mask.shape[0]}. Save it in the size of the image"
        )
    image = Image.fromarray(mask.astype(np.int32))
    resized = image.resize((seen.frame.width, seen.frame.height), Image.Resampling.NEAREST)
    nearest: NDArray[np.int64] = np.asarray(resized).astype(np.int64)[rows, columns]
    return nearest


def _draw(key: str, count: int) -> NDArray[np.intp]:
    """Draw distinct numbers below `count`, which follow from the key; all of them if few."""
    number = min(PIXELS, count)
    moved: dict[int, int] = {}  # the first places of a shuffled list, others are unchanged
    for place, drawn in enumerate(keyed_integers(0, "pixels", key, number)):
        other = place + drawn % (count - place)
        moved[place], moved[other] = moved.get(other, other), moved.get(place, place)
    return np.array([moved[place] for place in range(number)], dtype=np.intp)


def _values(maps: Tensor, frame: Frame, boxes: NDArray[Any], offset: Offset) -> Tensor:
    """Interpolate a map (classes, h, w) at pixels of an image: (pixels, classes)."""
    view = frame.in_view(boxes)
    centers = (view[:, :2] + view[:, 2:]) / 2 - [offset.dx, offset.dy]  # x, y
    height, width = frame.view
    points = torch.from_numpy(2 * centers / [width, height] - 1).to(maps)
    sampled = F.grid_sample(
        maps[None], points[None, None], padding_mode="border", align_corners=False
    )
    return sampled[0, :, 0].T


SEGMENTATION = Segmentation()
TASKS.register(SEGMENTATION.name, SEGMENTATION)
