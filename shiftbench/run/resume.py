"""Finished work of an unfinished run: what a killed run leaves, and who may write it.

`parts/identity.json` says what is being measured; `parts/<task>/*.parquet` hold rows keyed by image
number. Rows do not depend on how the images were cut into shards, so a run may go on with another
batch size or number of processes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic
from shiftbench.records.record import SCHEMA, DataInfo, ModelInfo

log = logging.getLogger(__name__)

PARTS_FOLDER = "parts"
IDENTITY_FILE = "identity.json"
LOCK_FILE = ".lock"
IMAGE = "image"  # the column that says which image of the data set a row is about
SPARE_BYTES = 16 * 2**20  # free disk a run asks for besides its own files
BYTES_PER_IMAGE = 1024  # a generous bound for a row in the parts and in the samples

Identity = Mapping[str, Any]


def identity_of(model: ModelInfo, data: DataInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must agree before two runs may share work."""
    about_model = {k: v for k, v in vars(model).items() if k not in ("source", "parameters")}
    about_data = {k: v for k, v in vars(data).items() if k not in ("images", "skipped")}
    content = {"schema": SCHEMA, "model": about_model, "data": about_data, "settings": settings}
    as_read_back: dict[str, Any] = json.loads(json.dumps(content, default=dict))
    return as_read_back


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
            "give another --output, or replace it with --fresh"
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
        """Claims the folder for an identity; parts of another one are refused."""
        path = self.folder / IDENTITY_FILE
        if path.is_file():
            try:
                old = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RecordError(f"cannot read {path}: start over with --fresh") from error
            refuse_mixing(self.folder.parent, "unfinished parts", old, identity)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(identity, indent=2).encode())

    def save(self, task: str, rows: pd.DataFrame, *, writer: str) -> None:
        """Saves the rows of a task; `writer` keeps the file names of processes apart."""
        folder = self.folder / task
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{rows[IMAGE].iloc[0]}-{len(rows)}-{writer}.parquet"
        write_atomic(folder / name, rows.to_parquet(index=False))

    def read(self, task: str) -> pd.DataFrame | None:
        """The rows of a task finished so far, by image; None when there are none."""
        frames = []
        for path in sorted((self.folder / task).glob("*.parquet")):
            try:
                frames.append(pd.read_parquet(path))
            except (OSError, ValueError):
                log.warning("cannot read %s: its images are measured again", path)
        if not frames:
            return None
        rows = pd.concat(frames, ignore_index=True)
        return rows.drop_duplicates(IMAGE).sort_values(IMAGE, ignore_index=True)

    def clear(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a record folder; a second process is refused.

    The kernel drops the lock with the process, however it ends, so no lock is ever stale.
    """
    file = _locked(folder / LOCK_FILE)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        (folder / LOCK_FILE).unlink(missing_ok=True)
        file.close()


def _locked(path: Path) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed the file between our open and our lock.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise RecordError(
                f"{path.parent} is being written by {owner}: wait for it, or give another --output"
            ) from error
        file.close()


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
