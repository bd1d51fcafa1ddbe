"""What the workers tell of their prefix caches, for control's router.

One subscriber a worker (:mod:`fairserve.engine.kv_subscriber`), from its joining to its loss; the names
of blocks are those of control, whose seed the hasher has. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq

from fairserve.engine.base import KvEndpoints
from fairserve.engine.kv_subscriber import KvSubscriber
from fairserve.engine.kv_view import KvView
from fairserve.scheduling.block_keys import BlockHasher
from fairserve.scheduling.events import CacheReport


class CacheNews:
    """Makes subscribers that share one ZMQ context. ``close`` after they are closed."""

    def __init__(self, hasher: BlockHasher, post: Callable[[CacheReport], None]) -> None:
        self._hasher = hasher
        self._post = post
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def follow(self, worker_id: str, endpoints: KvEndpoints, capacity_tokens: int) -> KvSubscriber:
        """Follow a worker that has just joined, until the subscriber is closed."""
        view = KvView(worker_id, self._hasher, capacity_tokens)
        subscriber = KvSubscriber(self._context, endpoints, view, self._post)
        subscriber.start()
        return subscriber

    def close(self) -> None:
        """Give back the sockets' thread."""
        self._context.destroy(linger=0)
