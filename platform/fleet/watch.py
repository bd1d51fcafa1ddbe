"""Probe each worker periodically: join it, report it, and notify control of its loss.

A probe reads the worker's health and, once it has joined, its metrics, every ``REPORT_S``. A worker
that has not joined is probed more often at first, so that a new process joins soon. A worker with an
open circuit is not probed. While vLLM has calls whose start only its metrics show, these are read every
``STARTS_S``: about 1 ms here for each reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairserve.engine.wire.base import WorkerFacts, WorkerUnavailableError
from fairserve.engine.wire.worker_metrics import at_host_of
from fairserve.platform.fleet.joining import authorize, facts_of
from fairserve.platform.fleet.kv_event_bridge import KvEventBridge
from fairserve.platform.fleet.member import FleetMember
from fairserve.platform.fleet.models import MAX_CALL_TOKENS
from fairserve.platform.fleet.worker_reports import WorkerReports
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.scheduling import events as ev

logger = logging.getLogger(__name__)

STARTUP_PROBE_S = 0.1
"""Seconds between probes of a starting worker of kind ``vllm``; ``REPORT_S`` for other kinds."""
STARTUP_S = 30.0
"""Seconds after which a worker that has not joined is probed less often."""
SLOW_PROBE_S = 5.0
"""Seconds between probes after ``STARTUP_S``, and of a rejected worker."""
REPORT_S = 1.0
LISTING_S = 10.0
"""Seconds between readings of the models of a worker of kind ``vllm``: adapters are loaded while it
serves."""
STARTS_S = 0.2
"""Seconds between readings of the number of waiting calls."""
SETTLE_S = 0.1
"""Seconds after which a call that was sent is in the worker's queue, or started."""
DEFAULT_KV_TOKENS = 32_768
"""KV capacity of a worker that does not report the size of its cache."""
DEFAULT_POOLING_TOKENS = 2 * MAX_CALL_TOKENS
"""Tokens in progress at a worker that only embeds or ranks, in place of a KV capacity: twice as many
are an overload. The largest call fits the half that background calls may fill."""


OnFacts = Callable[[WorkerSpec, WorkerFacts], None]


class Watch:
    """Prober of one pool; :meth:`run` is the task of one worker."""

    def __init__(
        self,
        control: WorkerReports,
        on_facts: OnFacts,
        kv_event_bridge: KvEventBridge | None,
        clock: Callable[[], float],
        *,
        shared: bool = False,
    ) -> None:
        """Parameters as in :class:`~fairserve.platform.fleet.pool.WorkerPool`."""
        self._control = control
        self._on_facts = on_facts
        self._kv_event_bridge = kv_event_bridge
        self._clock = clock
        self._shared = shared

    async def run(self, member: FleetMember) -> None:
        """Probe a worker until the task is cancelled."""
        since_s = self._clock()
        while True:
            if member.circuit.should_probe(self._clock()):
                try:
                    await self._probe(member)
                except Exception as error:
                    logger.exception("a probe of worker %s failed", member.worker_id)
                    self._unhealthy(member, f"internal error: {type(error).__name__}")
            now_s = self._clock()
            if member.ready:
                since_s = now_s
            await self._pause(member, self._pause_s(member, now_s - since_s))

    async def _pause(self, member: FleetMember, pause_s: float) -> None:
        """Wait for the next probe, and read the starts of calls until then."""
        if not member.ready or member.http.kind != "vllm":
            await asyncio.sleep(pause_s)
            return
        until_s = self._clock() + pause_s
        while member.ready and (left_s := until_s - self._clock()) > 0:
            await asyncio.sleep(min(left_s, STARTS_S))
            if member.watched.unstarted.needed:
                sent_until_s = self._clock() - SETTLE_S
                metrics = await member.http.metrics()
                if metrics is not None and metrics.waiting is not None:
                    member.watched.unstarted.read(metrics.waiting, sent_until_s)

    def _pause_s(self, member: FleetMember, absent_s: float) -> float:
        if member.circuit.state == "open":
            return max(0.0, member.circuit.until_s - self._clock())
        if member.ready:
            return REPORT_S
        if member.refused or absent_s >= STARTUP_S:
            return SLOW_PROBE_S
        return STARTUP_PROBE_S if member.spec.kind == "vllm" else REPORT_S

    def lose(self, member: FleetMember, *, there: bool) -> None:
        """Remove the worker from control. With ``there``, calls in progress can continue."""
        member.there = member.there and there
        if member.queue is not None:
            member.queue.requeue("the worker was lost")
        self.forget(member)

    def forget(self, member: FleetMember) -> None:
        """Remove the worker from control until it joins again."""
        member.unfollow()
        member.metrics, member.foreign_tokens = None, 0
        if member.ready:
            member.ready, member.lost_s = False, self._clock()
            self._control.observe(ev.WorkerLost(member.worker_id))

    # --- one probe --------------------------------------------------------------------------------

    async def _probe(self, member: FleetMember) -> None:
        try:
            if not member.ready:
                authorize(member.spec, member.http)
            wrong = await member.http.probe()
        except ValueError as error:
            self._reject(member, str(error))
            return
        if wrong:
            self._unhealthy(member, wrong)
            return
        if not member.ready or not await self._report(member):
            await self._join(member)

    def _unhealthy(self, member: FleetMember, wrong: str) -> None:
        member.reason, member.refused = wrong, False
        circuit = member.circuit
        if not member.ready and circuit.state == "closed":
            return  # it has not joined yet
        if circuit.probe_failed(wrong, self._clock()):
            if member.ready or member.there:
                logger.warning("worker %s: %s", member.worker_id, circuit.reason)
            self.lose(member, there=False)

    def _reject(self, member: FleetMember, reason: str) -> None:
        """Reject a healthy worker; log each reason once."""
        if reason != member.reason:
            logger.error("worker %s cannot join: %s", member.worker_id, reason)
        member.reason, member.refused = reason, True
        member.there = False
        member.circuit.probe_passed(self._clock())

    async def _report(self, member: FleetMember) -> bool:
        """Report the worker's load; False if control no longer has it."""
        member.circuit.probe_passed(self._clock())
        member.metrics = await member.http.metrics()
        seen = await self._control.worker(member.worker_id)
        if not member.ready:
            return True  # it was lost while its metrics were read
        if seen is None:
            member.ready = False
            return False
        member.foreign_tokens = 0
        if member.metrics is not None:
            member.foreign_tokens = member.foreign.read(
                member.metrics,
                seen.calls if self._shared else member.watched.sequences,
                seen.demand_tokens,
                member.capacity_tokens,
            )
        self._control.observe(ev.WorkerReported(member.worker_id, member.foreign_tokens))
        if member.spec.kind == "vllm" and self._clock() >= member.listed_s + LISTING_S:
            await self._list_models(member)
        return True

    async def _list_models(self, member: FleetMember) -> None:
        """Serve the adapters that the worker lists now.

        Nothing changes for a draining worker, and for one that no longer lists its model.
        """
        member.listed_s, known = self._clock(), member.facts
        assert known is not None, "it has joined"
        try:
            facts = await member.http.with_adapters(known)
            if facts != known and member.ready and not member.draining:
                self._on_facts(member.spec, facts)
                member.facts = facts
        except (WorkerUnavailableError, ValueError) as error:
            logger.debug("worker %s: %s", member.worker_id, error)

    async def _join(self, member: FleetMember) -> None:
        if member.draining:
            member.circuit.probe_passed(self._clock())
            return
        try:
            facts = await facts_of(member.spec, member.http)
            if not member.draining:  # as it may be by now
                self._on_facts(member.spec, facts)
        except WorkerUnavailableError as error:
            logger.debug("worker %s: %s", member.worker_id, error)
            self._unhealthy(member, str(error))
            return
        except ValueError as error:
            self._reject(member, str(error))
            return
        spec = member.spec
        member.circuit.probe_passed(self._clock())
        if member.draining:
            return
        member.facts, member.listed_s = facts, self._clock()
        member.reason, member.refused = "", False
        member.ready = member.there = True
        default = DEFAULT_KV_TOKENS if "generate" in facts.tasks else DEFAULT_POOLING_TOKENS
        capacity = facts.kv_capacity_tokens or spec.kv_tokens or default
        member.capacity_tokens = capacity
        slots = facts.slots if member.queue is None else member.queue.queue.concurrency
        joined = ev.WorkerJoined(
            member.worker_id, capacity, facts.model, facts.context_tokens, facts.kind, slots
        )
        self._control.observe(joined)
        logger.info(
            "worker %s joined: %s for %s, %d tokens",
            member.worker_id,
            facts.model,
            ", ".join(sorted(facts.tasks)),
            capacity,
        )
        self.follow_cache(member)

    def follow_cache(self, member: FleetMember) -> None:
        """Subscribe to the worker's KV events, from its cache as it is now."""
        member.unfollow()
        facts = member.facts
        reported = facts.kv_events if facts is not None else None
        endpoints = member.spec.kv_events or ((reported,) if reported is not None else ())
        if self._kv_event_bridge is not None and endpoints:
            member.followers = self._kv_event_bridge.follow(
                member.worker_id,
                [at_host_of(member.spec.url, each) for each in endpoints],
                member.capacity_tokens,
            )
