"""A figure of the images that one model classifies correctly at every offset and another does not.

The records contain the images and offsets. The images are read again from their data set, cut by
the geometry of the failing model, and shifted like its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shiftbench.data import DATA_SOURCES, ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.errors import DataError, RecordError, UsageError
from shiftbench.geometry import Geometry
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.pictures.show import reach
from shiftbench.records.compare import shared
from shiftbench.records.result import Result, image_ids
from shiftbench.registry import unknown_name
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, Views
from shiftbench.tables import LABEL

Pixels = NDArray[np.uint8]  # (H, W, 3)
TITLE = 28  # characters above a tile


@dataclass(frozen=True)
class Exhibit:
    """One image that a model misclassifies at an offset."""

    key: str
    label: str
    offset: Offset  # the first misclassified one
    clean: str  # class predicted without a shift
    predicted: str  # class predicted at the offset
    original: Pixels
    shifted: Pixels


@dataclass(frozen=True)
class Side:
    """Images that only one of two models classifies correctly at every offset."""

    robust: str  # the model that classifies them correctly
    failing: str
    count: int  # number of such images
    exhibits: tuple[Exhibit, ...]


def build_gallery(
    first: Result,
    second: Result,
    *,
    attack: str | None = None,
    data: str | None = None,
    size: int = 8,
) -> tuple[Side, Side]:
    """Choose the images that only one of two models classifies correctly at every offset.

    Args:
        first: A result.
        second: A result with common images.
        attack: Attack; by default the first that both results have.
        data: `NAME:PATH` of the images; data sets without files need none.
        size: Images for each of the two models.

    Raises:
        UsageError: The results have no such attack in common.
        DataError: The data set does not contain the images.

    Returns:
        The images of the first and of the second model.
    """
    known = {name.kind: name for name in shared(first, second) if name.radius is not None}
    if not known:
        raise UsageError(
            f"expected an attack in both records, got none: {first.model.name} and "
            f"{second.model.name}. Run both with the same --attack"
        )
    attack = next(iter(known)) if attack is None else attack
    if attack not in known:
        raise unknown_name("attack in both records", attack, known)
    dataset = _open_images(first, data)
    one, other = (
        _side(*pair, known[attack], dataset, size) for pair in ((first, second), (second, first))
    )
    return one, other


def _open_images(result: Result, data: str | None) -> ImageSet:
    """Open the data set of a record; `data` contains the path of its files."""
    name = result.data.name
    source = (data or name).partition(":")[0]
    if name in DATA_SOURCES and source != name:
        raise UsageError(f"expected --data {name}, the data of the records, got {data}")
    try:
        dataset = load_dataset(data or name, split=result.data.split)
    except UsageError as error:
        path = f"{name if name in DATA_SOURCES else 'folder'}:PATH"
        raise UsageError(
            f"cannot open the images of {name}: {error}. Pass --data {path}"
        ) from error
    if dataset.name != name:  # folders are named by themselves
        raise UsageError(f"expected --data of {name}, got {data}, which is {dataset.name}")
    return dataset


def _side(robust: Result, failing: Result, name: ScoreName, dataset: ImageSet, size: int) -> Side:
    correct, wrong = robust.outcomes()[name] == 1, failing.outcomes()[name] == 0
    both = wrong.index[wrong & wrong.index.isin(correct.index[correct])]
    tables, metric = failing.tables, _metric(failing, name)
    rows = np.flatnonzero(image_ids(tables).isin(both))
    keys = [tables.keys[row] for row in rows]
    cells = tables.read(metric.table, len(metric.grid) - 1, keys)
    first_wrong = metric.first_wrong(cells)
    rings = np.array(metric.grid.rings)[first_wrong]
    # Images that are misclassified by a shift come before those misclassified without one.
    order = sorted(range(len(keys)), key=lambda i: (rings[i] == 0, rings[i], keys[i]))
    positions = {key: index for index, key in enumerate(dataset.keys)}
    exhibits = []
    for i in order[:size]:
        if keys[i] not in positions:
            raise DataError(
                f"cannot find the image {keys[i]!r} of the records in {dataset.name}. Give the "
                "folder that they were made from with --data NAME:PATH"
            )
        offset = metric.grid.offsets[first_wrong[i]]
        pixels = _views(dataset, positions[keys[i]], failing, metric.attack, offset)
        label, clean = int(tables.column(LABEL)[rows[i]]), int(cells.classes[i, 0])
        predicted = int(cells.classes[i, first_wrong[i]])
        names = (failing.data.class_name(number) for number in (label, clean, predicted))
        label_name, clean_name, predicted_name = names
        exhibits.append(Exhibit(keys[i], label_name, offset, clean_name, predicted_name, *pixels))
    return Side(robust.model.name, failing.model.name, len(keys), tuple(exhibits))


def _metric(result: Result, name: ScoreName) -> Adversarial:
    request = result.request_of(name)
    assert request is not None
    assert isinstance(request.loaded, Adversarial)
    return request.loaded


def _views(
    dataset: ImageSet, index: int, result: Result, attack: str, offset: Offset
) -> tuple[Pixels, Pixels]:
    """Return the input of a model for an image, without a shift and at an offset."""
    shift = SHIFTS.get(ATTACKS.get(attack).shift)
    margin = shift.margin(Grid(reach(offset)))
    try:
        geometry = Geometry(**{**result.data.geometry, "margin": margin})
    except TypeError as error:
        raise RecordError(
            f"cannot cut the images of {result.model.name}: {error}. Run the evaluation again"
        ) from error
    batch = next(canvas_batches(dataset, geometry, [index], workers=0))
    canvas = batch.canvas.float().div(255)
    original = SHIFTS.get("crop").views(canvas, geometry.margin)(ORIGIN)
    scene = None
    if isinstance(dataset, RenderedSet):
        views = dataset.views([index], geometry.view)

        def scene() -> Views:
            return lambda offset, rows=None: views(offset, rows).float().div(255)

    shifted = shift.views(canvas, geometry.margin, scene)(offset)
    seen = torch.cat([original, shifted]).clamp(0, 1).mul(255).round().byte()
    pixels: Pixels = seen.permute(0, 2, 3, 1).numpy()
    return pixels[0], pixels[1]


def gallery_figure(sides: Sequence[Side]) -> Figure:
    """Draw two tiles per image, each under the class that the failing model predicts.

    Raises:
        UsageError: There is no image.
    """
    shown = [side for side in sides if side.exhibits]
    if not shown:
        raise UsageError(
            f"cannot draw a gallery: {sides[0].robust} and {sides[0].failing} fail on the same "
            "images"
        )
    per_row = min(4, max(len(side.exhibits) for side in shown))
    rows = [math.ceil(len(side.exhibits) / per_row) for side in shown]
    size = 3.4 * per_row, 2.1 * sum(rows) + 0.4 * len(shown)
    figure = Figure(figsize=size, layout="constrained")
    blocks = figure.subfigures(len(shown), 1, height_ratios=rows, squeeze=False)[:, 0]
    for block, height, side in zip(blocks, rows, shown, strict=True):
        counts = f"{len(side.exhibits)} of {side.count:,} images"
        heading = f"{side.robust} is correct at every offset, {side.failing} is not ({counts})"
        block.suptitle(heading, fontsize=10, parse_math=False)
        panels = block.subplots(height, 2 * per_row, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for number, exhibit in enumerate(side.exhibits):
            row, column = divmod(number, per_row)
            clean = [exhibit.clean]
            if exhibit.clean != exhibit.label:
                clean.append(f"label: {exhibit.label}")
            offset = f"dy {exhibit.offset.dy:.3g}, dx {exhibit.offset.dx:.3g}"
            tiles = ((exhibit.original, clean), (exhibit.shifted, [exhibit.predicted, offset]))
            for axes, (pixels, lines) in zip(panels[row, 2 * column :], tiles, strict=False):
                axes.imshow(pixels, interpolation="nearest")
                title = "\n".join(map(_shortened, lines))
                axes.set_title(title, fontsize=7, loc="left", parse_math=False)
    return figure


def _shortened(line: str) -> str:
    """Shorten a title to the width of a tile: ImageNet's classes are lists of synonyms."""
    return line if len(line) <= TITLE else f"{line[: TITLE - 1].rstrip(' ,')}…"
