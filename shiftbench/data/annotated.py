"""Image files with labels of their objects or pixels: what `coco:`, `yolo:` and `masks:` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from typing_extensions import Self, override

from shiftbench.data.base import ALL, DataRequest, Target, content_digest, numbered
from shiftbench.data.folder import FileSet, files_in
from shiftbench.errors import DataError, UsageError, reason

BEYOND = 0.005  # fraction of the image that a box may leave it by: label files are rounded


@dataclass(frozen=True, eq=False)
class AnnotatedSet(FileSet):
    """Image files with labels of parts of each image."""

    lookup: NDArray[np.int64] = field(kw_only=True)  # class index of the model for each class

    annotated = True

    @override
    def used_classes(self) -> set[int]:
        return {int(index) for index in self.lookup if index >= 0}

    @override
    def named_classes(self) -> Sequence[str]:
        return [self.class_names[index] for index in np.flatnonzero(self.lookup >= 0).tolist()]

    @override
    def renumbered(self, indices: Mapping[str, int], class_names: Sequence[str]) -> Self:
        lookup = np.array([indices.get(name, -1) for name in self.class_names], np.int64)
        return replace(self, lookup=lookup, class_names=tuple(class_names), by_order=False)


@dataclass(frozen=True, eq=False)
class BoxSet(AnnotatedSet):
    """Image files with the boxes and classes of their objects."""

    boxes: Sequence[NDArray[np.float64]] = field(kw_only=True)  # (objects, 4), fractions: x1 ... y2
    classes: Sequence[NDArray[np.int64]] = field(kw_only=True)  # (objects,)

    task = "detection"

    @override
    def target(self, index: int) -> Target:
        width, height = self.size(index)
        boxes = self.boxes[index] * [width, height, width, height]
        return Target(boxes, self.lookup[self.classes[index]], name=self.keys[index])

    @override
    def used_classes(self) -> set[int]:
        used = np.unique(np.concatenate([*self.classes, np.empty(0, np.int64)]))
        return {int(index) for index in self.lookup[used]}


def checked_boxes(boxes: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """Return boxes (n, 4) in fractions of the image, cut to it.

    Raises:
        DataError: A box has no area, or is outside of the image.
    """
    for box in boxes:
        if not (np.isfinite(box).all() and box[2] > box[0] and box[3] > box[1]):
            raise DataError(f"expected boxes with an area in {where}, got {_text(box)}. Remove it")
        if box.min() < -BEYOND or box.max() > 1 + BEYOND:
            raise DataError(
                f"expected boxes inside the image in {where}, got {_text(box)} (fractions of the "
                "image). Correct or remove it"
            )
    return boxes.clip(0, 1)


def object_digests(
    boxes: Sequence[NDArray[np.float64]], classes: Sequence[NDArray[np.int64]]
) -> list[int]:
    """Return 15 bits per image that change with its objects: its label in the tables."""
    pairs = zip(boxes, classes, strict=True)
    return [
        content_digest(own.round(6).tobytes() + labels.tobytes()) & 0x7FFF for own, labels in pairs
    ]


def _text(box: NDArray[np.float64]) -> str:
    return f"x {box[0]:g} to {box[2]:g}, y {box[1]:g} to {box[3]:g}"


def require_folder(request: DataRequest, source: str) -> Path:
    """Return the path of a data set.

    Raises:
        UsageError: No path was given.
        DataError: There is no such file or folder.
    """
    if request.path is None:
        raise UsageError(f"data {source!r} needs a path: write it as {source}:PATH")
    if not request.path.exists():
        raise DataError(f"there is no {request.path}: check the path after {source!r}")
    return request.path


def beside(folder: Path, kind: str, split: str | None) -> tuple[Path, Path, list[str]]:
    """Find `images/` and the folder of labels beside it, and list the images.

    Args:
        folder: Contains both; each may have a folder per split.
        kind: Name of the folder of labels.
        split: Name of the split, `all` for none; None: `val`, or no split.
    """
    known = ("val", "val2017", "test", "")
    for part in ("",) if split == ALL else known if split is None else (split,):
        images, labels = folder / "images" / part, folder / kind / part
        if images.is_dir() and labels.is_dir() and (names := files_in(images)):
            return images, labels, names
    raise DataError(
        f"expected images in {folder / 'images'} and their labels in {folder / kind}, got none. "
        "Check the path, or choose a --split"
    )


def names_in(folder: Path, pattern: str, least: int) -> tuple[list[str], bool]:
    """Read class names from the key `names` or `classes` of a YAML file in a folder.

    Returns:
        Names by index, `least` or more, and True if a file contained them.
    """
    for file in sorted(folder.glob(pattern)):
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise DataError(f"cannot read {file}: {reason(error)}") from error
        found: Any = None
        if isinstance(content, Mapping):
            found = content.get("names") or content.get("classes")
        if isinstance(found, list):
            found = dict(enumerate(found))
        if isinstance(found, Mapping):
            names = numbered(max(least, 1 + max(map(int, found))))
            for index, name in found.items():
                names[int(index)] = str(name)
            return names, True
    return numbered(least), False
