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

from aft_models.preprocessing import normalize
from shiftbench.data import ImageSet
from shiftbench.data.images import read_image
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Grid
from shiftbench.metrics.base import View
from shiftbench.models import Model
from shiftbench.running.job import class_count, data_for
from shiftbench.running.parts import PartBatch
from shiftbench.running.predict import Predictor
from shiftbench.tasks.detection import DETECTION, box_ious, match
from shiftbench.tasks.frames import fitted_for

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
    dataset: ImageSet | None = None,
) -> tuple[Figure, dict[str, int]]:
    """Draw the objects of an image, by how often they are detected at crops up to `max_shift` px.

    Args:
        path: An image file.
        model: A detector.
        max_shift: Largest crop offset (px).
        score_threshold: Score from which a detection counts. Default: the model's own.
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
    threshold = score_threshold or model.score_threshold
    grid, recipe = Grid(max_shift), model.preprocessing
    geometry = fitted_for(recipe, margin=max_shift, spare=0)
    image = read_image(path)
    frame = geometry.frame(*image.size)
    canvas = geometry.canvas(image)[None]
    predictor = Predictor(model, torch.device("cpu"), model.name, batch_size=8, task=model.task)
    batch = PartBatch(
        predictor,
        [path.name],
        normalize(canvas, recipe.mean, recipe.std),
        max_shift,
        frames=[frame],
        targets=[None],
        fill=normalize(torch.tensor(geometry.fill).view(1, 3, 1, 1), recipe.mean, recipe.std)[
            0, :, 0, 0
        ],
        classes=class_count(model),
        threshold=threshold,
    )
    tracks = []
    if dataset is not None:
        target = _target(model, dataset, path)
        boxes = frame.in_view(frame.resized(target[0]))
        whole = frame.whole(boxes) >= max_shift
        tracks = [Track(b, int(c)) for b, c in zip(boxes[whole], target[1][whole], strict=True)]
    for offset in grid:
        output, moved = batch.outputs([0], [View("crop", offset)])[0]
        strong = output.scores.numpy() >= threshold
        boxes = output.boxes.numpy()[strong] + np.array([moved.dx, moved.dy] * 2)
        labels, scores = output.labels.numpy()[strong], output.scores.numpy()[strong]
        new = _follow(tracks, boxes, labels, scores.astype(np.float64))
        tracks += [] if dataset is not None else new
    counts = {often: sum(t.often(len(grid)) == often for t in tracks) for often in LOOKS}
    window = canvas[0, :, : frame.height, : frame.width]
    corner = np.array([frame.left - frame.border, frame.top - frame.border] * 2)
    return _figure(
        window.permute(1, 2, 0).numpy(), tracks, corner, model, len(grid), counts
    ), counts


def _target(
    model: Model, dataset: ImageSet, path: Path
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the boxes and classes of an image of a data set."""
    dataset = data_for(model, dataset)
    index = next((i for i, key in enumerate(dataset.keys) if Path(key).name == path.name), None)
    target = None if index is None else dataset.target(index)
    if target is None:
        raise DataError(
            f"expected boxes of {path.name} in {dataset.name}, got none. Leave --data out"
        )
    return target.boxes, target.labels


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
    corner: NDArray[np.int64],
    model: Model,
    offsets: int,
    counts: dict[str, int],
) -> Figure:
    height, width = image.shape[:2]
    figure = Figure(figsize=(INCHES, INCHES * height / width + 0.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(image)
    axes.set_axis_off()
    for track in sorted(tracks, key=lambda track: -track.count):
        color, line = LOOKS[track.often(offsets)]
        x1, y1, x2, y2 = track.box - corner
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
