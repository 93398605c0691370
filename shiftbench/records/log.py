"""The scores of a record, sent to logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from shiftbench.logs import open_logs
from shiftbench.records.record import Record


def log_record(record: Record, logs: Sequence[str], folder: Path) -> None:
    """Writes every score of a record: the points of a curve by max shift, all others at step 0."""
    steps: dict[int, dict[str, float]] = {}
    for name, score in record.scores.items():
        steps.setdefault(name.radius or 0, {})[name.stem] = score.value
    about = {
        "model": asdict(record.model),
        "data": asdict(replace(record.data, classes=())),
        "settings": dict(record.settings),
    }
    with open_logs(logs, folder, record.model.name, about) as write:
        for step in sorted(steps):
            write(step, steps[step])
