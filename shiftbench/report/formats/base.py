"""The seam every text format of a table implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shiftbench.registry import Registry
from shiftbench.report.published import Published, SideBySide
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Cell, Column, Table

PLAIN = ("model", "images", "param_count", "img_size")  # columns of a printed table


@dataclass(frozen=True)
class Report:
    """What a format writes, as far as it has room for it."""

    tables: Sequence[Table]  # one per group of comparable records
    intervals: bool = True
    published: Sequence[Published] = ()  # figures of papers, to be set apart
    side_by_side: Sequence[SideBySide] = ()  # public networks, published and measured


@dataclass(frozen=True)
class Format:
    """A way to write tables as text."""

    endings: tuple[str, ...]  # of files that ask for it: (".md",)
    render: Callable[[Report], str]
    summary: str = ""  # one line for `shiftbench list formats`
    intervals: bool = True  # whether they are shown when the user does not say


FORMATS: Registry[Format] = Registry("format")


def count(number: int) -> str:
    """A count for people.

    >>> count(3053224), count(120)
    ('3.05M', '120')
    """
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def plain(column: str, cell: Cell) -> str:
    """A cell that is not a score, for people."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    assert isinstance(cell, int | float)
    return count(int(cell)) if column == "param_count" else f"{cell:,.0f}"


def plain_columns(table: Table) -> list[Column]:
    """The columns of a printed table that are no scores."""
    return [column for column in table.columns if column.name in PLAIN]


def grid(
    table: Table, *, escape: Callable[[str], str], score: Callable[[Measured], str]
) -> list[list[str]]:
    """Every cell of a printed table as text."""
    columns, lines = table.measured_columns(), []
    for row in table.rows:
        line = [escape(plain(c.name, row.cell(c))) for c in plain_columns(table)]
        cells = [row.cell(column) for column in columns]
        lines.append(line + [score(c) if isinstance(c, Measured) else "" for c in cells])
    return lines


def titles(table: Table) -> list[str]:
    """The heads of a printed table."""
    return [column.title for column in (*plain_columns(table), *table.measured_columns())]


def marked(cell: Measured, text: str) -> str:
    """A score with the mark of what it is not: an upper bound, or not comparable."""
    if cell.bound:
        return f"≤ {text}"
    return text if cell.ranked else f"{text} †"
