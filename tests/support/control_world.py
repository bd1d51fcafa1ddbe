"""Control around the real dispatcher, with a journal in memory and a frozen clock."""

import asyncio
from collections import defaultdict

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.journal.journal import JournalUnavailableError
from fairserve.platform.control.messages import CallRecord, Cancel, Release, Submit
from fairserve.platform.control.options import ControlOptions
from fairserve.platform.control.record import plain_of, record_of
from fairserve.platform.control.service import ControlService
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS


class MemoryJournal:
    """A journal without a disk: no entry is durable before ``hold``, and none if ``broken``.

    While it is ``full`` it takes no new call.
    """

    def __init__(self):
        self.entries = []
        self.broken = self.full = False
        self.hold = None
        self.accepted = defaultdict(asyncio.Event)
        """Events by key, set once the call has its entry."""

    def check(self):
        pass

    def append(self, kind, key, data):
        if kind == "accepted" and self.full:
            raise JournalUnavailableError("disk full")
        self.entries.append((kind, key, data))
        if kind == "accepted":
            self.accepted[key].set()
        return len(self.entries)

    async def durable(self, sequence):
        if self.hold is not None:
            await self.hold.wait()
        if self.broken:
            raise JournalUnavailableError("disk full")

    async def written(self):
        pass

    def rows(self):
        """Return the rows of calls as the ledger reads them."""
        return [
            plain_of(record_of(CallRecord, data))
            for kind, _, data in self.entries
            if kind == "closed"
        ]

    def row(self, record_id):
        rows = [row for row in self.rows() if row["call_id"] == record_id]
        assert len(rows) == 1, f"{record_id} has {len(rows)} rows"
        return rows[0]


class World:
    """Control, its journal, a frozen clock, and shorthands. One call fills a worker's feed window."""

    def __init__(
        self, system="fairserve", capacity=10**6, feed_window=0.00003, order=None, **options
    ):
        self.now_s = 100.0
        config = SYSTEMS[system]
        if config.feed_window is not None:
            config = config.with_options({"feed_window": feed_window})
        self.journal = MemoryJournal()
        self.control = ControlService(
            config,
            self.journal,
            ControlOptions(**options),
            clock=lambda: self.now_s,
            wall=self.wall,
            order=None if order is None else lambda control: order(control, self),
        )
        self.control.start()
        self.messages = []
        """Messages to the clients of calls, beside answers."""
        for worker in ("w0", "w1"):
            self.control.post(ev.WorkerJoined(worker, capacity))

    def wall(self):
        return 1_000_000.0 + self.now_s

    @property
    def cancelled(self):
        return [each for each in self.messages if isinstance(each, Cancel)]

    def submit(self, name="c1", *, run="run", user="u", **more):
        values = {
            "input_tokens": 100,
            "system_tokens": 0,
            "max_output_tokens": 20,
            "tenant": "t",
            "app": "app",
            "model": "m",
            **more,
        }
        submit = {
            key: values.pop(key) for key in ("fingerprint", "user_agent_retry") if key in values
        }
        call = Call(call_id=f"app/{run}/{name}", interaction_id=f"app/{run}", user=user, **values)
        message = Submit(call, record_id=f"row-{run}-{name}", **submit)
        return self.control.submit(message, self.messages.append)

    async def submitted(self, name="c1", *, run="run", **more):
        """Return the task of a submit whose journal entry exists: it is granted or waiting."""
        task = asyncio.create_task(self.submit(name, run=run, **more))
        async with asyncio.timeout(20):
            await self.journal.accepted[f"row-{run}-{name}"].wait()
        return task

    async def release(self, grant, outcome="completed", output=5, **more):
        usage = TokenUsage(100, 0, 0, output)
        return await self.control.release(Release(grant.call_id, outcome, usage, **more))

    def pass_time(self, seconds):
        self.now_s += seconds
        self.control.order.tick()
