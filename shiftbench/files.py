"""Output files: checks before any work is done, formats by ending, the cache folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from aft_models.files import file_safe, write_atomic
from shiftbench.errors import UsageError

__all__ = ["cache_folder", "csv_safe", "file_safe", "format_of", "write_atomic", "write_text"]

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the folder of reproducible files: `$SHIFTBENCH_CACHE`, or the user's cache."""
    return Path(os.environ.get("SHIFTBENCH_CACHE", "~/.cache/shiftbench")).expanduser()


def require_parent_dir(path: Path) -> None:
    """Raise UsageError if an output file has no folder, before any work is done for it."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}. Create it first")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder. Pass the name of a file")


def format_of(path: Path, endings: Mapping[str, str]) -> str:
    """Return the format of an output file, given a mapping from endings to formats."""
    require_parent_dir(path)
    ending = path.suffix.lower()
    if ending not in endings:
        raise UsageError(
            f"cannot write {path}: expected a name that ends in {', '.join(endings)}, got "
            f"{path.suffix or 'no ending'!r}"
        )
    return endings[ending]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    require_parent_dir(path)
    write_atomic(path, text.encode())


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # cells that begin with these run in spreadsheets


def csv_safe(value: T) -> T | str:
    """Quote a text that a spreadsheet would execute; numbers do not change.

    >>> csv_safe("=1+1"), csv_safe("net"), csv_safe(-0.5)
    ("'=1+1", 'net', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
