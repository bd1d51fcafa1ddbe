"""The workers that calls may be sent to: their clients, and the news of them for control.

Each worker has a task that asks for its health. Healthy and unknown to control: it joins, with what
it says of itself. Unhealthy several times in a row: it is lost, and joins again once it is back. The
same loop serves supervised processes and external servers. A worker that publishes KV events is followed
from its joining to its loss, so that control hears what it really holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from fairserve.engine.base import (
    WorkerClient,
    WorkerFacts,
    WorkerUnavailableError,
)
from fairserve.engine.client import HttpWorkerClient
from fairserve.engine.kv_subscriber import KvSubscriber
from fairserve.platform.cluster.cache_news import CacheNews
from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.control.port import ClusterView
from fairserve.scheduling import events as ev

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""Between looks at a worker that is not up."""
REPORT_S = 1.0
FAILURES = 3
DEFAULT_KV_TOKENS = 32_768
"""Taken for a worker that does not tell the size of its cache."""


class ControlNews(Protocol):
    """What the pool needs of control."""

    def post(self, event: ev.Event) -> None:
        """Hand an event to the dispatcher."""
        ...

    async def cluster(self) -> ClusterView:
        """Which workers it knows."""
        ...


OnFacts = Callable[[WorkerSpec, WorkerFacts], None]


@dataclass(slots=True)
class Member:
    """A worker and its watch."""

    spec: WorkerSpec
    client: WorkerClient
    watch: asyncio.Task[None] | None = None
    facts: WorkerFacts | None = None
    ready: bool = False
    draining: bool = False
    reason: str = ""
    """Why it has not joined."""
    follower: KvSubscriber | None = None

    @property
    def worker_id(self) -> str:
        """Its id."""
        return self.spec.worker_id

    @property
    def url(self) -> str:
        """Where it is."""
        return self.spec.url


class WorkerPool(Mapping[str, WorkerClient]):
    """Clients by worker id, of the workers that are there: a lost one is not in the mapping."""

    def __init__(
        self,
        control: ControlNews,
        session: aiohttp.ClientSession,
        on_facts: OnFacts,
        cache_news: CacheNews | None = None,
    ) -> None:
        """``on_facts`` hears what each worker says when it joins; ValueError refuses the worker.

        Without ``cache_news`` nobody's KV events are followed.
        """
        self._control = control
        self._cache_news = cache_news
        self._session = session
        self._on_facts = on_facts
        self._members: dict[str, Member] = {}

    def __getitem__(self, worker_id: str) -> WorkerClient:
        member = self._members[worker_id]
        if not member.ready:
            raise KeyError(worker_id)
        return member.client

    def __iter__(self) -> Iterator[str]:
        return (worker_id for worker_id, member in self._members.items() if member.ready)

    def __len__(self) -> int:
        return sum(member.ready for member in self._members.values())

    def members(self) -> list[Member]:
        """All members, to be read only."""
        return list(self._members.values())

    def add(self, spec: WorkerSpec) -> None:
        """Watch a worker from now on; it joins when it is healthy."""
        member = Member(spec, HttpWorkerClient(spec.url, self._session))
        self._members[spec.worker_id] = member
        member.watch = asyncio.create_task(self._watch(member), name=f"watch {spec.worker_id}")

    def drain(self, worker_id: str) -> None:
        """No new calls for the worker, those it has go on. Unknown ids are ignored."""
        member = self._members.get(worker_id)
        if member is not None and not member.draining:
            member.draining = True
            if member.ready:
                self._control.post(ev.WorkerDraining(worker_id))

    def remove(self, worker_id: str) -> None:
        """The worker is gone: control hears it at once. Unknown ids are ignored."""
        member = self._members.pop(worker_id, None)
        if member is None:
            return
        if member.watch is not None:
            member.watch.cancel()
        self._lost(member)

    async def close(self) -> None:
        """Stop watching."""
        watches = [m.watch for m in self._members.values() if m.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for member in self._members.values():
            _unfollow(member)

    def _lost(self, member: Member) -> None:
        _unfollow(member)
        if member.ready:
            member.ready = False
            self._control.post(ev.WorkerLost(member.worker_id))

    async def _watch(self, member: Member) -> None:
        failures = 0
        while True:
            healthy = await member.client.healthy()
            if healthy:
                failures = 0
                known = {worker.worker_id for worker in (await self._control.cluster()).workers}
                if member.worker_id not in known:
                    member.ready = False
                if member.ready:
                    self._control.post(ev.WorkerReported(member.worker_id))
                elif not member.draining:
                    await self._join(member)
            elif member.ready:
                failures += 1
                if failures >= FAILURES:
                    logger.warning("worker %s does not answer", member.worker_id)
                    self._lost(member)
            await asyncio.sleep(REPORT_S if member.ready else LOOK_S)

    async def _join(self, member: Member) -> None:
        try:
            facts = await member.client.facts()
            self._on_facts(member.spec, facts)
        except WorkerUnavailableError as error:
            logger.debug("worker %s: %s", member.worker_id, error)
            return
        except ValueError as error:
            logger.error("worker %s cannot join: %s", member.worker_id, error)
            await asyncio.sleep(REPORT_S)
            return
        if member.draining:
            return
        member.facts = facts
        member.ready = True
        capacity = member.spec.kv_tokens or facts.kv_capacity_tokens or DEFAULT_KV_TOKENS
        model = member.spec.model or facts.models[0]
        self._control.post(ev.WorkerJoined(member.worker_id, capacity, model))
        logger.info("worker %s joined with %d tokens of KV cache", member.worker_id, capacity)
        _unfollow(member)
        endpoints = member.spec.kv_events or facts.kv_events
        if self._cache_news is not None and endpoints is not None:
            member.follower = self._cache_news.follow(member.worker_id, endpoints, capacity)


def _unfollow(member: Member) -> None:
    if member.follower is not None:
        member.follower.close()
        member.follower = None
