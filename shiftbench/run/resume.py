"""What is there already and what is missing: a killed run and one that wants more are the same.

`parts/identity.json` says what is being measured; `parts/<metric>/*.parquet` hold rows keyed by
image. Rows do not depend on how the images were cut into shards, so a run may go on with another
batch size or number of processes.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic
from shiftbench.metrics.base import NEAR_TIE, PASSES, Metric
from shiftbench.preprocessing import Geometry
from shiftbench.records.record import KEY, SCHEMA, DataInfo, ModelInfo, Record

log = logging.getLogger(__name__)

PARTS_FOLDER = "parts"
IDENTITY_FILE = "identity.json"
LOCK_FILE = ".lock"
SECONDS = "seconds"  # column of the rows, besides those of the metric
SPARE_BYTES = 16 * 2**20  # free disk a run asks for besides its own files
BYTES_PER_IMAGE = 1024  # a generous bound for a row in the parts and in the samples

Identity = Mapping[str, Any]
Rows = dict[str, pd.DataFrame]  # metric -> a row per image that it has measured, indexed by key


def identity_of(model: ModelInfo, data: DataInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must agree before two runs may share work.

    How many images and how wide a margin were measured may differ: a record grows.
    """
    content = {
        "schema": SCHEMA,
        "model": {k: v for k, v in vars(model).items() if k not in ("source", "parameters")},
        "data": {
            "name": data.name,
            "split": data.split,
            "fingerprint": data.fingerprint,
            "labels": data.labels,
            "geometry": _cut(data.geometry),
        },
        "settings": {k: settings.get(k) for k in ("seed", "precision", "engine")},
    }
    as_read_back: dict[str, Any] = json.loads(json.dumps(content, default=dict))
    return as_read_back


def _cut(geometry: Mapping[str, Any]) -> dict[str, Any]:
    """How images were cut, the margin aside; a record that lacks a later field has its default."""
    whole = Geometry(**geometry).to_json()
    return {key: value for key, value in whole.items() if key != "margin"}


def differences(old: Identity, new: Identity, prefix: str = "") -> list[str]:
    """Where two identities differ, in words."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {_short(before)}, is {_short(after)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def refuse_mixing(folder: Path, what: str, old: Identity, new: Identity) -> None:
    """Raises when work of another identity is in the way."""
    changed = differences(old, new)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise RecordError(
            f"{folder} holds {what} of other work ({'; '.join(changed[:3])}{more}): "
            "give another --output or --name, or replace it with --fresh"
        )


@dataclass(frozen=True)
class Parts:
    """The parts folder of one record."""

    folder: Path  # <record>/parts

    @classmethod
    def of(cls, record_folder: Path) -> Parts:
        """The parts of the record in a folder."""
        return cls(record_folder / PARTS_FOLDER)

    def open(self, identity: Identity) -> None:
        """Claims the folder for an identity."""
        self.check(identity)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / IDENTITY_FILE, json.dumps(identity, indent=2).encode())

    def check(self, identity: Identity) -> None:
        """Refuses parts of another identity."""
        path = self.folder / IDENTITY_FILE
        if path.is_file():
            try:
                old = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RecordError(f"cannot read {path}: start over with --fresh") from error
            refuse_mixing(self.folder.parent, "unfinished parts", old, identity)

    def save(self, metric: str, rows: pd.DataFrame, *, writer: str) -> None:
        """Saves rows indexed by key; `writer` keeps the file names of processes apart."""
        folder = self.folder / metric.replace("/", "_")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}-{writer}.parquet"  # the order of the names is that of writing
        write_atomic(folder / name, rows.rename_axis(KEY).reset_index().to_parquet(index=False))

    def read(self, metric: str) -> pd.DataFrame | None:
        """The rows of a metric so far, indexed by key; the latest of an image counts."""
        frames = []
        for path in sorted((self.folder / metric.replace("/", "_")).glob("*.parquet")):
            try:
                frames.append(pd.read_parquet(path))
            except (OSError, ValueError):
                log.warning("cannot read %s: its images are measured again", path)
        if not frames:
            return None
        rows = pd.concat(frames, ignore_index=True)
        latest = rows.drop_duplicates(KEY, keep="last").set_index(KEY)
        for name in (PASSES, SECONDS):  # whatever was done for an image
            latest[name] = rows.groupby(KEY)[name].sum()
        return latest

    def clear(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self, used: Mapping[str, Collection[str]]) -> None:
        """Removes the images that went into a record, by metric; what is left waits for its run."""
        folders = [path for path in self.folder.glob("*") if path.is_dir()]
        found = {folder.name: self.read(folder.name) for folder in folders}
        went = {name.replace("/", "_"): list(keys) for name, keys in used.items()}
        rest = {
            name: rows[~rows.index.isin(went.get(name, []))]
            for name, rows in found.items()
            if rows is not None
        }
        if not any(map(len, rest.values())):
            self.clear()
            return
        for folder in folders:
            shutil.rmtree(folder)
        for name, rows in rest.items():
            if len(rows):
                self.save(name, rows, writer="rest")


def rows_of(
    metric: Metric, record: Record | None, parts: Parts, keys: Collection[str]
) -> pd.DataFrame:
    """The rows of a metric: all of the record's, and those of some images from the newer parts.

    Parts of a larger run that was stopped may hold other images too. A record gets only what was
    asked for: which of the others were measured is an accident.
    """
    frames = []
    if record is not None:
        samples = record.samples().set_index(KEY)
        own = [name for name in metric.columns if name in samples]
        if own and own[0] == metric.columns[0]:
            there = samples.loc[samples[own[0]].notna(), [*own, NEAR_TIE]].copy()
            there[PASSES], there[SECONDS] = 0, 0.0
            frames.append(there)
    new = parts.read(metric.name)
    if new is not None:
        frames.append(new[new.index.isin(list(keys))])
    if not frames:
        return pd.DataFrame(index=pd.Index([], name=KEY))
    rows = pd.concat(frames)
    return rows[~rows.index.duplicated(keep="last")]


def missing_keys(metric: Metric, rows: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The images that a metric has still to measure: the one place that decides it."""
    lacking = metric.missing(rows.reindex(pd.Index(keys, name=KEY)))
    return list(np.asarray(keys, dtype=object)[lacking])


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a record folder; a second process is refused.

    The system drops the lock with the process, however it ends, so no lock is ever stale.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RecordError(
            f"{folder} is being written by another process: wait for it, or give another --output"
        ) from error
    try:
        yield
    finally:
        lock.release()  # the file stays: removing it would let two waiting processes in


def prepare_folder(folder: Path, images: int) -> None:
    """Makes the record folder, and fails now rather than after hours if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ".probe", b"0" * 4096)
        (folder / ".probe").unlink()
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
