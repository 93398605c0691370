"""Classification: the image is the row, the class with the largest logit its cell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from shiftbench.data.base import ImageSet
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.grid import Offset
from shiftbench.tables import Cells, Parts
from shiftbench.tasks.base import TASKS, TIE_TOLERANCE, Filled, Seen, Task, on_cpu, unchanged

log = logging.getLogger(__name__)

PROBED_LOGITS = 8  # logits of the fixed image that an identity contains


class Classification(Task):
    """One class per image."""

    name = "classification"
    has_parts = False

    @override
    def recognizes(self, output: Any) -> bool:
        return getattr(output, "ndim", 0) == 2

    @override
    def read(self, output: Any, images: Tensor, name: str) -> Tensor:
        return read_logits(output)

    @override
    def adapted(self, outputs: Tensor, images: Tensor, name: str) -> Callable[[Tensor], Tensor]:
        if outputs.ndim != 2 or len(outputs) != len(images) or outputs.shape[1] < 2:
            raise ModelError(
                f"{name} is not a classifier: expected logits of shape ({len(images)}, "
                f"classes) for {len(images)} images, got {tuple(outputs.shape)}"
            )
        if not _are_probabilities(outputs):
            return unchanged
        log.warning("%s returns probabilities: their logarithms are taken as logits", name)
        return _logarithms

    @override
    def checked(self, output: Any, images: Tensor, name: str) -> Tensor:
        if not isinstance(output, Tensor):
            raise ModelError(
                f"expected a tensor of logits from {name}, got {type(output).__name__}. Wrap "
                "it in a function that returns the logits alone: lambda x: model(x).logits"
            )
        if output.ndim != 2 or len(output) != len(images) or output.shape[1] < 2:
            raise ModelError(
                f"expected logits of shape ({len(images)}, classes) with at least 2 classes, got "
                f"{tuple(output.shape)}. Return one row of class scores per image"
            )
        logits = on_cpu(output)
        finite = logits.isfinite().all(1)
        if not finite.all():
            raise ModelError(
                f"expected finite logits, got NaN or infinity for {int((~finite).sum())} of "
                f"{len(images)} images in a batch. Check the weights, or use --precision fp32"
            )
        return logits

    @override
    def class_count(self, outputs: Tensor, class_names: Sequence[str]) -> int:
        return int(outputs.shape[1])

    @override
    def numbers(self, outputs: Tensor) -> list[float]:
        spread = -(-outputs.shape[1] // PROBED_LOGITS)  # classes at equal distances
        logits: list[float] = outputs[0, ::spread].float().tolist()
        return logits

    @override
    def difference(self, alone: Tensor, within: Tensor) -> tuple[float, float]:
        return float((alone - within).abs().max()), float(within.abs().max())

    @override
    def parts(self, seen: Seen, output: Tensor, offset: Offset) -> Parts:
        raise AssertionError("the image is the row")

    @override
    def cells(self, seen: Seen, output: Tensor, offset: Offset) -> Filled:
        logits = output.double()
        best = int(logits.argmax())
        return Filled(
            np.array([best]),
            np.array([float(logits.softmax(0)[best])]),
            near_ties(output[None], 0.0),
        )

    @override
    def fill(
        self,
        cells: Cells,
        at: tuple[NDArray[np.intp], NDArray[np.intp]],
        outputs: Tensor,
        seen: Sequence[Seen | None],
        references: NDArray[np.int64],
        rounding: float,
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        rows, columns = at
        check_labels(cells.labels[rows], outputs.shape[1])
        cells.classes[rows, columns] = outputs.argmax(1).numpy()
        stored = np.flatnonzero(references[columns] >= 0)
        if len(stored):
            to = rows[stored], columns[stored]
            classes = torch.from_numpy(cells.classes[to[0], references[to[1]]].astype(np.int64))
            probabilities = outputs[stored].double().softmax(1).gather(1, classes[:, None])
            cells.probabilities[to] = probabilities[:, 0].numpy()
        tied = near_ties(outputs, rounding)
        return rows[tied], columns[tied]

    @override
    def settings(self, *, labeled: bool, threshold: float) -> dict[str, Any]:
        return {}

    @override
    def require_data(self, dataset: ImageSet) -> None:
        if dataset.task != self.name:
            raise UsageError(
                f"expected a class for each image, got none in {dataset.name}. Use a folder per "
                "class, or a detector or segmenter"
            )

    @override
    def metric(self, text: str) -> str | None:
        return text

    @override
    def require_metric(self, text: str) -> None:
        name = text.partition(":")[0]
        others = [pair for task in TASKS for pair in TASKS.get(task).metrics.items()]
        if name in {own for usual, own in others if usual != own}:
            raise UsageError(
                f"metric {name!r} is of objects and pixels, and the model is a classifier. Use "
                "accuracy or an attack"
            )


def check_labels(labels: NDArray[np.int64], classes: int) -> None:
    """Raise an error if a label is not a class of the model."""
    if len(labels) and labels.min() < 0:
        raise DataError(
            f"expected labels of 0 or more, got {labels.min()}. Number the classes from 0"
        )
    if len(labels) and labels.max() >= classes:
        raise ModelError(
            f"expected labels in 0..{classes - 1} for a model of {classes} classes, got "
            f"{labels.max()}. Use a model trained on the classes of these images"
        )


def near_ties(logits: Tensor, rounding: float) -> NDArray[np.bool_]:
    """Return a mask of the rows whose class may have been decided by rounding."""
    best = logits.topk(2, dim=1).values  # (B, 2)
    bound = (rounding * logits.abs().amax(1)).clamp(min=TIE_TOLERANCE)
    return (best[:, 0] - best[:, 1] < bound).numpy()


def _logarithms(outputs: Tensor) -> Tensor:
    # Logits up to a constant per image, which neither a softmax nor a logit margin changes.
    return outputs.float().clamp_min(torch.finfo(torch.float32).tiny).log()


def _are_probabilities(outputs: Tensor) -> bool:
    """Return True if outputs (B, classes) are a softmax.

    >>> _are_probabilities(torch.tensor([[0.25, 0.75]])), _are_probabilities(torch.eye(2) * 2)
    (True, False)
    """
    total = outputs.double().sum(-1)
    return bool((outputs >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


def read_logits(output: Any) -> Tensor:
    """Return the logits in an output of a model.

    The output is a tensor or array, has the attribute `logits`, is a tuple that begins with them,
    or a dict that contains them as `logits` or as its only matrix.
    """
    if isinstance(output, Mapping) and "logits" not in output:
        matrices = {k: v for k, v in output.items() if getattr(v, "ndim", 0) == 2}
        if len(matrices) > 1:
            raise ModelError(
                f"expected logits from the model, got a dict with several candidates "
                f"({', '.join(map(str, matrices))}). Return them under the key 'logits'"
            )
        found = next(iter(matrices.values()), output)
    elif isinstance(output, Mapping):
        found = output["logits"]
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    else:
        found = getattr(output, "logits", output)
    found = torch.from_numpy(found) if isinstance(found, np.ndarray) else found
    if isinstance(found, Tensor):
        return found
    raise ModelError(
        f"expected logits of shape (batch, classes) from the model, got a "
        f"{type(output).__name__}. Return them from a FILE.py:FUNCTION"
    )


CLASSIFICATION = Classification()
TASKS.register(CLASSIFICATION.name, CLASSIFICATION)
