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


def print_leaderboard(table: Leaderboard) -> None:
    """Prints a group of comparable records to stdout, a row per model; intervals below scores.

    Where the columns do not fit the terminal, the rows are cut into several tables.
    """
    columns = table.measured_columns()
    console = stdout()
    names = [row.record.model.name for row in table.rows]
    width = max(len("model"), *(min(len(name), NAME_WIDTH) for name in names)) + 4
    per_table = max(1, (console.width - width) // SCORE_WIDTH)
    for start in range(0, len(columns), per_table):
        part = columns[start : start + per_table]
        last = start + per_table >= len(columns)
        _print_scores(table, part, title=table.label if not start else None, last=last)


NAME_WIDTH = 32  # characters of a model's name before it is folded
SCORE_WIDTH = 15  # of a column of scores, with its border


def _print_scores(
    table: Leaderboard, columns: Sequence[Column], *, title: str | None, last: bool
) -> None:
    shown_table = Table(
        title=title,
        caption=table.notes() if last else None,
        title_justify="left",
        caption_justify="left",
    )
    shown_table.add_column("model", overflow="fold", max_width=NAME_WIDTH)
    for column in columns:
        head = column.title.replace(" ", "\n", 1)
        shown_table.add_column(
            escape(f"{head}\n±{column.reach}" if column.reach else head), justify="right"
        )
    for row in table.rows:
        cells = [_score_cell(row.cells[column.name]) for column in columns]
        shown_table.add_row(Text(row.record.model.name), *cells)
    stdout().print(shown_table)


def _score_cell(cell: Cell) -> Text:
    if not isinstance(cell, Measured):
        return Text("")
    text = Text(marked(cell, cell.score.text()), style="bold" if cell.best else "")
    text.append(f"\n{cell.score.interval()}", style="dim not bold")
    if cell.own_n:
        text.append(f"\nn={cell.score.n:,}", style="dim not bold")
    return text


def print_comparison(comparison: Comparison) -> None:
    """Prints two models side by side to stdout, differences in points."""
    first, second = comparison.first.model.name, comparison.second.model.name
    rows = []
    for found in comparison.scores:
        paired, unit = found.paired, 100 if found.first.is_fraction else 1
        reach = Column(found.name.stem, found.name).reach
        rows.append(
            [
                found.name.stem.replace("_", " ") + (f" ±{reach}" if reach else ""),
                shown(found.first, bound=found.bound),
                shown(found.second, bound=found.bound),
                "{:+.1f} [{:+.1f}, {:+.1f}]".format(
                    *(unit * x for x in (paired.difference, paired.low, paired.high))
                ),
                f"{paired.only_first:,}",
                f"{paired.only_second:,}",
                f"{paired.p_value:.2g}",
                f"{paired.n:,}",
            ]
        )
    columns = [
        "score",
        f"first\n{first}",
        f"second\n{second}",
        "second - first",
        "only\nfirst",
        "only\nsecond",
        "p",
        "n",
    ]
    caption = (
        "Percent with 95% intervals; p: exact McNemar test (sign test for several draws). Only "
        "first: images on which the first alone is right, or the better."
    )
    if any(found.bound for found in comparison.scores):
        caption += " ≤: upper bounds from sampled searches; their difference is not exact."
    title = data_label(comparison.first)
    print_table(columns, rows, title=title, caption=caption, numeric=columns[1:])
    for reason in comparison.left_out:
        note(f"left out: {reason}")


def print_claims(table: PaperTable, answers: Sequence[Answer]) -> None:
    """Prints a table of the paper next to ours, then the commands for what we have not measured."""
    rows = []
    for found in answers:
        claim, score = found.claim, found.score
        rows.append(
            [
                claim.model,
                claim.data + (f" ({claim.variant})" if claim.variant else ""),
                claim.score.stem.replace("_", " "),
                "picture only" if claim.published is None else str(claim.published),
                found.remark if score is None else shown(score),
                "" if score is None else f"{score.n:,}",
                "" if found.difference is None else f"{found.difference:+.1f}",
            ]
        )
    columns = ["model", "data", "metric", "published", "ours", "n", "difference"]
    print_table(
        columns,
        rows,
        title=f"{table.name}: {table.about} ({table.place})",
        numeric=columns[3:],
    )
    missing = commands([found.claim for found in answers if found.score is None])
    if missing:
        console = stdout()
        console.print("Not measured here. These commands would:", markup=False)
        for line in missing:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    stdout().print()
