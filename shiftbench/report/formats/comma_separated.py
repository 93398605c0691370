"""CSV for spreadsheets and programs, in percent, as the result files of timm are.

The column `scores_in` says so, since records hold fractions; `max_shift` says how far the
adversarial columns of the row go. A cell is empty where nothing was measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from shiftbench.report.formats.base import FORMATS, Format
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Column, Table, TableRow
from shiftbench.statistics import FRACTION, Score


def to_csv(tables: Sequence[Table], intervals: bool = True) -> str:
    """All tables one below the other: they have the same columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = [name for column in tables[0].columns for name in _names(column, intervals)]
    writer.writerow([*header, "scores_in", "max_shift"])
    for table in tables:
        about = (_units(table), ", ".join(_reaches(table)))
        for row in table.rows:
            cells = (c for column in table.columns for c in _cells(row, column, intervals))
            writer.writerow([*cells, *about])
    return out.getvalue()


def _names(column: Column, intervals: bool) -> list[str]:
    ends = ("_low", "_high") if column.score is not None and intervals else ()
    return [column.name, *(f"{column.name}{end}" for end in ends)]


def _cells(row: TableRow, column: Column, intervals: bool) -> Iterator[str | int]:
    cell = row.cell(column)
    if isinstance(cell, Measured):
        score = cell.score
        yield _number(score, score.value)
        if intervals:
            ends = (score.low, score.high)
            yield from (_number(score, end) if score.has_interval else "" for end in ends)
    elif cell is None:
        yield from [""] * len(_names(column, intervals))
    else:
        yield f"{cell:.2f}" if isinstance(cell, float) else cell


def _number(score: Score, value: float) -> str:
    return f"{100 * value:.2f}" if score.is_fraction else f"{value:.4g}"


def _units(table: Table) -> str:
    units = {c.name: table.measured(c)[0].score.unit for c in table.measured_columns()}
    others = [
        f"{name} in {unit or 'its own unit'}" for name, unit in units.items() if unit != FRACTION
    ]
    return "; ".join(["percent", *others])


def _reaches(table: Table) -> Iterator[str]:
    for column in table.measured_columns():
        if column.score is not None and column.reach:
            yield f"{column.score.kind} {column.reach}"


FORMATS.register(
    "csv",
    Format(
        (".csv",),
        lambda report: to_csv(report.tables, report.intervals),
        "a row per record and all columns, in percent; for spreadsheets and programs",
    ),
)
