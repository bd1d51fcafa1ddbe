"""Forward the KV events of the workers to control's router.

Each endpoint of a worker has one subscriber (:mod:`fairserve.engine.kv_events.subscriber`) from the
worker's join to its loss; the views of several are united (:mod:`fairserve.engine.kv_events.union`).
The hasher computes block keys with control's seed. If events of a worker are lost, the router uses its
own view of that cache, which is logged. Belongs to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import zmq

from fairserve.engine.kv_events.subscriber import KvSubscriber
from fairserve.engine.kv_events.union import KvUnion
from fairserve.engine.kv_events.view import KvView
from fairserve.engine.wire.base import KvEndpoints
from fairserve.scheduling.events import CacheReport, WorkerCacheReset
from fairserve.scheduling.locality.block_keys import BlockHasher

logger = logging.getLogger(__name__)


class KvEventBridge:
    """Creates KV event subscribers with a common ZMQ context. Call ``close`` after theirs."""

    def __init__(self, hasher: BlockHasher, post: Callable[[CacheReport], None]) -> None:
        self._hasher = hasher
        self._post = post
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incomplete: set[str] = set()
        """Workers with lost events."""

    def follow(
        self, worker_id: str, endpoints: Sequence[KvEndpoints], capacity_tokens: int
    ) -> list[KvSubscriber]:
        """Subscribe to a worker that has just joined, until the subscribers are closed."""
        self._incomplete.discard(worker_id)
        views = [KvView(worker_id, self._hasher, capacity_tokens) for _ in endpoints]
        posts: Iterable[Callable[[CacheReport], None]] = [self._forward]
        if len(views) > 1:
            union = KvUnion(views, self._forward)
            posts = (partial(union.take, place) for place in range(len(views)))
        subscribers = [
            KvSubscriber(self._context, each, view, post)
            for each, view, post in zip(endpoints, views, posts, strict=True)
        ]
        for subscriber in subscribers:
            subscriber.start()
        return subscribers

    def _forward(self, report: CacheReport) -> None:
        if isinstance(report, WorkerCacheReset):
            worker_id = report.worker_id
            if report.complete and worker_id in self._incomplete:
                self._incomplete.discard(worker_id)
                logger.info("worker %s: its KV events are complete again", worker_id)
            elif not report.complete and worker_id not in self._incomplete:
                self._incomplete.add(worker_id)
                logger.warning(
                    "worker %s: KV events are missing; the router uses its own view of the cache",
                    worker_id,
                )
        self._post(report)

    def close(self) -> None:
        """Close the ZMQ context and its thread."""
        self._context.destroy(linger=0)
