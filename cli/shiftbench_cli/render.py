"""What people see: the only module that knows rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shiftbench.leaderboard import Measured
from shiftbench.leaderboard import Table as Leaderboard
from shiftbench.statistics import Score
from shiftbench.typeset import notes, title

# Tables go to stdout, where a program may read them; progress and remarks go to stderr.
# Wide enough not to fold cells when piped to a file, where there is no terminal to ask.
PIPED_WIDTH = 200


def stdout() -> Console:
    """A console on stdout that never folds a piped table."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def stderr() -> Console:
    """A console on stderr for progress and remarks."""
    return Console(file=sys.stderr, stderr=True)


def percent(score: Score, *, bound: bool = False) -> str:
    """A fraction for people, with its interval: `81.2 [78.9, 83.3]`; `≤` marks an upper bound."""
    sign = "≤" if bound else ""
    return f"{sign}{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
    numeric: Sequence[str] = (),
) -> None:
    """Prints a table to stdout; `numeric` columns are set flush right."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # never markup: names come from outside
    stdout().print(table)


def print_leaderboard(table: Leaderboard) -> None:
    """Prints a leaderboard to stdout, one table per data set; intervals stand below scores."""
    for name, part in table.split_by_data().items():
        columns = part.measured_columns()
        rows = []
        for row in part.rows:
            line = [row.record.model.name, f"{row.record.data.images:,}"]
            for column in columns:
                cell = row.cells[column]
                if isinstance(cell, Measured):
                    text = percent(cell.score, bound=cell.upper_bound)
                    line.append(text.replace(" ", "\n", 1))
                else:
                    line.append("")
            rows.append(line)
        titles = [title(column).replace(" ", "\n", 1) for column in columns]
        print_table(
            ["model", "n", *titles],
            rows,
            title=name,
            caption=notes(part, columns),
            numeric=["n", *titles],
        )
