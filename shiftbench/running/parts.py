"""Images whose rows are objects or pixels: their views, and the pass that makes their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from aft_models.remedies.align import Align, AlignUndo
from aft_models.remedies.inputs import InputRemedy
from shiftbench.errors import DataError, ModelError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.base import CLEAN_VIEW, View
from shiftbench.running.predict import ImageBatch, find_phases
from shiftbench.shifts import SHIFTS, Views
from shiftbench.tables import CLEAN, NEAR_TIE, PROBABILITY, Parts, Tables
from shiftbench.tasks import Seen, Target
from shiftbench.tasks.frames import Frame


@dataclass
class PartBatch(ImageBatch):
    """Images of any size on the device, each in the upper left corner of its canvas."""

    frames: Sequence[Frame] = ()
    targets: Sequence[Target | None] = ()  # labels of the data; None: there are none
    fill: Tensor = field(default_factory=lambda: torch.zeros(3))  # (C,), normalized
    classes: int = 0  # of the model; the class after the last is "not detected"
    threshold: float = 0.0  # score from which a detection counts
    _parts: dict[int, Parts] = field(default_factory=dict)
    _windows: dict[tuple[str, int], Views] = field(default_factory=dict)
    _sizes: dict[tuple[int, int], list[InputRemedy]] = field(default_factory=dict)

    @override
    def seen(self, row: int) -> Seen:
        return Seen(
            self.identifiers[row],
            self.frames[row],
            self.targets[row],
            self._parts.get(row),
            self.classes,
            self.threshold,
        )

    @override
    def begin(self, tables: Tables) -> Iterator[None]:
        """Predict images without a shift that are new, and store their rows.

        Raises:
            DataError: The labels of an image are not those of its earlier predictions.
        """
        task, size = self.predictor.task, self.predictor.batch_size
        known = tables.column(CLEAN)[tables.rows(self.keys)] >= 0
        for row, (key, target) in enumerate(zip(self.keys, self.targets, strict=True)):
            if target is not None:
                self._parts[row] = task.parts(self.seen(row), None, ORIGIN)
            if known[row]:
                self._parts[row] = self._same(key, tables.parts(key), self._parts.get(row))
        new = np.flatnonzero(~known).tolist()
        for start in range(0, len(new), size):
            rows = new[start : start + size]
            outputs = self.outputs(rows, [CLEAN_VIEW] * len(rows))
            found = {}
            for row, (output, offset) in zip(rows, outputs, strict=True):
                if row not in self._parts:
                    self._parts[row] = task.parts(self.seen(row), output, offset)
                found[row] = task.cells(self.seen(row), output, offset)
                self._require_classes(found[row].classes)
            # Boxes of the data follow from the data, so that a record contains none of them.
            unlabeled = {self.keys[row] for row in rows if self.targets[row] is None}
            tables.store_parts({self.keys[row]: self._parts[row] for row in rows}, boxes=unlabeled)
            classes, scores = tables.array(CLEAN, 1), tables.array(CLEAN + PROBABILITY, 1)
            ties = tables.array(NEAR_TIE, 1)
            for row, cells in found.items():
                key = self.keys[row]
                own, _ = tables.part_rows([key])
                classes[own, 0], scores[own, 0] = cells.classes, cells.scores
                image = tables.rows([key])
                classes[image], ties[image] = 0, int(cells.ties.any())
            yield

    @staticmethod
    def _same(key: str, stored: Parts, now: Parts | None) -> Parts:
        """Return the rows of an image by its labels, by the tables if it has none.

        Raises:
            DataError: The labels are not those of the tables.
        """
        if now is None:
            return stored
        if not np.array_equal([now.labels, now.whole], [stored.labels, stored.whole]):
            raise DataError(
                f"the labels of {key} are not those of its earlier predictions. Choose another "
                "--output, or start over with --fresh"
            )
        return now

    def _require_classes(self, classes: Any) -> None:
        if len(classes) and not (classes.min() >= 0 and classes.max() <= self.classes):
            raise ModelError(
                f"expected class indices below {self.classes} from {self.predictor.name}, got "
                f"{classes.max()}. Return as many class names as it has classes"
            )

    @override
    def has_phase(self) -> NDArray[np.bool_] | None:
        if not any(isinstance(remedy, Align) for remedy in self.remedies):
            return None
        rows = range(len(self.keys))
        found = [find_phases(self._resized(row), self._window(row, CLEAN_VIEW)) for row in rows]
        return np.concatenate(found)

    @override
    def outputs(self, rows: Sequence[int], views: Sequence[View]) -> list[tuple[Any, Offset]]:
        """Predict image `rows[i]` through `views[i]`.

        Returns:
            The output of each view, and the offset that moves it to the unshifted view: that of the
            view, and of the crop that remedies chose.
        """
        shown, offsets = [], []
        for row, view in zip(rows, views, strict=True):
            window, moved = self._window(row, view), view.offset
            for remedy in reversed(self._resized(row)):
                window, undo = remedy.show(window)
                if isinstance(undo, AlignUndo):
                    dy, dx = undo.offset[0].tolist()
                    moved = Offset(moved.dy + dy, moved.dx + dx)
            shown.append(self.frames[row].paste(window[0], self.fill.to(window)))
            offsets.append(moved)
        return list(zip(self.predictor(torch.stack(shown)), offsets, strict=True))

    def _resized(self, row: int) -> list[InputRemedy]:
        """Return the remedies for the window of an image, the innermost first."""
        size = self.frames[row].window
        if size not in self._sizes:
            built: list[InputRemedy] = []
            height, width = size
            for remedy in self.remedies:  # each takes the window that the next one returns
                own = remedy.resized((height, width))
                built.append(own.to(self.canvas.device) if isinstance(own, nn.Module) else own)
                height, width = (
                    remedy.scale * (side + 2 * remedy.margin) for side in (height, width)
                )
            self._sizes[size] = built
        return self._sizes[size]

    def _window(self, row: int, view: View) -> Tensor:
        """Return the window of an image with the pixels that remedies need: (1, C, h, w)."""
        frame, scale = self.frames[row], self.scale
        if (view.shift, row) not in self._windows:
            rest = frame.spare - sum(remedy.margin for remedy in self.remedies)
            rows, columns = (
                slice(scale * rest, scale * (side - rest)) for side in (frame.height, frame.width)
            )  # the rest are pixels that only remedies of other models need
            image = self.canvas[row : row + 1, :, rows, columns]
            self._windows[view.shift, row] = SHIFTS.get(view.shift).views(image, self.margin)
        offset = Offset(scale * view.offset.dy, scale * view.offset.dx)
        return self._windows[view.shift, row](offset)
