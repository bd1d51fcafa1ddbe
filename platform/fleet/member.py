"""A worker of the pool: its client, its circuit, and its state."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fairserve.engine.kv_events.subscriber import KvStats, KvSubscriber, combined
from fairserve.engine.wire.base import WorkerClient, WorkerFacts, WorkerMetrics
from fairserve.engine.wire.circuit import Circuit
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.foreign_load import ForeignLoad
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.platform.fleet.direct_address import direct_address
from fairserve.platform.fleet.worker_spec import WorkerSpec

MemberState = Literal["joining", "ready", "draining", "open circuit"]

_USER_INFO = re.compile(r"//[^/@]*@")


@dataclass(slots=True, eq=False)
class FleetMember:
    """State of a worker, changed by the pool and its watch only."""

    spec: WorkerSpec
    http: HttpWorkerClient
    watched: WatchedClient
    queue: QueuedClient | None
    """Local queue of a worker of kind ``openai``, or of one that only embeds or ranks."""
    circuit: Circuit
    watch: asyncio.Task[None] | None = None
    facts: WorkerFacts | None = None
    """Facts that it reported at its last join, with the adapters that it lists now."""
    listed_s: float = 0.0
    """Time of the last reading of its models, by the pool's clock."""
    capacity_tokens: int = 0
    """Size of its KV cache as reported to control."""
    ready: bool = False
    """True if control has the worker."""
    there: bool = False
    """True if its calls can continue: its last probe succeeded."""
    lost_s: float | None = None
    """Time of its last loss after it had served, by the pool's clock."""
    draining: bool = False
    reason: str = ""
    """Reason why it has not joined, or its last problem."""
    refused: bool = False
    """True if it is healthy and cannot join until it or its configuration is changed."""
    metrics: WorkerMetrics | None = None
    foreign: ForeignLoad = field(default_factory=ForeignLoad)
    foreign_tokens: int = 0
    followers: Sequence[KvSubscriber] = ()
    """Subscribers to its KV events, one for each endpoint."""

    @property
    def worker_id(self) -> str:
        """Return its id, unique in the pool."""
        return self.spec.worker_id

    @property
    def address(self) -> str | None:
        """Return its ``ip:port`` for another process; None: its URL has another form."""
        return direct_address(self.spec.url)

    @property
    def client(self) -> WorkerClient:
        """Return the client to which its calls are sent."""
        return self.queue or self.watched

    @property
    def state(self) -> MemberState:
        """Return the state for status pages."""
        if self.draining:
            return "draining"
        if self.ready:
            return "ready"
        return "joining" if self.circuit.state == "closed" else "open circuit"

    def view(self, now_s: float) -> dict[str, Any]:
        """Return the member as plain JSON values, without secrets."""
        facts, circuit, queue = self.facts, self.circuit, self.queue
        closed = circuit.state == "closed"
        return {
            "worker_id": self.worker_id,
            "url": _USER_INFO.sub("//", self.spec.url),
            "kind": self.spec.kind,
            "state": self.state,
            "reason": self.reason if closed else circuit.reason,
            "ready": self.ready,
            "model": facts.model if facts else self.spec.model,
            "models": list(facts.models) if facts else [],
            "tasks": sorted(facts.tasks) if facts else [],
            "context_tokens": facts.context_tokens if facts else None,
            "version": facts.version if facts else None,
            "circuit": {
                "state": circuit.state,
                "opened": circuit.opened,
                "next_look_s": None if closed else round(max(0.0, circuit.until_s - now_s), 1),
            },
            "reported": asdict(self.metrics) if self.metrics else None,
            "sequences": self.watched.sequences,
            "foreign_tokens": self.foreign_tokens,
            "local_queue": None
            if queue is None
            else {
                "waiting": queue.queue.waiting,
                "sent": queue.queue.sent,
                "concurrency": queue.queue.concurrency,
                "paused_s": round(queue.paused_s, 1),
            },
            "cache_view": self._cache_view(),
            "kv_events": asdict(stats) if (stats := self._kv_stats()) else None,
        }

    def _cache_view(self) -> str:
        """Return the source of the router's view of its cache: the worker or the router."""
        stats = self._kv_stats()
        return "worker" if stats is not None and stats.complete else "router"

    def _kv_stats(self) -> KvStats | None:
        return combined([each.stats for each in self.followers])

    def unfollow(self) -> None:
        """Unsubscribe from its KV events."""
        for follower in self.followers:
            follower.close()
        self.followers = ()
