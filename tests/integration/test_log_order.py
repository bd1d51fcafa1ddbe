"""Processes share the order of a cell over a real Redis: each event once, equal states, whatever fails.

The processes of a test are on one event loop. Nothing announces a fault to them: the tests kill
connections and servers, and wait for what follows.
"""

import asyncio
import random
import zlib
from contextlib import asynccontextmanager

import msgspec
import orjson
import pytest
import redis
from log_members import PREFIX, Members, RedisProcess, short_times
from until import settle, until

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.cell_events import NotStored, SystemChanged
from fairserve.platform.control.log import order as log_order
from fairserve.platform.control.log import shared_cell
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.order import MAX_WAITING, OF_BATCH, CellMismatchError
from fairserve.platform.control.log.redis_log import PresentEpoch
from fairserve.platform.control.log.shared_cell import NO_ENTRY, EntryId
from fairserve.platform.control.log.wire import (
    EventBatch,
    UnsharedEventError,
    batch_bytes,
    event_bytes,
)
from fairserve.platform.control.messages import Cancel, Progress, Release
from fairserve.scheduling import events as ev


@pytest.fixture(autouse=True)
def times(monkeypatch):
    short_times(monkeypatch)


@pytest.fixture
async def members(redis_url):
    members = Members(redis_url)
    yield members
    await members.close()


