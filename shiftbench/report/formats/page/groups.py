"""One group of comparable records as the page shows it: every cell, at every max shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shiftbench.metrics import METRICS
from shiftbench.records.choose import pixels, summary
from shiftbench.records.record import Record
from shiftbench.report.formats.base import marked, plain
from shiftbench.report.formats.page.detail import describe_detail, sampled_modes, verified
from shiftbench.report.table import Cell, Column, Measured, Row, Table, judge_points
from shiftbench.scores import ScoreName

# Not scores, yet on the page; others only where the table is sorted by one of them.
_PLAIN = ("param_count", "seconds")


@dataclass(frozen=True)
class _Shown:
    """A column with its cells, a list for each radius that the page can show."""

    column: Column
    points: tuple[Sequence[Cell], ...]  # by radius, then by row; one where there is no curve
    curve: ScoreName | None = None

    @property
    def radius(self) -> int:
        """The radius that the table came with."""
        own = self.column.score.radius if self.curve and self.column.score else None
        return own or 0

    def at(self, radius: int) -> Sequence[Cell]:
        """The cells at a radius; beyond what was measured they are empty."""
        if self.curve is None:
            return self.points[0]
        return self.points[radius] if radius < len(self.points) else [None] * len(self.points[0])


def describe_group(table: Table) -> dict[str, Any]:
    """Columns, cells and rows of a table, the notes for each max shift, and the models' details."""
    shown = _shown(table)
    curves = [column for column in shown if column.curve is not None]
    stop = max((column.radius for column in curves), default=0)
    furthest = max([stop, *(len(column.points) - 1 for column in curves)])
    names = [(row.record.model.name, row.record.data.name) for row in table.rows]
    places = sorted(range(len(names)), key=names.__getitem__)
    return {
        "label": table.label,
        "data": table.rows[0].record.data.name,
        "sort": table.sort,
        "descending": table.descending,
        "stop": stop,  # the radius to begin with; there each column has its own
        "notes": [_notes(table, shown, None if s == stop else s) for s in range(furthest + 1)],
        "columns": [_column(column) for column in shown],
        "rows": [
            {"place": places.index(index), **_row(row.record)}
            for index, row in enumerate(table.rows)
        ],
    }


def _row(record: Record) -> dict[str, Any]:
    return {
        "model": record.model.name,
        "mode": sampled_modes(record),
        "verified": verified(record),
        "detail": describe_detail(record),
    }


def _shown(table: Table) -> list[_Shown]:
    """The models, every score that a record has at some radius, and a few facts."""
    columns = {column.name: column for column in table.columns}

    def facts(name: str) -> _Shown:
        return _Shown(columns[name], ([row.cells[name] for row in table.rows],))

    scored = [_measured(table, column) for column in table.columns if column.score is not None]
    there = [shown for shown in scored if any(cell for cells in shown.points for cell in cells)]
    others = [name for name in dict.fromkeys((*_PLAIN, table.sort)) if not columns[name].score]
    return [facts("model"), *there, *(facts(name) for name in others if name != "model")]


def _measured(table: Table, column: Column) -> _Shown:
    assert column.score is not None
    curve = column.score.curve
    records = [row.record for row in table.rows]
    radii = {radius for record in records for radius in record.scores.curve(curve)}
    if not radii:
        return _Shown(column, ([row.cells[column.name] for row in table.rows],))
    names = [ScoreName(curve.family, curve.kind, s) for s in range(max(radii) + 1)]
    return _Shown(column, tuple(judge_points(records, names)), curve)


def _notes(table: Table, shown: Sequence[_Shown], radius: int | None) -> str:
    """What stands under the table at a radius; None: as it came."""
    scored = [column for column in shown if column.column.score is not None]
    at = {c.column.name: c.radius if radius is None else radius for c in scored}
    columns = [replace(c.column, score=_named(c, at[c.column.name])) for c in scored]
    cells = [{c.column.name: c.at(at[c.column.name])[i] for c in scored} for i in _rows(table)]
    rows = [Row(row.record, mine) for row, mine in zip(table.rows, cells, strict=True)]
    return replace(table, columns=tuple(columns), rows=tuple(rows)).notes()


def _rows(table: Table) -> range:
    return range(len(table.rows))


def _named(shown: _Shown, radius: int) -> ScoreName | None:
    curve = shown.curve
    return curve and ScoreName(curve.family, curve.kind, radius)


def _column(shown: _Shown) -> dict[str, Any]:
    column = shown.column
    return {
        "name": column.name,
        "group": column.group,
        "title": column.title,
        "short": column.title.removeprefix(column.group).strip(),
        "about": _about(column),
        "ascending": column.ascending,
        "radius": shown.radius,
        "cells": [_cells(column.name, cells) for cells in shown.points],
        "curve": None if shown.curve is None else _curve(shown, shown.curve),
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
    parts = (
        sorted({_value(cell) for cell in cells if cell is not None and _ranked(cell)}),
        sorted({_value(cell) for cell in cells if cell is not None and not _ranked(cell)}),
    )
    ranks = [{value: rank for rank, value in enumerate(part)} for part in parts]
    found: list[list[str | int] | None] = []
    for cell in cells:
        if cell is None:
            found.append(None)
            continue
        rank = ranks[0 if _ranked(cell) else 1][_value(cell)]
        if not isinstance(cell, Measured):
            found.append([plain(name, cell), rank])
            continue
        flags = "b" * cell.best + "u" * (not cell.ranked) + "n" * cell.own_n
        text = marked(cell, cell.score.text())
        found.append([text, rank, cell.score.interval(), f"{cell.score.n:,}", flags])
    return found


def _value(cell: Cell) -> Any:
    return cell.score.value if isinstance(cell, Measured) else cell


def _ranked(cell: Cell) -> bool:
    return not isinstance(cell, Measured) or cell.ranked


def _curve(shown: _Shown, name: ScoreName) -> dict[str, Any]:
    """What a chart needs: numbers for drawing in the unit of their texts, and its axis."""
    reaches = [pixels(name, s) for s in range(len(shown.points))]
    measured = [
        cell.score for cells in shown.points for cell in cells if isinstance(cell, Measured)
    ]
    percent = all(score.is_fraction for score in measured)
    scale = 100 if percent else 1

    def point(cell: Cell) -> list[float] | None:
        if not isinstance(cell, Measured):
            return None
        score = cell.score
        return [float(f"{scale * x:.4g}") for x in (score.value, score.low, score.high)]

    return {
        "about": summary(name),
        "unit": "steps" if None in reaches else "px",
        "ticks": [str(s if reach is None else reach) for s, reach in enumerate(reaches)],
        "percent": percent,
        "points": [[point(cell) for cell in row] for row in zip(*shown.points, strict=True)],
    }
