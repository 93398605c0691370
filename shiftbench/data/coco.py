"""`coco:PATH`: objects of an annotation file in the format of COCO; crowds are left out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from shiftbench.data.annotated import BoxSet, checked_boxes, object_digests, require_folder
from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource, set_name
from shiftbench.errors import DataError, reason


def load_coco(request: DataRequest) -> BoxSet:
    """Read an annotation file, or the only one in a folder or in its `annotations`."""
    path = require_folder(request, "coco")
    file = path if path.is_file() else _file(path, request.split)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        images = sorted(content["images"], key=lambda image: str(image["file_name"]))
        categories = sorted(content["categories"], key=lambda category: int(category["id"]))
        objects: dict[Any, list[Any]] = defaultdict(list)
        for one in content["annotations"]:
            if not one.get("iscrowd"):
                objects[one["image_id"]].append((one["category_id"], *map(float, one["bbox"])))
        sizes = {image["id"]: (float(image["width"]), float(image["height"])) for image in images}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"cannot read the annotations {file}: {reason(error)}. Expected images, annotations "
            "and categories in the format of COCO"
        ) from error
    numbers = {category["id"]: index for index, category in enumerate(categories)}
    boxes, classes = [], []
    for image in images:
        own, (width, height) = objects[image["id"]], sizes[image["id"]]
        strange = next((one[0] for one in own if one[0] not in numbers), None)
        if strange is not None:
            raise DataError(
                f"expected a category of {file.name} for each object, got category {strange} in "
                f"{image['file_name']}. Add it to `categories`"
            )
        corners = np.array([(x, y, x + w, y + h) for _, x, y, w, h in own], float).reshape(-1, 4)
        corners /= [width, height, width, height]
        boxes.append(checked_boxes(corners, f"{file.name} ({image['file_name']})"))
        classes.append(np.array([numbers[one[0]] for one in own], np.int64))
    names = [str(image["file_name"]) for image in images]
    root = _root(file, names)
    return BoxSet(
        set_name(path.resolve().name if path.is_dir() else file.stem),
        request.split or "val",
        names,
        object_digests(boxes, classes),
        [str(category["name"]) for category in categories],
        root,
        names,
        by_order=True,
        lookup=np.arange(len(categories)),
        boxes=boxes,
        classes=classes,
    )


def _file(folder: Path, split: str | None) -> Path:
    found = [*folder.glob("*.json"), *(folder / "annotations").glob("instances*.json")]
    fitting = [file for file in found if (split or "val") in file.stem] or found
    if len(fitting) != 1:
        raise DataError(
            f"expected one annotation file in {folder}, got {len(fitting)}. Name the file: "
            "coco:FILE.json"
        )
    return fitting[0]


def _root(file: Path, names: list[str]) -> Path:
    """Return the folder that contains the images of an annotation file."""
    parents = (file.parent, file.parent.parent)
    folders = [f for parent in parents for f in (parent, parent / "images", *parent.glob("*/"))]
    for folder in folders:
        if names and (folder / names[0]).is_file():
            return folder
    raise DataError(
        f"expected the images of {file} beside it, got none such as "
        f"{names[0] if names else 'an empty list'}. Put them into {file.parent / 'images'}"
    )


DATA_SOURCES.register(
    "coco", DataSource("coco:FILE.json, objects with boxes in the format of COCO", load_coco)
)
