"""The C library's allocator, told to keep what PyTorch frees on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt(3)


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next tensor instead of returning it to the system.

    By default glibc returns large blocks at once, and the kernel clears every page of the next one
    anew: for EfficientNet-Lite0 more than a third of a forward pass. The process stays as large as
    it ever was, so this is for programs to call, not for libraries.

    Returns:
        Whether the allocator could be told: not where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not Linux, or another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
