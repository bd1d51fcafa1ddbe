"""The system, its parameters and levels change while calls run and wait, without losing a call."""

import asyncio

import pytest

from fairserve.interactions.call import TokenUsage
from fairserve.platform.control.cell_events import DecodedTokensDue
from fairserve.platform.control.messages import Progress
from fairserve.scheduling import events as ev


@pytest.mark.parametrize("system", ["fcfs", "fs-wi", "d2lpm", "rpm-20", "fairserve"])
async def test_the_system_changes_while_calls_run_and_wait(world, system):
    running = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = [await world.submitted(f"q{n}", run=f"q{n}") for n in range(3)]
    await asyncio.to_thread(world.control.apply_throttling, system, {"immunity_factor": 5.0})
    assert (await world.control.cluster()).system == system
    for grant in running:
        await world.release(grant)
    for task in waiting:
        await world.release(await task)
    # The new system continues, while workers leave and calls arrive.
    world.control.post(ev.WorkerLost("w0"))
    await world.release(await world.submit("later", run="later"))
    assert len(world.journal.rows()) == 6
    assert {row["outcome"] for row in world.journal.rows()} == {"completed"}


@pytest.mark.parametrize("system", ["fcfs", "preble", "cache-aware", "d2lpm", "fairserve"])
async def test_the_system_changes_while_a_worker_drains(world, system):
    world.control.apply_throttling("fcfs", {})
    grants = [await world.submit(f"c{n}", run=f"r{n}") for n in range(4)]
    assert {grant.worker_id for grant in grants} == {"w0", "w1"}
    world.control.post(ev.WorkerDraining("w0"))
    world.control.apply_throttling(system, {})
    for grant in grants:
        if grant.worker_id == "w1":
            await world.release(grant)
    last = await asyncio.wait_for(world.submit("c4", run="r4"), 20)
    assert last.worker_id == "w1"
    world.control.post(ev.WorkerUndrained("w0"))
    for grant in (*(each for each in grants if each.worker_id == "w0"), last):
        await world.release(grant)
    assert {row["outcome"] for row in world.journal.rows()} == {"completed"}
    view = await world.control.cluster()
    assert [(worker.calls, worker.demand_tokens) for worker in view.workers] == [(0, 0), (0, 0)]


async def test_a_new_feeder_charges_the_usage_of_running_calls(world):
    grant = await world.submit("c1", run="r1")
    world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 5000)))
    world.control.order.put(DecodedTokensDue())
    feeder = world.control.cell.dispatcher.first.feeder
    used = feeder.counter(("t", "u"))
    world.control.apply_throttling("fairserve", {"feeder.max_bypass": 7})
    after = world.control.cell.dispatcher.first.feeder
    assert after is not feeder
    assert after.counter(("t", "u")) == pytest.approx(used)


async def test_an_invalid_parameter_changes_nothing(world):
    with pytest.raises(ValueError, match="unknown option"):
        world.control.apply_throttling("fcfs", {"nonsense": 1})
    with pytest.raises(ValueError, match="nonsense"):
        world.control.apply_throttling("fairserve", {"feeder.nonsense": 1})
    assert (await world.control.cluster()).system == "fairserve"


@pytest.mark.parametrize("levels", ["user", "tenant > app > user"])
async def test_levels_change_while_calls_run_and_wait(make_world, levels):
    world = make_world()
    running = await world.submit("c1", run="r1")
    assert running.client_id == "t/u"
    other = await world.submit("c2", run="r2")
    waiting = {await world.submitted(f"c{n}", run=f"r{n}", user=f"u{n % 2}") for n in range(3, 7)}
    assert not any(task.done() for task in waiting)
    world.control.apply_throttling("fairserve", {"levels": levels})
    with pytest.raises(ValueError, match="levels is 'team'"):
        world.control.apply_throttling("fairserve", {"levels": "team"})
    world.control.apply_throttling("fairserve", {"levels": levels, "local.we": 2.0})
    await world.release(running)
    await world.release(other)
    prefix = "t%2Fu" if levels == "user" else "t/app/u"
    while waiting:
        granted, waiting = await asyncio.wait(
            waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED
        )
        assert granted, "nothing stalls"
        for task in granted:
            assert task.result().client_id.startswith(prefix)
            await world.release(task.result())


async def test_a_tenant_keeps_its_own_levels_when_the_system_changes(make_world):
    world = make_world()
    grants = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = await world.submitted("c2", run="r2")
    world.control.post(ev.TenantChanged("t", levels="tenant > app > user"))
    world.control.apply_throttling("fairserve", {"feeder.max_bypass": 7})
    paths = [live.call.client for live in world.control.cell.calls]
    assert paths == [("t", "u"), ("t", "u"), ("t", "app", "u")], (
        "running calls stay where they were"
    )
    feeder = world.control.cell.dispatcher.first.feeder
    assert feeder.counter(("t", "u")) > 0
    for grant in grants:
        await world.release(grant)
    assert feeder.counter(("t", "app", "u")) == feeder.counter(("t", "app")) > 0
    world.control.apply_throttling("fairserve", {"levels": "user"})
    assert (await waiting).client_id == "t/app/u"
    await world.release(await waiting)
    assert (await world.submit("c3", run="r3")).client_id == "t/app/u"


async def test_newcomers_share_a_client_between_switches(world):
    """Clients change with the rule, not with its numbers: then the known users are kept."""
    grant = await world.submit("c1", run="r1")
    world.control.progress(Progress(grant.call_id, True, TokenUsage(100, 0, 0, 5000)))
    world.control.order.put(DecodedTokensDue())
    dispatcher = world.control.cell.dispatcher
    used = dispatcher.first.feeder.counter(("t", "u"))
    common = ("t", "\0newcomers of app")
    world.control.apply_throttling("fairserve", {"newcomers": "shared", "newcomer_slices": 1e6})
    assert dispatcher.first.feeder.counter(common) == pytest.approx(used)
    known = dispatcher.newcomers
    options = {"newcomers": "shared", "newcomer_slices": 0.5, "newcomer_growth_s": 0.0}
    world.control.apply_throttling("fairserve", options)
    assert dispatcher.newcomers is known
    await world.release(grant)
    assert known.known("t", "app", "u", now_s=0.0)
    waiting = await world.submit("c2", run="r2")
    world.control.apply_throttling("fairserve", {**options, "feeder.max_bypass": 7})
    assert dispatcher.first.feeder.counter(("t", "u")) > 0
    await world.release(waiting)
    world.control.apply_throttling("fairserve", {})
    assert dispatcher.newcomers is None
