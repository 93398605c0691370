"""The images that one model survives and the other does not, as a picture or a page.

The records say which images and which offset; the images themselves are read again from their data
set, cut by the geometry of the model that failed, and shifted as it saw them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from shiftbench.data import DATA_SOURCES, ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.errors import DataError, RecordError, UsageError
from shiftbench.files import GALLERY_ENDINGS, format_of, require_place, write_text
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.preprocessing import Geometry
from shiftbench.records.record import KEY, Record
from shiftbench.registry import unknown_name
from shiftbench.report.compare import Comparison
from shiftbench.report.plots import save_figure
from shiftbench.shifts import ATTACKS, SHIFTS, Views

Pixels = NDArray[np.uint8]  # (H, W, 3)
SIDES = ("_first", "_second")  # suffixes of the columns of the two records
TITLE = 28  # characters that fit over a tile of the picture


@dataclass(frozen=True)
class Exhibit:
    """One image that tells the models apart."""

    key: str
    label: str
    survivor: str  # the model that stays right
    broken: str  # the model that does not
    offset: Offset  # what broke it
    predictions: tuple[str, str]  # of survivor and broken model, on the clean image
    answer: str  # of the broken model at the offset
    original: Pixels
    shifted: Pixels


@dataclass(frozen=True)
class Gallery:
    """Some of the images that only one of two models survives."""

    attack: str
    max_shift: int
    first: str
    second: str
    only_first: int  # how many there are in all
    only_second: int
    exhibits: tuple[Exhibit, ...]


def _geometry(record: Record, margin: int) -> Geometry:
    try:
        geometry = Geometry(**record.data.geometry)
    except TypeError as error:
        raise RecordError(
            f"the record of {record.model.name} does not say how its images were cut ({error}): "
            "run the evaluation again"
        ) from error
    return replace(geometry, margin=margin)


def _views(
    dataset: ImageSet, index: int, record: Record, attack: str, offset: Offset
) -> tuple[Pixels, Pixels]:
    """The image as the model of `record` saw it, clean and at the offset."""
    shift = SHIFTS.get(ATTACKS.get(attack.partition("[")[0]).shift)
    far = max(abs(offset.dy), abs(offset.dx))
    margin = shift.margin(Grid(math.ceil(far)))  # none where the view is all that is read
    geometry = _geometry(record, margin)
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


def _name(classes: Sequence[str], index: int) -> str:
    return classes[index] if 0 <= index < len(classes) else str(index)


def _choose(rows: pd.DataFrame, radius: str, size: int) -> pd.DataFrame:
    """Some rows, those first that the model lost by the shift and not before it."""
    wrong_clean = rows[radius].fillna(0) == 0
    order = rows.assign(_wrong=wrong_clean).sort_values(["_wrong", radius, "key"])
    return order.head(size)


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
    name = known[attack]
    dataset = open_images(first, data)
    index_of = {key: index for index, key in enumerate(dataset.keys)}
    names = dataset.class_names
    samples = (
        first.samples()
        .merge(second.samples(), on=KEY, suffixes=SIDES, validate="one_to_one")
        .set_index(KEY, drop=False)
        .rename_axis(index=None)
    )
    outcomes = [record.outcomes(name.stem)[name] for record in (first, second)]
    both = outcomes[0].index.intersection(outcomes[1].index)
    samples = samples.loc[both]
    kept = [(values.loc[both] == 1).to_numpy() for values in outcomes]
    exhibits = []
    for loser, winner, side, other in (
        (second, first, SIDES[1], SIDES[0]),
        (first, second, SIDES[0], SIDES[1]),
    ):
        mine, theirs = (kept[SIDES.index(s)] for s in (side, other))
        chosen = samples[~mine & theirs]
        for _, row in _choose(chosen, f"{attack}_broken_radius{side}", size).iterrows():
            if row["key"] not in index_of:
                raise DataError(
                    f"image {row['key']!r} of the records is not in {dataset.name}: "
                    "give the folder they were made from with --data NAME:PATH"
                )
            offset = Offset(float(row[f"{attack}_dy{side}"]), float(row[f"{attack}_dx{side}"]))
            original, shifted = _views(dataset, index_of[row["key"]], loser, attack, offset)
            exhibits.append(
                Exhibit(
                    key=str(row["key"]),
                    label=_name(names, int(row["label_first"])),
                    survivor=winner.model.name,
                    broken=loser.model.name,
                    offset=offset,
                    predictions=(
                        _name(names, int(row[f"prediction{other}"])),
                        _name(names, int(row[f"prediction{side}"])),
                    ),
                    answer=_name(names, int(row[f"{attack}_prediction{side}"])),
                    original=original,
                    shifted=shifted,
                )
            )
    return Gallery(
        attack,
        name.radius or 0,
        first.model.name,
        second.model.name,
        int((kept[0] & ~kept[1]).sum()),
        int((kept[1] & ~kept[0]).sum()),
        tuple(exhibits),
    )


def _fate(exhibit: Exhibit) -> str:
    """What happened to the broken model, in words."""
    if exhibit.offset == ORIGIN:
        return f"{exhibit.answer} on the clean image"
    place = f"dy {exhibit.offset.dy:.3g}, dx {exhibit.offset.dx:.3g} px"
    return f"{exhibit.predictions[1]} on the clean image, {exhibit.answer} at {place}"


def _sides(gallery: Gallery) -> list[tuple[str, int, list[Exhibit]]]:
    """Heading, count in all, and exhibits for each model that survives."""
    return [
        (
            f"{survivor} stays right, {broken} does not",
            count,
            [exhibit for exhibit in gallery.exhibits if exhibit.survivor == survivor],
        )
        for survivor, broken, count in (
            (gallery.first, gallery.second, gallery.only_first),
            (gallery.second, gallery.first, gallery.only_second),
        )
    ]


def gallery_figure(gallery: Gallery) -> Figure:
    """The gallery as one picture: two tiles an image, each under the losing model's answer."""
    sides = [side for side in _sides(gallery) if side[2]]
    if not sides:
        raise UsageError(
            f"no image tells {gallery.first} and {gallery.second} apart under {gallery.attack}"
        )
    per_row = min(4, max(len(exhibits) for _, _, exhibits in sides))
    rows = [math.ceil(len(exhibits) / per_row) for _, _, exhibits in sides]
    figure = Figure(
        figsize=(3.4 * per_row, 2.1 * sum(rows) + 0.4 * len(sides)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    blocks = figure.subfigures(len(sides), 1, height_ratios=rows, squeeze=False)[:, 0]
    for block, height, (heading, count, exhibits) in zip(blocks, rows, sides, strict=True):
        text = f"{heading} ({gallery.attack}, {len(exhibits)} of {count:,} images)"
        block.suptitle(text, fontsize=10, parse_math=False)
        panels = block.subplots(height, 2 * per_row, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for number, exhibit in enumerate(exhibits):
            row, column = divmod(number, per_row)
            left, right = panels[row, 2 * column], panels[row, 2 * column + 1]
            left.imshow(exhibit.original, interpolation="nearest")
            right.imshow(exhibit.shifted, interpolation="nearest")
            said = [exhibit.predictions[1]]
            if said != [exhibit.label]:
                said.append(f"but it is {exhibit.label}")
            place = f"at dy {exhibit.offset.dy:.3g}, dx {exhibit.offset.dx:.3g}"
            for axes, lines in ((left, said), (right, [exhibit.answer, place])):
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


def _card(exhibit: Exhibit) -> str:
    return (
        '<figure><div class="pair">'
        f'<img src="{_inline(exhibit.original)}" alt="{escape(exhibit.label)}, clean">'
        f'<img src="{_inline(exhibit.shifted)}" alt="{escape(exhibit.label)}, shifted"></div>'
        f"<figcaption><b>{escape(exhibit.label)}</b> <span>{escape(exhibit.key)}</span>"
        f"<br>{escape(exhibit.survivor)}: {escape(exhibit.predictions[0])} at every shift"
        f"<br>{escape(exhibit.broken)}: {escape(_fate(exhibit))}</figcaption></figure>"
    )


def gallery_html(gallery: Gallery) -> str:
    """The gallery as one self-contained page; every name is escaped."""
    sections = "".join(
        f"<section><h2>{escape(heading)}</h2><p>{len(exhibits)} of {count:,} images.</p>"
        f'<div class="cards">{"".join(map(_card, exhibits))}</div></section>'
        for heading, count, exhibits in _sides(gallery)
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
    require_place(path)
    if format_of(path, GALLERY_ENDINGS) == "html":
        write_text(path, gallery_html(gallery))
    else:
        save_figure(gallery_figure(gallery), path)
