"""Atomic file writes, file names that every system takes, formats by ending, the cache folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from aft_models.files import file_safe, write_atomic
from shiftbench.errors import UsageError

__all__ = [
    "GALLERY_ENDINGS",
    "cache_folder",
    "file_safe",
    "format_of",
    "require_place",
    "write_atomic",
    "write_new",
    "write_text",
]

GALLERY_ENDINGS = {".html": "html", ".htm": "html", ".png": "png"}


def cache_folder() -> Path:
    """Where files that can be made again are kept: `$SHIFTBENCH_CACHE`, or the user's cache."""
    return Path(os.environ.get("SHIFTBENCH_CACHE", "~/.cache/shiftbench")).expanduser()


def write_new(path: Path, content: bytes) -> bool:
    """Writes a file unless there is one; of several processes that try at once, one succeeds.

    Returns:
        Whether it was written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links: the last of several writers wins
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


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
