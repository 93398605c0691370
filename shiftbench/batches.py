"""Images as people have them - a tensor, an array, a loader - as batches of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.errors import DataError, UsageError
from shiftbench.shifts.base import check_canvas

Batch = tuple[Tensor, NDArray[np.int64]]  # images (B, C, H, W) and their labels (B,)


def batches(images: Tensor | NDArray[Any] | Iterable[Any], labels: Any = None) -> Iterator[Batch]:
    """Yields checked batches from a tensor with labels, or from (image, label) pairs without."""
    if isinstance(images, Tensor | np.ndarray):
        if labels is None:
            raise UsageError("images came without labels. Pass labels, one class index per image")
        yield _batch(images, labels)
        return
    if labels is not None:
        raise UsageError(
            f"labels came with a {type(images).__name__}, which should yield (image, label) pairs "
            "itself. Leave labels out, or stack the images into one tensor"
        )
    for item in images:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"expected the loader to yield (images, labels) pairs, got {type(item).__name__}. "
                "Wrap it so that it does"
            )
        image, label = item
        if not isinstance(image, Tensor | np.ndarray):
            raise DataError(
                f"expected the loader to yield tensors, got {type(image).__name__}. Add a "
                "transform that ends in normalised tensors"
            )
        yield _batch(image, label) if image.ndim == 4 else _batch(image[None], [label])


def _batch(images: Tensor | NDArray[Any], labels: Any) -> Batch:
    tensor, classes = torch.as_tensor(images), torch.as_tensor(labels)
    if len(tensor) == 0:
        raise DataError("expected at least one image, got none. Check the path and the filters")
    check_canvas(tensor, margin=0)
    if classes.is_floating_point() or classes.is_complex() or classes.ndim != 1:
        raise DataError(
            f"expected one whole number per image as labels, got {classes.dtype} of shape "
            f"{tuple(classes.shape)}. Pass class indices"
        )
    if len(classes) != len(tensor):
        raise DataError(
            f"expected as many labels as images, got {len(classes)} labels for {len(tensor)} "
            "images. Check how they were paired"
        )
    return tensor, classes.cpu().numpy().astype(np.int64)


def shards(stream: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Joins and cuts batches into ones of nearly `size` images."""
    held: list[Batch] = []
    count = 0
    for images, labels in stream:
        for start in range(0, len(labels), size):
            piece = images[start : start + size], labels[start : start + size]
            if count + len(piece[1]) > size:
                yield _join(held)
                held, count = [], 0
            held.append(piece)
            count += len(piece[1])
    if held:
        yield _join(held)


def _join(parts: list[Batch]) -> Batch:
    shapes = {tuple(images.shape[1:]) for images, _ in parts}
    if len(shapes) > 1:
        raise DataError(
            f"expected images of one size, got {' and '.join(map(str, sorted(shapes)))}. Resize "
            "and crop them first"
        )
    if len(parts) == 1:
        return parts[0]
    return torch.cat([images for images, _ in parts]), np.concatenate([y for _, y in parts])
