"""Atomic file writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Writes a file under a temporary name and renames it: a kill leaves the old file or the new.

    Args:
        path: The file.
        content: Its bytes, or a function that writes them to the path it is given.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)
        with temporary.open("r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
