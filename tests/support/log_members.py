"""Processes that share the order of a cell, all on one event loop, and a Redis that can be killed."""

import asyncio
import shutil
import subprocess
from collections import Counter
from contextlib import suppress
from itertools import count

import redis
from processes import eventually, free_port
from until import until

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CallAnswer, JournalRow
from fairserve.platform.control.log import order as log_order
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.order import LogClock, LogOrder
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


class RedisProcess:
    """A Redis of its own, which a test kills, and starts with the same data or without."""

    def __init__(self, folder, *, append_only=False):
        self.folder, self.append_only = folder, append_only
        self.port, self._process = free_port(), None
        self.url = f"redis://127.0.0.1:{self.port}/0"
        folder.mkdir()

    def start(self):
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        flags += ["--appendonly", "yes" if self.append_only else "no", "--dir", str(self.folder)]
        self._process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port) as client:
            eventually(lambda: _ready(client), "Redis does not start")

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _file(self):
        [path] = self.folder.glob("appendonlydir/*.incr.aof")
        return path

    def written_bytes(self):
        """Return the size of the append-only file."""
        return self._file.stat().st_size

    def truncate(self, size_bytes):
        """Drop the end of the append-only file."""
        with self._file.open("r+b") as file:
            file.truncate(size_bytes)

    def empty(self):
        """Drop all data."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def _ready(client):
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return False


class Member:
    """One process: a cell, its order, and what it executed."""

    def __init__(self, url, name, *, speaks, agreement, stored):
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

    def submitted(self, record_id, tenant="t"):
        """Return the event of a new call."""
        ids = f"app/{record_id}", tenant, "app", "u", f"app/{record_id}"
        call = Call(*ids, "m", 100, 0, 20, pool="m", single=True)
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

    async def add(self, *, speaks=False, start=True, agreement=None, stored=None):
        """Return a new process; by default it takes all rows as stored."""
        member = Member(
            self.url,
            f"m{next(self._numbers)}",
            speaks=speaks,
            agreement={"version": "1"} if agreement is None else agreement,
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

    async def settled(self):
        """Wait until all processes have read all that was put."""
        mark = ev.TenantChanged("no tenant")
        await asyncio.gather(*(each.order.applied(mark) for each in self.all))
        last = max(each.last for each in self.all)
        await until(lambda: all(each.last >= last and each.order.attached for each in self.all))

    async def equal(self):
        """Wait until all processes have read the same entries; assert that their states are equal."""
        await self.settled()
        await until(lambda: len({(each.order.epoch, each.last) for each in self.all}) == 1)
        states = [each.order.shared_cell.snapshot() for each in self.all]
        for state in states[1:]:
            assert state == states[0]
        assert not any(each.failures for each in self.all)

    async def close(self):
        for member in self.all:
            with suppress(ConnectionError):
                await member.close()
