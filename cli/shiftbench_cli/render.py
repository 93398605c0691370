"""Output of the commands: tables on the terminal, JSON and CSV. Rich lays out the tables."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Layout
from rich.text import Text

from shiftbench.files import csv_safe

if TYPE_CHECKING:  # `list` prints tables too, and must not wait for torch
    from shiftbench.records.compare import Difference
    from shiftbench.records.result import Result
    from shiftbench.report.scores import Table
    from shiftbench.scores import ScoreName
    from shiftbench.statistics import Score

PIPED_WIDTH = 200  # columns of a file: nothing folds
UNBOUNDED = 10_000  # columns in which every table fits
NAME_WIDTH = 18  # characters of a name that are never folded
NOTE_WIDTH = 100  # columns of the text below a table
SHORT = {"consistency": "cons.", "adversarial": "adv."}
SMALLEST_P = 1e-12  # smaller p-values are not printed
Row = TypeVar("Row")

_reserved: list[TextIO] = []  # stdout while it is reserved for results


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Send everything that is printed to stdout to stderr, except the results of this module.

    Libraries and models print, also from C. A file with results must remain parseable.
    """
    try:
        number, errors = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError):  # streams without a file, as in tests
        number = errors = -1
    sys.stdout.flush()
    if number < 0:
        _reserved.append(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _reserved.pop()
        return
    before = os.dup(number)
    encoding = sys.stdout.encoding
    _reserved.append(open(os.dup(number), "w", encoding=encoding, errors="replace"))  # noqa: PTH123, SIM115
    os.dup2(errors, number)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(before, number)
        os.close(before)
        _reserved.pop().close()  # flushes: an error if the reader of the output has ended


def stdout() -> Console:
    """Return a console for results; text that is piped does not fold."""
    file = _reserved[-1] if _reserved else sys.stdout
    width = None if file.isatty() else int(os.environ.get("COLUMNS") or PIPED_WIDTH)
    return _console(file, width)


def stderr() -> Console:
    """Return a console for progress and notes."""
    return _console(sys.stderr)


def _console(file: TextIO, width: int | None = None) -> Console:
    """Return a console that prints plain text to files, dumb terminals, and with NO_COLOR."""
    plain = bool(os.environ.get("NO_COLOR"))  # see no-color.org
    return Console(file=file, width=width, color_system=None if plain else "auto", highlight=False)


def is_live(console: Console) -> bool:
    """Return True if lines can be redrawn in place."""
    return console.is_terminal and not console.is_dumb_terminal


def note(text: str) -> None:
    """Print a line to stderr."""
    stderr().print(Text(text), soft_wrap=True)


def left_out(error: Exception) -> None:
    """Report a record that cannot be read."""
    note(f"left out: {error}")


def print_text(text: str) -> None:
    """Print a result without formatting."""
    file = _reserved[-1] if _reserved else sys.stdout
    file.write(text)
    file.flush()


def print_json(content: object) -> None:
    """Print a result as JSON."""
    print_text(json.dumps(content, indent=2) + "\n")


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of the same keys as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_safe, rows[0] if rows else ()))
    writer.writerows(map(csv_safe, row.values()) for row in rows)
    return out.getvalue()


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of the same keys."""
    print_text(csv_text(rows))


def print_rows(rows: Sequence[Mapping[str, object]], kind: str) -> None:
    """Print rows of the same keys as `json` or `csv`."""
    (print_json if kind == "json" else print_csv)(rows)


def shown(score: Score) -> str:
    """Return a score with its interval (for example '81.2 [78.9, 83.3]')."""
    return f"{score.text()} {score.interval()}"


# --- tables


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    caption: str = "",
    numeric: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        columns: Heads.
        rows: Cells of each row.
        title: Line above.
        caption: Text below.
        numeric: Columns that are aligned to the right and never fold.
        cut: Columns that are shortened where the terminal is too narrow; others fold.
    """
    console = stdout()
    layout = _layout()
    for column in columns:
        layout.add_column(
            Text(column),
            justify="right" if column in numeric else "left",
            no_wrap=column in numeric or column in cut,
            overflow="ellipsis" if column in cut else "fold",
        )
    for row in rows:
        layout.add_row(*map(Text, row))  # never markup: names come from files
    _print_title(console, title)
    console.print(layout)
    _print_note(console, caption)


