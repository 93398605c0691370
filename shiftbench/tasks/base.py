"""Base class of all tasks: the rows of an image, and the class of a row at an offset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.data.base import ImageSet, Target
from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.registry import Registry
from shiftbench.tables import Cells, Parts
from shiftbench.tasks.frames import Frame

# Below this difference of two scores, rounding decides; for shorter formats, below this fraction.
TIE_TOLERANCE = 1e-5
ROUNDING = {"fp32": 0.0, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True)
class Seen:
    """An image, as far as its rows and cells depend on it."""

    key: str  # identifier from which random choices follow
    frame: Frame  # position of the image within the view
    target: Target | None = None  # labels of the data; None: there are none
    parts: Parts | None = None  # rows of the table; None: not made yet
    classes: int = 0  # of the model
    threshold: float = 0.0  # score from which a detection counts


@dataclass(frozen=True)
class Filled:
    """Classes and scores of the rows of one image at one offset."""

    classes: NDArray[np.int64]  # (rows,)
    scores: NDArray[np.float64]  # (rows,)
    ties: NDArray[np.bool_]  # (rows,): True if rounding may have decided the class


class Task(ABC):
    """The rows of an image, and the class of a row at an offset.

    A model belongs to the task that recognizes its output. Tables, metrics, tests and reports do
    not depend on the task.
    """

    name: str
    attacks: tuple[str, ...] | None = None  # attacks that move labels exactly; None: all attacks
    metrics: Mapping[str, str] = {}  # metrics, by the names that they have for classification
    has_parts = True  # rows are parts of images, which the first pass adds to the tables
    further_classes = 0  # classes of cells after those of the model

    @abstractmethod
    def recognizes(self, output: Any) -> bool:
        """Return True if a network with this output belongs to the task."""

    @abstractmethod
    def read(self, output: Any, images: Tensor, name: str) -> Any:
        """Convert the output of a network for images (B, C, H, W) to that of the task.

        Raises:
            ModelError: The output does not fit the images; `name` is that of the model.
        """

    def adapted(self, outputs: Any, images: Tensor, name: str) -> Callable[[Any], Any]:
        """Return a function that is applied to all outputs, chosen by the first ones.

        Raises:
            ModelError: The first outputs are not those of the task.
        """
        return unchanged

    @abstractmethod
    def checked(self, output: Any, images: Tensor, name: str) -> Any:
        """Return the output of a model on the CPU, one entry per image.

        Raises:
            ModelError: The output is not finite, or not that of the task.
        """

    @abstractmethod
    def class_count(self, outputs: Any, class_names: Sequence[str]) -> int:
        """Return the number of classes of a model; 0: unknown."""

    @abstractmethod
    def numbers(self, outputs: Any) -> list[float]:
        """Return some numbers of the first output, which identify a network."""

    @abstractmethod
    def difference(self, alone: Any, within: Any) -> tuple[float, float]:
        """Return the difference of two outputs of one image, and the size of the outputs."""

    @abstractmethod
    def parts(self, seen: Seen, output: Any, offset: Offset) -> Parts:
        """Return the rows of an image; they depend on the unshifted output only without labels.

        `offset` moves the output back, which a remedy may have moved.
        """

    @abstractmethod
    def cells(self, seen: Seen, output: Any, offset: Offset) -> Filled:
        """Return the class of every part of an image, from the output for its view at an offset."""

    def fill(
        self,
        cells: Cells,
        at: tuple[NDArray[np.intp], NDArray[np.intp]],
        outputs: Any,
        seen: Sequence[Seen | None],
        references: NDArray[np.int64],
        rounding: float,
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Store the predictions of a batch in the cells of all rows of its images.

        Args:
            cells: Rows of all images; filled in place.
            at: Indices of images and columns, one each per view of the batch.
            outputs: Output of each view; where rows are parts, with the offset that moves it back.
            seen: Image of each view.
            references: Column of the reference class of each column; -1: none.
            rounding: Relative precision of the outputs.

        Returns:
            Rows and columns of near ties.
        """
        assert cells.images is not None
        rows, columns = [], []
        order = np.argsort(cells.images, kind="stable")
        starts = np.searchsorted(cells.images[order], np.arange(cells.images.max(initial=-1) + 2))
        for image, column, (output, offset), one in zip(*at, outputs, seen, strict=True):
            assert one is not None
            own = order[starts[image] : starts[image + 1]]
            found = self.cells(one, output, offset)
            cells.classes[own, column] = found.classes
            cells.probabilities[own, column] = found.scores
            rows += own[found.ties].tolist()
            columns += [column] * int(found.ties.sum())
        return np.array(rows, np.intp), np.array(columns, np.intp)

    def settings(self, *, labeled: bool, threshold: float) -> dict[str, Any]:
        """Return what predictions depend on besides the settings of every task."""
        return {"task": self.name, "labels": "data" if labeled else "model"}

    def require_data(self, dataset: ImageSet) -> None:
        """Raise an error if a data set has labels of parts of images for another task."""
        if dataset.annotated and dataset.task != self.name:
            raise UsageError(
                f"expected data for {self.name}, got labels for {dataset.task} in {dataset.name}. "
                "Choose another --data, or a folder of images without labels"
            )

    def metric(self, text: str) -> str | None:
        """Translate a metric of `Settings`; None if the task leaves it out.

        Raises:
            UsageError: The attack moves labels by fractions of a pixel, or not exactly.
        """
        name, colon, argument = text.partition(":")
        if name not in self.metrics:
            return None
        attack = argument.partition(":")[0]
        if colon and self.attacks is not None and attack not in self.attacks:
            raise UsageError(
                f"expected an attack that moves {self.name} labels by integer shifts "
                f"({' or '.join(self.attacks)}), got {attack!r}. Use --attack {self.attacks[0]}"
            )
        return f"{self.metrics[name]}{colon}{argument}"

    def require_metric(self, text: str) -> None:
        """Raise UsageError for a metric that is not defined for the task."""
        name = text.partition(":")[0]
        if self.attacks is not None and name not in (*self.metrics, *self.metrics.values()):
            raise UsageError(
                f"metric {name!r} is not defined for {self.name}. Use "
                f"{', '.join(sorted({*self.metrics.values()}))}"
            )


TASKS: Registry[Task] = Registry("task")


def task_of(output: Any) -> Task:
    """Return the task that recognizes the output of a network; otherwise classification."""
    known = (TASKS.get(name) for name in TASKS)
    return next((task for task in known if task.recognizes(output)), TASKS.get("classification"))


def unchanged(outputs: Any) -> Any:
    """Return the outputs."""
    return outputs


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, float32 or float64."""
    return tensor.detach().to("cpu", torch.promote_types(tensor.dtype, torch.float32))
