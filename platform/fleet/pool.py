"""Pool of the workers, which reports their state to control.

A task probes each worker (:mod:`fairserve.platform.fleet.watch`). A healthy worker that control does not
have joins, with its reported facts. Its circuit opens when calls do not start there or it does not
respond: control then removes it until it is healthy again. Embedded and external workers are handled
alike. A draining worker gets no new calls and remains until
:mod:`fairserve.platform.fleet.running_fleet` removes it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import aiohttp

from fairserve.engine.wire.base import WorkerClient, WorkerFacts, WorkerUnavailableError
from fairserve.engine.wire.circuit import Circuit, CircuitOptions
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.connections import WorkerConnections
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.loop_turns import LoopTurns
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.interactions.call import TokenIds
from fairserve.platform.fleet.kv_event_bridge import KvEventBridge
from fairserve.platform.fleet.member import FleetMember
from fairserve.platform.fleet.watch import (
    DEFAULT_KV_TOKENS,
    OnFacts,
    Watch,
)
from fairserve.platform.fleet.worker_reports import WorkerReports
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import LocalScheduler
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

logger = logging.getLogger(__name__)

TOKENIZE_ATTEMPTS = 2


class WorkerPool(Mapping[str, WorkerClient]):
    """Clients of the reachable workers, by worker id.

    A worker whose circuit was opened by calls remains in the mapping until a probe fails, so that
    its streams can finish; control sends it no more calls. Draining workers remain, too.
    """

    def __init__(
        self,
        control: WorkerReports,
        session: aiohttp.ClientSession,
        on_facts: OnFacts,
        kv_event_bridge: KvEventBridge | None = None,
        *,
        local_scheduler: str = "dlpm",
        local_options: Mapping[str, Any] | None = None,
        circuit: CircuitOptions = CircuitOptions(),
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_facts`` receives the facts of each worker that joins; its ValueError rejects the worker.

        Without ``kv_event_bridge`` KV events are ignored. ``local_scheduler`` orders the local queues of
        workers of kind ``openai``, and of those that only embed or rank: vLLM does these calls in the
        order of their arrival, whoever makes them. ``shared``: other processes send calls to the same
        workers.
        """
        self._control = control
        self._session = session
        self._connections, self._turns = WorkerConnections(), LoopTurns()
        self._on_facts = on_facts
        self._watch = Watch(control, self._joins, kv_event_bridge, clock, shared=shared)
        self._local = local_scheduler, dict(local_options or {})
        self._circuit = circuit
        self._clock = clock
        self._members: dict[str, FleetMember] = {}

    def __getitem__(self, worker_id: str) -> WorkerClient:
        member = self._members[worker_id]
        if not member.there:
            raise KeyError(worker_id)
        return member.client

    def __iter__(self) -> Iterator[str]:
        return (worker_id for worker_id, member in self._members.items() if member.there)

    def __len__(self) -> int:
        return sum(member.there for member in self._members.values())

    def direct(self, worker_id: str) -> FleetMember | None:
        """Return a reachable worker to which another process can send calls, else None."""
        member = self._members.get(worker_id)
        if member is None or not member.there or member.address is None:
            return None
        return member

    def serves(self, worker_id: str) -> bool:
        """Return whether control sends new calls to the worker. From any thread."""
        member = self._members.get(worker_id)
        return member is not None and member.ready and not member.draining

    def absent_s(self, worker_id: str) -> float:
        """Return the seconds since a worker was lost; 0 if it serves or has not joined yet."""
        member = self._members.get(worker_id)
        if member is None or member.ready or member.lost_s is None:
            return 0.0
        return self._clock() - member.lost_s

    async def tokenize(self, worker_ids: Collection[str], body: Mapping[str, Any]) -> TokenIds:
        """Return the token ids of a prompt, computed by the least busy responding worker of these.

        Raises WorkerUnavailableError, and WorkerRejectedError if the worker rejects the prompt.
        """
        members = [m for m in self._members.values() if m.worker_id in worker_ids and m.there]
        members.sort(key=lambda member: member.watched.sequences)
        failure = WorkerUnavailableError("no worker with /tokenize is up")
        for member in members[:TOKENIZE_ATTEMPTS]:
            try:
                return await member.http.tokenize(body)
            except WorkerUnavailableError as error:
                failure = error
        raise failure

    def member(self, worker_id: str) -> FleetMember | None:
        """Return a member, read-only; None for an unknown id."""
        return self._members.get(worker_id)

    def members(self) -> list[FleetMember]:
        """Return all members, read-only."""
        return list(self._members.values())

    def views(self) -> list[dict[str, Any]]:
        """Return the views of all members for status pages."""
        now_s = self._clock()
        return [member.view(now_s) for member in self._members.values()]

    # --- membership -------------------------------------------------------------------------------

    def add(self, spec: WorkerSpec) -> None:
        """Add a worker and probe it; it joins once it is healthy.

        Raises ValueError for a known id, and for a local scheduler with wrong options.
        """
        if spec.worker_id in self._members:
            raise ValueError(f"worker {spec.worker_id!r} is in the pool already")
        circuit = Circuit(self._circuit)
        http = HttpWorkerClient(
            spec.url,
            self._session,
            spec.kind,
            connections=self._connections,
            turns=self._turns,
        )
        watched = WatchedClient(http, circuit, self._clock, lambda: self._calls_fail(member))
        queue = self._queue_before(watched, spec) if spec.kind == "openai" else None
        member = FleetMember(spec, http, watched, queue, circuit)
        self._members[spec.worker_id] = member
        self._start_watch(member)

    def _start_watch(self, member: FleetMember) -> None:
        name = f"watch {member.worker_id}"
        member.watch = asyncio.create_task(self._watch.run(member), name=name)

    def _joins(self, spec: WorkerSpec, facts: WorkerFacts) -> None:
        """Pass on a worker's facts, and give it a local queue if its own scheduler is not fair."""
        self._on_facts(spec, facts)
        member = self._members.get(spec.worker_id)
        if member is None or spec.kind == "openai":
            return
        if "generate" in facts.tasks:
            member.queue = None
        elif member.queue is None:
            member.queue = self._queue_before(member.watched, spec)

    def _queue_before(self, client: WorkerClient, spec: WorkerSpec) -> QueuedClient:
        name, options = self._local
        scheduler: LocalScheduler = LOCAL_SCHEDULERS[name](**options)
        cache_tokens = spec.kv_tokens or DEFAULT_KV_TOKENS
        queue = LocalQueue(scheduler, spec.concurrency, cache_tokens, secrets.randbits(63))
        return QueuedClient(client, queue, self._clock)

    def _calls_fail(self, member: FleetMember) -> None:
        """Handle a circuit that failed calls opened. Calls in progress continue if they can."""
        logger.warning("worker %s: %s", member.worker_id, member.circuit.reason)
        self._watch.lose(member, there=True)

    def drain(self, worker_id: str) -> None:
        """Stop new calls to the worker; it remains until :meth:`remove`. Unknown ids are ignored."""
        member = self._members.get(worker_id)
        if member is None or member.draining:
            return
        member.draining = True
        if member.ready:
            self._control.observe(ev.WorkerDraining(worker_id))

    def undrain(self, worker_id: str) -> bool:
        """Resume calls to the worker; False if it has to join first. Unknown ids are ignored."""
        member = self._members.get(worker_id)
        if member is None or not member.draining:
            return False
        member.draining = False
        if member.ready:
            self._control.observe(ev.WorkerUndrained(worker_id))
            return True
        if member.watch is not None:
            member.watch.cancel()  # it may be sleeping for long
        self._start_watch(member)
        return False

    def busy(self, worker_id: str) -> bool:
        """Return whether the worker has calls in progress or in its local queue."""
        member = self._members.get(worker_id)
        if member is None:
            return False
        waiting = member.queue.queue.waiting if member.queue is not None else 0
        return member.watched.sequences + waiting > 0

    def remove(self, worker_id: str) -> None:
        """Remove the worker and notify control at once. Unknown ids are ignored."""
        member = self._members.pop(worker_id, None)
        if member is None:
            return
        if member.watch is not None:
            member.watch.cancel()
        self._watch.lose(member, there=False)

    def report_caches_again(self) -> None:
        """Report the caches of all workers from the beginning: control missed some of their events."""
        for member in self._members.values():
            if member.followers:
                self._watch.follow_cache(member)

    async def close(self) -> None:
        """Stop all probes."""
        tasks = [m.watch for m in self._members.values() if m.watch is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            member.unfollow()
        self._connections.close()
