"""Processes that share the order of a cell, all on one event loop, and a Redis that can be killed."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from itertools import count

import redis
from redis_process import RedisProcess
from until import until

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CallAnswer, JournalRow
from fairserve.platform.control.log import order as log_order
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.clock import LogClock
from fairserve.platform.control.log.order import LogOrder
from fairserve.platform.control.log.redis_log import RedisLog, cancel
from fairserve.platform.control.log.speaker import Speaker
from fairserve.platform.control.messages import Grant, Progress, Release, Submit
from fairserve.scheduling import events as ev
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.registry import SYSTEMS

PREFIX = "fairserve:{test}"


def short_times(monkeypatch):
    """Make processes notice faults soon."""
    monkeypatch.setattr(log_speaker, "TICK_S", 0.05)
    monkeypatch.setattr(log_speaker, "LEASE_S", 1.0)
    monkeypatch.setattr(log_order, "SILENCE_S", 1.0)
    monkeypatch.setattr(log_order, "READ_MS", 100)
    monkeypatch.setattr(log_order, "LAST_RETRY_S", 0.1)


class Member:
    """One process: a cell, its order, and what it executed."""

    def __init__(self, url, name, *, speaks, agreement, version, stored):
        self.name, self.cell = name, Cell(SYSTEMS["fairserve"], seed=1)
        self.outputs, self.replaced, self.failures, self.ticks = [], [], [], []
        keys = BlockHasher(1, 16)
        clock, self.log = LogClock(), RedisLog(url, PREFIX)
        self.order = LogOrder(
            self.log,
            self.cell,
            self.outputs.extend,
            clock,
            agreement,
            lambda call: keys.keys(call.token_ids, call.salt),
            on_replaced=self.replaced.append,
            on_tick=lambda entry, tick: self.ticks.append((entry, tick)),
            on_failure=self.failures.append,
            version=version,
        )
        self.full = ""
        self.speaker, self.spoke, self._speaking = None, [], None
        if speaks:
            self.speaker = Speaker(
                self.log,
                self.order,
                stored=lambda: stored(self),
                full=lambda: self.full,
                on_change=self.spoke.append,
            )

    @property
    def last(self):
        return self.order.shared_cell.last

    async def start(self):
        await self.order.attach()
        self.order.start()
        if self.speaker is not None:
            self._speaking = asyncio.create_task(self.speaker.run())

    async def stop_speaking(self, *, leave=False):
        """Cancel the task of the speaker."""
        await cancel(self._speaking)
        if leave:
            await self.speaker.leave()
        self.order.speaks = False

    async def close(self):
        if self._speaking is not None:
            await cancel(self._speaking)
        await self.order.close()

    # --- calls ------------------------------------------------------------------------------------

    def submitted(self, record_id, tenant="t", *, run=""):
        """Return the event of a new call, of a run of its own or of the one that it names."""
        call_id = f"{run or 'app'}/{record_id}"
        ids = call_id, tenant, "app", "u", run or call_id
        call = Call(*ids, "m", 100, 0, 20, pool="m", single=not run)
        return Submit(call, record_id)

    def granted(self, record_id):
        """Return the grants of a call that this process has executed."""
        return [
            each.answer
            for each in self.outputs
            if isinstance(each, CallAnswer)
            and each.record_id == record_id
            and isinstance(each.answer, Grant)
        ]

    def rows(self, kind):
        """Return how many rows of a kind each call has here."""
        return Counter(
            each.key for each in self.outputs if isinstance(each, JournalRow) and each.kind == kind
        )

    async def call(self, record_id):
        """Carry a call from its submission to its end.

        The grant is in the outputs, or in a state that replaced one without it.
        """
        await self.order.applied(self.submitted(record_id))
        call_id = f"app/{record_id}"
        await until(lambda: self.granted(record_id) or self.cell.calls.running(call_id))
        for tokens in (1, 2, 3):
            self.order.put(Progress(call_id, True, TokenUsage(100, 0, 0, tokens)))
        self.order.put(Release(call_id, "completed", TokenUsage(100, 0, 0, 5)))


class Members:
    """The processes of a cell over one Redis."""

    def __init__(self, url):
        self.url, self.all, self._numbers = url, [], count(1)

    @cached_property
    def redis(self):
        """A client of the server, for faults."""
        return redis.Redis.from_url(self.url)

    async def add(self, *, speaks=False, start=True, agreement=None, version=1, stored=None):
        """Return a new process; by default it takes all rows as stored."""
        member = Member(
            self.url,
            f"m{next(self._numbers)}",
            speaks=speaks,
            agreement={} if agreement is None else agreement,
            version=version,
            stored=stored or (lambda member: member.last),
        )
        self.all.append(member)
        if start:
            await member.start()
            if speaks:
                await until(lambda: any(each.order.speaks for each in self.all))
        return member

    async def with_workers(self, *, speakers=1, silent=1):
        """Return that many processes, after two workers have joined."""
        made = [await self.add(speaks=True) for _ in range(speakers)]
        made += [await self.add() for _ in range(silent)]
        for worker in ("w0", "w1"):
            await made[0].order.applied(ev.WorkerJoined(worker, 10**6, model="m"))
        await self.settled()
        return made

    async def settled(self, members=None):
        """Wait until all processes, or those, have read all that was put."""
        members, mark = members or self.all, ev.TenantChanged("no tenant")
        await asyncio.gather(*(each.order.applied(mark) for each in members))
        last = max(each.last for each in members)
        await until(lambda: all(each.last >= last and each.order.attached for each in members))

    async def equal(self, members=None):
        """Wait until all processes, or those, have read the same; assert that their states are equal."""
        members = members or self.all
        await self.settled(members)
        await until(lambda: len({(each.order.epoch, each.last) for each in members}) == 1)
        states = [each.order.shared_cell.snapshot() for each in members]
        for state in states[1:]:
            assert state == states[0]
        assert not any(each.failures for each in members)

    async def close(self):
        for member in self.all:
            with suppress(ConnectionError):
                await member.close()
        if "redis" in vars(self):
            self.redis.close()


@asynccontextmanager
async def members_of(folder, *, keeps=False):
    """Yield processes over a Redis of their own."""
    server = RedisProcess(folder / "redis", keeps=keeps)
    members = Members(server.url)
    members.server = server
    try:
        yield members
    finally:
        await members.close()
        server.close()


async def traffic(members, calls, concurrency=8, first=0):
    """Carry calls at all processes, numbered from ``first``; return their record ids."""
    numbers = range(first, first + calls)
    names = [f"{member.name}-{number}" for number in numbers for member in members]
    places = asyncio.Semaphore(concurrency)

    async def carry(member, name):
        async with places:
            await member.call(name)

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            group.create_task(carry(members[number % len(members)], name))
    return names


@asynccontextmanager
async def suspended(member):
    """Keep a process from reading in the block."""
    read, entered, ended = member.log.read, asyncio.Event(), asyncio.Event()

    async def waits(*arguments):
        entered.set()
        await ended.wait()
        return await read(*arguments)

    member.log.read = waits
    await entered.wait()
    yield
    member.log.read = read
    ended.set()


async def broken(*arguments):
    """Fail as a command does whose connection is cut."""
    raise redis.ConnectionError


@asynccontextmanager
async def looking_for_the_log(member):
    """Cut the connection on which a process reads, and let it find the log again after the block."""
    read, base = member.log.read, member.log.base
    found = asyncio.Event()

    async def waits():
        await found.wait()
        return await base()

    member.log.read, member.log.base = broken, waits
    await until(lambda: not member.order.attached)
    member.log.read = read
    yield
    member.log.base = base
    found.set()
    await until(lambda: member.order.attached)
