"""What `shiftbench run` leaves on stdout: a table for people, JSON or CSV for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shiftbench.records.record import Record
from shiftbench.report.board import board_tables, read_board
from shiftbench.report.table import build_tables
from shiftbench_cli import render, scoreboard


def write(records: Sequence[Record], form: str, *, board: bool = False) -> None:
    """Writes the scores of a run to stdout; the table may show them among the board's."""
    if form == "json":
        render.print_json([record.to_json() for record in records])
        return
    if form == "csv":
        render.print_csv([row for record in records for row in _rows(record)])
        return
    if records:
        everyone = board_tables(records, read_board()) if board else None
        scoreboard.print_leaderboards(everyone or build_tables(records, sort="model"))
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
