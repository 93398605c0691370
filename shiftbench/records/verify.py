"""Check of a record against its own tables, which needs nothing but the record.

Predicting some of the cells again needs the model: see `shiftbench.running.verify`.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic
from shiftbench.identity import Identity
from shiftbench.metrics.base import Request
from shiftbench.records.folder import RECORD_FILE, VERIFIED_FILE
from shiftbench.records.result import TABLES_FOLDER, Result, derive_result
from shiftbench.scores import ScoreName
from shiftbench.statistics import Score
from shiftbench.tables import DTYPES, PROBABILITY, read_tables, table_files

TOLERANCE = 1e-9  # of a score that is computed again from the same cells


@dataclass(frozen=True)
class Verification:
    """Note that cells of a record were predicted again with equal classes."""

    files: dict[str, str]  # sha256 of every file of the record
    images: int  # of which cells were predicted again
    by: str  # user name
    date: str  # ISO 8601, UTC
    version: str  # of the shiftbench that predicted them


def contradictions(record: Result) -> list[str]:
    """List all contradictions between a record and its tables."""
    try:
        tables = record.tables
    except (RecordError, OSError) as error:
        return [str(error)]
    key, count = max(Counter(tables.keys).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        return [f"the tables contain {key!r} {count} times"]
    problems = _identity_problems(record)
    requests = []
    for info in record.requests:
        if info.loaded is None:
            problems.append(
                f"the metric {info.metric!r} is not registered. Load its plug-in with --plugin"
            )
        elif info.images > len(tables.keys):
            problems.append(
                f"{info.loaded.name}: expected {info.images} images, got {len(tables.keys)}"
            )
        else:
            requests.append(Request(info.loaded, info.images))
    if problems:
        return problems
    again = derive_result(
        tables,
        requests,
        model=record.model,
        data=record.data,
        settings=record.settings,
        environment=record.environment,
    )
    problems += _score_problems(record.scores, again.scores)
    for name in ("data", "requests", "forward_passes", "near_ties"):
        if not problems and getattr(record, name) != getattr(again, name):
            problems.append(f"the {name.replace('_', ' ')} of the record differ from its tables")
    return problems


def _identity_problems(record: Result) -> list[str]:
    """Compare a record with the metadata of its tables."""
    problems: list[str] = []
    if record.model.digest != Identity.from_json(record.model.identity).digest:
        problems.append("the digest of the model does not follow from its identity")
    for file in table_files(record.folder / TABLES_FOLDER) if record.folder else ():
        tables, identity = read_tables(file)
        geometry = {k: v for k, v in record.data.geometry.items() if k != "margin"}
        stated = {
            "model": record.model.identity,
            "mean": list(record.model.mean),
            "std": list(record.model.std),
            "data": record.data.name,
            "geometry": geometry,
            **record.settings,
        }
        problems += [
            f"{name}: {value} in the record, {identity.get(name)} in {file.name}"
            for name, value in stated.items()
            if identity.get(name) != value
        ]
        classes = identity.get("classes")
        for name, array in tables.arrays.items():
            if name in DTYPES or name.endswith(PROBABILITY) or classes is None:
                continue
            if array.max() >= classes or array.min() < -1:
                problems.append(f"{name}: expected classes below {classes}, got {array.max()}")
    return problems


def _score_problems(
    stored: Mapping[ScoreName, Score], computed: Mapping[ScoreName, Score]
) -> list[str]:
    """List the scores that do not follow from the tables."""
    problems = [f"{name}: it does not follow from the tables" for name in stored.keys() - computed]
    for name, score in computed.items():
        if name not in stored:
            problems.append(f"{name}: {score.value:.6f} by the tables, none in the record")
        elif not _same(stored[name], score):
            problems.append(f"{name}: {stored[name]} in the record, {score} by the tables")
    return problems


def _same(stored: Score, computed: Score) -> bool:
    a, b = ((score.value, score.low, score.high) for score in (stored, computed))
    close = all(math.isclose(x, y, rel_tol=0, abs_tol=TOLERANCE) for x, y in zip(a, b, strict=True))
    return close and stored.n == computed.n


def save_verification(record: Result, images: int) -> None:
    """Write a note beside a record that some of its cells were predicted again."""
    assert record.folder is not None
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    note = Verification(
        _digests(record.folder), images, getpass.getuser(), date, version("shiftbench")
    )
    text = json.dumps(asdict(note), indent=2) + "\n"
    write_atomic(record.folder / VERIFIED_FILE, text.encode())


def read_verification(record: Result) -> Verification | None:
    """Read the note beside a record; None if there is none or a file changed since."""
    if record.folder is None:
        return None
    try:
        note = Verification(**json.loads((record.folder / VERIFIED_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return note if note.files == _digests(record.folder) else None


def _digests(folder: Path) -> dict[str, str]:
    files = [folder / RECORD_FILE, *table_files(folder / TABLES_FOLDER)]
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }
