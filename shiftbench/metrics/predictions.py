"""Predictions: batches of views at chosen offsets go through a model, and logits are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.errors import DataError, ModelError, UsageError, no_images
from shiftbench.grid import Offset
from shiftbench.shifts.base import Views

Model = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> logits (B, classes)

# Below this difference between the two largest logits, rounding decides which class wins.
TIE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Predictions:
    """The logits of a batch."""

    logits: Tensor  # (B, classes), float32 or float64, on the CPU
    rounding: float = 0.0  # relative error of a logit in the model's arithmetic, beyond float32's

    def take(self, rows: NDArray[np.int64]) -> Predictions:
        """The predictions of some of the images."""
        return replace(self, logits=self.logits[torch.from_numpy(rows)])

    @property
    def prediction(self) -> NDArray[np.int64]:
        """The class with the largest logit, (B,)."""
        return self.logits.argmax(1).numpy()

    @property
    def near_tie(self) -> NDArray[np.bool_]:
        """Whether rounding may have decided which class won, (B,)."""
        best = self.logits.topk(2, dim=1).values  # (B, 2)
        bound = (self.rounding * self.logits.abs().amax(1)).clamp(min=TIE_TOLERANCE)
        return (best[:, 0] - best[:, 1] < bound).numpy()

    def logit_margin(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """The logit of the label minus the best other logit, (B,); positive when right."""
        check_labels(labels, self.logits.shape[1])
        index = torch.from_numpy(labels)[:, None]
        own = self.logits.gather(1, index)[:, 0]
        other = self.logits.scatter(1, index, -torch.inf).amax(1)
        return (own - other).double().numpy()

    def probability(self, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """The softmax probability of one chosen class per image, (B,)."""
        chosen = self.logits.double().softmax(1).gather(1, torch.from_numpy(classes)[:, None])
        return chosen[:, 0].numpy()


# Not inference_mode: a model may keep tensors it makes here (say, a table of positions), and those
# must stay usable for training afterwards.
@torch.no_grad()
def predict(model: Model, images: Tensor) -> Predictions:
    """Runs the model on a batch and checks that it answered with finite rows of logits."""
    output: object = model(images)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"expected the model to return a tensor of logits, got {type(output).__name__}. "
            "Wrap it in a function that returns the logits alone, such as "
            "lambda x: model(x).logits"
        )
    if output.ndim != 2 or len(output) != len(images) or output.shape[1] < 2:
        raise ModelError(
            f"expected logits of shape ({len(images)}, classes) with at least 2 classes, got "
            f"{tuple(output.shape)}. The model must return one row of class scores per image"
        )
    logits = output.detach().to("cpu", torch.promote_types(output.dtype, torch.float32))
    finite = logits.isfinite().all(1)
    if not finite.all():
        bad = int((~finite).sum())
        raise ModelError(
            f"expected finite logits, got NaN or infinity for {bad} of {len(images)} images in a "
            "batch. Check the weights and the images, or use a higher precision"
        )
    return Predictions(logits, max(getattr(model, "rounding", 0.0), _rounding(output.dtype)))


def _rounding(dtype: torch.dtype) -> float:
    """The relative error of one rounding to a format shorter than float32; 0 for the others."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point and dtype.itemsize < 4 else 0.0


def assemble(views: Views, offsets: Sequence[Offset], rows: Sequence[int]) -> Tensor:
    """One batch in which image `rows[i]` is seen at `offsets[i]`, neighbors at a time."""
    groups = []
    start = 0
    for offset, same in groupby(offsets):
        stop = start + len(list(same))
        groups.append(views(offset, torch.tensor(rows[start:stop], dtype=torch.long)))
        start = stop
    return groups[0] if len(groups) == 1 else torch.cat(groups)


def predict_at(
    model: Model,
    views: Views,
    offsets: Sequence[Offset],
    *,
    batch_size: int,
    rows: Sequence[int] | None = None,
) -> Predictions:
    """What the model says about images `rows`, by default all, the i-th seen at `offsets[i]`."""
    images = range(len(offsets)) if rows is None else rows
    parts = [
        predict(model, assemble(views, offsets[i : i + batch_size], images[i : i + batch_size]))
        for i in range(0, len(offsets), batch_size)
    ]
    if not parts:
        raise no_images()
    return replace(parts[0], logits=torch.cat([part.logits for part in parts]))


class SeenInputs:
    """Logits by what the network itself sees of an image: equal inputs are predicted once.

    A model may have `network_input`, the images that reach its network, which some networks choose
    by the content: then many views of an image are the same to them.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._network_input = getattr(model, "network_input", None)
        self._logits: dict[tuple[int, bytes], Tensor] = {}
        self._rounding = 0.0

    def remember(self, rows: NDArray[np.int64], images: Tensor, predictions: Predictions) -> None:
        """Notes the logits of images `rows`, seen as `images`."""
        if self._network_input is not None:
            self._logits |= zip(self._names(rows, images), predictions.logits, strict=True)
            self._rounding = predictions.rounding

    def predict(
        self, rows: NDArray[np.int64], images: Tensor
    ) -> tuple[Predictions, NDArray[np.bool_]]:
        """The predictions of images `rows`, seen as `images`; and which of them are new."""
        if self._network_input is None:
            return predict(self._model, images), np.ones(len(rows), dtype=bool)
        names = self._names(rows, images)
        new = np.array([name not in self._logits for name in names])
        if new.any():
            chosen = torch.from_numpy(np.flatnonzero(new)).to(images.device)
            predictions = predict(self._model, images[chosen])
            self._rounding = predictions.rounding
            fresh = [name for name, is_new in zip(names, new, strict=True) if is_new]
            self._logits |= zip(fresh, predictions.logits, strict=True)
        logits = torch.stack([self._logits[name] for name in names])
        return Predictions(logits, self._rounding), new

    def _names(self, rows: NDArray[np.int64], images: Tensor) -> list[tuple[int, bytes]]:
        assert self._network_input is not None
        with torch.no_grad():
            seen = self._network_input(images).cpu().contiguous()
        digests = (hashlib.blake2b(image.numpy(), digest_size=16).digest() for image in seen)
        return list(zip(rows.tolist(), digests, strict=True))


def check_batch_size(batch_size: int) -> None:
    """Refuses a batch size below one."""
    if batch_size < 1:
        raise UsageError(f"expected a batch size of 1 or more, got {batch_size}")


def check_labels(labels: NDArray[np.int64], classes: int) -> None:
    """Refuses labels that the model has no class for."""
    if len(labels) and labels.min() < 0:
        raise DataError(
            f"expected labels of 0 or more, got {labels.min()}. Number the classes from 0"
        )
    if len(labels) and labels.max() >= classes:
        raise ModelError(
            f"the model knows {classes} classes, so labels must lie in 0..{classes - 1}, but "
            f"label {labels.max()} occurs. Use a model trained on the classes of these images"
        )
