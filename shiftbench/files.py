"""Files: whole or not at all, under names that every system takes, in the format they end in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from aft_models.files import write_atomic
from shiftbench.errors import UsageError

__all__ = ["file_safe", "format_of", "require_place", "write_atomic", "write_text"]

GALLERY_ENDINGS = {".html": "html", ".htm": "html", ".png": "png"}


def file_safe(name: str) -> str:
    """A name that can be a folder on any system: `timm:vit` -> `timm_vit`."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("_.") or "_"


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
