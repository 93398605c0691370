"""Data loading processes that end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent(worker: int = 0) -> None:
    """End this worker process when its parent process has ended or was killed.

    Pass it as `DataLoader(worker_init_fn=...)`. torch then ends the worker's loop. Without it, the
    process would wait forever to hand over its last images.
    """
    parent, started_by = multiprocessing.parent_process(), os.getppid()
    assert parent is not None, "only worker processes call this"

    def watch() -> None:
        # A forked sibling may keep the parent's pipe open; Windows does not change the parent's id.
        while parent.is_alive() and os.getppid() == started_by:
            parent.join(timeout=1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end_with_parent").start()
