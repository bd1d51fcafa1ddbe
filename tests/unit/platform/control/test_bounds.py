"""Control bounds the wait, the lease of a granted call, the queue, and the time to stop."""

import asyncio
from functools import partial

import pytest
from counted_lines import lines_of
from until import settle

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import RateLimitedError, UnavailableError
from fairserve.platform.control.messages import Progress
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.admission import AdmissionOptions


async def test_a_call_that_waited_too_long_expires(make_world):
    world = make_world(max_queue_wait_s=10)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = await world.submitted("c9", run="r9")
    world.pass_time(9.9)
    assert not world.journal.rows()
    world.pass_time(0.2)
    with pytest.raises(UnavailableError, match="within 10 s") as raised:
        await waiting
    assert raised.value.headers["Retry-After"]
    assert world.journal.row("row-r9-c9")["outcome"] == "expired"


async def test_a_lease_without_progress_expires(make_world):
    world = make_world(lease_s=10)
    grant = await world.submit()
    world.pass_time(9)
    assert world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 2)))
    world.pass_time(9)
    assert not world.journal.rows()
    world.pass_time(1.1)
    row = world.journal.row("row-run-c1")
    assert (row["outcome"], row["output_tokens"], row["wasted"]) == ("failed", 2, True)
    assert [cancel.call_id for cancel in world.cancelled] == [grant.call_id]
    assert not world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 3)))
    assert await world.release(grant) is None
    assert len(world.journal.rows()) == 1


