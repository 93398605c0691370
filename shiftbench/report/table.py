"""Records as a table: which columns, in which order, and as CSV.

The table is a pure function of the records. Markdown and LaTeX live in
`shiftbench.report.typeset`, the interactive page in `shiftbench.report.page`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shiftbench.measure.attacks import DEFAULT_RADIUS
from shiftbench.records.choose import is_upper_bound, search_mode
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.statistics import Score

# The first attacks and kinds of every table, whether or not a record has them.
CONSISTENCIES = ("integer", "half", "crop")
ATTACKS_SHOWN = ("integer", "half", "crop", "bilinear")

DEFAULT_SORT = "adversarial_crop"

# Names and counts read best from the smallest up; scores and dates from the largest down.
_ASCENDING = {"model", "data", "mode", "param_count", "img_size", "seconds", "forward_passes"}


@dataclass(frozen=True)
class Measured:
    """A score as a table shows it."""

    score: Score
    upper_bound: bool = False  # from a sampled search: the true value may be lower

    @property
    def rank(self) -> float:
        """What the column is sorted by."""
        return self.score.value


Cell = str | int | float | Measured | None


@dataclass(frozen=True)
class Row:
    """One record of a table."""

    record: Record
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """Rows in order, and what their adversarial columns mean."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    radius: Mapping[str, int]  # attack -> the max shift, in steps, its column shows

    def split_by_data(self) -> dict[str, Table]:
        """One table per data set, in order of name; only within one can scores be compared."""
        names = sorted({row.record.data.name for row in self.rows})
        return {
            name: Table(
                self.columns,
                tuple(row for row in self.rows if row.record.data.name == name),
                self.radius,
            )
            for name in names
        }

    def measured_columns(self) -> list[str]:
        """The columns that hold scores, without those that are empty in every row."""
        return [
            column
            for column in self.columns
            if any(isinstance(row.cells[column], Measured) for row in self.rows)
        ]

    def best(self, column: str) -> float | None:
        """The highest score of a column, in percent to one decimal as people see it.

        Upper bounds do not compete: a search that looked less hard is not a better model. Where all
        are equal, none is best.
        """
        cells = [row.cells[column] for row in self.rows]
        exact = {c.rank for c in cells if isinstance(c, Measured) and not c.upper_bound}
        shown = {round(100 * value, 1) for value in exact}
        return max(shown) if len(shown) > 1 else None


def shown_radius(records: Sequence[Record], attack: str, max_shift: int | None = None) -> int:
    """The max shift a column shows: the protocol's own where some record has it, else the largest.

    One radius for the whole column, so that no two scores of different grids stand side by side.
    """
    radii = {s for record in records for s in record.scores.adversarial.get(attack, {})}
    if max_shift is not None:
        return max_shift
    return DEFAULT_RADIUS if not radii or DEFAULT_RADIUS in radii else max(radii)


def attacks_of(records: Sequence[Record]) -> list[str]:
    """The attacks some record has: the paper's four first, in its order, then others by name."""
    found = {attack for record in records for attack in record.scores.adversarial}
    return [a for a in ATTACKS_SHOWN if a in found] + sorted(found - set(ATTACKS_SHOWN))


def columns_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The table's columns. Further attacks, and the search mode, come last and only when needed."""
    kinds = {kind for record in records for kind in record.scores.consistency}
    extra_kinds = sorted(kinds - set(CONSISTENCIES))
    extra_attacks = [a for a in attacks_of(records) if a not in ATTACKS_SHOWN]
    return (
        *("model", "data", "images", "param_count", "img_size"),
        *("top1", "top1_low", "top1_high"),
        *(f"consistency_{kind}" for kind in CONSISTENCIES),
        *(f"adversarial_{attack}" for attack in ATTACKS_SHOWN),
        *("seconds", "forward_passes", "date"),
        *(f"adversarial_{attack}" for attack in extra_attacks),
        *(f"consistency_{kind}" for kind in extra_kinds),
        *(("mode",) if any(is_upper_bound(record) for record in records) else ()),
    )


def _cells(record: Record, columns: Sequence[str], radius: Mapping[str, int]) -> dict[str, Cell]:
    accuracy = record.scores.accuracy
    cells: dict[str, Cell] = {
        "model": record.model.name,
        "data": record.data.name,
        "images": record.data.images,
        "param_count": record.model.parameters,
        "img_size": record.model.input_size,
        "top1": Measured(accuracy),
        "top1_low": 100 * accuracy.low,
        "top1_high": 100 * accuracy.high,
        "seconds": float(record.seconds),
        "forward_passes": record.forward_passes,
        "date": record.created[:10],
        "mode": search_mode(record),
    }
    for kind, score in record.scores.consistency.items():
        cells[f"consistency_{kind}"] = Measured(score)
    for attack, curve in record.scores.adversarial.items():
        if radius[attack] in curve:
            cells[f"adversarial_{attack}"] = Measured(
                curve[radius[attack]], upper_bound=is_upper_bound(record)
            )
    return {column: cells.get(column) for column in columns}


def build_table(
    records: Sequence[Record],
    *,
    sort: str = DEFAULT_SORT,
    reverse: bool = False,
    max_shift: int | None = None,
) -> Table:
    """Builds the table, sorted by a column.

    Args:
        records: What was measured.
        sort: A column of the table. Scores, image counts and dates go from the largest down, names
            and costs from the smallest up; rows with an empty cell come last either way.
        reverse: Turns that order around.
        max_shift: The max shift, in steps, of the adversarial columns.
    """
    columns = columns_of(records)
    if sort not in columns:
        raise unknown_name("column to sort by", sort, columns)
    radius = {attack: shown_radius(records, attack, max_shift) for attack in attacks_of(records)}
    rows = [Row(record, _cells(record, columns, radius)) for record in records]
    rows.sort(key=lambda row: (row.record.model.name, row.record.data.name))
    filled = [row for row in rows if row.cells[sort] is not None]
    empty = [row for row in rows if row.cells[sort] is None]

    def key(row: Row) -> str | int | float:
        cell = row.cells[sort]
        assert cell is not None
        return cell.rank if isinstance(cell, Measured) else cell

    filled.sort(key=key, reverse=(sort not in _ASCENDING) != reverse)
    return Table(columns, tuple(filled + empty), radius)


def _csv_cell(cell: Cell) -> str | int:
    if cell is None:
        return ""
    if isinstance(cell, Measured):
        return f"{100 * cell.score.value:.2f}"
    return f"{cell:.2f}" if isinstance(cell, float) else cell


def to_csv(table: Table) -> str:
    """The table as CSV: percent with two decimals, an empty cell where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([[_csv_cell(row.cells[c]) for c in table.columns] for row in table.rows])
    return out.getvalue()
