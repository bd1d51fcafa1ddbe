"""A shared order outlives what lasts longer than a lost connection, and what it keeps is bounded.

Redis rejects writes, or is away for longer than the lease of a call; a state takes longer than the lease
of the speaker; notes of an election are gone; a journal is full.
"""

import asyncio
import time

import pytest
import redis
from log_members import PREFIX, broken, members_of, suspended
from until import until

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.forked import ForkedResult
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.log import outbox as log_outbox
from fairserve.platform.control.log import redis_log
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.marks import MarkedJournal, StoredMarks
from fairserve.platform.control.log.outbox import LogOutbox
from fairserve.platform.control.log.redis_log import PresentEpoch, RedisLog, state_bytes
from fairserve.platform.control.log.shared_cell import NO_ENTRY, EntryId
from fairserve.platform.control.messages import Progress, Release
from fairserve.platform.control.service import ControlService
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS

pytestmark = pytest.mark.usefixtures("short_times")

LONG_S = 20
USAGE = TokenUsage(100, 0, 0, 5)


# --- Redis rejects writes ---------------------------------------------------------------------------


async def test_an_answer_ends_while_redis_rejects_writes(tmp_path):
    """The log is found all the time: only writing fails."""
    async with members_of(tmp_path) as members:
        _, second = await members.with_workers()
        await second.order.applied(second.submitted("a"))
        members.redis.config_set("min-replicas-to-write", 1)
        second.order.put(Release("app/a", "completed", USAGE))
        await asyncio.wait_for(second.order.kept(), LONG_S)
        await until(lambda: not second.order.accepts)
        second.order.put(ev.TenantChanged("t", 2.0))
        await asyncio.wait_for(second.order.kept(), LONG_S)
        members.redis.config_set("min-replicas-to-write", 0)
        await until(lambda: second.order.accepts)
        await members.equal()
        assert second.rows("closed") == {"a": 1}
        assert not second.order._away, "an answer waits again"


# --- Redis is away ----------------------------------------------------------------------------------


def test_what_is_to_be_written_again_is_not_forgotten(monkeypatch):
    outbox = LogOutbox()
    for weight in (1.0, 2.0, 3.0):
        outbox.put(ev.TenantChanged("t", weight))
        number, _ = outbox.to_write()
        outbox.read_back(number)
    monkeypatch.setattr(log_outbox, "REPEATED_S", 0.0)
    outbox.rewrite(1)
    outbox.forget()
    outbox.put(ev.TenantChanged("t", 4.0))
    for number in (2, 3, 4):
        assert outbox.to_write()[0] == number
        outbox.read_back(number)
    outbox.forget()
    assert not outbox._sent


async def test_calls_renew_their_leases_before_time_passes(tmp_path, monkeypatch):
    """Control finds a Redis that was away for longer than a lease before the server of a call does."""
    monkeypatch.setattr(log_speaker, "AWAY_S", 1.0)
    monkeypatch.setattr(log_speaker, "SETTLED_S", 3600.0)
    async with members_of(tmp_path, keeps=True) as members:
        first, second = await members.with_workers()
        await second.order.applied(second.submitted("a"))
        await members.settled()
        for member in members.all:
            member.cell.calls._leases._limit_s = 3.0
        members.server.kill()
        await until(lambda: not second.order.attached)
        append, second.log.append = second.log.append, broken
        lost_s = time.monotonic()
        await until(lambda: time.monotonic() > lost_s + 3.0)
        turn, turns = first.speaker._turn, []

        async def counted():
            await turn()
            if first.order.attached:
                turns.append(first.last)

        first.speaker._turn = counted
        members.server.start()
        await until(lambda: len(turns) > 3)
        second.log.append = append
        second.order.put(Progress("app/a", True, USAGE))
        await second.order.kept()
        monkeypatch.setattr(log_speaker, "SETTLED_S", 0.0)
        first.speaker._ticks_from_s = None
        await until(lambda: first.order.speaks and first.order.accepts)
        await members.equal()
        assert first.cell.calls.running("app/a") is not None


