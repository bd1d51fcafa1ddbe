"""Peak memory of one phase of a process, beyond the memory in use before it.

On a GPU the allocator counts. Elsewhere it is the resident set, whose peak Linux lets a process
set back; where that is not possible the phase's peak is unknown.
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
    """Run a phase. Return its peak less the memory in use at its beginning; None if unknown."""
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
    """Release free memory to the system, if the C library can: it would be used again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{_STATUS} has no {field}")
    return int(found[1]) * 1024
