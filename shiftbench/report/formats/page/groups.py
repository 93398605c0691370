"""One table as the page shows it: every cell, at every max shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shiftbench.metrics import METRICS
from shiftbench.report.axis import ShiftAxis
from shiftbench.report.formats.base import marked, plain
from shiftbench.report.formats.page.detail import describe_detail, sampled_modes, verified
from shiftbench.report.overview import Overview, short_name
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Cell, Column, Table

# Not scores, yet on the page; others only where the table is sorted by one of them.
_PLAIN = ("param_count", "seconds")
# The table opens with the model, these scores and as many others as make five columns.
_FRONT = ("top1", "consistency_crop", "adversarial_crop", "adversarial_bilinear")
_FIRST = 5


def describe_group(table: Table) -> dict[str, Any]:
    """Columns, cells and rows of a table, the notes for each max shift, and the models' details."""
    columns = _shown(table)
    preferred = sorted(columns[1:], key=lambda column: column.name not in _FRONT)
    front = {columns[0].name, *(column.name for column in preferred[: _FIRST - 1])}
    furthest = {column.name: _furthest(table, column) for column in columns}
    starts = [c.score.radius for c in columns if c.score and c.score.radius is not None]
    stop = max(starts, default=0)
    names = [(row.record.model.name, row.record.data.name) for row in table.rows]
    order = sorted(range(len(names)), key=names.__getitem__)
    places = {index: place for place, index in enumerate(order)}
    last = max([stop, *(far for far in furthest.values() if far is not None)])
    return {
        "label": table.label,
        "data": table.rows[0].record.data.name,
        "sort": table.sort,
        "descending": table.descending,
        "stop": stop,  # the radius to begin with; there each column has its own
        "notes": [(table if s == stop else table.at(s)).notes() for s in range(last + 1)],
        "overview": _overview(table),
        "columns": [
            {**_column(table, column, furthest[column.name]), "front": column.name in front}
            for column in columns
        ],
        "rows": [
            {
                "place": places[index],
                "model": row.record.model.name,
                "mode": sampled_modes(row.record),
                "verified": verified(row.record),
                "detail": describe_detail(row.record),
            }
            for index, row in enumerate(table.rows)
        ],
    }


def _overview(table: Table) -> dict[str, Any] | None:
    """A dot per model: numbers for drawing, and the texts to read."""
    overview = Overview.of(table)
    if overview is None:
        return None
    rows = {row.record.model.name: index for index, row in enumerate(table.rows)}
    dots = [
        {
            "row": rows[dot.model],
            "name": short_name(dot.model),
            "family": dot.family,
            "text": f"{dot.model}: {dot.clean}; under shifts {dot.shifted}",
            "x": round(100 * dot.clean.value, 2),
            "y": round(100 * dot.shifted.value, 2),
            "low": round(100 * dot.shifted.low, 2),
            "high": round(100 * dot.shifted.high, 2),
        }
        for dot in overview.dots
    ]
    x, y = overview.axes
    return {
        "x": x,
        "y": y,
        "note": f"{table.label}. Bars: 95% intervals. A color per family of networks.",
        "label": f"{x} against {y}: "
        + ", ".join(f"{dot['name']} {dot['x']} and {dot['y']}" for dot in dots),
        "dots": dots,
    }


def _shown(table: Table) -> list[Column]:
    """The models, every score that a record has at some radius, and a few facts."""
    there = {name.curve for row in table.rows for name in row.points}
    by_name = {column.name: column for column in table.columns}
    scored = [c for c in table.columns if c.score is not None and c.score.curve in there]
    facts = [by_name[n] for n in dict.fromkeys(("model", *_PLAIN, table.sort))]
    model, *others = (column for column in facts if column.score is None)
    return [model, *scored, *others]


def _furthest(table: Table, column: Column) -> int | None:
    """The largest radius of a curve that some record has; None where there is no curve."""
    if column.score is None or column.score.radius is None:
        return None
    radii = [radius for row in table.rows for radius in row.record.scores.curve(column.score)]
    return max(radii, default=column.score.radius)


def _column(table: Table, column: Column, furthest: int | None) -> dict[str, Any]:
    radius = column.score.radius if column.score else None
    points = [column] if furthest is None else [column.at(s) for s in range(furthest + 1)]
    cells = [[row.cell(point) for row in table.rows] for point in points]
    return {
        "name": column.name,
        "group": column.family,
        "title": column.title,
        "short": column.short_title,
        "about": _about(column),
        "ascending": column.ascending,
        "radius": radius or 0,
        "cells": [_cells(column.name, row) for row in cells],
        "curve": None if furthest is None else _curve(column, cells),
    }


def _about(column: Column) -> str:
    """What a column's metric is, in a few words."""
    family = "" if column.score is None else column.score.family
    return METRICS.get(family).summary if family in METRICS else ""


def _cells(name: str, cells: Sequence[Cell]) -> list[list[str | int] | None]:
    """Each as [text, rank], and for scores interval, n and flags.

    Ranks count from 0 up, among the ranked cells and among the others. Flags: b, best; u, unranked;
    n, of another number of images than the row's other scores.
    """
    values = [
        {_value(c) for c in cells if c is not None and _ranked(c) is r} for r in (False, True)
    ]
    ranks = [{value: rank for rank, value in enumerate(sorted(part))} for part in values]
    described: list[list[str | int] | None] = []
    for cell in cells:
        if cell is None:
            described.append(None)
            continue
        rank = ranks[_ranked(cell)][_value(cell)]
        if isinstance(cell, Measured):
            flags = "b" * cell.best + "u" * (not cell.ranked) + "n" * cell.own_n
            text = marked(cell, cell.score.text())
            described.append([text, rank, cell.score.interval(), f"{cell.score.n:,}", flags])
        else:
            described.append([plain(name, cell), rank])
    return described


def _value(cell: Cell) -> Any:
    return cell.score.value if isinstance(cell, Measured) else cell


def _ranked(cell: Cell) -> bool:
    return not isinstance(cell, Measured) or cell.ranked


def _curve(column: Column, cells: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """What a chart needs: numbers for drawing in the unit of their texts, and its axis."""
    assert column.score is not None
    axis = ShiftAxis.of(column.score)
    measured = [cell.score for row in cells for cell in row if isinstance(cell, Measured)]
    percent = all(score.is_fraction for score in measured)

    def point(cell: Cell) -> list[float] | None:
        if not isinstance(cell, Measured):
            return None
        score, scale = cell.score, 100 if percent else 1
        ends = (score.low, score.high) if score.has_interval else (score.value, score.value)
        return [float(f"{scale * x:.4g}") for x in (score.value, *ends)]

    return {
        "about": axis.summary,
        "unit": axis.unit,
        "ticks": [axis.tick(s) for s in range(len(cells))],
        "percent": percent,
        "points": [[point(cell) for cell in row] for row in zip(*cells, strict=True)],
    }
