"""Reports of a run: progress within an epoch, a row per epoch, a figure of the curves."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from aft_models.files import write_atomic
from aft_models.training.device import Processes

LOOK_EVERY = 50  # updates between reports: each report waits for the device
UNSCORED = frozenset({"epoch", "loss", "consistency_loss", "lr", "images_per_second", "seconds"})

Row = dict[str, float]  # column -> number; "epoch" counts finished epochs


@dataclass(frozen=True)
class Progress:
    """State of a run, for a progress callback."""

    epoch: int  # the current epoch, from 0
    epochs: int
    update: int  # done in this epoch
    updates: int
    loss: float  # mean since the last report, over all processes
    images_per_second: float  # since the last report
    seconds_left: float  # of the entire run, at this speed
    consistency_loss: float | None = None  # divergence between views, before its weight


class Meter:
    """Accumulator of the losses of one epoch."""

    def __init__(
        self, epoch: int, epochs: int, updates: int, batch_size: int, processes: Processes
    ) -> None:
        self.epoch, self.epochs, self.updates = epoch, epochs, updates
        self.batch_size = batch_size
        self.processes = processes
        self._started = self._looked = time.monotonic()
        self._done = self._seen = 0  # updates; `_seen` at the last report
        self._since: Tensor | float = 0.0  # losses since the last report
        self._total: Tensor | float = 0.0

    def add(self, losses: Tensor) -> Progress | None:
        """Count an update.

        Args:
            losses: The loss and, where the recipe has one, its consistency term.

        Returns:
            The progress, at regular intervals and at the end of an epoch, otherwise None.
        """
        self._since = self._since + losses.float()  # MPS has no float64
        self._done += 1
        if self._done % LOOK_EVERY and self._done != self.updates:
            return None
        sums = self.processes.total(self._since).cpu().double() / self.processes.count
        count, now = self._done - self._seen, time.monotonic()
        speed = count * self.batch_size / max(now - self._looked, 1e-9)
        left = (self.epochs - self.epoch) * self.updates - self._done
        self._total = self._total + sums
        self._seen, self._looked, self._since = self._done, now, 0.0
        loss, *rest = (sums / count).tolist()
        return Progress(
            self.epoch,
            self.epochs,
            self._done,
            self.updates,
            loss,
            speed,
            left * self.batch_size / speed,
            rest[0] if rest else None,
        )

    def row(self) -> Row:
        """Return the columns of the log for the finished epoch."""
        seconds = time.monotonic() - self._started
        assert isinstance(self._total, Tensor)
        means = (self._total / self.updates).tolist()
        return {
            "epoch": self.epoch + 1,
            **dict(zip(("loss", "consistency_loss"), means, strict=False)),
            "images_per_second": self.updates * self.batch_size / seconds,
            "seconds": seconds,
        }


def write_log(path: Path, rows: Sequence[Row]) -> None:
    """Rewrite the log atomically, so that a resumed run has each epoch once."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows({key: _short(value) for key, value in row.items()} for row in rows)
    write_atomic(path, out.getvalue().encode())


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def draw_curves(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draw the training loss and the scores against epochs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot([row["epoch"] for row in rows], [row["loss"] for row in rows], marker=".")
    left.set(xlabel="epoch", ylabel="training loss", title=title)
    for column in dict.fromkeys(key for row in rows for key in row if key not in UNSCORED):
        points = [(row["epoch"], 100 * row[column]) for row in rows if column in row]
        right.plot(*zip(*points, strict=True), marker=".", label=column.replace("_", " "))
    right.set(xlabel="epoch", ylabel="percent of the images")
    if right.lines:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