async def test_a_server_that_stops_answers_what_redis_has_not_accepted(members, tmp_path):
    _, second = await members.with_workers()
    journal = Journal(tmp_path / "journal")
    journal.open()
    service = ControlService(SYSTEMS["fairserve"], journal, order=lambda service: second.order)
    second.order._on_outputs = service.execute
    append, second.log.append = second.log.append, broken
    call = asyncio.create_task(service.submit(second.submitted("a"), [].append))
    await until(lambda: second.order._outbox.not_read())
    await service.drain(0.0)
    with pytest.raises(UnavailableError, match="is stopping"):
        async with asyncio.timeout(LONG_S):
            await call
    second.log.append = append
    await members.equal()
    journal.close()


# --- a new epoch ------------------------------------------------------------------------------------


async def lose_epoch(members):
    """Let Redis lose that there is a cell."""
    members.redis.delete(f"{PREFIX}:base")
    members.redis.client_kill_filter(_type="normal", skipme=True)


async def test_an_epoch_begins_though_its_state_takes_longer_than_a_lease(members, monkeypatch):
    first, _ = await members.with_workers()
    epoch, take = first.order.epoch, first.order.shared_cell.snapshot

    def slow():
        time.sleep(1.1 * log_speaker.LEASE_S)
        return take()

    monkeypatch.setattr(first.order.shared_cell, "snapshot", slow)
    await lose_epoch(members)
    async with asyncio.timeout(LONG_S):
        await until(lambda: first.order.epoch > epoch)
    monkeypatch.setattr(first.order.shared_cell, "snapshot", take)
    await members.equal()


async def test_an_election_whose_notes_are_gone_is_repeated(members, monkeypatch):
    first, _ = await members.with_workers()
    epoch, sleep, lost = first.order.epoch, asyncio.sleep, []

    async def slept(delay_s):
        await sleep(delay_s)
        if delay_s == redis_log.ELECTION_S and not lost:
            lost.append(members.redis.delete(f"{PREFIX}:ahead"))

    monkeypatch.setattr(redis_log.asyncio, "sleep", slept)
    await lose_epoch(members)
    async with asyncio.timeout(LONG_S):
        await until(lambda: first.order.epoch > epoch)
    await members.equal()
    assert lost == [1]


@pytest.fixture
async def log(redis_url):
    """Yield the log of a cell whose epoch 5 has begun after epoch 3."""
    log = RedisLog(redis_url, PREFIX)
    await log.take_lease("p", 60_000)
    for epoch, before in ((3, 0), (5, 3)):
        await begin(log, epoch, before)
    yield log
    await log.close()


async def begin(log, epoch, before):
    return await log.begin(
        "p", 60_000, PresentEpoch(epoch, 1, {}), EntryId(1000, 0), b"state", before
    )


async def test_no_epoch_begins_after_one_that_is_over(log):
    """Another process has begun one while this one made its state."""
    assert not await begin(log, 7, 3)
    assert (await log.base()).epoch == 5
    assert await begin(log, 7, 5)


async def test_nothing_of_an_epoch_stays_that_redis_returned_to(log, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        assert await begin(log, 9, 7), "Redis has lost epoch 7"
        assert 0 < client.ttl(f"{PREFIX}:log:5") <= 60
        assert {*client.keys(f"{PREFIX}:snapshot:*")} == {f"{PREFIX}:snapshot:9".encode()}


# --- states -----------------------------------------------------------------------------------------


async def test_the_log_is_cut_though_states_follow_each_other_closely(log, redis_url):
    """Several processes store states, each every 20 s."""
    with redis.Redis.from_url(redis_url) as client:
        for at_s in range(1, 71):
            client.xadd(f"{PREFIX}:log:5", {"t": b""}, id=f"{1000 + 1000 * at_s}-0")
            if at_s % 7 == 0:
                last = EntryId(1000 + 1000 * at_s, 0)
                assert await log.store_snapshot(5, b"state", last, kept_s=10)
                assert await log.where(5, EntryId(max(1000, last.ms - 10_000), 0)) == "there"
        assert client.xlen(f"{PREFIX}:log:5") == 11


async def test_a_copy_that_differs_stores_no_state(members, monkeypatch):
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    rows = NO_ENTRY
    _, second = [await members.add(speaks=True, stored=lambda member: rows) for _ in range(2)]
    await until(lambda: second.speaker._state is not None)
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
    shared = second.order.shared_cell
    taken, last, copy = second.speaker._state
    copy.end()
    other = state_bytes(shared.snapshot() | {"check": shared.check ^ 1, "last": str(last)})
    second.speaker._state = taken, last, ForkedResult(lambda: other)
    shared.check ^= 1
    await until(lambda: len(second.replaced) == 2)
    rows = EntryId(2**60, 0)
    await until(lambda: second.speaker._state is None)
    third = await members.add()
    ticks = len(third.ticks)
    await until(lambda: len(third.ticks) > ticks + 3)
    assert len(third.replaced) == 1, "when it joined"
    await members.equal()


# --- a journal --------------------------------------------------------------------------------------


class Rows:
    """A database."""

    def __init__(self):
        self.ids = []

    def write(self, rows):
        self.ids += [call.call_id for call in rows.calls]

    def blames_rows(self, error):
        return False


async def test_rows_that_redis_lost_are_written_though_another_process_speaks_then(
    members, tmp_path
):
    first, second = await members.with_workers(speakers=2, silent=0)
    journal, marks, rows = Journal(tmp_path / "journal"), StoredMarks(), Rows()
    journal.open()
    ledger = Ledger(journal, rows, marks=marks)
    ledger.start()
    outputs, second.order._on_tick = second.outputs, MarkedJournal(journal, marks).ticked
    service = ControlService(SYSTEMS["fairserve"], journal, order=lambda service: second.order)
    second.order._on_outputs = lambda found: (outputs.extend(found), service.execute(found))
    second.speaker._on_begun = marks.began
    epoch, turn, turns = second.order.epoch, second.speaker._turn, []

    async def busy():
        """Restore the state for longer than the lease."""
        turns.append(second.order.epoch)
        if second.order.epoch == epoch:
            await turn()

    second.speaker._turn = busy
    async with suspended(first):
        read = second.last
        await second.order.applied(second.submitted("a"))
        await second.order.applied(Release("app/a", "completed", USAGE))
        lost = members.redis.xrange(f"{PREFIX}:log:{epoch}", min=f"({read}")
        members.redis.xdel(f"{PREFIX}:log:{epoch}", *(entry for entry, _ in lost))
        members.redis.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: first.order.speaks and first.order.epoch > epoch)
    ticks = len(first.ticks)
    await until(lambda: len(first.ticks) > ticks + 8)
    await members.equal()
    assert first.rows("closed") == {}
    assert not marks.speaks
    await until(lambda: rows.ids == ["a"])
    await until(lambda: not marks.writes)
    ledger.close(0.0)
    journal.close()


async def test_control_whose_journal_is_full_follows_the_log(members, tmp_path):
    """Calls of other servers are in the log before its speaker has reported it."""
    _, second = await members.with_workers()
    control = await members.add(start=False)
    journal = Journal(tmp_path / "journal", max_bytes=0)
    journal.open()
    service = ControlService(SYSTEMS["fairserve"], journal, order=lambda service: control.order)
    control.order._on_outputs = service.execute
    await control.start()
    await second.order.applied(second.submitted("a"))
    second.order.put(Release("app/a", "completed", USAGE))
    await second.order.applied(ev.TenantChanged("t", 2.0))
    await until(lambda: control.failures or control.last >= second.last)
    await members.equal()
    assert journal.sync(LONG_S)
    journal.close()
    written = b"".join(path.read_bytes() for path in sorted((tmp_path / "journal").iterdir()))
    assert b"closed" in written
