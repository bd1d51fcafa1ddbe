"""What the C library's allocator does with memory that a forward pass frees."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of parameters of glibc's ``mallopt``."""
_LARGEST_REUSED_BYTES = 32 * 2**20
"""The most that every glibc takes for the second one: larger blocks always go back to the system."""
_KEPT_BYTES = 512 * 2**20
"""That may lie free at the end of the heap."""


def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed, for the whole process; False without glibc.

    A forward pass on a CPU frees and asks for the same tensors again and again, some of several
    megabytes. By default they go back to the system each time, and each page of them costs a fault
    when it is touched again: a third of a prefill's time for 100M parameters. To be called after a
    model is loaded: what is freed before goes back.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )
