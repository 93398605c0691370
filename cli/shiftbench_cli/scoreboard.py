"""Records as a table on the terminal: a row per model, a column per score that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shiftbench.records.record import Record
from shiftbench.report.board import board_tables, read_board
from shiftbench.report.formats.base import marked
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Cell, Column, build_tables
from shiftbench.report.table import Table as Leaderboard
from shiftbench_cli import render

NAME_WIDTH = 32  # characters of a model's name before it is folded
NARROW_NAME_WIDTH = 17  # the same where the scores need the room
NOTE_WIDTH = 100  # characters of a line below a table
HEAD_LINES = 3  # of a table of one line per model
UNBOUNDED = 10_000  # columns of a terminal on which every table fits


def print_leaderboards(tables: Sequence[Leaderboard]) -> None:
    """Prints groups of comparable records to stdout.

    Intervals stand below the scores if the terminal is wide enough for all columns; otherwise the
    scores stand alone, one line per model, and a note says how wide the intervals are.
    """
    console = render.stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        console.print(Text(table.label, style="bold"), soft_wrap=True)
        _print_table(console, table)


def print_run(records: Sequence[Record], kind: str, *, board: bool = False) -> None:
    """Writes the scores of a run to stdout; the table may show them among the board's."""
    if kind == "json":
        render.print_json([record.to_json() for record in records])
        return
    if kind == "csv":
        render.print_csv([row for record in records for row in _rows(record)])
        return
    if records:
        everyone = board_tables(records, read_board()) if board else None
        print_leaderboards(everyone or build_tables(records, sort="model"))
    for record in records:
        if record.data.skipped:
            render.note(f"{record.model.name}: {record.data.skipped} unreadable images left out")


def _rows(record: Record) -> Iterator[dict[str, object]]:
    """A row per score, as fractions; adversarial accuracy at every max shift."""
    for name, score in record.scores.items():
        yield {
            "model": record.model.name,
            "data": record.data.name,
            "score": name.stem,
            "max_shift": "" if name.radius is None else name.radius,
            **{key: getattr(score, key) for key in ("value", "low", "high", "n")},
        }


def _print_table(console: Console, table: Leaderboard) -> None:
    star = "" if console.color_system else "*"  # plain text has no bold
    columns = table.measured_columns()
    names = [row.record.model.name for row in table.rows]
    cells = [[row.cell(column) for column in columns] for row in table.rows]
    wide = _with_intervals(columns, names, cells, star)
    unbounded = console.options.update_width(UNBOUNDED)
    if console.measure(wide, options=unbounded).maximum <= console.width:
        console.print(wide)
        notes = table.notes(best=star or "Bold")
    else:
        best = star or "Bold"
        lines = _narrow(columns, names, cells, star, console.width)
        if star and len(lines) > HEAD_LINES + len(names):  # a row per model before stars
            lines, best = _narrow(columns, names, cells, "", console.width), ""
        for line in lines:
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
        notes = f"{table.notes(intervals=False, best=best)} {_precision(cells)}"
    console.print(Text(notes.rstrip(), style="dim"), width=min(console.width, NOTE_WIDTH))


def _with_intervals(
    columns: Sequence[Column], names: Sequence[str], cells: Sequence[Sequence[Cell]], star: str
) -> Table:
    shown = Table()
    shown.add_column("model", overflow="fold", max_width=NAME_WIDTH)
    for column in columns:
        shown.add_column(escape(render.head(column)), justify="right", no_wrap=True)
    for name, row in zip(names, cells, strict=True):
        shown.add_row(Text(name), *(_score_and_interval(cell, star) for cell in row))
    return shown


def _score(cell: Cell, star: str) -> Text:
    if not isinstance(cell, Measured):
        return Text("")
    value = f"{cell.score.text()}{star}" if cell.best else cell.score.text()
    return Text(marked(cell, value), style="bold" if cell.best else "")


def _score_and_interval(cell: Cell, star: str) -> Text:
    text = _score(cell, star)
    if isinstance(cell, Measured):
        text.append(f"\n{cell.score.interval()}", style="dim not bold")
        if cell.own_n:
            text.append(f"\nn={cell.score.n:,}", style="dim not bold")
    return text


def _precision(cells: Sequence[Sequence[Cell]]) -> str:
    """How wide the intervals are that a narrow table has no room for."""
    scores = [c.score for row in cells for c in row if isinstance(c, Measured)]
    spreads = [max(s.high - s.value, s.value - s.low) for s in scores if s.is_fraction]
    counts = sorted({score.n for score in scores})
    if not spreads:
        return ""
    images = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    return f"n={images}; 95% intervals reach at most {100 * max(spreads):.1f} points from a score."


def _narrow(
    columns: Sequence[Column],
    names: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    star: str,
    width: int,
) -> list[Text]:
    """One line per model, one blank between columns; titles lose letters where room is short.

    Only if the scores alone are too wide do the columns go into several tables.
    """
    body = [[_score(cell, star) for cell in row] for row in cells]
    least = [_width(map(str, scores)) for scores in zip(*body, strict=True)]
    widths = [max(len(c.short_title), room) for c, room in zip(columns, least, strict=True)]
    for group, members in groupby(range(len(columns)), key=lambda i: columns[i].family):
        inside = list(members)  # wide enough for what stands above them
        widths[inside[0]] += max(0, len(group) + 1 - sum(widths[i] + 1 for i in inside))
    room = width - _width(["model", *names])
    while sum(widths) + len(widths) > room and widths != least:
        loose = [i for i, w in enumerate(widths) if w > least[i]]
        widths[max(loose, key=lambda i: widths[i])] -= 1
    name_width = max(NARROW_NAME_WIDTH, width - sum(widths) - len(widths))
    name_width = min(name_width, _width(["model", *names]))
    lines: list[Text] = []
    for part in _parts(widths, width - name_width):
        lines += [_groups(columns, widths, part, name_width), Text("model".ljust(name_width))]
        for i in part:
            lines[-1].append(f" {_cut(columns[i].short_title, widths[i]):>{widths[i]}}")
        lines.append(Text("─" * len(lines[-1])))
        for name, scores in zip(names, body, strict=True):
            line = Text(name[:name_width].ljust(name_width))
            for i in part:
                line.append(" " * (widths[i] + 1 - len(scores[i]))).append_text(scores[i])
            rest = range(name_width, len(name), name_width)
            lines += [line, *(Text(name[i : i + name_width]) for i in rest)]
    return lines


def _cut(title: str, width: int) -> str:
    return title if len(title) <= width else f"{title[: width - 1]}."


def _groups(
    columns: Sequence[Column], widths: Sequence[int], part: Sequence[int], name_width: int
) -> Text:
    """The line above the titles: what neighboring columns have in common."""
    line = Text(" " * name_width)
    for group, members in groupby(part, key=lambda i: columns[i].family):
        span = sum(widths[i] + 1 for i in members) - 1
        fill = "─" if group and span > len(group) else " "
        line.append(f" {group[:span]:{fill}^{span}}")
    return line


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns go into one table, so that none is wider than there is room for."""
    parts: list[list[int]] = [[]]
    left = room
    for index, width in enumerate(widths):
        if parts[-1] and width + 1 > left:
            parts.append([])
            left = room
        parts[-1].append(index)
        left -= width + 1
    return parts


def _width(texts: Iterable[str]) -> int:
    return max((len(text) for text in texts), default=0)
