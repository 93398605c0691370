"""Figure of one image and the classes that models predict for it at the offsets of a grid.

`predict_image` fills a grid with classes and `predictions_figure` draws grids side by side. Other
tasks draw their own panel below the same axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from shiftbench.data import ImageSet, RenderedSet, load_dataset
from shiftbench.data.base import numbered, subset
from shiftbench.data.folder import FileSet
from shiftbench.data.imagenet import class_descriptions, describe_class
from shiftbench.data.images import read_image
from shiftbench.errors import UsageError
from shiftbench.geometry import INTERPOLATIONS, Geometry
from shiftbench.grid import Grid, Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.models import Model
from shiftbench.registry import unknown_name
from shiftbench.running.job import Job, Settings, make_job
from shiftbench.running.runner import Execution, predict_missing
from shiftbench.shifts import ATTACKS

CORRECT, MISCLASSIFIED, NOT_PREDICTED = "#0072B2", "#E69F00", "#FFFFFF"
EMBEDDED = "scenes"  # IMAGE `scenes:7` is an image of the embedded data set
NAMED = 5  # classes below a grid; the others are counted together
LETTERS = 34  # characters of a class name
Pixels = NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True)
class PredictionGrid:
    """The class that a model predicts for one image at each offset of a grid."""

    model: str
    attack: str
    grid: Grid
    classes: tuple[int, ...]  # in the order of the grid; -1: not predicted
    expected: int  # class that counts as correct
    labeled: bool  # False: `expected` is the class predicted without a shift
    names: Sequence[str]  # of the classes, by index
    geometry: Geometry

    @property
    def wrong(self) -> Counter[int]:
        """Number of offsets of each class other than the expected one."""
        return Counter(c for c in self.classes if c not in (self.expected, -1))

    @property
    def predicted(self) -> int:
        """Number of offsets with a prediction."""
        return sum(c >= 0 for c in self.classes)


def open_image(text: str) -> ImageSet:
    """Open a file, or an image of the embedded data set (`scenes:7`), as a set of one image.

    Raises:
        UsageError: There is no such image in the embedded data set.
        DataError: The file cannot be read.
    """
    source, colon, number = text.partition(":")
    if source == EMBEDDED and colon:
        whole = load_dataset(EMBEDDED)
        if not number.isdecimal() or int(number) >= len(whole):
            raise UsageError(
                f"expected an image of {EMBEDDED} from 0 to {len(whole) - 1}, got {number!r}. Use "
                f"{EMBEDDED}:7"
            )
        return subset(whole, [int(number)])
    path = Path(text)
    read_image(path)
    return FileSet(path.name, "all", [path.name], [0], ["0"], path.parent, [path.name])


def predict_image(
    model: Model,
    image: ImageSet,
    settings: Settings,
    *,
    label: str | None = None,
    device: str = "auto",
) -> PredictionGrid:
    """Predict one image at every offset of an attack.

    Rings for which the image has too small a margin are left out of the prediction.

    Args:
        model: A classifier.
        image: A set of one image, from `open_image`.
        settings: Settings of the run with a single attack.
        label: Name or index of the correct class. Default: the label of the data set, or for a
            file the class predicted without a shift.
        device: Device of the model.

    Raises:
        UsageError: The class is unknown, or the margin is too small for any shift.
    """
    names = _class_names(model, image)
    if isinstance(image, FileSet):
        image = replace(image, class_names=names)
    settings = replace(settings, consistency=(), full_grid=True)
    radius = ATTACKS.get(settings.attack_specs()[0].attack.partition(":")[0]).radius
    radius = radius if settings.max_shift is None else settings.max_shift
    job = _largest_job(model, image, settings, radius)
    metric = next(r.metric for r in job.requests if isinstance(r.metric, Adversarial))
    tables = job.images()
    for _ in predict_missing(job, job.keys, tables, Execution(device, workers=0)):
        pass
    found = tables.read(metric.table, len(metric.grid) - 1, job.keys).classes[0].tolist()
    grid = Grid(radius, metric.grid.step, metric.grid.axes)
    labeled = label is not None or not isinstance(image, FileSet)
    expected = found[0]
    if label is not None:
        expected = _class_index(label, names)
    elif labeled:
        expected = job.dataset.labels[0]
    missing = [-1] * (len(grid) - len(found))  # a smaller grid is a prefix of a larger one
    classes = (*found, *missing)
    return PredictionGrid(
        model.name, metric.attack, grid, classes, expected, labeled, names, job.geometry
    )


def _class_names(model: Model, image: ImageSet) -> Sequence[str]:
    """Return the class names of a model, else those of the data set, of ImageNet, or numbers."""
    if model.class_names:
        return model.class_names
    if len(image.class_names) == model.num_classes:
        return image.class_names
    descriptions = class_descriptions()
    return descriptions if len(descriptions) == model.num_classes else numbered(model.num_classes)


def _class_index(label: str, names: Sequence[str]) -> int:
    """Return the index of a class by its number, its name or a synonym of its name."""
    if label.isdecimal() and int(label) < len(names):
        return int(label)
    wanted = label.strip().lower()
    for index, name in enumerate(names):
        synonyms = (part.strip().lower() for part in describe_class(name).split(","))
        if wanted in {name.lower(), *synonyms}:
            return index
    raise unknown_name("class", label, names)


def _largest_job(model: Model, image: ImageSet, settings: Settings, largest: int) -> Job:
    """Plan the largest grid up to a radius (steps) whose margin the image has."""
    failed: UsageError | None = None
    for radius in range(largest, 0, -1):
        try:
            return make_job(model, image, replace(settings, max_shift=radius))
        except UsageError as error:
            failed = failed or error
    raise failed or UsageError("expected a max shift of 1 step or more. Use --max-shift 3")


def predictions_figure(image: ImageSet, grids: Sequence[PredictionGrid]) -> Figure:
    """Draw an image and the predictions of each model over the grid of offsets.

    The image has a solid box around the view at offset (0, 0) and a dashed box around the pixels
    that all offsets read, both of the first model.
    """
    width = 2.9 * (1 + len(grids))
    height = 4.1 + 0.16 * max(min(len(one.wrong), NAMED + 1) for one in grids)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, 1 + len(grids))
    draw_image(panels[0], image, grids[0].geometry)
    for axes, one in zip(panels[1:], grids, strict=True):
        draw_grid(axes, one)
    correct = "correct" if grids[0].labeled else "as without a shift"
    other = "misclassified" if grids[0].labeled else "another class"
    handles = [Patch(facecolor=CORRECT, label=correct), Patch(facecolor=MISCLASSIFIED, label=other)]
    if any(-1 in one.classes for one in grids):
        empty: dict[str, Any] = {
            "facecolor": NOT_PREDICTED,
            "edgecolor": "#999999",
            "hatch": "////",
        }
        handles.append(Patch(**empty, label="not predicted (margin too small)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def draw_image(axes: Axes, image: ImageSet, geometry: Geometry) -> None:
    """Draw an image with the boxes of the view and of the canvas."""
    pixels = image_pixels(image, geometry)
    height, width = pixels.shape[:2]
    axes.imshow(pixels, interpolation="nearest")
    inner = geometry.inner or geometry.view
    for side, line in ((inner, "-"), (geometry.side, (0, (4, 3)))):
        corner = ((width - side) / 2 - 0.5, (height - side) / 2 - 0.5)
        for color, thick in (("white", 2.6), ("black", 1.2)):  # visible on any image
            axes.add_patch(
                Rectangle(corner, side, side, fill=False, color=color, linewidth=thick, ls=line)
            )
    axes.set_axis_off()
    view = f"view {inner // geometry.scale} px" + f", scale {geometry.scale}" * (geometry.scale > 1)
    axes.set_title(f"{image.keys[0]}\n{view}, dashed: all offsets", fontsize=9)


def image_pixels(image: ImageSet, geometry: Geometry) -> Pixels:
    """Return the resized image with its surroundings, centered on the view."""
    if isinstance(image, RenderedSet):
        inner = geometry.inner or geometry.view
        around = (geometry.side - inner) // 2 + inner // 16
        pixels: Pixels = image.render([0], inner, around)[0].permute(1, 2, 0).numpy()
        return pixels
    original = image.image(0)
    ratio = geometry.resize / min(original.size)
    size = (geometry.resize, geometry.resize)
    if not geometry.squash:
        size = (round(original.width * ratio), round(original.height * ratio))
    return np.asarray(original.resize(size, INTERPOLATIONS[geometry.interpolation]))


def draw_grid(axes: Axes, grid: PredictionGrid, *, legend: bool = True) -> None:
    """Draw a cell per offset: color for correct or not, a letter for each other class."""
    letters = dict(zip((c for c, _ in grid.wrong.most_common()), ascii_uppercase, strict=False))
    radius, step = grid.grid.radius, float(grid.grid.step)
    size = 9 if radius <= 3 else 6
    for offset, found in zip(grid.grid, grid.classes, strict=True):
        x, y = _steps(offset, step)
        color = CORRECT if found == grid.expected else MISCLASSIFIED
        style: dict[str, Any] = {"facecolor": color, "edgecolor": "white", "linewidth": 0.8}
        if found < 0:
            style = {"facecolor": NOT_PREDICTED, "edgecolor": "#999999", "hatch": "////"}
            style["linewidth"] = 0.4
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **style))
        if found in letters:
            axes.text(x, y, letters[found], ha="center", va="center", fontsize=size)
    axes.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.6))
    limit = radius + 0.55
    axes.set(xlim=(-limit, limit), ylim=(limit, -limit), aspect="equal")
    ticks = sorted({-radius, 0, radius})
    unit = ATTACKS.get(grid.attack).unit
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(ticks, [f"{tick * step:g}" for tick in ticks], fontsize=8)
    axes.set_ylabel(f"dy ({unit})", fontsize=8, labelpad=0)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    right = grid.predicted - sum(grid.wrong.values())
    what = "correct" if grid.labeled else "unchanged"
    title = f"{grid.model}\n{grid.attack}: {what} at {right} of {grid.predicted} offsets"
    axes.set_title(title, fontsize=9, parse_math=False)
    lines = [f"dx ({unit})"]
    if legend:
        lines += _class_lines(grid, letters)
    axes.set_xlabel("\n".join(lines), fontsize=8, parse_math=False)


def _steps(offset: Offset, step: float) -> tuple[int, int]:
    return round(offset.dx / step), round(offset.dy / step)


def _class_lines(grid: PredictionGrid, letters: dict[int, str]) -> list[str]:
    """Name the expected class, and the most frequent other ones with their letters."""
    what = "correct" if grid.labeled else "without a shift"
    lines = [_shortened(f"{what}: {describe_class(grid.names[grid.expected])}")]
    common = grid.wrong.most_common()
    for found, count in common[:NAMED]:
        lines.append(f"{letters[found]}: {_shortened(describe_class(grid.names[found]))} ({count})")
    if len(common) > NAMED:
        rest = sum(count for _, count in common[NAMED:])
        lines.append(f"{len(common) - NAMED} more classes ({rest})")
    return lines


def _shortened(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1].rstrip(' ,')}…"
