"""The measured device: its name, its threads, its unused memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
