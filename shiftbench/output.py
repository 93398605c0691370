"""Where a table or a picture goes: its format, and whether the place for it is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.results import write_atomic

GALLERY_ENDINGS = {".html": "html", ".htm": "html", ".png": "png"}


def require_place(path: Path) -> None:
    """Refuses an output whose folder does not exist, before any work is done for it."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; give the name of a file")


def format_of(path: Path, endings: Mapping[str, str]) -> str:
    """The format a file's ending asks for; `endings` maps endings to formats."""
    ending = path.suffix.lower()
    if ending not in endings:
        raise UsageError(
            f"cannot tell the format of {path}: expected a name that ends in {', '.join(endings)}"
        )
    return endings[ending]


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file, or nothing."""
    require_place(path)
    write_atomic(path, text.encode())
