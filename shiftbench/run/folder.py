"""The folder of a record: rows that several processes add, and the record written from them.

Rows wait in `parts/` until the record is written anew: `parts/identity.json` says what is measured,
and `parts/<series>/*.parquet` hold rows by image. Rows do not depend on how the images were batched
or shared between processes. A file is added under a name that no other process uses, and removed
only after its rows are in another one, so a killed run continues where it stopped, and any number
of processes may write at a time. The file system must rename atomically; no locks are needed.
"""

from __future__ import annotations

import errno
import importlib.metadata
import io
import json
import logging
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic, write_new
from shiftbench.geometry import Geometry
from shiftbench.identity import Identity
from shiftbench.metrics.base import KEY, PASSES, Metric
from shiftbench.records.record import (
    RECORD_FILE,
    SAMPLES_FILE,
    SCHEMA,
    DataInfo,
    ModelInfo,
    Record,
    read_record,
    write_record,
)
from shiftbench.run.job import Job
from shiftbench.run.store import SECONDS, Store, extent, series_folder, widest

log = logging.getLogger(__name__)

PARTS_FOLDER = "parts"
IDENTITY_FILE = "identity.json"
SHARDS_FILE = "shards.json"  # how many shards share the work
SKIPPED = "skipped"  # series of the images that cannot be read
MERGED_FILES = 16  # that a process may have of a series before it writes them as one
ATTEMPTS = 20  # to do what another process has just undone, such as making a folder
LOCK_FILE = ".lock"
SPARE_BYTES = 16 * 2**20  # free disk a run asks for besides its own files
BYTES_PER_IMAGE = 1024  # a generous bound for a row in the parts and in the samples
# Rows wait this long to be saved: briefly at first, when mistakes are noticed, then longer, so that
# a run of hours leaves no hundred thousand files.
FIRST_SAVE, LAST_SAVE = 2.0, 30.0  # seconds; doubles from one to the other