def _layout() -> Layout:
    return Layout(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def _print_title(console: Console, text: str) -> None:
    if text:
        console.print(Text(text, style="bold"), soft_wrap=True)


def _print_note(console: Console, text: str) -> None:
    if text:
        console.print(Text(text, style="dim"), width=min(console.width, NOTE_WIDTH))


def _print_columns(
    console: Console,
    rows: Sequence[tuple[Row, str]],
    columns: Sequence[tuple[ScoreName, str]],
    text: Callable[[Row, ScoreName, bool], Text],
) -> bool:
    """Print a row per model: with intervals if they fit, else without, else in several tables.

    Args:
        console: Console to print to.
        rows: Keys of rows and their names.
        columns: Scores and their heads.
        text: Cell of a row and a score; True: with the interval.

    Returns:
        True if the table has intervals.
    """
    longest = max(len(name) for _, name in rows)

    def build(part: Sequence[tuple[ScoreName, str]], wide: bool) -> Layout:
        layout = _layout()
        layout.add_column("model", overflow="fold", min_width=min(longest, NAME_WIDTH))
        for _, head in part:
            layout.add_column(Text(head), justify="right", no_wrap=True)
        for row, name in rows:
            layout.add_row(Text(name), *(text(row, score, wide) for score, _ in part))
        return layout

    def fits(layout: Layout) -> bool:
        # Rich clamps a measure to the console, and measures a folding cell by its longest word.
        endless = console.options.update(width=UNBOUNDED)
        folded = max(0, longest - NAME_WIDTH)
        return Measurement.get(console, endless, layout).maximum - folded <= console.width

    whole = build(columns, True)
    if fits(whole):
        console.print(whole)
        return True
    left = list(columns)
    while left:
        sizes = range(len(left), 0, -1)
        size = next((n for n in sizes if fits(build(left[:n], False))), 1)
        console.print(build(left[:size], False))
        left = left[size:]
    return False


def _head(name: ScoreName, *, lower: bool = False) -> str:
    """Return the head of a column, over two lines."""
    if not name.kind:
        return name.column
    return f"{SHORT.get(name.family, name.family)}\n{name.kind}{' ↓' * lower}"


def print_leaderboard(tables: Sequence[Table]) -> None:
    """Print tables of comparable records."""
    console = stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        _print_leaderboard(console, table)


def _print_leaderboard(console: Console, table: Table) -> None:
    star = "" if console.color_system else "*"  # plain text has no bold

    def text(row: Result, column: ScoreName, wide: bool) -> Text:
        cell = table.get(row, column)
        if cell is None:
            return Text("")
        marks = "†" * (not cell.comparable) + star * cell.best
        words = Text(cell.value.text() + marks, style="bold" if cell.best else "")
        if wide:
            words.append(f"\n{cell.value.interval()}", style="dim not bold")
            if cell.value.n != row.data.images:
                words.append(f"\nn={cell.value.n:,}", style="dim not bold")
        return words

    _print_title(console, table.label)
    rows = [(row, row.model.name) for row in table.rows]
    columns = [(name, _head(name, lower=table.lower_is_better(name))) for name in table.columns]
    wide = _print_columns(console, rows, columns, text)
    notes = table.notes(intervals=wide, best=star or "Bold")
    if not wide:
        notes += f" {_precision([cell.value for cell in table.cells.values()])}"
    _print_note(console, notes)


def _precision(scores: Sequence[Score]) -> str:
    """Describe the intervals that a narrow table leaves out."""
    widest = max(max(score.high - score.value, score.value - score.low) for score in scores)
    return (
        f"n={_range(score.n for score in scores)}; 95% intervals within {100 * widest:.1f} points."
    )


def _range(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return " to ".join(f"{n:,}" for n in dict.fromkeys((ordered[0], ordered[-1])))


def print_results(results: Sequence[Result], kind: str, tables: Sequence[Table]) -> None:
    """Print the results of a run: tables, or every score as JSON or CSV."""
    if kind == "json":
        print_json([{**r.to_json(), "geometry": r.data.geometry_text} for r in results])
    elif kind == "csv":
        print_csv([row for result in results for row in _score_rows(result)])
    elif results:
        print_leaderboard(tables)
    for result in results:
        if result.data.skipped:
            note(f"{result.model.name}: {result.data.skipped} unreadable images left out")
        if result.data.empty:
            note(f"{result.model.name}: {result.data.empty} images without objects left out")
        if result.shown and kind == "table":
            low, value, high = (100 * result.shown[key] for key in ("ap_low", "ap", "ap_high"))
            note(
                f"{result.model.name}: AP {value:.1f}, {low:.1f} to {high:.1f} over the offsets "
                "(not ranked)"
            )


def _score_rows(result: Result) -> Iterator[dict[str, object]]:
    """Yield a row per score and max shift, in fractions."""
    for name, score in result.scores.items():
        yield {
            "model": result.model.name,
            "data": result.data.name,
            "score": name.stem,
            "max_shift": "" if name.radius is None else name.radius,
            **{key: getattr(score, key) for key in ("value", "low", "high", "n")},
            "geometry": result.data.geometry_text,
        }


def print_comparison(baseline: Result, differences: Sequence[Difference]) -> None:
    """Print paired differences: the baseline, then a row per model."""
    from shiftbench.report.scores import Cell  # imports torch

    console = stdout()
    known = {(one.model, one.name.curve): one for one in differences}
    first = {one.name.curve: one for one in reversed(differences)}
    curves = list(dict.fromkeys(one.name.curve for one in differences))

    def text(row: Result | None, curve: ScoreName, wide: bool) -> Text:
        if row is None:
            score = first[curve].baseline
            return Text(score.text()).append(f"\n{score.interval()}" * wide, style="dim")
        one = known.get((row, curve))
        if one is None:
            return Text("")
        test = one.test
        words = Text(f"{100 * test.difference:+.1f}{'*' * test.is_significant}")
        ends = f"\n[{100 * test.low:+.1f}, {100 * test.high:+.1f}]\n{_p_value(test.p_value)}"
        return words.append(ends * wide, style="dim")

    models = list(dict.fromkeys(one.model for one in differences))
    rows: list[tuple[Result | None, str]] = [(None, f"{baseline.model.name} (baseline)")]
    rows += [(model, model.model.name) for model in models]
    columns = [
        (curve, _head(curve, lower=first[curve].model.lower_is_better(first[curve].name)))
        for curve in curves
    ]
    _print_title(console, f"{baseline.data}, {baseline.data.geometry_text}")
    _print_columns(console, rows, columns, text)
    extents = {
        one.name.kind: Cell(one.model, "", one.name, one.value).extent
        for one in differences
        if one.name.radius is not None
    }
    shifts = ", ".join(f"{kind} {extent}" for kind, extent in extents.items() if extent)
    notes = "Baseline in percent, models as paired differences to it in points"
    notes += f", n={_range(one.test.n for one in differences)} common images. *: p < 0.05."
    _print_note(console, notes + (f" Adversarial: up to {shifts}." if shifts else ""))


def _p_value(p: float) -> str:
    return f"p={p:.2g}" if p >= SMALLEST_P else f"p<{SMALLEST_P:.0e}"
