"""Settings of the C library's allocator for memory freed by a forward pass."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of parameters of glibc's ``mallopt``."""
_LARGEST_REUSED_BYTES = 32 * 2**20
"""Maximum of the second one in every glibc: larger blocks are always returned to the system."""
_KEPT_BYTES = 512 * 2**20
"""Bytes that may stay free at the end of the heap."""


def keep_freed_memory() -> bool:
    """Configure the allocator to keep freed memory, for the whole process. False without glibc.

    A forward pass on a CPU repeatedly frees and allocates the same tensors, some of several
    megabytes. By default they are returned to the system each time, and each page costs a fault at
    its next use: a third of a prefill's time for 100M parameters. Call this after a model is
    loaded: memory freed before is returned to the system.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )
