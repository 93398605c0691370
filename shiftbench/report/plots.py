"""Figures of results: curves against max shift, an overview, and accuracy at each offset.

Figures are built with matplotlib's object interface: no window, no global state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
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
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.records.compare import unequal
from shiftbench.records.result import Result
from shiftbench.registry import unknown_name
from shiftbench.report.scores import Table, group_labels
from shiftbench.scores import ACCURACY, ScoreName, curve_of
from shiftbench.shifts import ATTACKS
from shiftbench.statistics import Score

ENDINGS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}
INCHES_PER_LETTER = 0.075  # of the legend
MOST_BANDS = 8  # models; above, bands would cover each other and the legend is beside the panels
SMALL = 9  # points


def curves_figure(
    results: Sequence[Result],
    *,
    attacks: Sequence[str] = (),
    allow_mixed: bool = False,
    names: Sequence[str] = (),
) -> Figure:
    """Draw adversarial accuracy against max shift, a panel per attack, with 95% bands.

    Args:
        results: One curve per panel each, in this order.
        attacks: Attacks to draw; empty: all that some result has.
        allow_mixed: Draw results of different images or settings together; the legend names them.
        names: Of the results in the legend; empty: those of their models.

    Raises:
        UsageError: The results are not comparable, or there is no such attack.
        RecordError: No result has an attack.
    """
    rows = _panels(_chosen_curves(results, attacks))
    curves = [curve for row in rows for curve in row]
    groups = group_labels(results)
    if not allow_mixed:
        _require_comparable(results, curves)
    width = max(len(row) for row in rows)
    mixed = len(set(groups)) > 1
    names = list(names) or [result.model.name for result in results]
    labels = [f"{n} on {g}" if mixed else n for n, g in zip(names, groups, strict=True)]
    inches = max(4.2 * width, 6.4)
    letters = 0.9 + INCHES_PER_LETTER * _longest(labels)
    many = len(results) > MOST_BANDS
    columns = 1 if many else max(1, min(len(labels), int(inches / letters)))
    height = 3.0 * len(rows) + 0.3
    if many:
        inches, height = inches + letters, max(height, 0.2 * len(results) + 0.4)
    else:
        height += 0.2 * -(-len(results) // columns)
    figure = Figure(figsize=(inches, height), layout="constrained")
    panels = figure.subplots(len(rows), width, squeeze=False, sharey=True)
    for axes_row, row in zip(panels, rows, strict=True):
        for axes, curve in zip(axes_row, row, strict=False):
            axes.set_autoscale_on(False)  # done once instead of for every curve
            _draw_panel(axes, results, curve, bands=not many)
        for axes in axes_row[len(row) :]:
            axes.set_visible(False)
        families = dict.fromkeys(curve.family for curve in row)
        what = " and ".join(families).replace("adversarial", "adversarial accuracy")
        axes_row[0].set_ylabel(f"{what} (%)", fontsize=SMALL)
        for axes in axes_row[1:]:
            axes.tick_params(labelleft=True)
    panels[0, 0].set_ylim(*_percent_range(results, curves))
    handles = [Line2D([], [], **Look.number(index).line) for index in range(len(results))]
    legend = figure.legend(
        handles,
        labels,
        loc="outside right upper" if many else "outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is a dollar
    title = [] if mixed else [groups[0]]
    title += [] if many else ["bands: 95% intervals"]
    figure.suptitle("; ".join(title), fontsize=SMALL, parse_math=False)
    return figure


def _longest(texts: Sequence[str]) -> int:
    return max(len(text) for text in texts)


def _chosen_curves(results: Sequence[Result], attacks: Sequence[str]) -> list[ScoreName]:
    """List the curves of the given attacks in the order of the results."""
    names = (name for result in results for name in result.scores if name.radius is not None)
    present = list(dict.fromkeys(name.curve for name in names))
    if not present:
        raise RecordError("no record has an attack. Run `shiftbench run` with --attack")
    for attack in attacks:
        if attack not in {curve.kind for curve in present}:
            raise unknown_name("attack in these records", attack, [c.kind for c in present])
    return [curve for curve in present if not attacks or curve.kind in attacks]


def _panels(curves: Sequence[ScoreName]) -> list[list[ScoreName]]:
    """Arrange curves in rows: shifts that a camera makes, then cyclic ones."""
    known = [curve for kind in ATTACKS for curve in curves if curve.kind == kind]
    real = [curve for curve in known if ATTACKS.get(curve.kind).shift != "cyclic"]
    rest = [curve for curve in (*known, *curves) if curve not in real]
    return [row for row in (real, list(dict.fromkeys(rest))) if row]


def _require_comparable(results: Sequence[Result], curves: Sequence[ScoreName]) -> None:
    """Raise UsageError if two results were measured under other conditions or settings."""
    first = results[0]
    for other in results[1:]:
        reason = unequal(first.conditions, other.conditions)
        for curve in curves:
            owner = next(r for r in results if curve_of(r.scores, curve))
            point = curve.at(0)
            if not reason and point in other.scores and point in owner.scores:
                reason = unequal(owner.settings_of(point), other.settings_of(point))
        if reason:
            raise UsageError(
                f"cannot draw {first.model.name} and {other.model.name} together: {reason}. Choose "
                "with --data or --model, or pass --allow-mixed"
            )


@dataclass(frozen=True)
class _Axis:
    """Horizontal axis of a curve."""

    step: Fraction  # between rings
    unit: str
    summary: str  # of the attack

    @classmethod
    def of(cls, results: Sequence[Result], curve: ScoreName) -> _Axis:
        for result in results:
            request = result.request_of(curve.at(0))
            if request is not None and request.settings.get("attack") in ATTACKS:
                attack, step = ATTACKS.get(request.settings["attack"]), request.settings["step"]
                return cls(Fraction(step), attack.unit, f": {attack.summary}")
        return cls(Fraction(1), "steps", "")


def _draw_panel(
    axes: Axes, results: Sequence[Result], curve: ScoreName, *, bands: bool = True
) -> None:
    """Draw a line per result over its band; all bands of a panel are one artist."""
    areas, colors, last = [], [], 0
    counts = {s.n for result in results for s in curve_of(result.scores, curve).values()}
    for index, result in enumerate(results):
        points, look = curve_of(result.scores, curve), Look.number(index)
        if not points:
            continue
        last = max(last, *points)
        upper = [(radius, 100 * score.high) for radius, score in points.items()]
        lower = [(radius, 100 * score.low) for radius, score in points.items()]
        areas.append(upper + lower[::-1])
        colors.append(look.color)
        values = [100 * score.value for score in points.values()]
        marker: dict[str, Any] = {
            "markersize": 5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }
        axes.add_line(Line2D(list(points), values, **look.line, **marker, gid=result.model.name))
    if bands:
        filled = PolyCollection(areas, facecolors=colors, alpha=0.13, linewidths=0)
        axes.add_collection(filled, autolim=False)
    axis = _Axis.of(results, curve)
    n = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    what = curve.stem.removeprefix("adversarial_").replace("_", " ")
    title = f"{what}{axis.summary}\nn = {n}"
    axes.set_title(title, fontsize=SMALL, loc="left", parse_math=False)
    axes.set_xticks(range(last + 1), [str(s * axis.step) for s in range(last + 1)])
    axes.set_xlabel(f"max shift ({axis.unit})", fontsize=SMALL)
    axes.set_xlim(-0.2, last + 0.2)
    _dress(axes, grid="y")


def _dress(axes: Axes, *, grid: str) -> None:
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _percent_range(results: Sequence[Result], curves: Sequence[ScoreName]) -> tuple[float, float]:
    """Return the range of all bands with 5% on either side."""
    scores = [s for r in results for curve in curves for s in curve_of(r.scores, curve).values()]
    low, high = 100 * min(s.low for s in scores), 100 * max(s.high for s in scores)
    pad = 0.05 * max(high - low, 1.0)
    return low - pad, high + pad


def overview_figure(table: Table) -> Figure:
    """Draw adversarial against clean accuracy: a dot per model, a color per family of models.

    Raises:
        UsageError: Fewer than two models have top1 and a ranked adversarial_crop.
    """
    curves = [c for c in table.columns if c.kind == "crop" and c.radius is not None]
    crop = next((c for c in curves if not table.lower_is_better(c)), None)
    # Objects and pixels have a clean score of the same name.
    unshifted = ACCURACY if crop is None or crop.family == "adversarial" else ScoreName(crop.family)
    dots: dict[Result, tuple[Score, Score]] = {}
    extent = ""
    for row in table.rows:
        x, y = table.get(row, unshifted), None if crop is None else table.get(row, crop)
        if x is not None and y is not None and y.comparable:
            dots[row], extent = (x.value, y.value), y.extent
    if len(dots) < 2:
        raise UsageError(
            f"expected two or more models with top1 and adversarial_crop on {table.label}, got "
            f"{len(dots)}"
        )
    families = sorted({family_of(row.model.name) for row in dots})
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots()
    names = []
    for row, (clean, shifted) in dots.items():
        look = Look.number(families.index(family_of(row.model.name)))
        at = 100 * clean.value, 100 * shifted.value
        ends = [[at[1] - 100 * shifted.low], [100 * shifted.high - at[1]]]
        axes.errorbar(*at, yerr=ends, color=look.color, alpha=0.25, linewidth=1.5)
        axes.plot(*at, look.marker, color=look.color, markersize=8, gid=row.model.name)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": SMALL}
        name = short_name(row.model.name)
        names.append(axes.annotate(name, at, (8, 0), **beside, parse_math=False))
    low, high = axes.get_xlim()
    high += 0.25 * (high - low)  # for the names
    axes.set_xlim(low, high)
    axes.set_ylim(min(100 * shifted.low for _, shifted in dots.values()) - 1, high)
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    end = low + 0.95 * (high - low)  # no name reaches as far
    axes.annotate(
        "no accuracy lost", (end, end), (-8, 2), textcoords="offset points", ha="right",
        color="#777777", fontsize=SMALL,
    )  # fmt: skip
    axes.set_xlabel("clean accuracy (%)", fontsize=10)
    axes.set_ylabel(f"correct at every crop shift up to {extent} (%)", fontsize=10)
    missing = len(table.rows) - len(dots)
    reason = f"; {missing} without a comparable crop score left out" if missing else ""
    axes.set_title(f"{table.label}{reason}", fontsize=10, loc="left", parse_math=False)
    _dress(axes, grid="both")
    _separate(figure, names)
    return figure


def family_of(model: str) -> str:
    """Return the family of a model by its name.

    >>> family_of("timm:tf_efficientnet_lite0"), family_of("tv:mobilenet_v2")
    ('efficientnet', 'mobilenet')
    """
    name = model.partition("+")[0].rpartition(":")[2].lower().removeprefix("tf_")
    letters = re.match(r"[a-z]+", name)
    # MobileNetV1 and mobilenet_v2 are one family.
    return letters.group().removesuffix("v") if letters else name


def short_name(model: str) -> str:
    """Return a model's name without its source and input size.

    >>> short_name("timm:vit_tiny_patch16_224"), short_name("tv:mobilenet_v2+align:12:1")
    ('vit_tiny_patch16', 'mobilenet_v2+align:12:1')
    """
    model, plus, remedies = model.partition("+")
    return re.sub(r"_\d{3}$", "", model.rpartition(":")[2]) + plus + remedies


def _separate(figure: Figure, names: Sequence[Annotation]) -> None:
    """Move each name to the first side of its dot where it covers no other name or dot."""
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


def heatmap_figure(result: Result, *, attacks: Sequence[str] = ()) -> Figure:
    """Draw the accuracy at each offset of the grids that were predicted in full.

    Raises:
        UsageError: The record has no full grid, or not of the given attack.
    """
    full = [
        metric.label
        for request in result.requests
        if isinstance(metric := request.loaded, Adversarial) and metric.full_grid
    ]
    if not full:
        raise UsageError(
            f"the record of {result.model.name} has no full grid. Run it again with `shiftbench "
            "run --full-grid`"
        )
    for attack in attacks:
        if attack not in full:
            raise unknown_name("full grid in this record", attack, full)
    maps = {attack: result.accuracy_by_offset(attack) for attack in attacks or dict.fromkeys(full)}
    values = [100 * score.value for cells in maps.values() for score in cells.values()]
    scale = Normalize(min(values), max(values))
    figure = Figure(figsize=(max(3.1 * len(maps) + 1.0, 4.6), 3.9), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (attack, cells) in zip(panels, maps.items(), strict=True):
        rows = sorted({offset.dy for offset in cells})
        columns = sorted({offset.dx for offset in cells})
        image = np.full((len(rows), len(columns)), np.nan)
        for offset, score in cells.items():
            image[rows.index(offset.dy), columns.index(offset.dx)] = 100 * score.value
        # Cividis is readable without color vision and in gray.
        drawn = axes.imshow(image, cmap="cividis", norm=scale, origin="upper")
        worst = min(cells.values())
        title = f"{attack}, n={worst.n:,}\nlowest {worst.text()} {worst.interval()}"
        axes.set_title(title, fontsize=SMALL, loc="left")
        for ticks, set_ticks in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
            named = sorted({0, len(ticks) // 2, len(ticks) - 1})
            set_ticks(named, [f"{ticks[i]:g}" for i in named], fontsize=8)
        axes.set_xlabel("dx (px)", fontsize=SMALL)
    panels[0].set_ylabel("dy (px)", fontsize=SMALL)
    bar = figure.colorbar(drawn, ax=list(panels), shrink=0.8, pad=0.02)
    bar.set_label("accuracy at the offset (%)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=8)
    figure.suptitle(f"{result.model.name}, {result.data}", fontsize=10, parse_math=False)
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 160) -> None:
    """Write a figure as PNG, PDF or SVG, by the ending of the file."""
    kind = format_of(path, ENDINGS)
    figure.set_dpi(dpi)
    engine = figure.get_layout_engine()
    if engine is not None:  # once: with an engine, matplotlib draws everything twice
        engine.execute(figure)
        figure.set_layout_engine(None)
    # No date and no random ids: equal records give equal files.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    # TrueType: many venues reject the Type 3 fonts that matplotlib writes by default.
    with rc_context({"svg.hashsalt": "shiftbench", "pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, format=kind, dpi=dpi, metadata=metadata)
