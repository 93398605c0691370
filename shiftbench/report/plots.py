"""Records as pictures: curves against max shift, and accuracy at each offset of a full grid.

Figures are built with matplotlib's object interface: no window, no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from shiftbench.errors import RecordError, UsageError
from shiftbench.figures import Look
from shiftbench.files import format_of
from shiftbench.records.comparable import (
    group_records,
    require_comparable,
    why_not,
)
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.report.axis import ShiftAxis
from shiftbench.report.overview import Overview, short_name
from shiftbench.report.table import Table
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS

ENDINGS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}


def _panel_rows(curves: Sequence[ScoreName]) -> list[list[ScoreName]]:
    """Shifts a camera makes, as in the paper's figure, then the cyclic grids."""
    kinds = [name for name in ATTACKS if ATTACKS.get(name).shift != "cyclic"]
    real = [curve for kind in kinds for curve in curves if curve.kind == kind]
    rest = [curve for curve in curves if curve not in real]
    return [row for row in (real, rest) if row]


def _chosen(records: Sequence[Record], attacks: Sequence[str]) -> list[ScoreName]:
    """The curves of the named attacks, in the order of the records; of all when none is named."""
    present = list(dict.fromkeys(name for record in records for name in record.scores.curves()))
    for attack in attacks:
        if attack not in {curve.kind for curve in present}:
            raise unknown_name("attack in these records", attack, [c.kind for c in present])
    return [curve for curve in present if not attacks or curve.kind in attacks]


def _labels(records: Sequence[Record]) -> list[str]:
    """What the legend calls each record: the group where there are several, and what bounds."""
    groups = {id(r): group.label for group in group_records(records) for r in group.records}
    mixed, labels = len(set(groups.values())) > 1, []
    for record in records:
        name = f"{record.model.name} on {groups[id(record)]}" if mixed else record.model.name
        bound = any(record.is_upper_bound(curve) for curve in record.scores.curves())
        labels.append(f"{name} (≤, sampled)" if bound else name)
    return labels


def _legend_columns(labels: Sequence[str], inches: float) -> int:
    """How many legend columns fit: a letter of the legend's size is about 0.075 inches wide."""
    widest = 0.9 + 0.075 * max(len(label) for label in labels)
    return max(1, min(len(labels), int(inches / widest)))


def _draw_curves(axes: Axes, records: Sequence[Record], name: ScoreName) -> None:
    """A line per record over its band; all bands of a panel are one artist."""
    bands, colors = [], []
    for index, record in enumerate(records):
        curve, look = record.scores.curve(name), Look.number(index)
        if not curve:
            continue
        upper = [(radius, 100 * score.high) for radius, score in curve.items()]
        lower = [(radius, 100 * score.low) for radius, score in reversed(curve.items())]
        bands.append(upper + lower)
        colors.append(look.color)
        line = Line2D(
            list(curve),
            [100 * score.value for score in curve.values()],
            **look.line,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            gid=record.model.name,
        )
        axes.add_line(line)
    filled = PolyCollection(bands, facecolors=colors, alpha=0.13, linewidths=0)
    axes.add_collection(filled, autolim=False)


def _percent_range(records: Sequence[Record], names: Sequence[ScoreName]) -> tuple[float, float]:
    """The scale of every panel: all bands, with some room."""
    scores = [score for r in records for name in names for score in r.scores.curve(name).values()]
    low, high = 100 * min(s.low for s in scores), 100 * max(s.high for s in scores)
    room = 0.05 * max(high - low, 1.0)
    return low - room, high + room