class FolderStore(Store):
    """Rows on disk: the folder of one record. Several processes may add rows at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.parts = folder / PARTS_FOLDER
        self._identity: dict[str, Any] = {}
        self._read: dict[Path, pd.DataFrame | None] = {}  # parts as read; None: damaged
        self._unsaved: dict[str, list[pd.DataFrame]] = {}
        self._saved: dict[str, list[Path]] = {}  # series -> the files that this process wrote
        self._saved_at, self._interval = time.monotonic(), FIRST_SAVE
        self._stamp: tuple[int, int] | None = None  # of the record as read
        self._shards: int | None = None

    def engine(self) -> str | None:
        """What runs the forward pass of the work that is there; None: there is none."""
        with suppress(FileNotFoundError, RecordError):
            if self._stamp_now() is not None:
                return str(read_record(self.folder).settings.get("engine", "torch"))
            identity = json.loads((self.parts / IDENTITY_FILE).read_text(encoding="utf-8"))
            return str(identity["settings"]["engine"])
        return None

    def prepare(self, job: Job, *, fresh: bool = False, shards: int | None = None) -> None:
        """Makes the folder ready for a job, or one of several shards of it.

        Raises:
            RecordError: The folder cannot be written, or holds other work.
        """
        if fresh:
            shutil.rmtree(self.parts, ignore_errors=True)
            for name in (RECORD_FILE, SAMPLES_FILE):
                (self.folder / name).unlink(missing_ok=True)
        self.read(job)
        if self.before is not None:
            old = identity_of(self.before.model, self.before.data, self.before.settings)
            _refuse_mixing(self.folder, "a record", old, self._identity)
        self._to_measure(job)
        if shards is None and not self._read:  # a run that failed before its first rows
            (self.parts / IDENTITY_FILE).unlink(missing_ok=True)
        self._shards = shards
        self._claim_parts()

    def _claim_parts(self) -> None:
        """Says what the parts are of; what another process has said already must agree."""
        # Processes that share parts must run the same code, too.
        own = {**self._identity, "shiftbench": importlib.metadata.version("shiftbench")}
        _refuse_mixing(self.folder, "unfinished parts", self._claim(IDENTITY_FILE, own), own)
        if self._shards is not None:
            count = self._claim(SHARDS_FILE, {"count": self._shards})["count"]
            if count != self._shards:
                raise RecordError(
                    f"{self.folder} holds unfinished parts of {count} shards, and {self._shards} "
                    f"were asked for: use --shard i/{count}, or finish them without --shard"
                )

    def _claim(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a file of the parts unless it is there; returns what it holds, ours or not."""
        file = self.parts / name
        for _ in range(ATTEMPTS):  # another process may finish, and remove the folder
            with suppress(FileNotFoundError):
                if not file.is_file():
                    self.parts.mkdir(parents=True, exist_ok=True)
                    write_new(file, json.dumps(content, indent=2).encode())
                text = file.read_text(encoding="utf-8")
                try:
                    holds: dict[str, Any] = json.loads(text)
                    return holds
                except ValueError as error:
                    raise RecordError(f"cannot read {file}: start over with --fresh") from error
        raise RecordError(f"cannot write {file}: it disappears again and again")

    def read(self, job: Job) -> None:
        """Reads the record and the parts as they are now; files that were read before are kept."""
        self._identity = identity_of(job.model, job.data, job.settings)
        for _ in range(ATTEMPTS):
            self._stamp = self._stamp_now()
            self.before = read_record(self.folder) if self._stamp is not None else None
            if self._read_parts() and self._stamp_now() == self._stamp:
                break
        self._table, self._added, self._skipped = None, {}, set()
        for path, rows in self._read.items():
            if rows is not None and path.parent.name == SKIPPED:
                self._skipped.update(rows.index)
            elif rows is not None:
                self._added.setdefault(path.parent.name, []).append(rows)

    def _read_parts(self) -> bool:
        """Reads parts that are new; whether none of them was moved into the record meanwhile."""
        parts: dict[Path, pd.DataFrame | None] = {}
        for path in sorted(self.parts.glob("*/*.parquet")):  # names begin with the time of writing
            try:
                parts[path] = self._read[path] if path in self._read else _read_part(path)
            except FileNotFoundError:
                self._read |= parts
                return False
            except (OSError, ValueError, KeyError):
                log.warning("cannot read %s: its images are measured again", path)
                parts[path] = None
        self._read = parts
        return True

    def _stamp_now(self) -> tuple[int, int] | None:
        """Tells two versions of the record apart; None: there is none."""
        try:
            state = (self.folder / RECORD_FILE).stat()
        except FileNotFoundError:
            return None
        whole = (self.folder / SAMPLES_FILE).is_file()
        return (state.st_mtime_ns, state.st_ino) if whole else None

    def append(self, metric: Metric, rows: pd.DataFrame, seconds: float = 0.0) -> None:
        """Adds rows, and saves them now and then."""
        super().append(metric, rows, seconds)
        series = series_folder(metric)
        self._unsaved.setdefault(series, []).append(self._added[series][-1])
        if time.monotonic() - self._saved_at > self._interval:
            self.flush()
            self._interval = min(2 * self._interval, LAST_SAVE)

    def skip(self, keys: Sequence[str]) -> None:
        """Notes images that cannot be read."""
        super().skip(keys)
        if keys:
            nothing = pd.DataFrame(index=pd.Index(keys, name=KEY))
            self._unsaved.setdefault(SKIPPED, []).append(nothing)

    def flush(self) -> None:
        """Saves the rows that are not saved yet."""
        for series in list(self._unsaved):
            self._write(series, pd.concat(self._unsaved[series]))
            del self._unsaved[series]
            if len(self._saved[series]) >= MERGED_FILES:
                self._merge(series)
        self._saved_at = time.monotonic()

    def close(self) -> None:
        """Saves all rows, those of this process in one file per series."""
        try:
            self.flush()
            for series in [name for name, files in self._saved.items() if len(files) > 1]:
                self._merge(series)
        finally:
            remove_if_empty(self.parts)

    def _merge(self, series: str) -> None:
        """Writes the files of this process as one; its readers then have fewer to open."""
        files = self._saved[series]
        try:
            rows = pd.concat([_read_part(path) for path in files])
        except FileNotFoundError:  # a process that finished has moved them into the record
            self._saved[series] = [path for path in files if path.is_file()]
            return
        self._saved[series] = []
        self._write(series, rows)
        for path in files:
            _remove(path)

    def _write(self, series: str, rows: pd.DataFrame) -> None:
        # No other process has this name, and the order of the names is that of writing.
        path = self.parts / series / f"{time.time_ns()}-{uuid.uuid4().hex}.parquet"
        content = rows.rename_axis(KEY).reset_index().to_parquet(index=False)
        for attempt in range(ATTEMPTS):
            try:
                self._claim_parts()
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, content)
                break
            except FileNotFoundError:  # another process finished, and removed the empty folder
                if attempt == ATTEMPTS - 1:
                    raise
        self._saved.setdefault(series, []).append(path)

    def left(self, job: Job) -> int:
        """How many images no process has measured yet; those that cannot be read aside."""
        keys = {key for keys in self.missing(job).values() for key in keys}
        if not job.settings["skip_bad"]:
            return len(keys)
        skipped_before = self.before.data.skipped if self.before is not None else 0
        return 0 if len(keys) <= skipped_before else len(keys - self._skipped)

    def finish(self, job: Job, environment: Mapping[str, Any]) -> tuple[Record, bool]:
        """Writes the record of all rows, unless it is there already.

        Several processes may come here at a time: each derives the same record, and removes only
        files that it has read.

        Returns:
            The record, and whether it was written.
        """
        for leftover in self.folder.rglob(".*.tmp"):  # a process that is writing it tries again
            _remove(leftover)
        for _ in range(ATTEMPTS):
            self.read(job)
            record = self.derive(job, environment)
            if self.before is not None and _content(self.before) == _content(record):
                self._drop_parts(job)
                return self.before, False
            if self._stamp_now() == self._stamp:
                with suppress(FileNotFoundError):
                    record = write_record(self.folder, record)
                    self._drop_parts(job)
                    return record, True
        raise RecordError(f"{self.folder} is changed by other processes all the time: try again")

    def _drop_parts(self, job: Job) -> None:
        """Removes the parts that went into the record; what a job did not ask for stays."""
        used = {series_folder(m): (m, set(job.keys[m.name])) for m in job.metrics}
        for series, frames in self._added.items():
            if series in used:
                metric, keys = used[series]
                rows = widest(metric, frames)
                exact = self.answers(metric)
                went = rows.index.isin(exact.index[exact.index.isin(keys)])
                whole = pd.Series(extent(metric, exact), exact.index).reindex(rows.index)
                cut = extent(metric, rows) > whole.to_numpy()
                rows.loc[went, [PASSES, SECONDS]] = 0  # counted in the record
                if (~went | cut).any():
                    self._write(series, rows[~went | cut])
        for path, part in self._read.items():
            if part is None or path.parent.name in (*used, SKIPPED):
                _remove(path)
        self._read, self._saved = {}, {}
        remove_if_empty(self.parts)


