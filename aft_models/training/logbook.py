"""What a run leaves to read: a row per epoch, and a picture of the curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from aft_models.files import write_atomic

Row = dict[str, float]  # column -> number; "epoch" counts finished epochs


def write_log(path: Path, rows: Sequence[Row]) -> None:
    """Writes every row anew, atomically: a resumed run leaves no epoch twice."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows({key: _short(value) for key, value in row.items()} for row in rows)
    write_atomic(path, out.getvalue().encode())


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def draw_curves(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draws the training loss beside the scores, against epochs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot([row["epoch"] for row in rows], [row["loss"] for row in rows], marker=".")
    left.set(xlabel="epoch", ylabel="training loss", title=title)
    skipped = {"epoch", "loss", "lr", "images_per_second", "seconds"}
    for column in dict.fromkeys(key for row in rows for key in row if key not in skipped):
        points = [(row["epoch"], 100 * row[column]) for row in rows if column in row]
        right.plot(*zip(*points, strict=True), marker=".", label=column.replace("_", " "))
    right.set(xlabel="epoch", ylabel="percent of the images")
    if right.lines:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
