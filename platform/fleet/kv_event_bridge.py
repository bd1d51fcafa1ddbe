"""Pass the KV events of the workers to control's router.

Each worker has one subscriber (:mod:`fairserve.engine.kv_events.subscriber`) from its join to its
loss. Block keys are those of control, whose seed the hasher has. If events of a worker are lost, the
router uses its own view of that cache, and the log records it. Belongs to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from fairserve.engine.kv_events.subscriber import KvSubscriber
from fairserve.engine.kv_events.view import KvView
from fairserve.engine.wire.base import KvEndpoints
from fairserve.scheduling.events import CacheReport, WorkerCacheReset
from fairserve.scheduling.locality.block_keys import BlockHasher

logger = logging.getLogger(__name__)


class KvEventBridge:
    """Makes KV event subscribers that share one ZMQ context. ``close`` after they are closed."""

    def __init__(self, hasher: BlockHasher, post: Callable[[CacheReport], None]) -> None:
        self._hasher = hasher
        self._post = post
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incomplete: set[str] = set()
        """Workers of whose caches something is not known."""

    def follow(self, worker_id: str, endpoints: KvEndpoints, capacity_tokens: int) -> KvSubscriber:
        """Follow a worker that has just joined, until the subscriber is closed."""
        self._incomplete.discard(worker_id)
        view = KvView(worker_id, self._hasher, capacity_tokens)
        subscriber = KvSubscriber(self._context, endpoints, view, self._forward)
        subscriber.start()
        return subscriber

    def _forward(self, report: CacheReport) -> None:
        if isinstance(report, WorkerCacheReset):
            worker_id = report.worker_id
            if report.complete and worker_id in self._incomplete:
                self._incomplete.discard(worker_id)
                logger.info("worker %s: its KV events are complete again", worker_id)
            elif not report.complete and worker_id not in self._incomplete:
                self._incomplete.add(worker_id)
                logger.warning(
                    "worker %s: KV events are missing; the router goes by its own view of its cache",
                    worker_id,
                )
        self._post(report)

    def close(self) -> None:
        """Close the ZMQ context and its thread."""
        self._context.destroy(linger=0)
