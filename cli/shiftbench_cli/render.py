"""What people see when the work is done; `progress` shows them the work. Only these know rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shiftbench.records.comparable import data_label
from shiftbench.report.compare import Comparison
from shiftbench.report.formats.base import marked
from shiftbench.report.paper import Answer, PaperTable, commands
from shiftbench.report.table import Cell, Column, Measured
from shiftbench.report.table import Table as Leaderboard
from shiftbench.statistics import Score

# Tables go to stdout, where a program may read them; progress and remarks go to stderr.
# Wide enough not to fold cells when piped to a file, where there is no terminal to ask.
PIPED_WIDTH = 200


def stdout() -> Console:
    """A console on stdout that never folds a piped table."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def stderr() -> Console:
    """A console on stderr for progress and remarks."""
    return Console(file=sys.stderr, stderr=True)


def note(text: str) -> None:
    """A remark about what was printed, on stderr."""
    stderr().print(Text(text), soft_wrap=True)


def shown(score: Score, *, bound: bool = False) -> str:
    """A score for people, with its interval: `81.2 [78.9, 83.3]`; `≤` marks an upper bound."""
    return f"{'≤' if bound else ''}{score.text()} {score.interval()}"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
    numeric: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Prints a table to stdout; `numeric` columns are set flush right.

    Where a terminal is too narrow, cells fold; if there are columns to `cut`, these lose their ends
    instead, the others stay whole, and no vertical lines take room.
    """
    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD if cut else HEAVY_HEAD,
        padding=(0, 1, 0, 0) if cut else (0, 1),
    )
    for column in columns:
        table.add_column(
            escape(column),
            justify="right" if column in numeric else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=bool(cut) and column not in cut,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # never markup: names come from outside
    stdout().print(table)


def print_leaderboards(tables: Sequence[Leaderboard]) -> None:
    """Prints groups of comparable records to stdout, a row per model; intervals below scores.

    Where the columns do not fit the terminal, the rows are cut into several tables.
    """
    console = stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        _print_leaderboard(console, table)


def _print_leaderboard(console: Console, table: Leaderboard) -> None:
    star = "" if console.is_terminal else "*"  # there is no bold in a file
    columns = table.measured_columns()
    heads = [_head(column) for column in columns]
    body = [[_score_cell(row.cells[column.name], star) for column in columns] for row in table.rows]
    names = [row.record.model.name for row in table.rows]
    names_width = min(NAME_WIDTH, max(len(name) for name in ("model", *names)))
    widths = [
        max(len(line) for cell in column for line in str(cell).splitlines() or [""])
        for column in zip(heads, *body, strict=True)
    ]
    console.print(Text(table.label, style="bold"), soft_wrap=True)
    for part in _parts(widths, console.width - names_width - BORDER - 1):
        shown_table = Table()
        shown_table.add_column("model", overflow="fold", max_width=NAME_WIDTH)
        for index in part:
            shown_table.add_column(escape(heads[index]), justify="right", no_wrap=True)
        for name, cells in zip(names, body, strict=True):
            shown_table.add_row(Text(name), *(cells[index] for index in part))
        console.print(shown_table)
    notes = Text(table.notes(best=star or "bold"), style="dim")
    console.print(notes, width=min(console.width, NOTE_WIDTH))


NAME_WIDTH = 32  # characters of a model's name before it is folded
NOTE_WIDTH = 100  # characters of a line below a table
BORDER = 3  # what a column of a table takes besides its text


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns go into one table, so that none is wider than there is room for."""
    parts: list[list[int]] = [[]]
    left = room
    for index, width in enumerate(widths):
        if parts[-1] and width + BORDER > left:
            parts.append([])
            left = room
        parts[-1].append(index)
        left -= width + BORDER
    return parts


def _head(column: Column) -> str:
    """The title over two lines, and how far the grid goes."""
    head = column.title.replace(" ", "\n", 1) if column.group else column.title
    return f"{head}\n±{column.reach}" if column.reach else head


def _score_cell(cell: Cell, star: str) -> Text:
    if not isinstance(cell, Measured):
        return Text("")
    value = f"{cell.score.text()}{star}" if cell.best else cell.score.text()
    text = Text(marked(cell, value), style="bold" if cell.best else "")
    text.append(f"\n{cell.score.interval()}", style="dim not bold")
    if cell.own_n:
        text.append(f"\nn={cell.score.n:,}", style="dim not bold")
    return text


def print_comparison(comparison: Comparison) -> None:
    """Prints two models side by side to stdout, differences in points."""
    console = stdout()
    everyone = comparison.first.data.images
    rows = []
    for found in comparison.scores:
        paired, percent = found.paired, found.first.is_fraction
        column = Column(found.name.stem, found.name)
        difference, low, high = (
            f"{100 * x:+.1f}" if percent else f"{x:+.3g}"
            for x in (paired.difference, paired.low, paired.high)
        )
        fewer = "" if paired.n == everyone else f"\nn={paired.n:,}"
        rows.append(
            [
                _head(column) + fewer,
                _below(found.first, bound=found.bound),
                _below(found.second, bound=found.bound),
                f"{difference}\n[{low}, {high}]",
                f"{paired.only_first} / {paired.only_second}\np={paired.p_value:.2g}",
            ]
        )
    columns = ["score", "first", "second", "second\n- first", "only one\np value"]
    caption = (
        "Percent with 95% intervals. Only one: images that the first / the second alone gets "
        "right, or has the higher value on; p: exact McNemar test, or the sign test of these "
        "counts."
    )
    if any(found.bound for found in comparison.scores):
        caption += " ≤: upper bounds from sampled searches; their difference is not exact."
    console.print(Text(data_label(comparison.first), style="bold"), soft_wrap=True)
    console.print(Text(f"first:  {comparison.first.model.name}"), soft_wrap=True)
    console.print(Text(f"second: {comparison.second.model.name}"), soft_wrap=True)
    print_table(columns, rows, caption=caption, numeric=columns[1:])
    for reason in comparison.left_out:
        note(f"left out: {reason}")


def _below(score: Score, *, bound: bool = False) -> str:
    """A score with its interval on the next line."""
    return f"{'≤' if bound else ''}{score.text()}\n{score.interval()}"


def print_claims(table: PaperTable, answers: Sequence[Answer]) -> None:
    """Prints a table of the paper next to ours, then the commands for what we have not measured."""
    rows: list[list[str]] = []
    above = ""
    for found in answers:
        claim, score = found.claim, found.score
        variant = f" ({claim.variant})" if claim.variant else ""
        entry = f"{claim.model}\n{claim.data}{variant}"
        rows.append(
            [
                "" if entry == above else entry,
                claim.score.stem.replace("_", "\n", 1),
                "picture\nonly" if claim.published is None else str(claim.published),
                found.remark if score is None else f"{_below(score)}\nn={score.n:,}",
                "" if found.difference is None else f"{found.difference:+.1f}",
            ]
        )
        above = entry
    columns = ["model, data", "metric", "published", "ours", "difference"]
    title = f"{table.name}: {table.about} ({table.place})"
    print_table(columns, rows, title=title, numeric=columns[2:])
    missing = commands([found.claim for found in answers if found.score is None])
    if missing:
        console = stdout()
        console.print("Not measured here. These commands would:", markup=False)
        for line in missing:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    stdout().print()
