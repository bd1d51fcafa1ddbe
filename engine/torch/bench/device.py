"""The measured device: its name, its threads, and the bounds of its speed.

The bounds are the best of several repetitions: copies between two blocks of memory that exceed
every cache, and a large linear layer of the model's number type.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fairserve.engine.torch.packed_linear import pack_linears

_REPEATS = 5
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
_MATRIX_ROWS = {"cpu": 1024, "cuda": 8192}


def describe(device: torch.device) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore the number of CPU threads at the end of the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_threads(number: int | None) -> int:
    """Set the number of CPU threads, unless it is None; return the current number."""
    if number is not None:
        torch.set_num_threads(number)
    return torch.get_num_threads()


def release() -> None:
    """Release unused memory to the device, since engines check how much is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def copy_bytes_per_s(device: torch.device) -> float:
    """Return the bytes per second that copies read and write in total."""
    size = _COPY_BYTES[device.type]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best_s(lambda: target.copy_(source), device)


def matrix_flops_per_s(dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a square linear layer, as the engine runs it, on as many rows."""
    rows = _MATRIX_ROWS[device.type]
    layer = torch.nn.Sequential(torch.nn.Linear(rows, rows, bias=False, device=device, dtype=dtype))
    pack_linears(layer)
    given = torch.randn(rows, rows, device=device).to(dtype)
    with torch.inference_mode():
        return 2 * rows**3 / _best_s(lambda: layer(given), device)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    times = []
    for _ in range(_REPEATS + 1):
        wait()
        begin_s = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - begin_s)
    return min(times[1:])
