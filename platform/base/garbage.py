"""Collections of cyclic garbage, without a long pause where millions of objects live.

Python's full collections visit every object, about 0.2 s for a million, and the process answers nothing
in that time. Calls and runs leave no cyclic garbage, so their objects need no collection. Here each
collection is of few objects, and those that survive an old one are frozen: later ones do not visit them.
What becomes cyclic garbage after that stays, so all objects are collected once memory has doubled.

Python begins a collection once it has made some more objects than it has freed. With a steady number of
runs it frees as many as it makes, and would visit 200,000 new ones then, so they are looked at often.

Weakness: that is one long pause, which a process with a steady number of runs never has. One with
100,000 runs has 1.5 million objects. The rule needs Python's own allocator: not ``PYTHONMALLOC=malloc``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

THRESHOLDS = (2_000, 4, 1)
"""New objects between two collections, of which every fifth is of those of the last ones, too, and every
tenth of all that are not frozen: 20,000 new ones, about 4 ms."""
OLD_OBJECTS = 5_000
"""Most survivors of an old collection that are not frozen: they are visited again."""
MORE_BLOCKS = 4_000_000
"""Blocks of memory after which all objects are collected, besides twice as many as the last such
collection has left. An object has two or three blocks; these are about 300 MB."""
YOUNG_S = 0.1
"""Seconds between two looks at the number of new objects: 20 ns for each."""
LOOKED_S = 60.0
"""Seconds between two looks at the number of blocks: 0.5 ms for 3.5 million."""


class SmallCollections:
    """The policy of one process, from :meth:`start` to :meth:`stop`."""

    def __init__(self, *, more_blocks: int = MORE_BLOCKS, looked_s: float = LOOKED_S) -> None:
        self._more_blocks, self._looked_s = more_blocks, looked_s
        self._left = 0
        """Blocks in use after the last collection of all."""

    def start(self) -> None:
        """Apply the policy."""
        self._left = sys.getallocatedblocks()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """End it; the thresholds stay."""
        gc.callbacks.remove(self._collected)

    def collect_all(self) -> None:
        """Collect all objects, and freeze those that live."""
        began_s = time.monotonic()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: the next old collection waits for a quarter of what the last one left
        self._left = sys.getallocatedblocks()
        took_s = time.monotonic() - began_s
        logger.debug(
            "%d objects were garbage, %d blocks are left, %.3f s", found, self._left, took_s
        )

    async def run(self) -> None:
        """Collect new objects often, and all objects whenever it is due, until the task is cancelled."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(min(YOUNG_S, self._looked_s))
            self.collect_young()
            if time.monotonic() - looked_s >= self._looked_s:
                looked_s = time.monotonic()
                if self.due:
                    self.collect_all()

    def collect_young(self) -> None:
        """Collect all that is not frozen if many objects are new."""
        if objects_of(0) > THRESHOLDS[0]:
            gc.collect()

    @property
    def due(self) -> bool:
        """True once memory has doubled since all objects were collected."""
        return sys.getallocatedblocks() > 2 * self._left + self._more_blocks

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2 and objects_of(2) > OLD_OBJECTS:
            gc.freeze()


def objects_of(generation: int) -> int:
    """Return the number of the collector's objects of a generation.

    C functions alone do it: no other thread runs while the list refers to every object. One that builds
    a tuple from a generator would fail with SystemError, as CPython wants the only reference to it.
    """
    return sum(map(len, map(gc.get_objects, (generation,))))


@contextlib.contextmanager
def uncollected(*, stays: bool = False) -> Iterator[None]:
    """Make no collection in the block, which makes many objects and no garbage.

    ``stays``: they live on, and are frozen with all others; else they are freed soon.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if stays:
            gc.freeze()
        if collected:
            gc.enable()
