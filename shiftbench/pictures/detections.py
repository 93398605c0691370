"""Figure of an image with the objects that a detector always, sometimes or never detects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from shiftbench.data import ImageSet, subset
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Grid
from shiftbench.metrics.base import View
from shiftbench.models import Model
from shiftbench.pictures.predictions import open_image
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import image_batch, load_ahead, make_predictor
from shiftbench.tasks.detection import DETECTION, box_ious, match
from shiftbench.tasks.frames import Frame

# Color and line of objects by how often they are detected.
LOOKS: Mapping[str, tuple[str, Any]] = {
    "always": ("#1b9e77", "-"),
    "sometimes": ("#d95f02", "--"),
    "never": ("#666666", ":"),
}
INCHES = 7.0  # width of the figure


@dataclass
class Track:
    """An object at all offsets of a grid."""

    box: NDArray[np.float64]  # x1, y1, x2, y2 in pixels of the unshifted view
    label: int
    count: int = 0  # offsets at which it is detected

    def often(self, offsets: int) -> str:
        """Return `always`, `sometimes` or `never`."""
        if self.count in (0, offsets):
            return "always" if self.count else "never"
        return "sometimes"


def show_detections(
    path: Path,
    model: Model,
    *,
    max_shift: int = 3,
    score_threshold: float | None = None,
    scale: int | None = None,
    dataset: ImageSet | None = None,
) -> tuple[Figure, dict[str, int]]:
    """Draw the objects of an image, by how often they are detected at crops up to `max_shift` px.

    Args:
        path: An image file.
        model: A detector.
        max_shift: Largest crop offset (px).
        score_threshold: Score from which a detection counts. Default: the model's own.
        scale: Camera pixels per network pixel. Default: as many as the remedies need.
        dataset: Contains the image with its objects; by default the objects are all detections.

    Returns:
        The figure, and the number of objects that are detected always, sometimes and never.

    Raises:
        UsageError: The model is no detector.
    """
    if model.task is not DETECTION:
        raise UsageError(
            f"expected a detector, got {model.name}, a model for {model.task.name}. Leave --model "
            "out to draw the shifts alone"
        )
    job = make_job(
        model,
        open_image(str(path)) if dataset is None else _only(dataset, path),
        Settings(
            attacks=("crop",),
            consistency=(),
            max_shift=max_shift,
            scale=scale,
            score_threshold=score_threshold,
        ),
    )
    predictor = make_predictor(job, torch.device("cpu"), 1)
    (canvases,) = load_ahead(job, job.keys, 1, job.images(), workers=0)
    batch, grid = image_batch(job, canvases, predictor), Grid(max_shift)
    seen = batch.seen(0)
    assert seen is not None
    frame, tracks = seen.frame, []
    if seen.target is not None:
        boxes, labels = frame.in_view(frame.resized(seen.target.boxes)), seen.target.labels
        whole = frame.whole(boxes) >= max_shift
        tracks = [Track(b, int(c)) for b, c in zip(boxes[whole], labels[whole], strict=True)]
        if not tracks:
            raise DataError(
                f"expected objects that are whole in every view up to {max_shift} px, got none in "
                f"{path.name}. Choose a smaller --max-shift, or leave --data out"
            )
    for offset in grid:
        output, moved = batch.outputs([0], [View("crop", offset)])[0]
        strong = output.scores.numpy() >= seen.threshold
        boxes = output.moved(moved)[strong]
        labels, scores = output.labels.numpy()[strong], output.scores.numpy()[strong]
        new = _follow(tracks, boxes, labels, scores.astype(np.float64))
        tracks += [] if dataset is not None else new
    counts = {often: sum(t.often(len(grid)) == often for t in tracks) for often in LOOKS}
    pixels = canvases.canvas[0, :, : job.geometry.scale * frame.height]
    window = pixels[..., : job.geometry.scale * frame.width].permute(1, 2, 0).numpy()
    return _figure(window, tracks, frame, model, len(grid), counts), counts


def _only(dataset: ImageSet, path: Path) -> ImageSet:
    """Return the image of a data set that has the name of a file."""
    index = next((i for i, key in enumerate(dataset.keys) if Path(key).name == path.name), None)
    if index is None or dataset.task != DETECTION.name:
        raise DataError(
            f"expected boxes of {path.name} in {dataset.name}, got none. Leave --data out"
        )
    return subset(dataset, [index])


def _follow(
    tracks: Sequence[Track],
    boxes: NDArray[np.float64],
    labels: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> list[Track]:
    """Count the tracks that are detected once more; return a new one for each other detection."""
    known = np.array([track.box for track in tracks]).reshape(-1, 4)
    classes = np.array([track.label for track in tracks], np.int64)
    matches = match(box_ious(known, boxes), classes, labels, scores, 0.0)
    right = (matches >= 0) & (np.append(labels, -1)[matches] == classes)
    for track, found in zip(tracks, right, strict=True):
        track.count += int(found)
    rest = sorted(set(range(len(boxes))) - set(matches[right].tolist()))
    return [Track(boxes[i], int(labels[i]), 1) for i in rest]


def _figure(
    image: NDArray[np.uint8],
    tracks: Sequence[Track],
    frame: Frame,
    model: Model,
    offsets: int,
    counts: dict[str, int],
) -> Figure:
    figure = Figure(
        figsize=(INCHES, INCHES * frame.height / frame.width + 0.8), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(image, extent=(0, frame.width, frame.height, 0))
    axes.set_axis_off()
    for track in sorted(tracks, key=lambda track: -track.count):
        color, line = LOOKS[track.often(offsets)]
        x1, y1, x2, y2 = frame.from_view(track.box)
        axes.add_patch(
            Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=color, linestyle=line, lw=2)
        )
        names = model.class_names
        name = names[track.label] if track.label < len(names) else str(track.label)
        text = name if track.count in (0, offsets) else f"{name} {track.count}/{offsets}"
        box = {"facecolor": color, "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        axes.text(x1, y1, text, fontsize=7, color="white", va="bottom", bbox=box, parse_math=False)
    handles = [Line2D([], [], color=color, linestyle=line) for color, line in LOOKS.values()]
    labels = [f"{often} detected ({counts[often]})" for often in LOOKS]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure
