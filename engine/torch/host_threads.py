"""Threads of torch on a CPU, which keeps a pool of helpers for every thread that has used it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Run ``work`` in a separate thread; return its result or raise its error.

    Helpers end with the thread to which they belong. With idle helpers there are more threads than
    cores, and the OpenMP runtime then lets those of the engine's thread sleep between two
    operations instead of spinning, which costs 20 to 30 % of the tokens per second of a batch of 32
    (100M parameters, two cores). So a serving process loads its model in a separate thread, and
    only the engine's thread computes for long.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
