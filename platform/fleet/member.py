"""A worker of the pool: its client, its circuit, and what is known of it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fairserve.engine.kv_events.subscriber import KvSubscriber
from fairserve.engine.wire.base import WorkerClient, WorkerFacts, WorkerMetrics
from fairserve.engine.wire.circuit import Circuit
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.foreign_load import ForeignLoad
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.platform.fleet.worker_spec import WorkerSpec

MemberState = Literal["joining", "ready", "draining", "open circuit"]

_USER_INFO = re.compile(r"//[^/@]*@")


@dataclass(slots=True, eq=False)
class Member:
    """Changed by the pool and its watch only."""

    spec: WorkerSpec
    http: HttpWorkerClient
    watched: WatchedClient
    queue: QueuedClient | None
    """Stands before a worker of kind ``openai``."""
    circuit: Circuit
    watch: asyncio.Task[None] | None = None
    facts: WorkerFacts | None = None
    """Of its last joining."""
    capacity_tokens: int = 0
    """Of its KV cache, as control was told."""
    ready: bool = False
    """Control knows it."""
    there: bool = False
    """Calls that it has can go on: it was well when it was last looked at."""
    lost_s: float | None = None
    """When it was lost after it had served, by the pool's clock."""
    draining: bool = False
    reason: str = ""
    """Why it has not joined, or what was wrong with it last."""
    refused: bool = False
    """It is well and cannot join: it must be changed, or its configuration."""
    metrics: WorkerMetrics | None = None
    foreign: ForeignLoad = field(default_factory=ForeignLoad)
    foreign_tokens: int = 0
    follower: KvSubscriber | None = None

    @property
    def worker_id(self) -> str:
        """Unique in the pool."""
        return self.spec.worker_id

    @property
    def client(self) -> WorkerClient:
        """Where its calls are sent."""
        return self.queue or self.watched

    @property
    def state(self) -> MemberState:
        """As status pages show it."""
        if self.draining:
            return "draining"
        if self.ready:
            return "ready"
        return "joining" if self.circuit.state == "closed" else "open circuit"

    def view(self, now_s: float) -> dict[str, Any]:
        """As plain JSON values, without secrets."""
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
            "kv_events": asdict(self.follower.stats) if self.follower else None,
        }

    def _cache_view(self) -> str:
        """What the router goes by: the worker's news, or what the router sent there itself."""
        told = self.follower is not None and self.follower.stats.complete
        return "worker" if told else "router"

    def unfollow(self) -> None:
        """Hear no more of its cache."""
        if self.follower is not None:
            self.follower.close()
            self.follower = None