def _read_part(path: Path) -> pd.DataFrame:
    """The rows of a file, by key."""
    try:
        content = path.read_bytes()
    except OSError as error:
        if error.errno == errno.ESTALE:  # how NFS says that another machine has removed it
            raise FileNotFoundError(path) from error
        raise
    return pd.read_parquet(io.BytesIO(content)).set_index(KEY)


def _remove(path: Path) -> None:
    with suppress(PermissionError):  # Windows, while another process reads it: it stays for later
        path.unlink(missing_ok=True)


def remove_if_empty(parts: Path) -> None:
    """Removes folders that hold no parts; one that another process has written to stays."""
    with suppress(OSError):  # not empty any more, or removed by another process
        for folder in parts.glob("*/"):
            if not any(folder.iterdir()):
                folder.rmdir()
        names = (IDENTITY_FILE, SHARDS_FILE)
        if {path.name for path in parts.glob("*")} <= set(names):
            for name in names:
                (parts / name).unlink(missing_ok=True)
            parts.rmdir()


# What a record says, besides when and at what cost it was made.
_content = attrgetter("metrics", "scores", "settings", "data", "maps")


# --- what two runs must agree on before they may share work


def identity_of(model: ModelInfo, data: DataInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must agree; how many images and how wide a margin may differ."""
    whole = Geometry(**data.geometry).to_json()
    content = {
        "schema": SCHEMA,
        "model": {k: v for k, v in vars(model).items() if k not in ("source", "parameters")},
        "data": {
            "name": data.name,
            "split": data.split,
            "fingerprint": data.fingerprint,
            "labels": data.labels,
            "geometry": {key: value for key, value in whole.items() if key != "margin"},
        },
        "settings": {k: settings.get(k) for k in ("seed", "precision", "engine")},
    }
    as_read_back: dict[str, Any] = json.loads(json.dumps(content, default=dict))
    return as_read_back


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], hidden: set[str], prefix: str = ""
) -> list[str]:
    """Where two identities differ, in words; `hidden` names are not compared."""
    words: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        name, before, after = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and name not in hidden:
            words += _differences(before, after, hidden, f"{name}.")
        elif before != after and name not in hidden:
            words.append(f"{name} was {_short(before)}, is {_short(after)}")
    return words


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def _refuse_mixing(folder: Path, what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, after = (Identity.from_json(x["model"].get("parts", {})) for x in (old, new))
    changed = [text] if (text := before.difference(after)) else []
    # The parts say what the digest cannot.
    changed += _differences(old, new, {"model.parts", *(["model.digest"] if changed else [])})
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise RecordError(
            f"{folder} holds {what} of other work ({'; '.join(changed[:3])}{more}): "
            "give another --output or --name, or replace it with --fresh"
        )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a record folder; a second process is refused.

    The system drops the lock with the process, however it ends, so no lock is ever stale.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        with suppress(NotImplementedError):  # a file system without locks
            lock.acquire(timeout=0)
    except Timeout as error:
        raise RecordError(
            f"{folder} is being written by another process: wait for it, or give another --output"
        ) from error
    try:
        yield
    finally:
        lock.release()  # the file stays: removing it would let two waiting processes in


def make_folder(folder: Path, *, images: int) -> None:
    """Makes the record folder, and fails now rather than after hours if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ".probe", b"0" * 4096)
        (folder / ".probe").unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise RecordError(
            f"cannot write to the output folder {folder}: {error.strerror or error}; "
            "choose another with --output"
        ) from error
    needed = SPARE_BYTES + images * BYTES_PER_IMAGE
    if free < needed:
        raise RecordError(
            f"the disk of {folder} has {free / 2**20:.0f} MB free and the run may need "
            f"{needed / 2**20:.0f} MB: free some, or choose another --output"
        )