async def test_a_full_queue_rejects_and_records(make_world):
    world = make_world(max_queued_calls=1, tenant_share=1, user_share=1)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = await world.submitted("c8", run="r8")
    with pytest.raises(UnavailableError) as raised:
        await world.submit("c9", run="r9", tenant="other", user="v")
    assert raised.value.code == "queue_full"
    row = world.journal.row("row-r9-c9")
    assert (row["outcome"], row["refusal_reason"]) == ("refused", "queue_full")
    world.control.post(ev.WorkerJoined("other", 1000, "other"))
    grant = await world.submit("c10", run="r10", pool="other")
    assert grant.worker_id == "other", "the queue of another model is not full"
    models = {model.model: model for model in (await world.control.cluster()).models}
    assert (models[""].queued_calls, models["other"].queued_calls) == (1, 0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize(
    ("scope", "shares", "admitted"),
    [
        ("user", {"user_share": 0.25, "tenant_share": 1}, {"user": "v"}),
        ("tenant", {"tenant_share": 0.25, "user_share": 1}, {"tenant": "other"}),
    ],
)
async def test_a_client_that_fills_its_share_of_the_queue_blocks_no_other(
    make_world, scope, shares, admitted
):
    world = make_world(max_queued_calls=8, **shares)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = [await world.submitted(f"w{n}", run=f"w{n}") for n in range(2)]
    with pytest.raises(
        RateLimitedError, match=f"2 calls of this {scope} wait for the model"
    ) as raised:
        await world.submit("c9", run="r9")
    assert (raised.value.code, raised.value.headers["Retry-After"]) == ("queue_share_full", "5")
    row = world.journal.row("row-r9-c9")
    assert (row["refusal_reason"], row["refusal_scope"]) == ("queue_share_full", scope)
    assert (row["refusal_limit"], row["refusal_count"]) == (2, 2)
    waiting.append(await world.submitted("c10", run="r10", **admitted))
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    waiting.append(await world.submitted("c11", run="r11"))
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert world.control.cell.dispatcher.queued("") == 0


@pytest.mark.parametrize(
    ("bounds", "newcomer", "error", "scope"),
    [
        ({"tenant_share": 1, "user_share": 1}, {"tenant": "other"}, UnavailableError, None),
        ({"tenant_share": 1, "user_share": 1}, {"app": "quiet"}, UnavailableError, None),
        ({"tenant_share": 0.5, "user_share": 1}, {"user": "v"}, RateLimitedError, "tenant"),
    ],
)
async def test_an_arrival_under_its_share_takes_the_place_of_who_has_most(
    make_world, bounds, newcomer, error, scope
):
    world = make_world(max_queued_calls=3 if scope is None else 6, **bounds)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = [await world.submitted(f"w{n}", run=f"w{n}") for n in range(3)]
    waiting.append(await world.submitted("c9", run="r9", **newcomer))
    code = "queue_full" if scope is None else "queue_share_full"
    with pytest.raises(error) as raised:
        await waiting.pop(2)
    assert (raised.value.code, raised.value.headers["Retry-After"]) == (code, "5")
    row = world.journal.row("row-w2-w2")
    assert (row["outcome"], row["charged"], row["mid_run"]) == ("refused", True, False)
    assert (row["refusal_reason"], row["refusal_scope"], row["refusal_count"]) == (code, scope, 3)
    assert world.control.cell.dispatcher.queued("") == 3
    with pytest.raises(error):
        await world.submit("c8", run="r8")
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(world.journal.rows()) == 5, "each call that ended has one row"
    world.journal.accepted["row-w2-w2"].clear()
    waiting = await world.submitted("w2", run="w2")
    assert (await world.control.interaction("app/w2")).calls == 1, "the id may be used again"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_call_of_a_run_in_progress_takes_the_place_of_its_users_new_run(make_world):
    world = make_world(max_queued_calls=2, tenant_share=1, user_share=1)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = [await world.submitted("d0", run="r0"), await world.submitted("w", run="w")]
    second = await world.submitted("d1", run="r1")
    with pytest.raises(UnavailableError):
        await waiting[1]
    with pytest.raises(UnavailableError):
        await world.submit("e0", run="r0")
    row = world.journal.row("row-r0-e0")
    assert (row["mid_run"], row["refusal_reason"]) == (True, "queue_full")
    for each in (waiting[0], second):
        each.cancel()
    await asyncio.gather(waiting[0], second, return_exceptions=True)


async def test_no_call_takes_the_place_of_a_call_of_its_own_run(make_world):
    world = make_world(max_queued_calls=2, tenant_share=1, user_share=1)
    for n in range(2):
        await world.submit(f"c{n}", run=f"r{n}")
    waiting = [await world.submitted(name, run=name) for name in ("a", "b")]
    with pytest.raises(UnavailableError):
        await world.submit("b1", run="b")
    assert world.journal.row("row-b-b1")["refusal_reason"] == "queue_full"
    assert world.control.cell.dispatcher.queued("") == 2
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(world.journal.rows()) == 3


async def test_opened_runs_have_a_share_and_a_rate_limit(make_world):
    world = make_world(admission=AdmissionOptions(openings_per_minute=2))
    for name in "ab":
        await world.control.open_interaction(*(name, "t", "app", "u"))
    with pytest.raises(RateLimitedError, match="2 interactions within a minute") as raised:
        await world.control.open_interaction(*("c", "t", "app", "u"))
    assert (raised.value.code, raised.value.headers["Retry-After"]) == ("too_many_openings", "60")
    await world.control.open_interaction(*("c", "t", "app", "v"))
    await world.control.open_interaction(*("other/c", "t", "other", "u"))
    world.pass_time(61)
    await world.control.open_interaction(*("d", "t", "app", "u"))


async def test_draining_rejects_new_calls_and_waits(world):
    grant = await world.submit("c1")
    draining = asyncio.create_task(world.control.drain(60))
    late = asyncio.create_task(world.submit("c2"))  # begins after the drain
    with pytest.raises(UnavailableError) as raised:
        await late
    assert raised.value.code == "draining"
    assert not draining.done()
    await world.release(grant)
    await draining


async def test_draining_aborts_calls_at_its_time_limit(world):
    grant = await world.submit("c1", run="r1")
    await world.submit("c2", run="r2")
    waiting = await world.submitted("c3", run="r3")
    await world.control.drain(0)
    with pytest.raises(UnavailableError):
        await waiting
    assert {row["outcome"] for row in world.journal.rows()} == {"failed"}
    assert len(world.journal.rows()) == 3
    assert grant.call_id in [cancel.call_id for cancel in world.cancelled]


async def test_a_worker_is_read_at_the_same_cost_among_any_number(make_world):
    """Each is read with each of its probes, once a second."""
    world, lines = make_world(), {}
    for workers in (4, 64):
        for number in range(workers):
            if await world.control.worker(name := f"worker {number}") is None:
                world.control.observe(ev.WorkerJoined(name, 1000))
        await settle()
        read = world.control.worker("worker 3")
        lines[workers] = lines_of(partial(next, read.__await__(), None))
    assert lines[64] == lines[4]
