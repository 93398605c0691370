"""What `shiftbench run` leaves on stdout: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence

from shiftbench.records.record import Record
from shiftbench.report.board import board_tables, read_board
from shiftbench.report.table import build_tables
from shiftbench_cli import render, scoreboard

CSV_COLUMNS = ("model", "data", "score", "max_shift", "value", "low", "high", "n")


def write(records: Sequence[Record], form: str, *, board: bool = False) -> None:
    """Writes the scores of a run to stdout; the table may show them among the board's."""
    if form == "json":
        json.dump([record.to_json() for record in records], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif form == "csv":
        _write_csv(records)
    else:
        _write_table(records, board)


def _write_csv(records: Sequence[Record]) -> None:
    """A line per score, as fractions; adversarial accuracy at every max shift."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        for name, score in record.scores.items():
            at = "" if name.radius is None else name.radius
            numbers = (score.value, score.low, score.high, score.n)
            writer.writerow((record.model.name, record.data.name, name.stem, at, *numbers))


def _write_table(records: Sequence[Record], board: bool) -> None:
    if not records:
        return
    tables = board_tables(records, read_board()) if board else build_tables(records, sort="model")
    scoreboard.print_leaderboards(tables)
    for record in records:
        if record.data.skipped:
            render.note(f"{record.model.name}: {record.data.skipped} unreadable images left out")
