"""What `shiftbench run` leaves on stdout: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence

from shiftbench.records.record import Record
from shiftbench.run.settings import Settings
from shiftbench.statistics import Score
from shiftbench_cli import render

CSV_COLUMNS = ("model", "data", "score", "max_shift", "value", "low", "high", "n")


def write(records: Sequence[Record], form: str) -> None:
    """Writes the scores of a run to stdout."""
    if form == "json":
        json.dump([record.to_json() for record in records], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif form == "csv":
        _write_csv(records)
    else:
        _write_table(records)


def _write_csv(records: Sequence[Record]) -> None:
    """A line per score, as fractions; adversarial accuracy at every max shift."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        for name, score in record.scores.named().items():
            stem, at, s = name.partition("@")
            if stem.startswith("adversarial_") and not at:
                continue  # the whole grid is the curve's last point
            numbers = (score.value, score.low, score.high, score.n)
            writer.writerow((record.model.name, record.data.name, stem, s, *numbers))


def _write_table(records: Sequence[Record]) -> None:
    """A line per score; with several models a block per score, to read them against each other."""
    if not records:
        return
    blocks: dict[str, list[tuple[str, Score, bool]]] = {}
    for record in records:
        for label, score, bound in _labelled(record):
            blocks.setdefault(label, []).append((record.model.name, score, bound))
    rows: list[tuple[str, ...]] = []
    for label, entries in blocks.items():
        if len(records) > 1:
            rows.append((label, "", "", ""))
        for model, score, bound in entries:
            value = f"{'≤' if bound else ''}{100 * score.value:.1f}"
            interval = f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
            name = f"  {model}" if len(records) > 1 else label
            rows.append((name, value, interval, str(score.n)))
    notes = [
        f"{record.model.name}: {record.data.skipped} unreadable images left out"
        for record in records
        if record.data.skipped
    ]
    if any(bound for entries in blocks.values() for _, _, bound in entries):
        notes.append("≤: only some offsets were tried, so this is an upper bound")
    data = ", ".join(sorted({f"{record.data.name}/{record.data.split}" for record in records}))
    render.print_table(
        ("score", "%", "95% interval", "n"),
        rows,
        title=data if len(records) > 1 else f"{records[0].model.name} on {data}",
        caption="\n".join(notes) or None,
        numeric=("%", "95% interval", "n"),
    )


def _labelled(record: Record) -> Iterator[tuple[str, Score, bool]]:
    """The scores of a record with words for people, and whether they are upper bounds."""
    settings = Settings.from_json(record.settings)
    yield "accuracy", record.scores.accuracy, False
    for kind, score in record.scores.consistency.items():
        yield f"consistency {kind}", score, False
    for attack, curve in record.scores.adversarial.items():
        reach = settings.grid(attack).reach
        yield f"adversarial {attack} ±{reach} px", curve[max(curve)], settings.is_upper_bound