def _dress(axes: Axes, name: ScoreName, radius: int) -> None:
    axis = ShiftAxis.of(name)
    title = f"{name.kind}: {axis.summary}" if axis.summary else name.kind
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xticks(range(radius + 1), [axis.tick(s) for s in range(radius + 1)])
    axes.set_xlabel(f"max shift ({axis.unit})", fontsize=9)
    axes.set_xlim(-0.2, radius + 0.2)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def curves_figure(
    records: Sequence[Record], *, attacks: Sequence[str] = (), allow_mixed: bool = False
) -> Figure:
    """Adversarial accuracy against max shift, one panel per attack, with Wilson bands.

    Args:
        records: One curve each, in this order.
        attacks: Panels to draw; all that some record has when empty.
        allow_mixed: Draw records of different images in one figure; the legend then names them.
    """
    shown = _chosen(records, attacks)
    if not shown:
        raise RecordError("no record has an attack: run `shiftbench run` with --attack")
    if not allow_mixed:
        require_comparable(records, what="a figure")
        for name in shown:
            _require_same_curve([r for r in records if r.scores.curve(name)], name)
    rows = _panel_rows(shown)
    width = max(len(row) for row in rows)
    labels = _labels(records)
    inches = max(4.2 * width, 6.4)
    legend_columns = _legend_columns(labels, inches)
    legend_lines = -(-len(records) // legend_columns)
    height = 3.0 * len(rows) + 0.3 + 0.2 * legend_lines
    figure = Figure(figsize=(inches, height), layout="constrained")
    panels = figure.subplots(len(rows), width, squeeze=False, sharey=True)
    for axes_row, row in zip(panels, rows, strict=True):
        for axes, name in zip(axes_row, row, strict=False):
            curves = [record.scores.curve(name) for record in records]
            axes.set_autoscale_on(False)  # it would be done again for every curve
            _draw_curves(axes, records, name)
            _dress(axes, name, max((max(c) for c in curves if c), default=0))
        for axes in axes_row[len(row) :]:
            axes.set_visible(False)
        axes_row[0].set_ylabel("adversarial accuracy (%)", fontsize=9)
        for axes in axes_row[1:]:
            axes.tick_params(labelleft=True)
    panels[0, 0].set_ylim(*_percent_range(records, shown))
    handles = [Line2D([], [], **Look.number(index).line) for index in range(len(records))]
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=legend_columns,
        fontsize=8,
        frameon=False,
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is a dollar
    note = "bands: 95% intervals"
    groups = group_records(records)
    title = f"{groups[0].label}{_searched(records[0], shown)}; {note}" if len(groups) == 1 else note
    figure.suptitle(title, fontsize=9)
    return figure


def _searched(record: Record, curves: Sequence[ScoreName]) -> str:
    """How many images the curves are of, where those are not all."""
    counts = {score.n for name in curves for score in record.scores.curve(name).values()}
    if counts == {record.data.images}:
        return ""
    fewest, most = min(counts), max(counts)
    return f", {fewest:,}{f' to {most:,}' if most > fewest else ''} searched"


def _require_same_curve(records: Sequence[Record], name: ScoreName) -> None:
    """Refuses curves of one panel that were not measured alike, at any radius that both have.

    Sampled searches may stand beside exact ones: the legend marks them as upper bounds.
    """
    first = records[0]
    points = [replace(name, radius=radius) for radius in first.scores.curve(name)]
    for other in records[1:]:
        bound = first.is_upper_bound(name) or other.is_upper_bound(name)
        for point in (point for point in points if point in other.scores):
            reasons = why_not(first, other, point, images_only=bound)
            if reasons:
                raise UsageError(
                    f"the curves of {first.model.name} and {other.model.name} cannot be drawn "
                    f"together: {'; '.join(reasons)}; choose with --model, or pass --allow-mixed"
                )


def overview_figure(table: Table) -> Figure:
    """Clean accuracy against what is left under shifts: a dot per network, a color per family."""
    overview = Overview.of(table)
    if overview is None:
        raise UsageError(
            "an overview needs two or more networks with top1 and adversarial_crop on the same "
            f"images, got {len(table.rows)} on {table.label}"
        )
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots()
    names = []
    for dot in overview.dots:
        look = Look.number(dot.family)
        x, y = 100 * dot.clean.value, 100 * dot.shifted.value
        ends = [[y - 100 * dot.shifted.low], [100 * dot.shifted.high - y]]
        axes.errorbar(x, y, yerr=ends, color=look.color, alpha=0.25, linewidth=1.5)
        axes.plot(x, y, look.marker, color=look.color, markersize=8, gid=dot.model)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        name = short_name(dot.model)
        names.append(axes.annotate(name, (x, y), (8, 0), **beside, parse_math=False))
    low, high = axes.get_xlim()
    high += 0.25 * (high - low)  # room for names
    bottom = min(100 * dot.shifted.low for dot in overview.dots)
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom - 1, high)
    middle = (low + high) / 2
    above: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "right",
        "color": "#777777",
        "fontsize": 9,
    }
    axes.annotate("nothing lost", (middle, middle), (-4, 2), **above)
    axes.set_xlabel(overview.axes[0], fontsize=10)
    axes.set_ylabel(overview.axes[1], fontsize=10)
    axes.set_title(table.label, fontsize=10, loc="left", parse_math=False)
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _separate(figure, names)
    return figure


