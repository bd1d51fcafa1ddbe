"""Processes share the order of a cell over a real Redis: each event once, equal states, whatever fails.

The processes of a test are on one event loop. Nothing announces a fault to them: the tests kill
connections and servers, and wait for what follows.
"""

import asyncio
import gc
import math
import os
import random
import signal
import time
import zlib

import msgspec
import orjson
import pytest
import redis
from linked_namespace import LinkedNamespace
from log_members import (
    PREFIX,
    Members,
    broken,
    looking_for_the_log,
    members_of,
    suspended,
    traffic,
)
from processes import alive, children
from redis_process import RedisProcess
from until import DEADLINE_S, settle, turn, until
from watched_redis import WatchedRedis

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallMessage,
    NotStored,
    SystemChanged,
)
from fairserve.platform.control.log import live_processes, shared_cell
from fairserve.platform.control.log import order as log_order
from fairserve.platform.control.log import outbox as log_outbox
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.order import MAX_WAITING
from fairserve.platform.control.log.outbox import OF_BATCH
from fairserve.platform.control.log.redis_log import PresentEpoch, state_bytes
from fairserve.platform.control.log.shared_cell import NO_ENTRY, EntryId
from fairserve.platform.control.log.succession import CellMismatchError
from fairserve.platform.control.log.wire import (
    EventBatch,
    UnsharedEventError,
    batch_bytes,
    event_bytes,
)
from fairserve.platform.control.messages import Attached, Cancel, Grant, Progress, Release
from fairserve.scheduling import events as ev

pytestmark = pytest.mark.usefixtures("short_times")


@pytest.fixture(params=["memory", "append-only file"])
async def own_redis(request, tmp_path):
    """Yield the processes over a Redis of their own, with and without a file."""
    async with members_of(tmp_path, keeps=request.param != "memory") as members:
        yield members


def assert_each_once(members, record_ids):
    """Assert that each call was accepted and ended once, and granted once, by all processes."""
    for member in members.all:
        assert member.rows("accepted") == dict.fromkeys(record_ids, 1)
        assert member.rows("closed") == dict.fromkeys(record_ids, 1)
        for record_id in record_ids:
            assert len(member.granted(record_id)) == 1, record_id


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
    assert not second.order._outbox.not_read()


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
            await turn()

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


async def test_kept_waits_until_all_events_so_far_are_in_redis(members, monkeypatch):
    monkeypatch.setattr(log_order, "SILENCE_S", 3600.0)  # a wait ends when the log seems to be away
    first, second = await members.with_workers()
    await second.order.kept()
    for number in range(3 * OF_BATCH + 1):
        second.order.put(second.submitted(f"c{number}"))
    await second.order.kept()
    log = b"".join(
        data
        for _, fields in members.redis.xrange(f"{PREFIX}:log:{second.order.epoch}")
        for data in fields.values()
    )
    assert all(f"app/c{number}".encode() in log for number in range(3 * OF_BATCH + 1))
    await members.equal()
    assert len(first.rows("accepted")) == 3 * OF_BATCH + 1


async def test_a_call_follows_its_parent_though_the_process_of_that_looks_for_the_log(
    members, monkeypatch
):
    """The client sends its next call to another process as soon as the end of the parent is kept."""
    monkeypatch.setattr(log_order, "LOOKED_FOR_S", 3600.0)
    first, second = await members.with_workers()
    await second.order.applied(second.submitted("parent", run="r"))
    append, second.log.append = second.log.append, broken
    second.order.put(Release("r/parent", "completed", TokenUsage(100, 0, 0, 5)))
    seen = asyncio.create_task(second.order.kept())
    await settle()  # it waits
    async with looking_for_the_log(second):
        second.log.append = append
        followed = asyncio.create_task(after(seen, first, first.submitted("child", run="r")))
        await settle()
        await first.order.applied(ev.TenantChanged("no tenant"))
    await followed
    [attached] = [
        each.message
        for each in first.outputs
        if isinstance(each, CallMessage) and each.record_id == "child"
    ]
    assert attached.stage == 2
    await members.equal()


async def test_an_answer_waits_for_the_log_for_a_while_and_later_ones_not_at_all(
    members, monkeypatch
):
    monkeypatch.setattr(log_order, "LOOKED_FOR_S", 0.01)
    _, second = await members.with_workers()
    async with looking_for_the_log(second):
        second.order.put(ev.TenantChanged("t", 2.0))
        await asyncio.wait_for(second.order.kept(), DEADLINE_S)
        monkeypatch.setattr(log_order, "LOOKED_FOR_S", 3600.0)
        second.order.put(ev.TenantChanged("t", 3.0))
        await asyncio.wait_for(second.order.kept(), DEADLINE_S)
    async with looking_for_the_log(second):  # it was found, so that this answer waits
        second.order.put(ev.TenantChanged("t", 4.0))
        kept = asyncio.create_task(second.order.kept())
        await settle()
        assert not kept.done()
    await kept
    await members.equal()


async def after(seen, member, event):
    await seen
    await member.order.applied(event)


async def test_a_later_progress_of_a_call_replaces_one_that_waits(members):
    _, second = await members.with_workers()
    await second.order.applied(second.submitted("a"))
    [grant] = second.granted("a")
    before = second.order._outbox.number
    for started, tokens in [(False, 0)] * 3 + [(True, n) for n in range(500)]:
        second.order.put(Progress(grant.call_id, started, TokenUsage(100, 0, 0, tokens)))
    await second.order.applied(ev.TenantChanged("t", 2.0))
    assert second.order._outbox.number == before + 1
    assert second.cell.calls.running(grant.call_id).usage.output_tokens == 499
    await members.equal()


# --- connections ------------------------------------------------------------------------------------


async def test_each_event_counts_once_though_connections_are_cut(members):
    made = await members.with_workers(speakers=2, silent=2)
    carried = asyncio.create_task(traffic(made, 25, concurrency=16))
    cut = 0
    while not carried.done():
        rows = len(made[0].rows("accepted"))
        await until(lambda rows=rows: len(made[0].rows("accepted")) > rows + 3 or carried.done())
        cut += members.redis.client_kill_filter(_type="normal", skipme=True)
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


async def test_another_process_speaks_once_the_lease_has_run_out(members):
    first, second, third = await members.with_workers(speakers=2, silent=1)
    assert first.order.speaks
    assert not second.order.speaks
    token = members.redis.get(f"{PREFIX}:speaker")
    assert 0 < members.redis.pttl(f"{PREFIX}:speaker") <= log_speaker.LEASE_S * 1000
    await first.stop_speaking()
    ticks = len(third.ticks)
    await until(lambda: second.order.speaks)
    assert members.redis.get(f"{PREFIX}:speaker") != token
    await until(lambda: len(third.ticks) > ticks + 3)
    speakers = [tick.speaker for _, tick in third.ticks]
    change = speakers.index(second.order.process)
    assert set(speakers[:change]) == {first.order.process}
    assert set(speakers[change:]) == {second.order.process}
    # It spoke only after the lease had run out, by Redis' own clock.
    at = [entry.ms for entry, _ in third.ticks]
    assert at[change] - at[change - 1] >= log_speaker.LEASE_S * 1000
    await members.equal()


async def test_a_speaker_that_leaves_is_replaced_at_once(members, monkeypatch):
    first, second, third = await members.with_workers(speakers=2, silent=1)
    monkeypatch.setattr(log_speaker, "LEASE_S", 3600.0)
    await until(lambda: members.redis.pttl(f"{PREFIX}:speaker") > 10_000)
    await first.stop_speaking(leave=True)
    await until(lambda: second.order.speaks)
    assert first.spoke == [True, False]
    assert third.spoke == []
    await members.equal()


async def test_a_speaker_that_lost_its_lease_is_silent(members):
    first, second = await members.with_workers(silent=1)
    members.redis.set(f"{PREFIX}:speaker", "another", px=3_600_000)
    await until(lambda: not first.order.speaks)
    ticks = [entry for entry, _ in second.ticks]
    assert first.spoke == [True, False]
    members.redis.delete(f"{PREFIX}:speaker")
    await until(lambda: first.order.speaks)
    await until(lambda: len(second.ticks) > len(ticks))
    await members.equal()


async def test_nothing_new_is_accepted_without_ticks(members):
    first, second = await members.with_workers()
    second.order.require()
    assert second.order.accepts
    await first.stop_speaking()
    await until(lambda: not second.order.accepts)
    lag_s = second.order.lag_s
    assert log_order.SILENCE_S < lag_s < second.order.lag_s, "it grows until somebody speaks"
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


REJECTS = {
    "it is full": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "it lacks replicas": (
        "CONFIG SET min-replicas-to-write 1",
        "CONFIG SET min-replicas-to-write 0",
    ),
    "it is a replica now": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "its disk is full": ("BGSAVE", "CONFIG SET stop-writes-on-bgsave-error no"),
}
"""Commands after which a Redis rejects writes, and those after which it accepts them again."""


@pytest.mark.parametrize("why", REJECTS)
async def test_nothing_new_is_accepted_while_redis_rejects_writes(tmp_path, why):
    begins, ends = REJECTS[why]
    async with members_of(tmp_path) as members:
        (members.server.folder / "dump.rdb").mkdir()  # so that Redis cannot write its data there
        members.redis.config_set("save", "3600 100000")
        first, second = await members.with_workers()
        members.redis.execute_command(*begins.split())
        await until(lambda: not first.order.accepts and not second.order.accepts)
        wait = asyncio.create_task(second.order.applied(second.submitted("a")))
        await settle()
        members.redis.execute_command(*ends.split())
        await wait
        await until(lambda: first.order.accepts and second.order.accepts)
        await members.equal()
        assert first.rows("accepted") == {"a": 1}


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
    async with members_of(tmp_path, keeps=True) as members:
        server = members.server
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


async def test_all_leave_an_epoch_of_which_one_has_read_what_is_lost(members):
    # The speaker has not read the last entry, so it finds nothing missing.
    first, second = await members.with_workers()
    epoch = first.order.epoch
    async with suspended(first):
        await second.order.applied(second.submitted("a"))
        members.redis.xdel(f"{PREFIX}:log:{epoch}", str(second.last))
        members.redis.client_kill_filter(_type="normal", skipme=True)
    await until(
        lambda: {each.order.epoch for each in members.all} - {epoch} and second.order.attached
    )
    await members.equal()
    assert first.order.epoch > epoch
    assert first.rows("accepted") == {"a": 1}
    await until(lambda: first.order.accepts and second.order.accepts)


async def test_the_speaker_with_less_lets_the_furthest_begin_the_epoch(members):
    first, second = await members.with_workers(speakers=2, silent=0)
    assert first.order.speaks
    async with suspended(first):
        await second.order.applied(second.submitted("a"))
        last = second.last
        members.redis.xdel(f"{PREFIX}:log:{first.order.epoch}", str(last))
        members.redis.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: second.order.speaks)
    await members.equal()
    assert second.rows("accepted") == {"a": 1}
    assert first.rows("accepted") == {}  # it is in the state of the other
    assert first.cell.calls.running("app/a")


async def test_a_process_that_was_suspended_reads_the_stored_state(members, monkeypatch):
    first, second = await members.with_workers()
    log = f"{PREFIX}:log:{first.order.epoch}"
    async with suspended(second):
        wait = asyncio.create_task(second.order.applied(second.submitted("a")))
        await until(lambda: first.rows("accepted"))
        last = first.last
        monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
        await until(lambda: members.redis.xrange(log, count=1)[0][0] > str(last).encode())
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


async def test_the_calls_of_a_silent_process_end_and_no_others(members, monkeypatch):
    monkeypatch.setattr(live_processes, "SILENT_TICKS", 16)
    monkeypatch.setattr(live_processes, "LOST_TICKS", 32)
    monkeypatch.setattr(log_order, "BEAT_TICKS", 4)
    first, second, third = await members.with_workers(silent=2)
    await second.order.applied(second.submitted("running"))
    await third.order.applied(third.submitted("kept"))
    for worker in ("w0", "w1"):
        await first.order.applied(ev.WorkerDraining(worker))
    await second.order.applied(second.submitted("queued"))
    await third.order.applied(third.submitted("waits"))
    async with suspended(second):
        await until(lambda: first.rows("closed"))
        assert first.rows("closed") == {"queued": 1}, "it may still carry its running call"
        await until(lambda: len(first.rows("closed")) == 2)
        # It has not read that its calls have ended.
        usage = TokenUsage(100, 0, 0, 5)
        second.order.put(Progress("app/running", True, usage))
        second.order.put(Release("app/running", "completed", usage))
        await second.order.kept()
    ticks = len(first.ticks)
    await until(lambda: len(first.ticks) > ticks + 2 * live_processes.LOST_TICKS)
    await members.equal()
    assert all(each.rows("closed") == {"queued": 1, "running": 1} for each in members.all)
    stopped = {
        each.record_id: type(each[1])
        for each in second.outputs
        if isinstance(each, CallAnswer | CallMessage) and not isinstance(each[1], Attached | Grant)
    }
    assert stopped == {"queued": UnavailableError, "running": Cancel}
    assert second.cell.calls.granted == second.cell.calls.waiting == 1
    await third.order.applied(ev.WorkerUndrained("w0"))
    assert len(third.granted("waits")) == 1


async def test_a_process_that_differs_reads_the_stored_state(members):
    first, second = await members.with_workers()
    second.order.shared_cell.check ^= 1  # as after an output that the others do not have
    await until(lambda: len(second.replaced) == 2)
    await members.equal()
    await traffic([first, second], 3)
    await members.equal()
    assert len(second.replaced) == 2


async def test_a_process_that_the_cell_forgot_begins_anew(members, monkeypatch):
    first, second = await members.with_workers()
    await traffic([first, second], 3)
    monkeypatch.setattr(log_outbox, "REPEATED_S", 0.0)
    monkeypatch.setattr(shared_cell, "FORGOTTEN_S", -1.0)
    await until(
        lambda: first.order.shared_cell.snapshot()["seen"] == {} and not second.order._outbox._sent
    )
    ticks = len(second.ticks)
    await until(lambda: len(second.ticks) > ticks + 1)
    monkeypatch.setattr(shared_cell, "FORGOTTEN_S", 3600.0)
    members.redis.client_kill_filter(_type="normal", skipme=True)
    process = second.order.process
    kept = asyncio.create_task(second.order.kept())
    await second.order.applied(second.submitted("a"))
    await kept
    assert second.order.process != process
    await members.equal()
    assert first.rows("accepted")["a"] == 1


# --- a network ---------------------------------------------------------------------------------------


@pytest.fixture
async def linked(redis_server, tmp_path, short_times):
    """Yield the processes over a Redis in another network namespace, with a link of its own for one."""
    try:
        namespace = LinkedNamespace(["first", "second"])
    except OSError as error:
        pytest.skip(f"no network namespace may be made here: {error}")
    first = namespace.addresses["first"]
    open_to_all = ["--bind", "0.0.0.0", "--protected-mode", "no"]
    redis = await asyncio.to_thread(
        RedisProcess, tmp_path / "redis", *open_to_all, prefix=namespace.prefix, host=first
    )
    members = Members(redis.url)
    members.namespace = namespace
    yield members
    await members.close()
    redis.close()
    namespace.close()


async def test_a_link_that_loses_all_packets_loses_no_call(linked):
    members, namespace = linked, linked.namespace
    first, third = await members.with_workers()
    members.url = members.url.replace(*(namespace.addresses[name] for name in ("first", "second")))
    second = await members.add()
    names = await traffic([first, second, third], 6)
    namespace.cut("second")
    await until(lambda: not second.order.attached)
    await until(lambda: not second.order.accepts)
    names += await traffic([first, third], 6, first=len(names))
    namespace.restore("second")
    await until(lambda: second.order.accepts)
    names += await traffic([first, second, third], 6, first=len(names))
    await members.equal()
    assert_none_lost(members, names)


# --- a failover -------------------------------------------------------------------------------------


@pytest.fixture
async def watched(redis_server, tmp_path):
    """Yield the processes over a Redis with replicas and sentinels."""
    servers = await asyncio.to_thread(WatchedRedis, tmp_path)
    members = Members(servers.url)
    members.servers = servers
    yield members
    await members.close()
    servers.close()


@pytest.mark.parametrize("planned", [False, True], ids=["the primary is killed", "planned"])
async def test_a_failover_loses_no_call(watched, planned):
    members, servers = watched, watched.servers
    made = await members.with_workers(speakers=2, silent=2)
    former, names = servers.primary(), []

    async def carry_until(done):
        while not done():
            names.extend(await traffic(made, 10, first=len(names)))

    names.extend(await traffic(made, 5))
    if planned:
        servers.fail_over()
    else:
        servers.servers[former].kill()
    await carry_until(lambda: servers.primary() != former)
    names.extend(await traffic(made, 10, first=len(names)))
    if not planned:  # it is empty, and takes itself for a primary at first
        await asyncio.to_thread(servers.servers[former].start)
        names.extend(await traffic([*made, await members.add()], 10, first=len(names)))
    await members.equal()
    assert_none_lost(members, names)
    if not planned:
        with redis.Redis(port=former) as client:
            # The sentinels make it a replica at some time, which has what the primary has.
            size, role = client.dbsize(), client.role()[0]
            assert size == 0 or role == "slave", "no process uses it"


# --- states -----------------------------------------------------------------------------------------


def stored_entry(server, epoch):
    """Return the entry of the stored state of an epoch."""
    data = server.get(f"{PREFIX}:snapshot:{epoch}")
    return EntryId.of(orjson.loads(zlib.decompress(data))["last"])


async def test_a_state_is_stored_only_after_the_rows_before_it(redis_url, members, monkeypatch):
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    rows = NO_ENTRY
    first = await members.add(speaks=True, stored=lambda member: rows)
    epoch = first.order.epoch
    begun = stored_entry(members.redis, epoch)
    await first.order.applied(ev.TenantChanged("t", 2.0))
    ticks = len(first.ticks)
    await until(lambda: len(first.ticks) > ticks + 5)
    assert stored_entry(members.redis, epoch) == begun
    rows = EntryId(2**60, 0)
    await until(lambda: stored_entry(members.redis, epoch) > begun)
    stored = stored_entry(members.redis, epoch)
    await until(
        lambda: stored_entry(members.redis, epoch) > stored
    )  # the log is cut one state later
    oldest = EntryId.of(members.redis.xrange(f"{PREFIX}:log:{epoch}", count=1)[0][0])
    assert oldest >= stored
    await members.add()
    await members.equal()


async def test_a_process_follows_from_a_state_that_is_replaced_before_it_reads_on(
    members, monkeypatch
):
    first, second = await members.with_workers()
    third = await members.add(start=False)
    await third.order.attach()
    await second.order.applied(second.submitted("a"))
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 1.0)
    await until(lambda: stored_entry(members.redis, first.order.epoch) > third.last)
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
    third.order.start()
    await members.equal()
    assert third.rows("accepted") == {"a": 1}


async def test_a_process_that_begins_with_an_old_state_takes_the_present_one(
    members, monkeypatch, caplog
):
    first, second = await members.with_workers()
    third = await members.add(start=False)
    await third.order.attach()
    log = f"{PREFIX}:log:{first.order.epoch}"
    await second.order.applied(second.submitted("a"))
    await members.settled([first, second])
    after = str(first.last).encode()
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    await until(lambda: members.redis.xrange(log, count=1)[0][0] > after)
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
    assert str(third.last).encode() < after, "the next entries are no longer there"
    third.order.start()
    await members.equal()
    assert third.rows("accepted") == {}
    assert third.cell.calls.running("app/a")
    assert "differ" not in caplog.text


async def test_two_states_within_a_moment_drop_no_entry(members):
    first, second = await members.with_workers()
    epoch, begun = first.order.epoch, stored_entry(members.redis, first.order.epoch)
    stored = []
    for member in (first, second):
        await second.order.applied(ev.TenantChanged("t", 2.0))
        await members.settled()
        state = state_bytes(member.order.shared_cell.snapshot())
        stored.append(member.last)
        assert await member.log.store_snapshot(epoch, state, member.last, kept_s=60)
    assert stored_entry(members.redis, epoch) == stored[1]
    assert [await first.log.where(epoch, each) for each in (begun, *stored)] == ["there"] * 3
    await second.order.applied(ev.TenantChanged("t", 3.0))
    assert await first.log.store_snapshot(epoch, state, second.last, kept_s=0)
    assert [await first.log.where(epoch, each) for each in (begun, *stored)] == [
        "trimmed",
        "trimmed",
        "there",
    ]


async def test_an_earlier_state_replaces_no_later_one(members, monkeypatch):
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    rows = NO_ENTRY
    first = await members.add(speaks=True, stored=lambda member: rows)
    epoch = first.order.epoch
    await until(lambda: first.speaker._state is not None)
    earlier = first.speaker._state[1]
    await members.add(speaks=True)
    await until(lambda: stored_entry(members.redis, epoch) > earlier)
    assert first.order.speaks, "who is silent stores states"
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
    rows = EntryId(2**60, 0)
    await until(lambda: first.speaker._state is None)
    assert stored_entry(members.redis, epoch) > earlier
    await members.add()
    await members.equal()


async def test_a_speaker_speaks_while_its_state_is_made(members, monkeypatch):
    first, _ = await members.with_workers()
    epoch, own_pid = first.order.epoch, os.getpid()
    before = set(children(own_pid))

    def endless():
        while os.getpid() != own_pid:
            time.sleep(0.01)
        raise AssertionError("the state is made by the process that speaks")

    monkeypatch.setattr(first.speaker, "_state_of", endless)
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    await until(lambda: set(children(own_pid)) - before)
    (child,) = set(children(own_pid)) - before
    ticks, stored = len(first.ticks), stored_entry(members.redis, epoch)
    await until(lambda: len(first.ticks) > ticks + 5)
    assert stored_entry(members.redis, epoch) == stored
    assert alive(child)
    await first.stop_speaking()
    assert not alive(child)


async def test_a_state_that_cannot_be_made_is_tried_again(members, monkeypatch, caplog):
    first, _ = await members.with_workers()
    epoch, stored = first.order.epoch, stored_entry(members.redis, first.order.epoch)
    for problem, text in (
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "exit code -9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(first.speaker, "_state_of", problem)
            patch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
            await until(lambda text=text: text in caplog.text)
    assert stored_entry(members.redis, epoch) == stored
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
    await until(lambda: stored_entry(members.redis, epoch) > stored)


async def test_no_collection_of_garbage_visits_a_state_that_is_stored_or_read(members, monkeypatch):
    first, second = await members.with_workers()
    collects = []

    def watch(cell, name):
        real = getattr(cell, name)

        def watched(*given):
            collects.append((name, gc.isenabled()))
            return real(*given)

        monkeypatch.setattr(cell, name, watched)

    watch(first.order.shared_cell, "snapshot")
    watch(second.order.shared_cell, "restore")
    second.order._stale = True
    first.speaker._state_of()
    second.order._detach()
    await until(lambda: len(collects) == 2)
    assert collects == [("snapshot", False), ("restore", False)]
    assert gc.isenabled()


async def test_the_speaker_takes_a_state_only_if_no_other_process_does(members, monkeypatch):
    first, second = [await members.add(speaks=True) for _ in range(2)]
    assert first.order.speaks
    taken = []

    def stores(member):
        store = member.log.store_snapshot

        async def noted(*given, **named):
            taken.append(member.name)
            return await store(*given, **named)

        return noted

    for member in (first, second):
        monkeypatch.setattr(member.log, "store_snapshot", stores(member))
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
    for number in range(1, 4):
        first.speaker._stored_s = second.speaker._stored_s = -math.inf  # both are due
        await until(lambda number=number: taken.count(second.name) == number)
    assert first.name not in taken
    await second.stop_speaking()
    monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)  # as after an hour
    await until(lambda: first.name in taken)


async def test_a_new_epoch_leaves_no_earlier_state(members):
    first, _ = await members.with_workers()
    epoch = first.order.epoch
    members.redis.delete(f"{PREFIX}:base")
    members.redis.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: first.order.epoch > epoch)
    await members.equal()
    keys = {key.decode() for key in members.redis.keys("*")}
    assert f"{PREFIX}:snapshot:{epoch}" not in keys
    assert f"{PREFIX}:snapshot:{first.order.epoch}" in keys
    assert 0 < members.redis.ttl(f"{PREFIX}:log:{epoch}") <= 60


async def test_an_epoch_is_later_than_one_of_a_server_whose_clock_was_ahead(members):
    later = 2**52
    members.redis.set(f"{PREFIX}:base", msgspec.json.encode(PresentEpoch(later, 1, {})))
    member = await members.add(speaks=True, start=False)
    member.order.epoch = 5  # it has a state
    await member.start()
    assert member.order.epoch == later + 1


# --- who may take part ------------------------------------------------------------------------------


async def test_a_process_with_other_options_is_rejected(members):
    await members.with_workers()
    agreement = {"max_queue_wait_s": 5.0, "max_queued_calls": 9}
    member = await members.add(start=False, agreement=agreement)
    with pytest.raises(CellMismatchError) as raised:
        await member.order.attach()
    assert str(raised.value) == (
        "the other processes of the cell would decide otherwise: max_queue_wait_s is 5.0 here and None"
        " there; max_queued_calls is 9 here and None there. Make them equal, or stop the others first"
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
    later = await members.add(speaks=True, agreement={"max_queue_wait_s": 5.0})
    await until(lambda: later.order.epoch > epoch and not later.order.differs)
    assert [live.record_id for live in later.cell.calls] == ["b"]
    await until(lambda: silent.failures)
    assert "max_queue_wait_s is None here and 5.0 there" in silent.failures[0]
    members.all.remove(silent)
    await silent.close()
    await later.call("c")
    joined = await members.add(agreement={"max_queue_wait_s": 5.0})
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


async def test_a_process_that_cannot_read_an_entry_leaves_the_cell(members):
    first, second = await members.with_workers()
    log = f"{PREFIX}:log:{first.order.epoch}"
    members.redis.xadd(
        log, {"b": batch_bytes(EventBatch("x", 1, [event_bytes(ev.WorkerLost("w"))]))[:-1]}
    )
    await until(lambda: first.failures and second.failures)
    assert "an entry of the log cannot be read" in second.failures[0]
    assert not second.order.accepts
    with pytest.raises(UnavailableError):
        second.order.require()
    members.all.clear()
    await asyncio.gather(first.close(), second.close())