@pytest.fixture
def server(redis_url):
    """Yield a client of the Redis of a test, for faults."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(params=["memory", "append-only file"])
async def own_redis(request, tmp_path):
    """Yield the processes over a Redis of their own, with and without a file."""
    server = RedisProcess(tmp_path / "redis", append_only=request.param != "memory")
    server.start()
    members = Members(server.url)
    members.server = server
    yield members
    await members.close()
    server.kill()


def assert_each_once(members, record_ids):
    """Assert that each call was accepted and ended once, and granted once, by all processes."""
    for member in members.all:
        assert member.rows("accepted") == dict.fromkeys(record_ids, 1)
        assert member.rows("closed") == dict.fromkeys(record_ids, 1)
        for record_id in record_ids:
            assert len(member.granted(record_id)) == 1, record_id


async def traffic(members, calls, concurrency=8):
    """Carry calls at all processes; return their record ids."""
    names = [f"{member.name}-{number}" for number in range(calls) for member in members]
    places = asyncio.Semaphore(concurrency)

    async def carry(member, name):
        async with places:
            await member.call(name)

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            group.create_task(carry(members[number % len(members)], name))
    return names


# --- one order --------------------------------------------------------------------------------------


async def test_applied_returns_after_the_outputs_were_executed(members):
    first, second = await members.with_workers()
    await second.order.applied(second.submitted("a"))
    assert second.rows("accepted") == {"a": 1}
    [grant] = second.granted("a")
    await members.settled()
    assert first.granted("a") == [grant]
    await second.order.applied(Release(grant.call_id, "completed", TokenUsage(100, 0, 0, 5)))
    assert second.rows("closed") == {"a": 1}
    await members.equal()


async def test_applied_raises_the_error_of_its_event_and_of_no_other(members):
    _, second = await members.with_workers()
    events = [
        SystemChanged("invented", {}),
        SystemChanged("fairserve", {"hold_s": -1.0}),
        ev.WorkerReported("w0", 2**64),
        Cancel("\ud83d"),
        NotStored("app/x"),
        second.submitted("a"),
        ev.TenantChanged("t", 2.0),
    ]
    found = await asyncio.gather(*map(second.order.applied, events), return_exceptions=True)
    assert [type(each) for each in found] == [
        KeyError,
        ValueError,
        UnsharedEventError,
        UnsharedEventError,
        UnsharedEventError,
        type(None),
        type(None),
    ]
    assert "invented" in str(found[0])
    await members.equal()
    assert all(each.rows("accepted") == {"a": 1} for each in members.all)


async def test_events_that_cannot_be_shared_keep_no_batch(members):
    _, second = await members.with_workers()
    for _ in range(3):
        second.order.put(NotStored("app/x"))
        await second.order.kept()
    await second.order.applied(ev.TenantChanged("t", 2.0))
    await members.equal()
    assert all(sent.read_s is not None for sent in second.order._sent.values())


async def test_a_cancelled_wait_does_not_take_the_event_back(members):
    _, second = await members.with_workers()
    wait = asyncio.create_task(second.order.applied(second.submitted("a")))
    await settle()
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    await until(lambda: all(each.rows("accepted") == {"a": 1} for each in members.all))
    await second.order.applied(second.submitted("b"))
    await members.equal()


async def test_states_are_equal_after_mixed_traffic(members, seed):
    made = await members.with_workers(speakers=2, silent=2)
    rng = random.Random(seed)
    settings = [
        lambda: ev.TenantChanged("t", rng.choice([1.0, 2.0])),
        lambda: ev.UserChanged("t", "u", rng.choice([1.0, 2.0]), rng.choice([None, 5])),
        lambda: SystemChanged("fairserve", {"hold_s": rng.choice([5.0, 25.0])}),
        lambda: SystemChanged("fairserve", {"hold_s": -1.0}),
        lambda: ev.InteractionOpened("app/run", "t", "app", "u"),
        lambda: ev.InteractionClosed("app/run", rng.random() < 0.5),
        lambda: ev.WorkerDraining("w1"),
        lambda: ev.WorkerUndrained("w1"),
        lambda: Cancel("app/unknown"),
    ]

    async def change():
        for _ in range(40):
            rng.choice(made).order.put(rng.choice(settings)())
            await asyncio.sleep(0)

    names, _ = await asyncio.gather(traffic(made, 15), change())
    await members.equal()
    assert_each_once(members, names)
    assert len({str(each.order.shared_cell.latest_check()) for each in made}) == 1


async def test_a_new_process_continues_with_the_state_of_the_others(members):
    made = await members.with_workers()
    await traffic(made, 5)
    await made[1].order.applied(made[1].submitted("open"))
    await members.add()
    await members.equal()
    [grant] = made[1].granted("open")
    made[1].order.put(Release(grant.call_id, "completed", TokenUsage(100, 0, 0, 5)))
    await members.equal()
    assert members.all[-1].rows("closed")["open"] == 1


async def test_kept_waits_until_all_events_so_far_are_in_redis(members, server):
    first, second = await members.with_workers()
    await second.order.kept()
    for number in range(3 * OF_BATCH + 1):
        second.order.put(second.submitted(f"c{number}"))
    await second.order.kept()
    log = b"".join(
        data
        for _, fields in server.xrange(f"{PREFIX}:log:{second.order.epoch}")
        for data in fields.values()
    )
    assert all(f"app/c{number}".encode() in log for number in range(3 * OF_BATCH + 1))
    await members.equal()
    assert len(first.rows("accepted")) == 3 * OF_BATCH + 1


async def test_a_later_progress_of_a_call_replaces_one_that_waits(members):
    _, second = await members.with_workers()
    await second.order.applied(second.submitted("a"))
    [grant] = second.granted("a")
    before = second.order._number
    for started, tokens in [(False, 0)] * 3 + [(True, n) for n in range(500)]:
        second.order.put(Progress(grant.call_id, started, TokenUsage(100, 0, 0, tokens)))
    await second.order.applied(ev.TenantChanged("t", 2.0))
    assert second.order._number == before + 1
    assert second.cell.calls.running(grant.call_id).usage.output_tokens == 499
    await members.equal()


# --- connections ------------------------------------------------------------------------------------


async def test_each_event_counts_once_though_connections_are_cut(members, server):
    made = await members.with_workers(speakers=2, silent=2)
    carried = asyncio.create_task(traffic(made, 25, concurrency=16))
    cut = 0
    while not carried.done():
        rows = len(made[0].rows("accepted"))
        await until(lambda rows=rows: len(made[0].rows("accepted")) > rows + 3 or carried.done())
        cut += server.client_kill_filter(_type="normal", skipme=True)
    assert cut > 8
    names = await carried
    await members.equal()
    assert_each_once(members, names)
    assert all(len(each.replaced) == 1 for each in made)  # when it joined
    assert {each.order.epoch for each in made} == {made[0].order.epoch}


@pytest.mark.parametrize("own_redis", ["append-only file"], indirect=True)
async def test_events_that_are_put_without_a_connection_are_written_later(own_redis):
    members = own_redis
    first, second = await members.with_workers()
    members.server.kill()
    waits = [asyncio.create_task(second.order.applied(second.submitted(f"c{n}"))) for n in range(9)]
    await until(lambda: not first.order.attached and not second.order.attached)
    await asyncio.wait_for(second.order.kept(), 10)  # this process has them until Redis is back
    await settle()
    assert not any(wait.done() for wait in waits)
    members.server.start()
    await asyncio.gather(*waits)
    await members.equal()
    for member in members.all:
        assert member.rows("accepted") == {f"c{n}": 1 for n in range(9)}


# --- the speaker ------------------------------------------------------------------------------------


async def test_another_process_speaks_once_the_lease_has_run_out(members, server):
    first, second, third = await members.with_workers(speakers=2, silent=1)
    assert first.order.speaks
    assert not second.order.speaks
    token = server.get(f"{PREFIX}:speaker")
    assert 0 < server.pttl(f"{PREFIX}:speaker") <= log_speaker.LEASE_S * 1000
    await first.stop_speaking()
    ticks = len(third.ticks)
    await until(lambda: second.order.speaks)
    assert server.get(f"{PREFIX}:speaker") != token
    await until(lambda: len(third.ticks) > ticks + 3)
    speakers = [tick.speaker for _, tick in third.ticks]
    change = speakers.index(second.order.process)
    assert set(speakers[:change]) == {first.order.process}
    assert set(speakers[change:]) == {second.order.process}
    # It spoke only after the lease had run out, by Redis' own clock.
    at = [entry.ms for entry, _ in third.ticks]
    assert at[change] - at[change - 1] >= log_speaker.LEASE_S * 1000
    await members.equal()


async def test_a_speaker_that_leaves_is_replaced_at_once(members, server, monkeypatch):
    first, second, third = await members.with_workers(speakers=2, silent=1)
    monkeypatch.setattr(log_speaker, "LEASE_S", 3600.0)
    await until(lambda: server.pttl(f"{PREFIX}:speaker") > 10_000)
    await first.stop_speaking(leave=True)
    await until(lambda: second.order.speaks)
    assert first.spoke == [True, False]
    assert third.spoke == []
    await members.equal()


async def test_a_speaker_that_lost_its_lease_is_silent(members, server):
    first, second = await members.with_workers(silent=1)
    server.set(f"{PREFIX}:speaker", "another", px=3_600_000)
    await until(lambda: not first.order.speaks)
    ticks = [entry for entry, _ in second.ticks]
    assert first.spoke == [True, False]
    server.delete(f"{PREFIX}:speaker")
    await until(lambda: first.order.speaks)
    await until(lambda: len(second.ticks) > len(ticks))
    await members.equal()


async def test_nothing_new_is_accepted_without_ticks(members):
    first, second = await members.with_workers()
    second.order.require()
    assert second.order.accepts
    await first.stop_speaking()
    await until(lambda: not second.order.accepts)
    with pytest.raises(UnavailableError, match="no control process speaks") as raised:
        second.order.require()
    assert raised.value.headers == {"Retry-After": "2"}
    # Events of calls in progress are applied.
    await second.order.applied(ev.TenantChanged("t", 2.0))
    await members.add(speaks=True)
    await until(lambda: second.order.accepts and first.order.accepts)
    await members.equal()


async def test_nothing_new_is_accepted_while_control_cannot_keep_rows(members):
    first, second = await members.with_workers()
    first.full = "the journal is full"
    await until(lambda: not second.order.accepts)
    with pytest.raises(UnavailableError, match="the journal is full"):
        second.order.require()
    first.full = ""
    await until(lambda: second.order.accepts)


async def test_nothing_new_is_accepted_while_too_much_waits(members, monkeypatch):
    first, second = await members.with_workers()
    monkeypatch.setattr(log_order, "SILENCE_S", 3600.0)
    second.order._attached.clear()  # as without a connection
    for number in range(MAX_WAITING // 2 + 1):
        second.order.put(Cancel(f"app/{number}"))
    with pytest.raises(UnavailableError, match="the log accepts too few events"):
        second.order.require()
    first.order.require()
    await until(lambda: second.order.accepts)
    await members.equal()


async def test_only_the_speaker_reports_workers(members):
    first, second = await members.with_workers()
    second.order.observe(ev.WorkerDraining("w0"))
    first.order.observe(ev.WorkerDraining("w1"))
    await members.settled()
    for member in members.all:
        workers = member.cell.dispatcher.pool_of("m").worker_table.workers.values()
        assert {each.worker_id for each in workers if each.draining} == {"w1"}


# --- Redis loses data -------------------------------------------------------------------------------


async def test_an_empty_redis_gets_the_state_of_the_processes(own_redis):
    members, server = own_redis, own_redis.server
    made = await members.with_workers(speakers=2, silent=2)
    before = {each.order.epoch for each in made}
    carried = asyncio.create_task(traffic(made, 25))
    for _ in range(2):
        rows = len(made[2].rows("accepted"))
        await until(lambda rows=rows: len(made[2].rows("accepted")) > rows + 10)
        epoch = made[2].order.epoch
        server.kill()
        server.empty()
        server.start()
        await until(lambda epoch=epoch: made[2].order.epoch > epoch)
    names = await carried
    await members.equal()
    assert before.isdisjoint({each.order.epoch for each in made})
    assert_none_lost(members, names)


def assert_none_lost(members, names):
    """Assert that each call has ended, and that no process executed a part of it without need.

    A process whose state was replaced by one that was further has not executed all. One that was further
    than the process that began the epoch, because it never speaks or was late for the election, executes
    again what that one had not read.
    """
    for kind in ("accepted", "closed"):
        assert set().union(*(each.rows(kind) for each in members.all)) == set(names)
    for member in members.all:
        assert not [*member.cell.calls]
        most = len(member.replaced)
        for kind in ("accepted", "closed"):
            assert max(member.rows(kind).values()) <= most
        assert all(len(member.granted(name)) <= most for name in names)


async def test_a_redis_that_lost_its_last_entries_begins_a_new_epoch(tmp_path):
    server = RedisProcess(tmp_path / "redis", append_only=True)
    server.start()
    members = Members(server.url)
    try:
        made = await members.with_workers(speakers=2, silent=2)
        epoch = made[0].order.epoch
        carried = asyncio.create_task(traffic(made, 25))
        await until(lambda: len(made[2].rows("accepted")) > 20)
        await members.settled()
        size = server.written_bytes()
        rows = len(made[2].rows("closed"))
        await until(lambda: len(made[2].rows("closed")) > rows + 5)
        server.kill()
        server.truncate(size)
        server.start()
        names = await carried
        await members.equal()
        assert made[0].order.epoch > epoch
        assert_none_lost(members, names)
    finally:
        await members.close()
        server.kill()


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


async def test_all_leave_an_epoch_of_which_one_has_read_what_is_lost(members, server):
    # The speaker has not read the last entry, so it finds nothing missing.
    first, second = await members.with_workers()
    epoch = first.order.epoch
    async with suspended(first):
        await second.order.applied(second.submitted("a"))
        server.xdel(f"{PREFIX}:log:{epoch}", str(second.last))
        server.client_kill_filter(_type="normal", skipme=True)
    await until(
        lambda: {each.order.epoch for each in members.all} - {epoch} and second.order.attached
    )
    await members.equal()
    assert first.order.epoch > epoch
    assert first.rows("accepted") == {"a": 1}
    await until(lambda: first.order.accepts and second.order.accepts)


async def test_the_speaker_with_less_lets_the_furthest_begin_the_epoch(members, server):
    first, second = await members.with_workers(speakers=2, silent=0)
    assert first.order.speaks
    async with suspended(first):
        await second.order.applied(second.submitted("a"))
        last = second.last
        server.xdel(f"{PREFIX}:log:{first.order.epoch}", str(last))
        server.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: second.order.speaks)
    await members.equal()
    assert second.rows("accepted") == {"a": 1}
    assert first.rows("accepted") == {}  # it is in the state of the other
    assert first.cell.calls.running("app/a")


async def test_a_process_that_was_suspended_reads_the_stored_state(members, server, monkeypatch):
    first, second = await members.with_workers()
    log = f"{PREFIX}:log:{first.order.epoch}"
    async with suspended(second):
        wait = asyncio.create_task(second.order.applied(second.submitted("a")))
        await until(lambda: first.rows("accepted"))
        last = first.last
        monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
        await until(lambda: server.xrange(log, count=1)[0][0] > str(last).encode())
        monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
        assert second.last < last
        monkeypatch.setattr(log_order, "SUSPENDED_S", 0.0)
    await wait
    assert second.rows("accepted") == {}
    monkeypatch.setattr(log_order, "SUSPENDED_S", 5.0)
    await until(lambda: second.order.attached)
    assert second.cell.calls.running("app/a")
    await second.order.kept()
    await traffic([first, second], 3)
    await members.equal()


async def test_a_process_that_differs_reads_the_stored_state(members):
    first, second = await members.with_workers()
    second.order.shared_cell.check ^= 1  # as after an output that the others do not have
    await until(lambda: len(second.replaced) == 2)
    await members.equal()
    await traffic([first, second], 3)
    await members.equal()
    assert len(second.replaced) == 2


async def test_a_process_that_the_cell_forgot_begins_anew(members, monkeypatch, server):
    first, second = await members.with_workers()
    await traffic([first, second], 3)
    monkeypatch.setattr(log_order, "REPEATED_S", 0.0)
    monkeypatch.setattr(shared_cell, "FORGOTTEN_S", -1.0)
    await until(lambda: first.order.shared_cell.snapshot()["seen"] == {} and not second.order._sent)
    ticks = len(second.ticks)
    await until(lambda: len(second.ticks) > ticks + 1)
    monkeypatch.setattr(shared_cell, "FORGOTTEN_S", 3600.0)
    server.client_kill_filter(_type="normal", skipme=True)
    process = second.order.process
    kept = asyncio.create_task(second.order.kept())
    await second.order.applied(second.submitted("a"))
    await kept
    assert second.order.process != process
    await members.equal()
    assert first.rows("accepted")["a"] == 1


# --- states -----------------------------------------------------------------------------------------


def stored_entry(server, epoch):
    """Return the entry of the stored state of an epoch."""
    data = server.get(f"{PREFIX}:snapshot:{epoch}")
    return EntryId.of(orjson.loads(zlib.decompress(data))["last"])


async def test_a_state_is_stored_only_after_the_rows_before_it(
    redis_url, members, server, monkeypatch
):
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    rows = NO_ENTRY
    first = await members.add(speaks=True, stored=lambda member: rows)
    epoch = first.order.epoch
    begun = stored_entry(server, epoch)
    await first.order.applied(ev.TenantChanged("t", 2.0))
    ticks = len(first.ticks)
    await until(lambda: len(first.ticks) > ticks + 5)
    assert stored_entry(server, epoch) == begun
    rows = EntryId(2**60, 0)
    await until(lambda: stored_entry(server, epoch) > begun)
    stored = stored_entry(server, epoch)
    oldest = EntryId.of(server.xrange(f"{PREFIX}:log:{epoch}", count=1)[0][0])
    assert oldest >= stored
    await members.add()
    await members.equal()


async def test_a_former_speaker_does_not_replace_a_later_state(members, server, monkeypatch):
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    rows = NO_ENTRY
    first = await members.add(speaks=True, stored=lambda member: rows)
    epoch = first.order.epoch
    await until(lambda: first.speaker._state is not None)
    second = await members.add(speaks=True)
    server.set(f"{PREFIX}:speaker", "another", px=3_600_000)
    await until(lambda: not first.order.speaks)
    log = first.log
    assert not await log.store_snapshot("not the speaker", epoch, b"", first.last)
    server.set(f"{PREFIX}:speaker", second.speaker._token, px=3_600_000)
    await until(lambda: second.order.speaks)
    stored = stored_entry(server, epoch)
    await until(lambda: stored_entry(server, epoch) > stored)
    stored = stored_entry(server, epoch)
    await second.stop_speaking()
    rows = EntryId(2**60, 0)
    server.set(f"{PREFIX}:speaker", first.speaker._token, px=3_600_000)
    await until(lambda: first.order.speaks)
    ticks = len(first.ticks)
    await until(lambda: len(first.ticks) > ticks + 3)
    assert stored_entry(server, epoch) >= stored
    await members.add()
    await members.equal()


async def test_a_new_epoch_leaves_no_earlier_state(members, server):
    first, _ = await members.with_workers()
    epoch = first.order.epoch
    server.delete(f"{PREFIX}:base")
    server.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: first.order.epoch > epoch)
    await members.equal()
    keys = {key.decode() for key in server.keys("*")}
    assert f"{PREFIX}:snapshot:{epoch}" not in keys
    assert f"{PREFIX}:snapshot:{first.order.epoch}" in keys
    assert 0 < server.ttl(f"{PREFIX}:log:{epoch}") <= 60


async def test_an_epoch_is_later_than_one_of_a_server_whose_clock_was_ahead(members, server):
    later = 2**52
    server.set(f"{PREFIX}:base", msgspec.json.encode(PresentEpoch(later, {"version": "1"})))
    member = await members.add(speaks=True, start=False)
    member.order.epoch = 5  # it has a state
    await member.start()
    assert member.order.epoch == later + 1


# --- who may take part ------------------------------------------------------------------------------


async def test_a_process_with_other_options_is_rejected(members):
    await members.with_workers()
    agreement = {"version": "2", "max_queue_wait_s": 5.0}
    member = await members.add(start=False, agreement=agreement)
    with pytest.raises(CellMismatchError) as raised:
        await member.order.attach()
    assert str(raised.value) == (
        "the other processes of the cell would decide otherwise: max_queue_wait_s is 5.0 here and None"
        " there; version is '2' here and '1' there. Make them equal, or stop the others first"
    )
    members.all.remove(member)
    await member.close()
    await members.equal()


async def test_control_with_other_options_continues_the_cell_where_none_speaks(members):
    first, silent = await members.with_workers()
    epoch = first.order.epoch
    await first.call("a")
    await first.order.applied(first.submitted("b"))
    await members.settled()
    await first.stop_speaking(leave=True)
    members.all.remove(first)
    await first.close()
    later = await members.add(speaks=True, agreement={"version": "2"})
    await until(lambda: later.order.epoch > epoch and not later.order.differs)
    assert [live.record_id for live in later.cell.calls] == ["b"]
    await until(lambda: silent.failures)
    assert "version is '1' here and '2' there" in silent.failures[0]
    members.all.remove(silent)
    await silent.close()
    await later.call("c")
    joined = await members.add(agreement={"version": "2"})
    await members.equal()
    assert [live.record_id for live in joined.cell.calls] == ["b"]


async def test_a_process_that_never_speaks_waits_for_one_that_does(members):
    silent = await members.add(start=False)
    attached = asyncio.create_task(silent.start())
    await settle()
    assert not attached.done()
    first = await members.add(speaks=True)
    await attached
    assert first.speaker.fresh
    await members.equal()
    second = await members.add(speaks=True)
    assert not second.speaker.fresh


async def test_a_process_that_cannot_read_an_entry_leaves_the_cell(members, server):
    first, second = await members.with_workers()
    log = f"{PREFIX}:log:{first.order.epoch}"
    server.xadd(log, {"b": batch_bytes(EventBatch("x", 1, [event_bytes(ev.WorkerLost("w"))]))[:-1]})
    await until(lambda: first.failures and second.failures)
    assert "an entry of the log cannot be read" in second.failures[0]
    assert not second.order.accepts
    with pytest.raises(UnavailableError):
        second.order.require()
    members.all.clear()
    await asyncio.gather(first.close(), second.close())
