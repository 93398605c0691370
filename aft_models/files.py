"""Atomic file writes, and file names that every system accepts."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path

LONGEST = 120  # characters of a name that becomes part of a path


def file_safe(name: str) -> str:
    """Replace the characters that a file name cannot contain on some system.

    >>> file_safe("timm:vit")
    'timm_vit'
    """
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("_.") or "_"
    if len(safe) <= LONGEST:
        return safe
    return f"{safe[: LONGEST - 13]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def write_atomic(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Write a file under a temporary name and rename it: a killed process leaves no partial file.

    Args:
        path: The file.
        content: The bytes, or a function that writes them to the path given to it.
    """
    # Not named by the process id: processes of two machines may have the same one.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)
        with temporary.open("r+b") as file:  # Windows flushes only files open for writing
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a full disk is reported without any file name
        raise
    finally:
        temporary.unlink(missing_ok=True)
