"""Settings of the C library's allocator for memory that a forward pass frees."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of parameters of glibc's ``mallopt``."""
_LARGEST_REUSED_BYTES = 32 * 2**20
"""Largest value of the second one in every glibc: larger blocks are always returned to the system."""
_KEPT_BYTES = 512 * 2**20
"""Bytes that may be free at the end of the heap."""


def keep_freed_memory() -> bool:
    """Make the allocator keep freed memory, for the whole process. Return False without glibc.

    A forward pass on a CPU frees and allocates the same tensors again and again, some of several
    megabytes. By default they are returned to the system each time, and each page of them costs a fault
    at its next use: a third of a prefill's time for 100M parameters. Call it after a model is loaded:
    memory that is freed before is returned to the system.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )
