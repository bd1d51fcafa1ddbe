"""Peak memory of one phase of a process, in addition to the memory in use before it.

On a GPU it is the allocator's count. Elsewhere it is the resident set, whose peak Linux allows a
process to reset; where that is not possible the peak is unknown.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

import torch

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_PEAK, _NOW = "VmHWM", "VmRSS"


def peak_bytes(phase: Callable[[], None], device: torch.device) -> int | None:
    """Run a phase; return its peak memory less the memory in use at its start; None if unknown."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        phase()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    _trim()
    try:
        _RESET.write_text("5")  # the peak is what is resident now
        before = _resident_bytes(_NOW)
    except (OSError, ValueError):
        phase()
        return None
    phase()
    return max(0, _resident_bytes(_PEAK) - before)


def _trim() -> None:
    """Release free memory to the system, if the C library can, since it would be reused."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{_STATUS} has no {field}")
    return int(found[1]) * 1024