def _separate(figure: Figure, names: Sequence[Annotation]) -> None:
    """Puts each name beside its dot, on the first side where it covers no other name or dot."""
    figure.draw_without_rendering()
    point = figure.dpi / 72  # pixels
    dots = [name.axes.transData.transform(name.xy) for name in names if name.axes is not None]
    boxes = [Bbox.from_extents(*(dot - 4 * point), *(dot + 4 * point)) for dot in dots]
    for name in sorted(names, key=lambda name: -name.xy[1]):
        for sideways, up in ((1, 0), (-1, 0), (1, -1), (-1, 1), (1, 1), (-1, -1), (1, -2), (-1, 2)):
            name.set_horizontalalignment("left" if sideways > 0 else "right")
            name.xyann = (8 * sideways, 11 * up)
            box = name.get_window_extent()
            if not any(box.overlaps(other) for other in boxes):
                break
        boxes.append(box)


def heatmap_figure(record: Record, *, attacks: Sequence[str] = ()) -> Figure:
    """Accuracy at each offset of the grids that were evaluated in full, one panel per attack."""
    present = {
        name.kind: record.maps[name.stem]
        for name in record.scores.curves()
        if name.stem in record.maps
    }
    if not present:
        raise UsageError(
            f"the record of {record.model.name} has no full grid: "
            "run it again with `shiftbench run --full-grid`"
        )
    for attack in attacks:
        if attack not in present:
            raise unknown_name("full grid in this record", attack, present)
    shown = list(attacks) or list(present)
    values = [score.value for attack in shown for score in present[attack].values()]
    scale = Normalize(100 * min(values), 100 * max(values))
    figure = Figure(figsize=(max(3.1 * len(shown) + 1.0, 4.6), 3.9), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, attack in zip(panels, shown, strict=True):
        cells = present[attack]
        ticks = sorted({offset.dy for offset in cells})
        image = np.full((len(ticks), len(ticks)), np.nan)
        for offset, score in cells.items():
            image[ticks.index(offset.dy), ticks.index(offset.dx)] = 100 * score.value
        # Cividis reads the same with and without color vision, and in gray.
        drawn = axes.imshow(image, cmap="cividis", norm=scale, origin="upper")
        worst = min(cells.values())
        axes.set_title(
            f"{attack}, n={worst.n:,}\nlowest {worst.text()} {worst.interval()}",
            fontsize=9,
            loc="left",
        )
        named = [0, len(ticks) // 2, len(ticks) - 1]
        axes.set_xticks(named, [f"{ticks[i]:g}" for i in named], fontsize=8)
        axes.set_yticks(named, [f"{ticks[i]:g}" for i in named], fontsize=8)
        axes.set_xlabel("dx (px)", fontsize=9)
    panels[0].set_ylabel("dy (px)", fontsize=9)
    bar = figure.colorbar(drawn, ax=list(panels), shrink=0.8, pad=0.02)
    bar.set_label("accuracy at the offset (%)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    heading = f"{record.model.name}, {record.data}"
    figure.suptitle(heading, fontsize=10, parse_math=False)
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 160) -> None:
    """Writes a figure as PNG, PDF or SVG, by the file's ending."""
    kind = format_of(path, ENDINGS)
    figure.set_dpi(dpi)
    engine = figure.get_layout_engine()
    if engine is not None:  # once: with an engine, matplotlib draws everything twice
        engine.execute(figure)
        figure.set_layout_engine(None)
    # No date and no random ids: the same records give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    # TrueType: many venues refuse the Type 3 fonts that matplotlib writes otherwise.
    with rc_context({"svg.hashsalt": "shiftbench", "pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, format=kind, dpi=dpi, metadata=metadata)
