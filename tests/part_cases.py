"""Images with colored objects, and oracle models of the colors: cases for tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

CLASSES = ("red", "green", "blue")
NETWORKS = Path(__file__).parent / "part_networks.py"  # the same models as a FILE.py

Box = tuple[int, int, int, int, int]  # x1, y1, x2, y2, class
SCENES: dict[str, list[Box]] = {
    "a.png": [(10, 12, 26, 30, 0), (34, 20, 52, 36, 1)],
    "b.png": [(14, 10, 30, 22, 2), (0, 30, 9, 40, 0)],  # the second is cut by the first margin
    "c.png": [(24, 14, 40, 34, 1)],
    "d.png": [],
}
HEIGHT, WIDTH = 48, 64


def pixels(boxes: list[Box]) -> np.ndarray[Any, Any]:
    """Draw boxes of pure colors on gray."""
    image = np.full((HEIGHT, WIDTH, 3), 96, np.uint8)
    for x1, y1, x2, y2, label in boxes:
        image[y1:y2, x1:x2] = 0
        image[y1:y2, x1:x2, label] = 255
    return image


def mask(boxes: list[Box]) -> np.ndarray[Any, Any]:
    """Return class indices: 0 for gray, 1 + class inside of boxes."""
    found = np.zeros((HEIGHT, WIDTH), np.uint8)
    for x1, y1, x2, y2, label in boxes:
        found[y1:y2, x1:x2] = 1 + label
    return found


def tensors() -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Return all images (N, 3, H, W) in [0, 1] and their targets."""
    images = torch.stack([torch.from_numpy(pixels(b)).permute(2, 0, 1) for b in SCENES.values()])
    targets = []
    for boxes in SCENES.values():
        table = torch.tensor(boxes, dtype=torch.float).reshape(-1, 5)
        targets.append({"boxes": table[:, :4], "labels": table[:, 4].long()})
    return images.float() / 255, targets


def masks() -> Tensor:
    """Return the masks of all images: (N, H, W)."""
    return torch.stack([torch.from_numpy(mask(boxes)).long() for boxes in SCENES.values()])


def write_images(folder: Path, *, factor: int = 1) -> Path:
    """Write the images into `images/` of a folder, each pixel `factor` times along each axis."""
    (folder / "images").mkdir(parents=True)
    for name, boxes in SCENES.items():
        repeated = pixels(boxes).repeat(factor, 0).repeat(factor, 1)
        Image.fromarray(repeated).save(folder / "images" / name)
    return folder


def write_yolo(folder: Path, *, names: bool = True, factor: int = 1) -> Path:
    """Write images and label files of YOLO."""
    write_images(folder, factor=factor)
    (folder / "labels").mkdir()
    for name, boxes in SCENES.items():
        lines = [
            f"{c} {(x1 + x2) / 2 / WIDTH} {(y1 + y2) / 2 / HEIGHT} {(x2 - x1) / WIDTH} "
            f"{(y2 - y1) / HEIGHT}"
            for x1, y1, x2, y2, c in boxes
        ]
        if lines:
            (folder / "labels" / f"{Path(name).stem}.txt").write_text("\n".join(lines) + "\n")
    if names:
        (folder / "data.yaml").write_text(f"names: {list(CLASSES)}\n")
    return folder


def coco_content() -> dict[str, Any]:
    """Return annotations in the format of COCO, with a crowd."""
    images = [
        {"id": 10 + i, "file_name": name, "width": WIDTH, "height": HEIGHT}
        for i, name in enumerate(SCENES)
    ]
    annotations = [
        {"image_id": 10 + i, "category_id": 7 * (c + 1), "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for i, boxes in enumerate(SCENES.values())
        for x1, y1, x2, y2, c in boxes
    ]
    crowd = {"image_id": 10, "category_id": 7, "bbox": [0, 0, 60, 40], "iscrowd": 1}
    categories = [{"id": 7 * (i + 1), "name": name} for i, name in enumerate(CLASSES)]
    return {"images": images, "annotations": [*annotations, crowd], "categories": categories}


def write_coco(folder: Path, content: dict[str, Any] | None = None) -> Path:
    """Write images and an annotation file of COCO."""
    write_images(folder)
    file = folder / "instances.json"
    file.write_text(json.dumps(content or coco_content()))
    return file


def write_masks(folder: Path) -> Path:
    """Write images and masks."""
    write_images(folder)
    (folder / "masks").mkdir()
    for name, boxes in SCENES.items():
        Image.fromarray(mask(boxes)).save(folder / "masks" / name)
    (folder / "classes.yaml").write_text(f"names: {['gray', *CLASSES]}\n")
    return folder


def blobs(image: Tensor, *, high: float = 0.9, low: float = 0.1) -> dict[str, Tensor]:
    """Find the rectangle of each pure color in an image (3, H, W) in [0, 1]."""
    boxes, labels = [], []
    for label in range(3):
        others = [c for c in range(3) if c != label]
        pure = (image[label] > high) & (image[others] < low).all(0)
        remaining = pure.clone()
        while remaining.any():
            y, x = remaining.nonzero()[0].tolist()
            right = x
            while right < pure.shape[1] and remaining[y, right]:
                right += 1
            bottom = y
            while bottom < pure.shape[0] and remaining[bottom, x]:
                bottom += 1
            remaining[y:bottom, x:right] = False
            boxes.append([x, y, right, bottom])
            labels.append(label)
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.long),
        "scores": torch.full((len(boxes),), 0.9),
    }


def oracle_detector(images: Tensor) -> list[dict[str, Tensor]]:
    """Return every object of images."""
    return [blobs(image) for image in images]


def soft_detector(images: Tensor) -> list[dict[str, Tensor]]:
    """Return every object of images that were resized: colors need not be pure."""
    return [blobs(image, high=0.6, low=0.35) for image in images]


def blind_detector(images: Tensor) -> list[dict[str, Tensor]]:
    """Return no object."""
    return [blobs(torch.zeros(3, 4, 4)) for _ in images]


def oracle_segmenter(images: Tensor) -> Tensor:
    """Return maps (B, 4, H, W) with the correct class of each pixel."""
    gray = (images.amax(1) - images.amin(1) < 0.5).float()
    return torch.cat([gray[:, None], images * (1 - gray[:, None])], 1)


def constant_segmenter(images: Tensor) -> Tensor:
    """Return maps of one class."""
    return (
        torch.tensor([0.0, 0.0, 0.0, 1.0])
        .view(1, 4, 1, 1)
        .expand(len(images), 4, *images.shape[2:])
    )


def oracle_classifier(images: Tensor) -> Tensor:
    """Return the color that most of an image has: a class that no shift changes."""
    return images.mean((2, 3)) * 100


def constant_classifier(images: Tensor) -> Tensor:
    """Return one class."""
    return torch.tensor([[0.0, 0.0, 1.0]]).expand(len(images), 3)


Model = Callable[[Tensor], Any]
