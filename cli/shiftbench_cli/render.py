"""What people see when the work is done. Only this, `scoreboard` and `progress` know rich."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # `list` prints tables too, and must not wait for torch
    from shiftbench.report.compare import Comparison
    from shiftbench.report.paper import Answer
    from shiftbench.report.table import Column
    from shiftbench.statistics import Score

# Tables go to stdout, where a program may read them; progress and remarks go to stderr.
# Wide enough not to fold cells when piped to a file, where there is no terminal to ask.
PIPED_WIDTH = 200

SMALLEST_P = 1e-12  # below it a table only says so


def stdout() -> Console:
    """A console on stdout that never folds a piped table."""
    return _console(sys.stdout, None if sys.stdout.isatty() else PIPED_WIDTH)


def stderr() -> Console:
    """A console on stderr for progress and remarks."""
    return _console(sys.stderr)


def _console(file: TextIO, width: int | None = None) -> Console:
    """Plain text when piped, on a dumb terminal, and where NO_COLOR is set (no-color.org)."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(file=file, width=width, color_system=None if plain else "auto")


def is_live(console: Console) -> bool:
    """Whether lines can be redrawn in place."""
    return console.is_terminal and not console.is_dumb_terminal


def note(text: str) -> None:
    """A remark about what was printed, on stderr."""
    stderr().print(Text(text), soft_wrap=True)


def left_out(error: Exception) -> None:
    """Names a record that cannot be read, on stderr."""
    note(f"left out: {error}")


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Prints rows of the same keys to stdout, for programs."""
    writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_json(content: object) -> None:
    """Prints JSON to stdout, for programs."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


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


def _p_value(p: float) -> str:
    """A p value for people, who gain nothing from the digits of a tiny one."""
    return f"p={p:.2g}" if p >= SMALLEST_P else f"p<{SMALLEST_P:.0e}"


def print_comparison(comparison: Comparison) -> None:
    """Prints two models side by side to stdout, differences in points."""
    from shiftbench.report.table import Column

    console = stdout()
    everyone = comparison.first.data.images
    rows = []
    for compared in comparison.scores:
        paired, percent = compared.paired, compared.first.is_fraction
        column = Column(compared.name.stem, compared.name)
        difference, low, high = (
            f"{100 * x:+.1f}" if percent else f"{x:+.3g}"
            for x in (paired.difference, paired.low, paired.high)
        )
        fewer = "" if paired.n == everyone else f"\nn={paired.n:,}"
        rows.append(
            [
                head(column) + fewer,
                _below(compared.first, bound=compared.bound),
                _below(compared.second, bound=compared.bound),
                f"{difference}\n[{low}, {high}]",
                f"{paired.only_first} / {paired.only_second}\n{_p_value(paired.p_value)}",
            ]
        )
    columns = ["score", "first", "second", "second\n- first", "only one\np value"]
    caption = (
        "Percent with 95% intervals. Only one: images that the first / the second alone gets "
        "right, or has the higher value on. p: exact McNemar test of right and wrong answers; of "
        "other scores, a test of the mean difference."
    )
    if any(compared.bound for compared in comparison.scores):
        caption += " ≤: upper bounds from sampled searches; their difference is not exact."
    console.print(Text(str(comparison.first.data), style="bold"), soft_wrap=True)
    console.print(Text(f"first:  {comparison.first.model.name}"), soft_wrap=True)
    console.print(Text(f"second: {comparison.second.model.name}"), soft_wrap=True)
    print_table(columns, rows, caption=caption, numeric=columns[1:])
    for reason in comparison.left_out:
        note(f"left out: {reason}")


def head(column: Column) -> str:
    """The title of a column over two lines, and how far its grid goes."""
    words = column.title.replace(" ", "\n", 1) if column.family else column.title
    return f"{words}\n±{column.reach}" if column.reach else words


def _below(score: Score, *, bound: bool = False) -> str:
    """A score with its interval on the next line."""
    return f"{'≤' if bound else ''}{score.text()}\n{score.interval()}"


def print_claims(name: str, answers: Sequence[Answer]) -> None:
    """Prints a table of the paper next to ours, then the commands for what we have not measured."""
    from shiftbench.report.paper import TABLES, commands

    rows: list[list[str]] = []
    above = ""
    for answer in answers:
        claim, score = answer.claim, answer.score
        variant = f" ({claim.variant})" if claim.variant else ""
        entry = f"{claim.model}\n{claim.data}{variant}"
        rows.append(
            [
                "" if entry == above else entry,
                claim.score.stem.replace("_", "\n", 1),
                "picture\nonly" if claim.published is None else str(claim.published),
                answer.remark if score is None else f"{_below(score)}\nn={score.n:,}",
                "" if answer.difference is None else f"{answer.difference:+.1f}",
            ]
        )
        above = entry
    columns = ["model, data", "metric", "published", "ours", "difference"]
    title = f"{name}: {TABLES[name].about} ({TABLES[name].place})"
    print_table(columns, rows, title=title, numeric=columns[2:])
    missing = commands([answer.claim for answer in answers if answer.score is None])
    if missing:
        console = stdout()
        console.print("Not measured here. These commands would:", markup=False)
        for line in missing:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    stdout().print()
