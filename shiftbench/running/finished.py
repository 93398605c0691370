"""Runs that were finished before: nothing is missing, and the model need not be built.

A file in the cache states everything that a finished run depended on. If anything differs or cannot
be compared, the model is built and the tables are read as usual.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aft_models
from shiftbench.data import ImageSet
from shiftbench.errors import RecordError
from shiftbench.files import cache_folder, write_text
from shiftbench.identity import plugin_digests
from shiftbench.metrics.base import METRICS
from shiftbench.models import parse_model
from shiftbench.models.names import EXPORTED
from shiftbench.records.folder import RECORD_FILE, load_record
from shiftbench.records.result import TABLES_FOLDER
from shiftbench.running.job import Settings
from shiftbench.running.runner import RunResult
from shiftbench.shifts import SHIFTS
from shiftbench.tables import table_files

# The weights of these sources follow from the name, the versions and the files that are given. A
# FILE.py or a repository may change without notice.
FIXED_SOURCES = ("bundled", "timm", "tv", EXPORTED)
LIBRARIES = ("shiftbench", "torch", "torchvision", "timm")


def run_digest(spec: Settings, model: str, checkpoint: Path | None, dataset: ImageSet) -> str:
    """Compute a digest of everything that a run depends on; empty if that needs the model.

    Args:
        spec: All settings, including those of the model and the data.
        model: Name of the model.
        checkpoint: File or folder of weights.
        dataset: Images of the run.
    """
    name = parse_model(model)
    paths = [word for word in name.options.values() if isinstance(word, str)]
    plugins = plugin_digests(*map(METRICS.get, METRICS), *map(SHIFTS.get, SHIFTS))
    if name.source not in FIXED_SOURCES or paths or plugins or spec.skip_bad or dataset.annotated:
        return ""
    given = [*([Path(name.name)] if name.source == EXPORTED else []), *filter(None, [checkpoint])]
    content = {
        "settings": asdict(spec),
        "weights": [_sha256(file.read_bytes()) for path in given for file in _files(path)],
        "images": [list(dataset.keys), list(map(int, dataset.labels)), list(dataset.class_names)],
        "split": dataset.split,
        "versions": [version(library) for library in LIBRARIES],
        "code": max(file.stat().st_mtime_ns for file in _code()),
    }
    return _sha256(json.dumps(content, default=str).encode())


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _code() -> Iterator[Path]:
    for package in (Path(aft_models.__file__).parent, Path(__file__).parents[1]):
        yield from package.rglob("*.py")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _note(folder: Path) -> Path:
    return cache_folder() / "finished" / f"{_sha256(str(folder.resolve()).encode())[:16]}.json"


def _state(folder: Path, digest: str) -> dict[str, Any]:
    """Return the state of a record that a finished run left."""
    tables = [file.name for file in table_files(folder / TABLES_FOLDER)]  # digests of the cells
    return {
        "run": digest,
        "record": _sha256((folder / RECORD_FILE).read_bytes()),
        "tables": tables,
    }


def note_finished(folder: Path, digest: str, done: RunResult) -> None:
    """Record that a run left nothing to predict."""
    own, whole = done.requested, done.record
    if not digest or own is None or whole is None:
        return
    if own.data != whole.data or any(whole.scores[n] != own.scores[n] for n in own.scores):
        return  # a subset of the images of the record
    content = {**_state(folder, digest), "scores": [str(name) for name in own.scores]}
    with suppress(OSError):  # a read-only cache costs time alone
        _note(folder).parent.mkdir(parents=True, exist_ok=True)
        write_text(_note(folder), json.dumps(content))


def find_finished(folder: Path, digest: str) -> RunResult | None:
    """Return the result of the same run if its record and tables have not changed since."""
    try:
        note = json.loads(_note(folder).read_text("utf-8")) if digest else {}
        scores = note.pop("scores", ())
        if not note or not note["tables"] or note != _state(folder, digest):
            return None
        record = load_record(folder)
    except (OSError, ValueError, KeyError, RecordError):
        return None
    own = {name: value for name, value in record.scores.items() if str(name) in scores}
    requests = tuple(request for request in record.requests if {*request.scores} & {*scores})
    return RunResult(record, replace(record, scores=own, requests=requests), complete=True)
