"""Settings of the C library's allocator, each for the whole process and for its rest."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of parameters of glibc's ``mallopt``."""
HEAPS = 2
"""Heaps of a server: one of the event loop, and one of all other threads."""
_LARGE_BYTES = 256 * 2**10
"""From this size on a block of a server has pages of its own, which are returned when it is freed."""
_LARGEST_REUSED_BYTES = 32 * 2**20
"""Largest value for that size in every glibc: larger blocks are always returned to the system."""
_KEPT_BY_SERVER, _KEPT_BY_WORKER = 2**20, 512 * 2**20
"""Bytes that may stay free at the end of a heap."""


def return_freed_memory() -> bool:
    """Configure the allocator to have few heaps and to return what is freed. False without glibc.

    By default each new thread gets a heap of its own, up to eight for each core, and blocks of up to
    32 MB are on the heaps. So tables that grow, and threads that take turns, leave space that is free
    and not used. Call this before the first thread starts.
    """
    return _set(
        {_ARENA_MAX: HEAPS, _MMAP_THRESHOLD: _LARGE_BYTES, _TRIM_THRESHOLD: _KEPT_BY_SERVER}
    )


def keep_freed_memory() -> bool:
    """Configure the allocator to keep freed memory. False without glibc.

    A forward pass on a CPU repeatedly frees and allocates the same tensors, some of several
    megabytes. By default they are returned to the system each time, and each page costs a fault at
    its next use: a third of a prefill's time for 100M parameters. Call this after a model is
    loaded: memory freed before is returned to the system.
    """
    return _set({_MMAP_THRESHOLD: _LARGEST_REUSED_BYTES, _TRIM_THRESHOLD: _KEPT_BY_WORKER})


def _set(parameters: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*each) for each in parameters.items())
