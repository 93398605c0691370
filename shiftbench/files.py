"""Atomic file writes, file names that every system takes, formats by ending, the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from shiftbench.errors import UsageError

LONGEST = 120  # characters of a model's or data set's part of a folder's name


def file_safe(name: str) -> str:
    """A name that can be a folder on any system: `timm:vit` -> `timm_vit`."""
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("_.") or "_"
    if len(safe) <= LONGEST:
        return safe
    return f"{safe[: LONGEST - 13]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def cache_folder() -> Path:
    """Where files that can be made again are kept: `$SHIFTBENCH_CACHE`, or the user's cache."""
    return Path(os.environ.get("SHIFTBENCH_CACHE", "~/.cache/shiftbench")).expanduser()


def write_atomic(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Writes a file under a temporary name and renames it: a kill leaves the old file or the new.

    Args:
        path: The file.
        content: Its bytes, or a function that writes them to the path it is given.
    """
    # As in aft_models.files, which cannot be imported without timm: seconds, for writing a table.
    # Processes of two machines may have the same id.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)
        with temporary.open("r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a full disk is noticed where no name is at hand any more
        raise
    finally:
        temporary.unlink(missing_ok=True)


def require_place(path: Path) -> None:
    """Refuses an output whose folder does not exist, before any work is done for it."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; give the name of a file")


def format_of(path: Path, endings: Mapping[str, str]) -> str:
    """The format of an output by its ending, before any work is done; `endings` maps to formats."""
    require_place(path)
    ending = path.suffix.lower()
    if ending not in endings:
        raise UsageError(
            f"cannot tell the format of {path}: expected a name that ends in {', '.join(endings)}"
        )
    return endings[ending]


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    require_place(path)
    write_atomic(path, text.encode())
