"""Images whose rows are objects or pixels: their views, and the pass that makes their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from aft_models.remedies.inputs import InputRemedy
from shiftbench.errors import DataError, ModelError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.metrics.base import CLEAN_VIEW, View
from shiftbench.models import Model
from shiftbench.running.predict import ImageBatch
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
    _resized: dict[tuple[int, int], list[InputRemedy]] = field(default_factory=dict)

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
        for row in np.flatnonzero(known).tolist():
            self._parts[row] = tables.parts(self.keys[row])
            if self.targets[row] is not None:
                self._require_same(row, task.parts(self.seen(row), None, ORIGIN))
        new = np.flatnonzero(~known).tolist()
        for start in range(0, len(new), size):
            rows = new[start : start + size]
            outputs = self.outputs(rows, [CLEAN_VIEW] * len(rows))
            found = {}
            for row, (output, offset) in zip(rows, outputs, strict=True):
                self._parts[row] = task.parts(self.seen(row), output, offset)
                found[row] = task.cells(self.seen(row), output, offset)
                self._require_classes(found[row].classes)
            tables.store_parts({self.keys[row]: self._parts[row] for row in rows})
            classes, scores = tables.array(CLEAN, 1), tables.array(CLEAN + PROBABILITY, 1)
            ties = tables.array(NEAR_TIE, 1)
            for row, cells in found.items():
                key = self.keys[row]
                own, _ = tables.part_rows([key])
                classes[own, 0], scores[own, 0] = cells.classes, cells.scores
                image = tables.rows([key])
                classes[image], ties[image] = 0, int(cells.ties.any())
            yield

    def _require_same(self, row: int, now: Parts) -> None:
        """Raise DataError if the rows of an image are not those of the tables."""
        before = self._parts[row]
        same = len(before.labels) == len(now.labels) and bool(
            (before.labels == now.labels).all() and np.allclose(before.boxes, now.boxes, atol=0.01)
        )
        if not same:
            raise DataError(
                f"the labels of {self.keys[row]} are not those of its earlier predictions. Choose "
                "another --output, or start over with --fresh"
            )

    def _require_classes(self, classes: Any) -> None:
        if len(classes) and not (classes.min() >= 0 and classes.max() <= self.classes):
            raise ModelError(
                f"expected class indices below {self.classes} from {self.predictor.name}, got "
                f"{classes.max()}. Return as many class names as it has classes"
            )

    @override
    def outputs(self, rows: Sequence[int], views: Sequence[View]) -> list[tuple[Any, Offset]]:
        """Predict image `rows[i]` through `views[i]`.

        Returns:
            The output of each view, and the offset that moves it to the unshifted view: that of the
            view, and of the crop that remedies chose.
        """
        shown, offsets = [], []
        for row, view in zip(rows, views, strict=True):
            frame, window = self.frames[row], self._window(row, view)[None]
            moved, rest = view.offset, frame.spare
            for remedy in self._remedies(frame):
                window, undo = remedy.show(window)
                dy, dx = undo.offset[0].tolist()  # type: ignore[attr-defined]
                moved, rest = Offset(moved.dy + dy, moved.dx + dx), rest - remedy.margin
            # The rest are pixels that only remedies of other models need.
            window = window[..., rest : window.shape[-2] - rest, rest : window.shape[-1] - rest]
            shown.append(frame.paste(window[0], self.fill.to(window)))
            offsets.append(moved)
        return list(zip(self.predictor(torch.stack(shown)), offsets, strict=True))

    def _remedies(self, frame: Frame) -> Sequence[InputRemedy]:
        """Return the model's input remedies for the window of an image, the outermost first."""
        network = self.predictor.network
        remedies = network.remedies if isinstance(network, Model) else ()
        if remedies and frame.window not in self._resized:
            height, width = frame.window
            built: list[InputRemedy] = []
            for remedy in remedies:  # the innermost first: each needs a wider window
                built.append(remedy.resized((height, width)))
                height, width = height + 2 * remedy.margin, width + 2 * remedy.margin
            self._resized[frame.window] = built[::-1]
        return self._resized.get(frame.window, ())

    def _window(self, row: int, view: View) -> Tensor:
        """Return the window of an image with the pixels that remedies need: (C, h, w)."""
        if (view.shift, row) not in self._windows:
            frame = self.frames[row]
            image = self.canvas[row : row + 1, :, : frame.height, : frame.width]
            self._windows[view.shift, row] = SHIFTS.get(view.shift).views(image, self.margin)
        return self._windows[view.shift, row](view.offset)[0]
