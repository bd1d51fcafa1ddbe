"""A call is in the journal before its grant, and has exactly one row after its end."""

import asyncio

import pytest
from control_world import World
from until import settle

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import (
    Attached,
    Cancel,
    Grant,
    Progress,
    RejectCall,
    Release,
)
from fairserve.platform.control.order import OwnOrder
from fairserve.scheduling import events as ev
from fairserve.throttling.base import Limits


async def test_a_granted_call_has_one_row(world):
    grant = await world.submit()
    assert isinstance(grant, Grant)
    assert grant.worker_id == "w0"
    assert world.messages == [Attached("app/run", 1, "")]
    world.now_s += 2
    assert world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 32, 3), True))
    world.now_s += 1
    usage = TokenUsage(100, 0, 32, 5)
    await world.control.release(Release(grant.call_id, "completed", usage, ttft_s=2.5))
    row = world.journal.row("row-run-c1")
    assert row["outcome"] == "completed"
    assert (row["input_tokens"], row["cached_tokens"], row["extend_tokens"]) == (100, 32, 68)
    assert (row["output_tokens"], row["service"], row["ttft_s"]) == (5, 110.0, 2.5)
    assert (row["queue_delay_s"], row["duration_s"], row["wasted"]) == (2.0, 3.0, False)
    assert (row["interaction_id"], row["worker"]) == ("run", "w0")


class LateLog(OwnOrder):
    """An order that keeps no event before ``logged``."""

    shared = True

    def __init__(self, control, world):
        self.logged = asyncio.Event()
        super().__init__(control.cell, control.execute, lambda: world.now_s, world.wall)

    async def kept(self):
        await self.logged.wait()


async def test_the_next_call_of_a_failed_one_is_after_its_end_in_the_order():
    """The client gets the error when the release returns, and may call another server."""
    world = World(order=LateLog)
    grant = await world.submit()
    released = asyncio.create_task(world.release(grant, "failed"))
    await settle()
    assert world.journal.row("row-run-c1")["outcome"] == "failed"
    assert not released.done()
    world.control.order.logged.set()
    await released
    await world.control.close()


async def test_the_journal_entry_precedes_the_grant(world):
    world.journal.hold = asyncio.Event()
    waiting = await world.submitted()
    assert [kind for kind, _, _ in world.journal.entries] == ["accepted", "open_interaction"]
    assert not waiting.done()
    world.journal.hold.set()
    assert isinstance(await waiting, Grant)


@pytest.mark.parametrize("fault", ["broken", "full"])
async def test_a_call_that_cannot_be_journaled_is_cancelled_without_a_row(world, fault):
    setattr(world.journal, fault, True)
    with pytest.raises(UnavailableError, match="disk full"):
        await world.submit()
    assert world.journal.rows() == []
    assert (await world.control.cluster()).running_calls == 0
    setattr(world.journal, fault, False)
    assert isinstance(await world.submit("c2"), Grant)


async def test_a_queued_call_waits_for_capacity(world):
    grants = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = await world.submitted("c9", run="r9")
    assert not waiting.done(), "both feed windows are full"
    world.control.progress(Progress(grants[0].call_id, True, TokenUsage(100)))
    assert (await waiting).worker_id == grants[0].worker_id


async def test_releasing_twice_writes_one_row(world):
    grant = await world.submit()
    await world.release(grant)
    await world.release(grant, "failed")
    assert world.journal.row("row-run-c1")["outcome"] == "completed"


async def test_a_disconnected_granted_call_is_recorded_with_its_usage(world):
    grant = await world.submit()
    world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 7)))
    world.control.cancel(Cancel(grant.call_id))
    row = world.journal.row("row-run-c1")
    assert (row["outcome"], row["output_tokens"], row["wasted"]) == ("cancelled", 7, True)


async def test_a_cancelled_submit_removes_the_queued_call(world):
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = await world.submitted("c9", run="r9")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    row = world.journal.row("row-r9-c9")
    assert (row["outcome"], row["wasted"], row["output_tokens"]) == ("cancelled", False, 0)
    assert (await world.control.cluster()).queued_calls == 0


async def test_a_submit_cancelled_after_its_grant_leaves_nothing_running(world):
    world.journal.hold = asyncio.Event()
    waiting = await world.submitted()
    waiting.cancel()  # granted by control, but not yet synced by the journal
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.journal.row("row-run-c1")["outcome"] == "cancelled"
    assert (await world.control.cluster()).running_calls == 0


async def test_a_failed_worker_is_replaced_by_another(world):
    grant = await world.submit()
    again = await world.control.release(
        Release(grant.call_id, "failed", TokenUsage(), retry_on_another_worker=True)
    )
    assert again.call_id == grant.call_id
    assert again.worker_id != grant.worker_id
    await world.release(again)
    assert world.journal.row("row-run-c1")["worker"] == again.worker_id


async def test_a_stale_release_does_not_end_a_requeued_call(world):
    grant = await world.submit("c1", run="r1")
    for worker in ("w0", "w1"):
        world.control.post(ev.WorkerDraining(worker))
    message = Release(grant.call_id, "failed", TokenUsage(), retry_on_another_worker=True)
    again = asyncio.create_task(world.control.release(message))
    stray = asyncio.create_task(world.release(grant))  # begins after the requeue
    assert await stray is None
    assert not again.done(), "no worker takes calls"
    assert not world.journal.rows()
    world.control.post(ev.WorkerJoined("w2", 1000))
    assert (await again).worker_id == "w2"


async def test_a_rejection_has_a_row_with_its_reason(make_world):
    world = make_world("rpm-1")
    grant = await world.submit("c1")
    await world.release(grant)
    rejected = await world.submit("c2")
    assert isinstance(rejected, RejectCall)
    assert rejected.mid_run
    row = world.journal.row("row-run-c2")
    assert (row["outcome"], row["refusal_reason"]) == ("refused", "rpm_user_limit")
    assert (row["refusal_limit"], row["refusal_count"], row["mid_run"]) == (1, 2, True)


async def test_limits_are_reported_as_the_throttle_counts(world):
    world.control.post(ev.AppChanged("app", DEFAULT_PROFILE, Limits(user_rpm=3)))
    assert world.control.limits_in_use("t", "app", "u").throttle.remaining == 3
    await world.submit("c1", run="r1")
    world.now_s += 10
    view = world.control.limits_in_use("t", "app", "u").throttle
    assert (view.limit, view.remaining, view.reset_s) == (3, 2, 50.0)
    assert world.control.limits_in_use("t", "app", "someone else").throttle.remaining == 3
    assert world.control.limits_in_use("t", "app without limits", "u").throttle is None


async def test_a_call_that_started_at_another_worker_is_recorded_there(world):
    grant = await world.submit()
    other = "w1" if grant.worker_id == "w0" else "w0"
    assert world.control.moved(grant.call_id, other)
    calls = {worker.worker_id: worker.calls for worker in (await world.control.cluster()).workers}
    assert calls == {grant.worker_id: 0, other: 1}
    await world.release(grant)
    assert world.journal.row("row-run-c1")["worker"] == other


async def test_a_call_moves_to_no_unknown_worker_and_not_after_its_end(world):
    grant = await world.submit()
    assert not world.control.moved(grant.call_id, "w9")
    await world.release(grant)
    assert not world.control.moved(grant.call_id, "w1")
    assert world.journal.row("row-run-c1")["worker"] == grant.worker_id
