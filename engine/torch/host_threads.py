"""Whose helpers compute: torch keeps a pool of them for every thread that has used it on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Do something in a thread that ends with it, and return or raise what comes of it.

    Helpers end with the thread that they belong to. Where they stay, idle, there are more threads than
    cores, and the OpenMP runtime has those of the engine's thread sleep between two operations instead
    of spinning: 20 to 30 % of the tokens per second of a batch of 32 (100M parameters, two cores). So
    a process that serves loads its model apart, and nothing but the engine's thread computes for long.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
