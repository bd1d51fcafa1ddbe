"""Settings of the C library's allocator for a process that runs for a long time."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of parameters of glibc's ``mallopt``."""
HEAPS = 2
"""One of the event loop, and one of all other threads."""
LARGE_BYTES = 256 * 2**10
"""Blocks from this size on have pages of their own, which the system gets as soon as they are freed."""
KEPT_BYTES = 2**20
"""Bytes that may stay free at the end of a heap."""


def return_freed_memory() -> bool:
    """Configure the allocator to have few heaps and to return what is freed. False without glibc.

    By default each new thread gets a heap of its own, up to eight for each core, and blocks of up to
    32 MB are on the heaps. So tables that grow, and threads that take turns, leave space that is free
    and not used. Call this before the first thread starts.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_ARENA_MAX, HEAPS)
        and mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        and mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    )
