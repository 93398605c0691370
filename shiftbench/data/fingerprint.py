"""Digests of the contents of files, which are read again only after a change.

sha256 reads hundreds of megabytes a second, so that hashing a data set costs little against
measuring a model on it. What was read once is remembered under a stamp of every file's path, size
and times; a file that is written to has another stamp, even where its size and its modification
time were put back.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from shiftbench.files import cache_folder, write_atomic

# File systems keep times to two seconds at worst: a file that was written less than that ago may
# change once more under the same stamp.
SETTLED = 2.5


def content_digest(paths: Sequence[Path], *, verify: bool = False) -> str:
    """The digest of the files' contents, in this order; names do not matter.

    Args:
        paths: The files. One that cannot be read counts as such.
        verify: Read every file, whatever is remembered.
    """

    def read() -> str:
        with ThreadPoolExecutor() as pool:  # hashing and reading release the interpreter's lock
            return hashlib.sha256(b"".join(pool.map(_digest, paths))).hexdigest()

    return remembered(paths, read, verify=verify)


def remembered(paths: Sequence[Path], read: Callable[[], str], *, verify: bool = False) -> str:
    """What `read` returned when the files last changed."""
    stamp, newest = _stamp(paths)
    memory = cache_folder() / "fingerprints" / stamp
    with suppress(OSError):
        if not verify:
            return memory.read_text("utf-8")
    content = read()
    if time.time() - newest > SETTLED:
        with suppress(OSError):  # nowhere to remember it: it is read again next time
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(memory, content.encode())
    return content


def _stamp(paths: Sequence[Path]) -> tuple[str, float]:
    """Names the files as they are now, without reading them; and when the last one changed."""
    total, newest = hashlib.sha256(), 0.0
    for path in paths:
        try:
            seen = path.stat()
        except OSError:
            continue
        # The time of the last change of status too: programs set the other one back at will.
        times = f"\0{seen.st_size}\0{seen.st_mtime_ns}\0{seen.st_ctime_ns}\n"
        total.update(os.fsencode(path.absolute()) + times.encode())
        newest = max(newest, seen.st_mtime, seen.st_ctime)
    return total.hexdigest(), newest


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return hashlib.sha256(b"unreadable").digest()
