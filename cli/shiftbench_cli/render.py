"""What people see when the work is done; `progress` shows them the work. Only these know rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shiftbench.records.choose import data_label
from shiftbench.report.compare import Comparison
from shiftbench.report.paper import Answer, PaperTable, commands
from shiftbench.report.table import Measured
from shiftbench.report.table import Table as Leaderboard
from shiftbench.report.typeset import notes, title
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
    """Prints a leaderboard to stdout, one table per data set; intervals stand below scores."""
    for name, part in table.split_by_data().items():
        columns = part.measured_columns()
        rows = []
        for row in part.rows:
            line = [row.record.model.name, f"{row.record.data.images:,}"]
            for column in columns:
                cell = row.cells[column]
                if isinstance(cell, Measured):
                    text = percent(cell.score, bound=cell.upper_bound).replace(" ", "\n", 1)
                    own_n = cell.score.n != row.record.data.images
                    line.append(f"{text}\nn={cell.score.n:,}" if own_n else text)
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


def print_comparison(comparison: Comparison) -> None:
    """Prints two models side by side to stdout, differences in points."""
    first, second = comparison.first.model.name, comparison.second.model.name
    rows = []
    for metric in comparison.metrics:
        paired, bound = metric.paired, metric.upper_bound
        rows.append(
            [
                title(metric.metric),
                percent(metric.first, bound=bound),
                percent(metric.second, bound=bound),
                "{:+.1f} [{:+.1f}, {:+.1f}]".format(
                    *(100 * x for x in (paired.difference, paired.low, paired.high))
                ),
                f"{paired.only_first:,}",
                f"{paired.only_second:,}",
                f"{paired.p_value:.2g}",
            ]
        )
    columns = [
        "metric",
        f"first\n{first}",
        f"second\n{second}",
        "second - first",
        "only\nfirst",
        "only\nsecond",
        "McNemar\np",
    ]
    counts = {metric.metric.partition("_")[0]: metric.paired.n for metric in comparison.metrics}
    shown = [f"n={counts['accuracy']:,}"]
    shown += [f"{kind} n={n:,}" for kind, n in counts.items() if n != counts["accuracy"]]
    caption = (
        f"Percent with 95% intervals, {', '.join(shown)}; adversarial up to "
        f"{comparison.max_shift} steps. Only first: images that the first alone gets right."
    )
    if any(metric.upper_bound for metric in comparison.metrics):
        caption += " ≤: upper bounds from sampled searches; their difference is not exact."
    print_table(
        columns, rows, title=data_label(comparison.first), caption=caption, numeric=columns[1:]
    )


def print_claims(table: PaperTable, answers: Sequence[Answer]) -> None:
    """Prints a table of the paper next to ours, then the commands for what we have not measured."""
    rows = []
    for found in answers:
        claim, score = found.claim, found.score
        rows.append(
            [
                claim.model,
                claim.data + (f" ({claim.variant})" if claim.variant else ""),
                title(claim.metric),
                "picture only" if claim.published is None else str(claim.published),
                "" if score is None else percent(score),
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
