"""The union of what several engines behind one address hold, for a router that knows one worker. No I/O.

The prefill engines of a disaggregated pool publish their KV events each for itself. The worker has a
block while one of them has it. The union is complete while every engine's view is, and nothing is
reported before each has begun. If one starts over, the worker's cache is reported again from the
others' views.

Weakness: which engine gets a call is the decision of the proxy before them, so a match is what the call
finds there at most; and a prefix whose blocks are at two engines counts, though none has it.

Memory: another 60 bytes per block. Cost: one look-up for each engine and evicted block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairserve.engine.kv_events.view import KvView
from fairserve.scheduling.events import CacheReport, WorkerCached, WorkerCacheReset


class KvUnion:
    """Blocks of one worker's engines. ``views`` have its id, ``post`` receives its changes."""

    def __init__(self, views: Sequence[KvView], post: Callable[[CacheReport], None]) -> None:
        self._views = views
        self._post = post
        self._held: list[set[int]] = [set() for _ in views]
        """Keys of each engine's blocks."""
        self._complete: list[bool | None] = [None] * len(views)
        """State of each view: whether it is complete; None before it has begun."""

    def take(self, engine: int, report: CacheReport) -> None:
        """Take a change of one engine's view, by its place in ``views``."""
        held = self._held[engine]
        if isinstance(report, WorkerCacheReset):
            held.clear()
            self._complete[engine] = report.complete
            self._begin(engine, report)
            return
        if isinstance(report, WorkerCached):
            held.update(report.keys)
        else:
            held.difference_update(report.keys)
            gone = (key for key in report.keys if not any(key in each for each in self._held))
            report = replace(report, keys=tuple(gone))
        if report.keys and None not in self._complete:
            self._post(report)

    def _begin(self, engine: int, report: WorkerCacheReset) -> None:
        """Report the worker's cache again; the blocks of this engine follow."""
        if None in self._complete:
            return
        self._post(replace(report, complete=all(self._complete)))
        for place, view in enumerate(self._views):
            if place != engine:
                for stored in view.contents():
                    self._post(stored)
