"""CSV: fractions as percent with two decimals, an empty cell where nothing was measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from shiftbench.report.formats.base import FORMATS, Format
from shiftbench.report.table import Cell, Measured, Table


def _cell(cell: Cell) -> str | int:
    if cell is None:
        return ""
    if isinstance(cell, Measured):
        value = cell.score.value
        return f"{100 * value:.2f}" if cell.score.is_fraction else f"{value:.4g}"
    return f"{cell:.2f}" if isinstance(cell, float) else cell


def to_csv(tables: Sequence[Table]) -> str:
    """All tables one below the other: they have the same columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [column.name for column in tables[0].columns]
    writer.writerow(names)
    for table in tables:
        writer.writerows([[_cell(row.cells[name]) for name in names] for row in table.rows])
    return out.getvalue()


FORMATS.register("csv", Format((".csv",), lambda board: to_csv(board.tables)))
