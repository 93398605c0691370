"""The images that one model survives and the other does not, as a picture or a page.

The records say which images and which offset; the images themselves are read again from their data
set, cut by the geometry of the model that failed, and shifted as it saw them.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from shiftbench.data import DATA_SOURCES, ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.errors import DataError, RecordError, UsageError
from shiftbench.files import GALLERY_ENDINGS, format_of, write_text
from shiftbench.geometry import Geometry
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.pictures.show import reach
from shiftbench.records.record import KEY, Record
from shiftbench.registry import unknown_name
from shiftbench.report.compare import Comparison
from shiftbench.report.plots import save_figure
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS, SHIFTS, Views

Pixels = NDArray[np.uint8]  # (H, W, 3)
TITLE = 28  # characters that fit over a tile of the picture


@dataclass(frozen=True)
class Exhibit:
    """One image that tells the models apart."""

    key: str
    label: str
    offset: Offset  # what broke it
    predictions: tuple[str, str]  # of survivor and broken model, on the clean image
    answer: str  # of the broken model at the offset
    original: Pixels
    shifted: Pixels


@dataclass(frozen=True)
class Side:
    """Some of the images that one model alone survives."""

    survivor: str  # the model that stays right
    broken: str  # the model that does not
    count: int  # of all such images
    exhibits: tuple[Exhibit, ...]

    @property
    def heading(self) -> str:
        """What its images show."""
        return f"{self.survivor} stays right, {self.broken} does not"


@dataclass(frozen=True)
class Gallery:
    """Images that only one of two models survives."""

    attack: str
    max_shift: int
    sides: tuple[Side, ...]  # what the first alone survives, and the second


def _views(
    dataset: ImageSet, index: int, record: Record, attack: str, offset: Offset
) -> tuple[Pixels, Pixels]:
    """The image as the model of `record` saw it, clean and at the offset."""
    shift = SHIFTS.get(ATTACKS.get(attack.partition("[")[0]).shift)
    margin = shift.margin(Grid(reach(offset)))  # none where the view is all that is read
    try:
        geometry = Geometry(**{**record.data.geometry, "margin": margin})
    except TypeError as error:
        raise RecordError(
            f"the record of {record.model.name} does not say how its images were cut ({error}): "
            "run the evaluation again"
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


def open_images(record: Record, data: str | None) -> ImageSet:
    """The data set a record was measured on; `data` says where its files are."""
    name = record.data.name
    source = (data or name).partition(":")[0]
    if name in DATA_SOURCES and source != name:
        raise UsageError(f"the records are of {name}, got --data {data}")
    try:
        dataset = load_dataset(data or name, split=record.data.split)
    except UsageError as error:
        place = f"{name if name in DATA_SOURCES else 'folder'}:PATH"
        raise UsageError(
            f"cannot open the images of {name}: {error}; give their place with --data {place}"
        ) from error
    if dataset.name != name:  # folders are named by themselves
        raise UsageError(f"the records are of {name}, got --data {data}, which is {dataset.name}")
    return dataset


def build_gallery(
    comparison: Comparison, *, attack: str | None = None, data: str | None = None, size: int = 8
) -> Gallery:
    """Finds the images that only one model survives and shows them as the other saw them.

    Args:
        comparison: Two models on the same images.
        attack: Which attack; the first that both have by default.
        data: `NAME:PATH` of the images; data that needs no files needs none.
        size: Images for each of the two models.
    """
    first, second = comparison.first, comparison.second
    known = {s.name.kind: s.name for s in comparison.scores if s.name.radius is not None}
    if not known:
        raise UsageError(f"{first.model.name} and {second.model.name} have no attack in common")
    attack = next(iter(known)) if attack is None else attack
    if attack not in known:
        raise unknown_name("attack in both records", attack, known)
    name, dataset = known[attack], open_images(first, data)
    sides = (_side(*pair, name, dataset, size) for pair in ((first, second), (second, first)))
    return Gallery(attack, name.radius or 0, tuple(sides))


def _side(survivor: Record, broken: Record, name: ScoreName, dataset: ImageSet, size: int) -> Side:
    names, places = dataset.class_names, {key: i for i, key in enumerate(dataset.keys)}

    def named(label: float) -> str:
        return names[int(label)] if 0 <= label < len(names) else str(int(label))

    kept, lost = (record.outcomes()[name] for record in (survivor, broken))
    kept, lost = kept.align(lost, join="inner")
    rows = broken.samples().set_index(KEY).loc[kept.index[(kept == 1) & (lost != 1)]]
    unbroken = survivor.samples().set_index(KEY)["prediction"]
    radius = f"{name.kind}_broken_radius"
    # Those first that the model lost by the shift and not before it.
    order = rows.assign(_wrong=rows[radius].fillna(0) == 0).sort_values(["_wrong", radius, KEY])
    exhibits = []
    for key, row in order.head(size).iterrows():
        if key not in places:
            raise DataError(
                f"image {key!r} of the records is not in {dataset.name}: "
                "give the folder they were made from with --data NAME:PATH"
            )
        dy, dx, answer = (row[f"{name.kind}_{word}"] for word in ("dy", "dx", "prediction"))
        offset = Offset(float(dy), float(dx))
        original, shifted = _views(dataset, places[str(key)], broken, name.kind, offset)
        exhibits.append(
            Exhibit(
                key=str(key),
                label=named(row["label"]),
                offset=offset,
                predictions=(named(unbroken[key]), named(row["prediction"])),
                answer=named(answer),
                original=original,
                shifted=shifted,
            )
        )
    return Side(survivor.model.name, broken.model.name, len(rows), tuple(exhibits))


def _fate(exhibit: Exhibit) -> str:
    """What happened to the broken model, in words."""
    if exhibit.offset == ORIGIN:
        return f"{exhibit.answer} on the clean image"
    return f"{exhibit.predictions[1]} on the clean image, {exhibit.answer} at {_place(exhibit)} px"


def _place(exhibit: Exhibit) -> str:
    return f"dy {exhibit.offset.dy:.3g}, dx {exhibit.offset.dx:.3g}"


def gallery_figure(gallery: Gallery) -> Figure:
    """The gallery as one picture: two tiles an image, each under the losing model's answer."""
    sides = [side for side in gallery.sides if side.exhibits]
    if not sides:
        names = f"{gallery.sides[0].survivor} and {gallery.sides[0].broken}"
        raise UsageError(f"no image tells {names} apart under {gallery.attack}")
    per_row = min(4, max(len(side.exhibits) for side in sides))
    rows = [math.ceil(len(side.exhibits) / per_row) for side in sides]
    figure = Figure(
        figsize=(3.4 * per_row, 2.1 * sum(rows) + 0.4 * len(sides)), layout="constrained"
    )
    blocks = figure.subfigures(len(sides), 1, height_ratios=rows, squeeze=False)[:, 0]
    for block, height, side in zip(blocks, rows, sides, strict=True):
        counts = f"{len(side.exhibits)} of {side.count:,} images"
        text = f"{side.heading} ({gallery.attack}, {counts})"
        block.suptitle(text, fontsize=10, parse_math=False)
        panels = block.subplots(height, 2 * per_row, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for number, exhibit in enumerate(side.exhibits):
            row, column = divmod(number, per_row)
            left, right = panels[row, 2 * column], panels[row, 2 * column + 1]
            left.imshow(exhibit.original, interpolation="nearest")
            right.imshow(exhibit.shifted, interpolation="nearest")
            said = [exhibit.predictions[1]]
            if said != [exhibit.label]:
                said.append(f"but it is {exhibit.label}")
            moved = [exhibit.answer, f"at {_place(exhibit)}"]
            for axes, lines in ((left, said), (right, moved)):
                words = "\n".join(map(_fitting, lines))
                axes.set_title(words, fontsize=7, loc="left", parse_math=False)
    return figure


def _fitting(line: str) -> str:
    """A line over a tile: ImageNet's classes are lists of synonyms, longer than it is wide."""
    return line if len(line) <= TITLE else f"{line[: TITLE - 1].rstrip(' ,')}…"


def _inline(pixels: Pixels) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _card(side: Side, exhibit: Exhibit) -> str:
    label, key, survivor, broken, right, fate = map(
        escape,
        (
            exhibit.label,
            exhibit.key,
            side.survivor,
            side.broken,
            exhibit.predictions[0],
            _fate(exhibit),
        ),
    )
    return (
        '<figure><div class="pair">'
        f'<img src="{_inline(exhibit.original)}" alt="{label}, clean">'
        f'<img src="{_inline(exhibit.shifted)}" alt="{label}, shifted"></div>'
        f"<figcaption><b>{label}</b> <span>{key}</span>"
        f"<br>{survivor}: {right} at every shift<br>{broken}: {fate}</figcaption></figure>"
    )


def gallery_html(gallery: Gallery) -> str:
    """The gallery as one self-contained page; every name is escaped."""
    sections = "".join(
        f"<section><h2>{escape(side.heading)}</h2>"
        f"<p>{len(side.exhibits)} of {side.count:,} images.</p>"
        f'<div class="cards">{"".join(_card(side, one) for one in side.exhibits)}</div></section>'
        for side in gallery.sides
    )
    about = (
        f"Attack {gallery.attack}, up to {gallery.max_shift} steps. Left: the clean image. "
        "Right: as the model saw it when it was first wrong."
    )
    template = resources.files("shiftbench.pictures").joinpath("gallery.html").read_text("utf-8")
    # The sections go in last, so that no name in them is taken for a place to fill.
    return template.replace("@@ABOUT@@", escape(about)).replace("@@SECTIONS@@", sections)


def write_gallery(gallery: Gallery, path: Path) -> None:
    """Writes a gallery as a page or a picture, by the file's ending."""
    if format_of(path, GALLERY_ENDINGS) == "html":
        write_text(path, gallery_html(gallery))
    else:
        save_figure(gallery_figure(gallery), path)
